"""GrammarConstraint: one sample's walk through a compiled grammar, as the engine sees it.

Fits `engine.constraint.Constraint`. Wraps a matcher of llguidance, which never raises by itself:
its error states become exceptions here, and so does a panic of its native code.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Processor time that a constraint may take, seconds: so much at once, and so much more per token.
#: Ordinary grammars need a fiftieth of it; one that needs more would make other requests wait.
BURST_S = 0.2
PER_TOKEN_S = 0.002

#: Ways of stopping in which the text is complete; every other one is a limit that was reached.
_COMPLETE = ("NoExtension", "NoExtensionBias", "EndOfSentence")


class GrammarError(Exception):
    """The matcher cannot go on: a limit was reached, or a token does not fit."""


class GrammarConstraint:
    """One sample's state. Mutated by accept; one thread at a time."""

    __slots__ = ("_left_s", "_matcher")

    def __init__(self, matcher: LLMatcher, left_s: float = BURST_S) -> None:
        """matcher: from here on this object's own. left_s: processor time it may still take."""
        self._matcher = matcher
        self._left_s = left_s

    def mask(self) -> npt.NDArray[np.uint32]:
        """[at least V / 32] words, bit id & 31 of word id >> 5; end ids where the text may end."""
        began = time.thread_time()
        with NativeGuard():
            data = self._matcher.compute_bitmask()
        self._spend(time.thread_time() - began)
        if self._matcher.is_error():
            raise GrammarError(error_text(self._matcher))
        return np.frombuffer(data, dtype="<u4")

    def accept(self, token: int) -> None:
        """Moves on. Raises GrammarError when the token does not fit or a limit is reached."""
        began = time.thread_time()
        with NativeGuard():
            fits = self._matcher.consume_token(token)
        self._spend(time.thread_time() - began)
        self._left_s = min(self._left_s + PER_TOKEN_S, BURST_S)
        if not fits:
            raise GrammarError(error_text(self._matcher))

    def fork(self) -> GrammarConstraint:
        """A copy in the same state."""
        with NativeGuard():
            return GrammarConstraint(self._matcher.deep_copy(), self._left_s)

    @property
    def finished(self) -> bool:
        """Nothing but an end id can follow. Raises GrammarError when it is a limit that stops."""
        if not self._matcher.is_stopped():
            return False
        if self._matcher.is_error() or self._matcher.stop_reason() not in _COMPLETE:
            raise GrammarError(error_text(self._matcher))
        return True

    def _spend(self, seconds: float) -> None:
        self._left_s -= seconds
        if self._left_s < 0:
            raise GrammarError(
                f"the grammar needs more than {PER_TOKEN_S * 1e3:.0f} ms of processor time a token"
            )


class NativeGuard:
    """Turns a panic of native code, which is a BaseException, into GrammarError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and kind.__name__ == "PanicException":
            raise GrammarError(_one_line(str(error))) from None


def error_text(matcher: LLMatcher) -> str:
    """Why a matcher is in its error state, in one line."""
    text = _one_line(matcher.get_error() or matcher.stop_reason())
    return "no token can come next" if text.startswith("NoExtensionBias") else text


def _one_line(text: str) -> str:
    text = text.split("<backtrace>")[0].replace("<non-verbose/>", "")
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
