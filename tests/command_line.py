"""The command line inside this process: what a command says and its exit code, without the second
that a process takes to start. It goes through the same door as a process, `headrace.cli.main.run`.

For commands that print and end, or refuse. What serves or reads its stdin needs a process.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.cli.main import run


@dataclass(frozen=True, slots=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def headrace(*arguments: str) -> Result:
    """Runs `headrace ARGUMENTS`. An exception that is no error message of a command is raised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _logging_kept():
        code = run(list(arguments))
    return Result(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _logging_kept() -> Iterator[None]:
    """A command may set up the logging of its process; here it is undone, after its last lines."""
    root, own = logging.getLogger(), logging.getLogger("headrace")
    handlers, levels = root.handlers[:], (root.level, own.level)
    try:
        yield
    finally:
        for handler in set(root.handlers).difference(handlers):
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        own.setLevel(levels[1])
