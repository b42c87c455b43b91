"""Ladder: the candidates of one position through the stages of the sampler, as a table of bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from headrace.ui.facts.traces import TITLES, Shot, Token


class Ladder(Element, component="ladder.js"):
    """forked: called with the id of a candidate that somebody wants to go on with."""

    def __init__(self, forked: Callable[[int], None]) -> None:
        super().__init__()
        self._props["view"] = {}

        def fork(event: GenericEventArguments) -> None:
            if isinstance(event.args, int):
                forked(event.args)

        self.on("fork", fork)

    def show(
        self, token: Token, shots: Sequence[Shot], num_rows: int, caption: str, busy: bool
    ) -> None:
        """Draws one token's distributions; busy: nothing can be forked just now."""
        self._props["view"] = {
            "caption": caption,
            "busy": busy,
            "columns": [
                _column(shot, before)
                for shot, before in zip(shots, (None, *shots[:-1]), strict=True)
            ],
            "rows": _rows(token, shots, num_rows),
        }

    def clear_view(self) -> None:
        self._props["view"] = {}


def _column(shot: Shot, before: Shot | None) -> dict[str, str]:
    low, high = shot.num_candidates
    number = f"{low:,}" if low == high else f"{low:,} … {high:,}"
    about = "≈ " if shot.why else ""
    return {
        "name": shot.name,
        "title": TITLES.get(shot.name, shot.name),
        "number": f"{number} left",
        "entropy": f"{about}{shot.entropy:.2f} nats",
        "removed": "" if before is None else _removed(shot, before),
        "mass": "" if not shot.removed else f"{about}−{shot.removed:.1%} of mass",
        "words": "; ".join(shot.why),
    }


def _removed(shot: Shot, before: Shot) -> str:
    """How many candidates a stage took away, where that is known."""
    (low, high), (fewest, most) = before.num_candidates, shot.num_candidates
    if low != high or fewest != most:
        return ""
    return f"removed {low - fewest:,}" if low > fewest else "removed none"


def _rows(token: Token, shots: Sequence[Shot], num_rows: int) -> list[dict[str, Any]]:
    ids = list(dict.fromkeys([*shots[0].ids[:num_rows], *shots[-1].ids[:num_rows]]))[:num_rows]
    if token.id not in ids:
        ids.append(token.id)
    return [
        {
            "id": one,
            "text": repr(token.text_of(one) if one != token.id else token.text),
            "drawn": one == token.id,
            "cells": [shot.probability(one) for shot in shots],
            "words": [_word(shot, one) for shot in shots],
        }
        for one in ids
    ]


def _word(shot: Shot, token: int) -> str:
    """Why a cell has no number."""
    is_gone = token in shot.ids or shot.tail_mass < 1e-12
    return "removed" if is_gone else "not named"
