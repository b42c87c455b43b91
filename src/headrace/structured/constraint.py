"""GrammarConstraint: one sample's walk through a compiled grammar, as the engine sees it.

Fits `engine.constraint.Constraint`. Wraps a matcher of llguidance, which never raises by itself:
its error states become exceptions here, and so does a panic of its native code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Ways of stopping in which the text is complete; every other one is a limit that was reached.
_COMPLETE = ("NoExtension", "NoExtensionBias", "EndOfSentence")


class GrammarError(Exception):
    """The matcher cannot go on: a limit was reached, or a token does not fit."""


class GrammarConstraint:
    """One sample's state. Mutated by accept; one thread at a time."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        """matcher: in its first state, and from here on this object's own."""
        self._matcher = matcher

    def mask(self) -> npt.NDArray[np.uint32]:
        """[ceil(V / 32)] words, bit id & 31 of word id >> 5; end ids where the text may end."""
        with NativeGuard():
            data = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(error_text(self._matcher))
        return np.frombuffer(data, dtype="<u4")

    def accept(self, token: int) -> None:
        """Moves on. Raises GrammarError when the token does not fit or a limit is reached."""
        with NativeGuard():
            fits = self._matcher.consume_token(token)
        if not fits:
            raise GrammarError(error_text(self._matcher))

    def fork(self) -> GrammarConstraint:
        """A copy in the same state."""
        with NativeGuard():
            return GrammarConstraint(self._matcher.deep_copy())

    @property
    def finished(self) -> bool:
        """Nothing but an end id can follow. Raises GrammarError when it is a limit that stops."""
        if not self._matcher.is_stopped():
            return False
        if self._matcher.is_error() or self._matcher.stop_reason() not in _COMPLETE:
            raise GrammarError(error_text(self._matcher))
        return True


class NativeGuard:
    """Turns a panic of native code, which is a BaseException, into GrammarError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and kind.__name__ == "PanicException":
            raise GrammarError(_one_line(str(error))) from None


def error_text(matcher: LLMatcher) -> str:
    """Why a matcher is in its error state, in one line."""
    return _one_line(matcher.get_error() or matcher.stop_reason())


def _one_line(text: str) -> str:
    text = text.split("<backtrace>")[0].replace("<non-verbose/>", "")
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
