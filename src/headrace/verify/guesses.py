"""The exact rungs of speculation: with the coupled rule every text, token by token and logit by
logit, is that of plain decoding, whoever guessed and however well."""

from __future__ import annotations

from headrace.engine.params import SamplingParams
from headrace.verify.probe import GREEDY, Run, run_requests
from headrace.verify.result import RungResult, difference
from headrace.verify.subject import Subject
from headrace.verify.workload import TILE

_OUTPUT = 24
_SEEDED = SamplingParams(
    temperature=0.8, top_k=40, top_p=0.95, max_tokens=_OUTPUT, ignore_eos=True, seed=21
)
_GREEDY = GREEDY.replace(max_tokens=_OUTPUT)


def from_ngrams(subject: Subject) -> RungResult:
    """Plain decoding = drafts looked up in prompt and output."""
    return _guessed(subject, "ngram", "plain = n-gram drafts")


def from_draft_model(subject: Subject) -> RungResult:
    """Plain decoding = drafts of the draft model, or where the subject has none, of itself."""
    return _guessed(subject, "draft", "plain = draft model")


def _guessed(subject: Subject, kind: str, name: str) -> RungResult:
    """One request, and sixteen of which every fourth does not speculate."""
    error, accepted, tested, batches = 0.0, 0, 0, []
    for size in (1, 16):
        prompts = _prompts(subject, size)
        for params in (_GREEDY, _SEEDED):
            plain = run_requests(*subject.engine(max_num_seqs=16), prompts, params)
            each = [
                params.replace(
                    speculative="off" if i % 4 == 3 else kind, num_draft_tokens=1 + i * 3 % 8
                )
                for i in range(1, size + 1)
            ]
            engine = subject.engine(max_num_seqs=16, speculative=kind)
            run = run_requests(*engine, prompts, each)
            error = max(error, _difference(plain, run))
            total = engine[0].speculator.total
            accepted += total.num_accepted
            tested += total.num_tested
            batches.append(f"{total.num_accepted}/{total.num_tested}")
    detail = f"accepted/tested, 1 and 16 requests, greedy and seeded: {', '.join(batches)}"
    return RungResult.judge(name, error, accepted if tested else 0, detail)


def _prompts(subject: Subject, count: int) -> list[list[int]]:
    """Texts that repeat themselves, so that there is something to look up, and end near the borders
    of tiles and windows, so that drafts cross them."""
    text = subject.workload.text
    windows = [g.window for g in subject.program.kv_groups if g.window is not None]
    ends = [TILE - 7, *(w - 5 for w in windows)]
    prompts = []
    for i in range(count):
        end = min(ends[i % len(ends)] + i, len(text) - 1)
        part = text[i : i + (end * 2 + 2) // 3]
        prompts.append([*part, *part][:end])
    return prompts


def _difference(plain: Run, run: Run) -> float:
    """Of all rows, in both directions: speculation draws from no other rows."""
    if plain.tokens != run.tokens or plain.rows.keys() != run.rows.keys():
        return float("inf")
    return difference(plain.rows, run.rows)
