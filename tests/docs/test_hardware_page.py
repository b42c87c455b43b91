"""The tables in docs/hardware.md are what `headrace plan` knows today."""

from __future__ import annotations

import subprocess
import sys

from test_documented_code import ENVIRONMENT, ROOT


def test_the_tables_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_hardware_docs.py", "--check"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
