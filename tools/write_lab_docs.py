"""Fills the tables of docs/lab/*.md, and copies the figures, from results of `headrace lab run`.

    headrace lab run all --quick --out lab-results
    python tools/write_lab_docs.py lab-results

On a page, what stands between `<!-- lab:NAME:WHAT -->` and `<!-- /lab -->` comes from the result of
NAME. WHAT: checks, predictions, conclusions, conditions, or the name of a table.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError, UsageError
from headrace.lab.findings_page import part
from headrace.lab.result import Result, read_result

PAGES = Path(__file__).parents[1] / "docs" / "lab"
MARK = re.compile(r"(<!-- lab:([\w-]+):([^>]+?) -->\n).*?(<!-- /lab -->)", re.DOTALL)
#: The repository stays small.
MOST_IMAGE_BYTES = 120_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="where `headrace lab run --out` wrote")
    parser.add_argument("--only", help="the name of one experiment")
    arguments = parser.parse_args()
    results: dict[str, Result | None] = {}

    def find(name: str) -> Result | None:
        if arguments.only not in (None, name):
            return None
        if name not in results:
            there = (arguments.directory / name).is_dir()
            results[name] = read_result(arguments.directory / name) if there else None
        return results[name]

    try:
        for page in sorted(PAGES.glob("*.md")):
            text = page.read_text(encoding="utf-8")
            filled = fill(text, find)
            if filled != text:
                page.write_text(filled, encoding="utf-8")
                print(page)
        for name, result in results.items():
            if result is not None:
                copy_figures(result, arguments.directory / name)
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    missing = [name for name, result in results.items() if result is None]
    if missing and arguments.only is None:
        print(f"no results of: {', '.join(sorted(missing))}", file=sys.stderr)
    return 0


def fill(text: str, find: Callable[[str], Result | None]) -> str:
    """The page with every block whose result is there written anew. Raises UsageError for a block
    that the result does not have."""

    def block(match: re.Match[str]) -> str:
        result = find(match[2])
        if result is None:
            return match[0]
        if not result.passed:
            raise UsageError(f"The last run of {match[2]} failed its checks; it has no figures.")
        return f"{match[1]}{part(result, match[3])}\n{match[4]}"

    return MARK.sub(block, text)


def copy_figures(result: Result, directory: Path) -> None:
    """DIR/NAME/FIGURE.png → docs/lab/NAME-FIGURE.png."""
    for figure in result.data["figures"]:
        source = directory / Path(figure["file"]).name
        if source.stat().st_size > MOST_IMAGE_BYTES:
            raise UsageError(
                f"{source} is larger than {MOST_IMAGE_BYTES:,} bytes; make it plainer."
            )
        shutil.copyfile(source, PAGES / f"{result.name}-{source.name}")


if __name__ == "__main__":
    sys.exit(main())
