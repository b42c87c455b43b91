"""Runs `headrace plan` inside this process, as the command line does, and reads its JSON."""

from __future__ import annotations

import json
from typing import Any

from command_line import headrace

#: A machine of round numbers, so that nothing of these tests depends on the one they run on.
ROUND = """
[round]
kind = "gpu"
memory_bytes = 24e9
read_bytes_per_s = 1e12
bf16_ops_per_s = 100e12
f32_ops_per_s = 10e12
int8_ops_per_s = 200e12
price_usd_per_hour = 3.6

[blank]
kind = "cpu"
"""


def plan_text(*arguments: str) -> str:
    """Standard output of a plan that must work."""
    code, out, err = command("plan", *arguments)
    assert code == 0, err
    return out


def planned(*arguments: str) -> dict[str, Any]:
    """The JSON of a plan that must work."""
    values: dict[str, Any] = json.loads(plan_text(*arguments, "--json"))
    return values


def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    result = headrace(*arguments)
    return result.returncode, result.stdout, result.stderr
