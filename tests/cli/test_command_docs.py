"""docs/commands.md says what --help says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_page_is_what_the_program_says() -> None:
    tool = Path(__file__).parents[2] / "tools" / "write_command_docs.py"
    result = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
