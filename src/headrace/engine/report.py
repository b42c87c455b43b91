"""What went wrong inside, for the operator's log: a request is told in one sentence only."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def report(what: str) -> None:
    """Logs the exception that is being handled, with its traceback; silent in a process that has
    set up no log."""
    if log.hasHandlers():
        log.exception("%s", what)
