"""The example in docs/limits.md is what the cost interpreter says today."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_documented_code import ENVIRONMENT, ROOT


@pytest.mark.models
def test_the_example_is_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_limits_docs.py", "--check"],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
