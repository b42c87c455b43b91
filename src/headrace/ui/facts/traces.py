"""Traces: one token of a stream with the distributions it was drawn from, kept small. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.ui.facts.resample import Known, Stage, Wish, resample

#: Stages by their names in a trace, as people read them.
TITLES: Mapping[str, str] = {
    "model": "model",
    "bias": "bias",
    "penalties": "penalties",
    "temperature": "temperature",
    "top_k": "top-k",
    "typical": "typical",
    "top_p": "top-p",
    "min_p": "min-p",
}


@dataclass(frozen=True, slots=True)
class Shot:
    """A distribution: after a stage, or the model's own. removed: the share of the mass before
    that this stage took away; None where it moved mass instead (temperature, penalties)."""

    name: str
    ids: tuple[int, ...]
    probabilities: tuple[float, ...]
    num_candidates: tuple[int, int]
    entropy: float
    tail_mass: float
    removed: float | None = None
    why: tuple[str, ...] = ()

    def probability(self, token: int) -> float | None:
        """Of a named candidate; None: it is not named, 0 where all that are left are named."""
        try:
            return self.probabilities[self.ids.index(token)] or None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Token:
    """One token that was drawn. probability: the model's own; entropy: of the model, nats.
    shots: the model's distribution and those after every stage that did something. known: what
    sliders recompute from; None when the server tells too little."""

    id: int
    text: str
    probability: float | None
    entropy: float
    shots: tuple[Shot, ...] = ()
    known: Known | None = None
    texts: Mapping[int, str] = field(default_factory=dict)
    forced: bool = False

    def text_of(self, token: int) -> str:
        return self.texts.get(token, f"#{token}")


def read_token(trace: Mapping[str, Any], text: str, logprob: float | None) -> Token:
    """One entry of `sampler_trace`. logprob: the model's own, of the drawn token, where told."""
    model = _shot("model", trace["model"])
    shots = [model]
    for stage in trace.get("stages") or ():
        if stage.get("active"):
            shots.append(_after(shots[-1], _shot(stage["name"], stage["after"])))
    try:
        known = Known.from_trace(trace)
    except ValueError:
        known = None
    drawn = int(trace["token"])
    texts = {int(key): str(value) for key, value in (trace.get("texts") or {}).items()}
    return Token(
        drawn,
        str(trace.get("text", text)),
        math.exp(logprob) if logprob is not None else model.probability(drawn),
        model.entropy,
        tuple(shots),
        known,
        texts,
    )


def recompute(token: Token, wish: Wish) -> tuple[Shot, ...]:
    """The model's distribution, and those after each stage under other parameters."""
    assert token.known is not None
    known = token.known
    shots = [shot for shot in token.shots if shot.name in ("model", "bias", "penalties")]
    for stage in resample(known, wish):
        if stage.active:
            shots.append(_after(shots[-1], _of_stage(known, stage)))
    return tuple(shots)


def _of_stage(known: Known, stage: Stage) -> Shot:
    return Shot(
        stage.name,
        known.ids,
        stage.probabilities,
        stage.num_candidates,
        stage.entropy,
        sum(stage.tail_mass) / 2,
        why=stage.why,
    )


def _shot(name: str, snapshot: Mapping[str, Any]) -> Shot:
    top = snapshot["top"]
    number = int(snapshot["num_candidates"])
    return Shot(
        name,
        tuple(int(one["id"]) for one in top),
        tuple(float(one["probability"]) for one in top),
        (number, number),
        float(snapshot["entropy"]),
        float(snapshot["tail_mass"]),
    )


def _after(before: Shot, after: Shot) -> Shot:
    """A thinning stage scales all that is left by the same factor; that tells what went."""
    if after.name not in ("top_k", "typical", "top_p", "min_p") or not after.ids:
        return after
    both = ((before.probability(one), after.probability(one)) for one in after.ids)
    p_before, p_after = next(((b, a) for b, a in both if b and a), (None, None))
    if not p_before or not p_after:
        return after
    return Shot(
        after.name,
        after.ids,
        after.probabilities,
        after.num_candidates,
        after.entropy,
        after.tail_mass,
        max(1.0 - p_before / p_after, 0.0),
        after.why,
    )
