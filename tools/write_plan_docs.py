"""Writes the example in docs/plan.md: a plan as a terminal of 100 columns shows it.

    python tools/write_plan_docs.py [--check]

--check: changes nothing, exits 1 when the page is not up to date (a test runs it).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from headrace.limits.plan import ask, plan
from headrace.limits.plan.report import text

PAGE = Path(__file__).parent.parent / "docs" / "plan.md"
BEGIN, END = "<!-- example: written by tools/write_plan_docs.py -->", "<!-- end of example -->"
COMMAND = (
    "headrace plan llama-3.1-8b --hardware h100,rtx-4090 --prompt 2k --output 256 "
    "--concurrency 1,32"
)


def example() -> str:
    """The block between the markers."""
    question = ask(
        "llama-3.1-8b", hardware="h100,rtx-4090", prompt="2k", output="256", concurrency="1,32"
    )
    return f"```\n$ {COMMAND}\n{text(plan(question), 100)}\n```"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    block = f"{BEGIN}\n{example()}\n{END}"
    written = re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL
    )
    if written == page:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE} is not up to date: python tools/write_plan_docs.py")
        return 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
