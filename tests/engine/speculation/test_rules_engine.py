"""The whole engine, with a draft model and with certain drafts, draws the target's distribution:
first three tokens of every seed, jointly, next to the exact law (faults 37-40)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from toy import ToyModel, make_engine, run_all
from toy_rounds import CHAINS, PROMPT, History, Model, law, p_value, scatter

from headrace.engine import sampler
from headrace.engine.core import Engine
from headrace.engine.generation import Generation, Request
from headrace.engine.params import SamplingParams
from headrace.engine.speculation.draft_model import DraftModel
from headrace.engine.speculation.drafter import Ask, Draft, Drafter
from headrace.ops.batch import Batch

VOCAB = 8
HERE, MANY = 5_000, 50_000


class PairModel(ToyModel):
    """The next token depends on the last two, read back through the block tables: table [V, V, V].
    Fast enough for many texts."""

    def __init__(self, table: npt.NDArray[np.float32]) -> None:
        super().__init__(vocab=len(table))
        self.table = table

    def _rows(self, batch: Batch, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        requests = np.searchsorted(batch.spans, rows, side="right") - 1
        positions = batch.positions[0, rows]
        return self.table[
            self._token(batch, requests, positions - 1), self._token(batch, requests, positions)
        ]

    def _token(
        self, batch: Batch, requests: npt.NDArray[np.intp], positions: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        blocks = batch.groups[0].block_tables[requests, positions // self.block_size]
        assert (blocks >= 0).all()
        tokens = self.memory[0][blocks * self.block_size + positions % self.block_size]
        assert isinstance(tokens, np.ndarray)
        return tokens

    def after(self, history: History) -> npt.NDArray[np.float32]:
        """Logits behind PROMPT and a history."""
        first, second = [*PROMPT, *history][-2:]
        row: npt.NDArray[np.float32] = self.table[first, second]
        return row


def table(seed: int, scale: float = 1.3) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((VOCAB, VOCAB, VOCAB)) * scale).astype(np.float32)


TARGET = table(31)
DRAFT = (0.6 * TARGET + table(32, 0.8)).astype(np.float32)


class Certain:
    """Guesses the token that the target likes second, without chance, as n-grams do."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft(self._tokens(ask)) for ask in asks]

    def _tokens(self, ask: Ask) -> list[int]:
        tokens = list(ask.generation.sequence.tokens)
        for _ in range(ask.limit):
            tokens.append(int(np.argsort(-TARGET[tokens[-2], tokens[-1]])[1]))
        return tokens[-ask.limit :]

    def kept(self, generation: Generation, num_kept: int) -> None:
        pass

    def forget(self, generation: Generation) -> None:
        pass


def engine_with(drafter: str) -> Engine:
    sizes = {"max_num_seqs": 128, "budget": 768, "max_model_len": 16, "max_queue": 10**6}
    target = PairModel(TARGET)
    config = make_engine(target, **sizes).config
    draft: Drafter = Certain()
    if drafter == "model":
        draft = DraftModel(PairModel(DRAFT), config, VOCAB)
    return make_engine(PairModel(TARGET), draft=draft, **sizes)


def answer(engine: Engine, params: SamplingParams, count: int, **changes: object) -> list[Request]:
    """count requests, each with a seed of its own."""
    params = params.replace(max_tokens=4, ignore_eos=True, **changes)
    requests = [engine.add(list(PROMPT), params.replace(seed=scatter(i))) for i in range(count)]
    run_all(engine)
    return requests


def texts(requests: list[Request]) -> list[History]:
    return [tuple(request.generations[0].token_ids) for request in requests]


def likelihood(requests: list[Request], params: SamplingParams) -> float:
    model: Model = PairModel(TARGET).after
    return p_value(Counter(text[:3] for text in texts(requests)), law(model, params, 3))


CASES = [
    ("model", "all", HERE),
    ("certain", "penalties", HERE),
    *(
        pytest.param(drafter, chain, MANY, marks=pytest.mark.large)
        for drafter in ("model", "certain")
        for chain in ("plain", "top_p", "all")
    ),
]


@pytest.mark.parametrize(("drafter", "chain", "count"), CASES)
def test_rejection_draws_the_law_of_the_target(drafter: str, chain: str, count: int) -> None:
    params = CHAINS[chain]
    engine = engine_with(drafter)
    requests = answer(
        engine, params, count, speculative="draft", acceptance="rejection", num_draft_tokens=2
    )
    assert likelihood(requests, params) > 0.001
    total = engine.speculator.total
    assert total.num_rounds >= count
    assert 0.1 < (total.acceptance_rate or 0.0) < 0.95


@pytest.mark.parametrize("drafter", ["model", "certain"])
def test_coupled_draws_the_texts_of_plain_decoding(drafter: str) -> None:
    params = CHAINS["all"]
    plain = texts(answer(engine_with(drafter), params, 1000, speculative="off"))
    engine = engine_with(drafter)
    drafted = answer(engine, params, 1000, speculative="draft", num_draft_tokens=2)
    assert texts(drafted) == plain
    assert engine.speculator.total.num_accepted > 100


def test_both_rules_and_greedy_share_a_step() -> None:
    """Row 37: T = 0 beside T > 0 under the rejection rule: greedy texts are the plain ones, counts
    are never negative, and no request is another's."""
    jobs = [
        SamplingParams(
            temperature=temperature, seed=seed, max_tokens=9, logprobs=2, acceptance=acceptance,
            num_draft_tokens=3, speculative=speculative,
        )
        for seed in range(4)
        for temperature in (0.0, 0.8)
        for acceptance in ("coupled", "rejection")
        for speculative in ("draft", "off")
    ]  # fmt: skip
    engine = engine_with("model")
    together = [engine.add(list(PROMPT), params) for params in jobs]
    run_all(engine)
    for params, request in zip(jobs, together, strict=True):
        alone = engine_with("model")
        other = alone.add(list(PROMPT), params)
        run_all(alone)
        output = request.generations[0]
        assert output.token_ids == other.generations[0].token_ids
        assert output.logprobs == other.generations[0].logprobs
        assert output.finish_reason is not None
        assert output.finish_reason.value == "length"
        assert all(
            math.isfinite(e.logprob) for entry in output.logprobs or [] for e in entry.values()
        )
        account = request.speculation_account
        if params.speculative == "off":
            continue
        assert account is not None
        assert 0 <= account.num_accepted <= account.num_tested <= account.num_drafted
    same = [r.generations[0].token_ids for r, p in zip(together, jobs, strict=True) if p.greedy]
    assert len({tuple(tokens) for tokens in same}) == 1


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_seeds_give_different_texts(acceptance: str) -> None:
    """Row 38: T = 1, seeds 0 … 9."""
    engine = engine_with("model")
    requests = [
        engine.add(
            list(PROMPT),
            SamplingParams(
                seed=seed, max_tokens=8, speculative="draft", acceptance=acceptance,
                num_draft_tokens=3,
            ),
        )
        for seed in range(10)
    ]  # fmt: skip
    run_all(engine)
    assert len(set(texts(requests))) >= 8
    again = answer(engine_with("model"), SamplingParams(), 20, speculative="draft",
                   acceptance=acceptance, num_draft_tokens=3)  # fmt: skip
    once = answer(engine_with("model"), SamplingParams(), 20, speculative="draft",
                  acceptance=acceptance, num_draft_tokens=3)  # fmt: skip
    assert texts(again) == texts(once)


@pytest.mark.parametrize("wrong", ["always", "no residual"])
def test_a_biased_engine_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule replaced inside the engine; the same test."""
    right = sampler.draw

    def draw(logits, states, positions, num_ids, pool=None, masks=None, drafts=None):
        if drafts is None:
            return right(logits, states, positions, num_ids, pool, masks)
        kept = right(logits, states, positions, num_ids, pool, masks, drafts)
        plain = right(logits, states, positions, num_ids, pool, masks)
        return [
            plain[i] if d is None else d[0] if wrong == "always" or kept[i] == d[0] else plain[i]
            for i, d in enumerate(drafts)
        ]

    monkeypatch.setattr(sampler, "draw", draw)
    params = CHAINS["plain"]
    requests = answer(
        engine_with("model"), params, 2000,
        speculative="draft", acceptance="rejection", num_draft_tokens=2,
    )  # fmt: skip
    assert likelihood(requests, params) < 1e-6
