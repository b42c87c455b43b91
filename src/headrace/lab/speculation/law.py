"""The law of drawn tokens: many draws of one next token by the rejection rule, judged by χ²."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine import sampler
from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams
from headrace.engine.speculation.rejection import drafted, draw_drafts
from headrace.formats.tokenizer import Tokenizer
from headrace.lab.lab import Lab
from headrace.lab.plots import error_bars, style
from headrace.lab.speculation.bench import Bench
from headrace.lab.statistics import Interval, chi_square, share_interval

DRAWS = 20_000
#: Ids with a smaller expected count are one group of the χ² test.
_LEAST_EXPECTED = 10
#: Rows per call of the sampler.
_ROWS = 500
_SHOWN = 12

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Law:
    """Draws from one row with the rejection rule. target, draft, drawn: shares of the likeliest
    ids. p_rule, p_draft: of χ², that the rule's draws and the draft model's own come from the
    target's distribution."""

    labels: list[str]
    target: list[float]
    draft: list[float]
    drawn: list[Interval]
    p_rule: float
    p_draft: float


def draw_law(bench: Bench, tokenizer: Tokenizer, seed: int) -> Law:
    """The next token behind the bench's prompt, drawn DRAWS times at temperature 1."""
    rows = [_logits(engine, bench.prompt) for engine in (bench.engine, bench.alone)]
    width = min(len(row) for row in rows)
    target, draft = (row[:width] for row in rows)
    drawn, guessed = _draw(target, draft, bench.prompt, seed)
    q, p = _softmax(target), _softmax(draft)
    shown = np.argsort(-q)[:_SHOWN]
    return Law(
        labels=[repr(tokenizer.decode([int(token)])) for token in shown],
        target=[float(q[token]) for token in shown],
        draft=[float(p[token]) for token in shown],
        drawn=[share_interval(int((drawn == token).sum()), DRAWS) for token in shown],
        p_rule=goodness(q, drawn),
        p_draft=goodness(q, guessed),
    )


def goodness(q: Float64, drawn: Int64) -> float:
    """The p of χ² that draws come from q."""
    return chi_square(np.bincount(drawn, minlength=len(q)), q, least=_LEAST_EXPECTED)[0]


def _draw(target: Float32, draft: Float32, prompt: list[int], seed: int) -> tuple[Int64, Int64]:
    """(tokens that the rule gave, tokens that were guessed)."""
    params = SamplingParams(temperature=1.0)
    drawn: list[int] = []
    guessed: list[int] = []
    for first in range(0, DRAWS, _ROWS):
        seeds = range(seed * DRAWS + first, seed * DRAWS + first + _ROWS)
        states = [sampler.make_state(params, prompt, seed=s) for s in seeds]
        places = [len(prompt)] * _ROWS
        guesses = draw_drafts(np.tile(draft, (_ROWS, 1)), states, places, len(draft))
        assert all(guess is not None for guess in guesses)
        tested = [drafted(*guess) for guess in guesses if guess is not None]
        kept = sampler.draw(np.tile(target, (_ROWS, 1)), states, places, len(target), drafts=tested)
        drawn += [token if isinstance(token, int) else token.token for token in kept]
        guessed += [token for token, _ in tested]
    return np.array(drawn), np.array(guessed)


def _logits(engine: Engine, prompt: list[int]) -> Float32:
    """The row behind the prompt, as the model's own log-probabilities."""
    num_ids = engine.vocabulary.num_ids
    request = engine.add(
        prompt, SamplingParams(temperature=0.0, max_tokens=1, logprobs=num_ids, speculative="off")
    )
    while engine.has_work:
        engine.step()
    (scored,) = request.generations[0].logprobs or []
    row = np.full(num_ids, -np.inf, np.float32)
    for token, found in scored.items():
        row[token] = found.logprob
    return row


def _softmax(row: Float32) -> Float64:
    weights = np.exp(row.astype(np.float64))
    shares: Float64 = weights / weights.sum()
    return shares


def draw_figure(lab: Lab, law: Law) -> None:
    """law.png."""
    caption = (
        f"One next token drawn {DRAWS:,} times by the rejection rule (points, 95 % intervals): "
        f"its law is the target's (bars; χ² p = {law.p_rule:.2f}), not the draft model's (crosses)."
    )
    alt = "Shares of the likeliest next tokens: target, draft model, drawn"
    with lab.figure("law", caption, alt) as (_, axes):
        places = range(len(law.labels))
        axes.bar(places, law.target, color="#BBBBBB", label="target")
        axes.plot(
            places, law.draft, label="draft model", **{**style(1), "linestyle": "", "marker": "x"}
        )
        axes.errorbar(
            places, [d.value for d in law.drawn],
            yerr=error_bars(law.drawn),
            label="drawn", **{**style(0), "linestyle": ""},
        )  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(list(places), law.labels, rotation=45, ha="right", fontsize=8)
        axes.set_ylabel("probability")
        axes.legend()
