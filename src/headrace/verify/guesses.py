"""The exact rungs of speculation: with the coupled rule every text, token by token and logit by
logit, is that of plain decoding, whoever guessed and however well."""

from __future__ import annotations

from functools import partial

from headrace.engine.params import SamplingParams
from headrace.verify.probe import GREEDY, Run, run_requests
from headrace.verify.result import RungResult, difference
from headrace.verify.subject import Subject
from headrace.verify.workload import TILE

#: Of one request: so many that catching up on a whole window pays for a draft model. Of many.
_OUTPUT_ALONE, _OUTPUT = 72, 24
_SEEDED = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, ignore_eos=True, seed=21)
_BOTH = (GREEDY, _SEEDED)


def from_ngrams(subject: Subject) -> RungResult:
    """Plain decoding = drafts looked up in prompt and output."""
    return _guessed(subject, "ngram", "plain = n-gram drafts")


def from_draft_model(subject: Subject) -> RungResult:
    """Plain decoding = drafts of the draft model, or where the subject has none, of itself."""
    return _guessed(subject, "draft", "plain = draft model")


def _guessed(subject: Subject, kind: str, name: str) -> RungResult:
    """One greedy request, one seeded, and many of both kinds of which every fourth does not
    speculate."""
    error, accepted, shares = 0.0, 0, []
    for label, count, first in (("greedy", 1, 0), ("seeded", 1, 1), ("together", subject.many, 0)):
        prompts = _prompts(subject, count)
        output = min(_OUTPUT_ALONE if count == 1 else _OUTPUT, subject.room_behind(prompts))
        params = [_BOTH[(first + i) % 2].replace(max_tokens=output) for i in range(count)]
        plain = subject.once(f"plain {label}", partial(_plain, subject, prompts, params))
        each = [
            own.replace(speculative="off" if i % 4 == 2 else kind, num_draft_tokens=1 + i * 3 % 8)
            for i, own in enumerate(params, start=3)
        ]
        engine, probe = subject.engine(max_num_seqs=16, speculative=kind)
        run = run_requests(engine, probe, prompts, each)
        error = max(error, _difference(plain, run))
        total = engine.speculator.total
        accepted += total.num_accepted
        shares.append(f"{label} {total.num_accepted}/{total.num_tested}")
    return RungResult.judge(name, error, accepted, f"accepted/tested: {', '.join(shares)}")


def _plain(subject: Subject, prompts: list[list[int]], params: list[SamplingParams]) -> Run:
    return run_requests(*subject.engine(max_num_seqs=16), prompts, params)


def _prompts(subject: Subject, count: int) -> list[list[int]]:
    """Texts that repeat themselves, so that there is something to look up, and end right before the
    border of a tile, the first and the ninth before that of a window, so that drafts cross it."""
    text = subject.workload.text
    windows = [g.window for g in subject.program.kv_groups if g.window is not None]
    edges = windows or [TILE]
    prompts = []
    for i in range(count):
        edge = TILE if i % 8 else edges[i // 8 % len(edges)]
        end = min(edge - 6 + i, len(text) - 1)
        part = text[i : i + (end * 2 + 2) // 3]
        prompts.append([*part, *part][:end])
    return prompts


def _difference(plain: Run, run: Run) -> float:
    """Of all rows, in both directions: speculation draws from no other rows."""
    if plain.tokens != run.tokens or plain.rows.keys() != run.rows.keys():
        return float("inf")
    return difference(plain.rows, run.rows)
