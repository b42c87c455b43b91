"""SmolLM2's first two tokens under both rules: 50,000 seeds, jointly, next to the exact law of the
model's own logits. Those of every history that can occur are computed once; the drawing code of the
engine runs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import toy_rounds
from toy_rounds import (
    History,
    Rule,
    certain_drafter,
    coupled,
    coupled_drafter,
    law,
    next_law,
    p_value,
    play,
    rejection,
    rejection_drafter,
)

from headrace.engine.llm import LLM
from headrace.engine.model import native_executor
from headrace.engine.params import SamplingParams
from headrace.ops.batch import Batch
from headrace.ops.executor import Executor

pytestmark = pytest.mark.models

TEXT = "The capital of France is Paris. The capital of Italy is Rome. The capital of"
NUM_SEEDS = 50_000

CHAINS = {
    "all": SamplingParams(
        temperature=1.2, top_k=12, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5,
        frequency_penalty=0.2,
    ),
    "top_k": SamplingParams(temperature=1.5, top_k=8),
    "top_p": SamplingParams(temperature=1.1, top_p=0.8),
    "penalties": SamplingParams(temperature=0.9, top_k=10, repetition_penalty=1.5),
}  # fmt: skip


class Recorder:
    """An executor that keeps the logits of its last step."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.logits: npt.NDArray[np.float32] | None = None

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        self.logits = self._executor.run(batch).copy()
        return self.logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


class Smol:
    """The model behind a prompt, as a function of the tokens drawn so far."""

    def __init__(self, llm: LLM, recorder: Recorder, prompt: list[int]) -> None:
        self._llm, self._recorder, self._prompt = llm, recorder, prompt
        self._rows: dict[History, npt.NDArray[np.float32]] = {}

    def __call__(self, history: History) -> npt.NDArray[np.float32]:
        if history not in self._rows:
            ids = [*self._prompt, *history]
            self._llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=1))
            assert self._recorder.logits is not None
            self._rows[history] = self._recorder.logits[-1]
        return self._rows[history]


@pytest.fixture(scope="module")
def smol() -> Iterator[tuple[Smol, Smol, list[int]]]:
    """The target, a draft model that does not see the prompt's first half, and the prompt."""
    recorders: list[Recorder] = []

    def recording(*args: Any, **options: Any) -> Any:
        recorders.append(Recorder(native_executor(*args, **options)))
        return recorders[-1]

    llm = LLM("smollm2-135m", max_model_len=128, make_executor=recording)
    prompt = llm.tokenizer.encode(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_rounds, "PROMPT", prompt)
        yield Smol(llm, recorders[0], prompt), Smol(llm, recorders[0], prompt[8:]), prompt


def cases() -> list[Any]:
    here = {("rejection", "all")}
    return [
        pytest.param(rule, chain, marks=() if (rule, chain) in here else pytest.mark.large)
        for rule in ("rejection", "coupled", "rejection, certain draft")
        for chain in CHAINS
    ]


@pytest.mark.parametrize(("name", "chain"), cases())
def test_first_two_tokens(smol: tuple[Smol, Smol, list[int]], name: str, chain: str) -> None:
    target, draft, _ = smol
    params = CHAINS[chain]
    rule: Rule = coupled if name == "coupled" else rejection
    drafter = {
        "rejection": rejection_drafter(draft),
        "coupled": coupled_drafter(draft),
        "rejection, certain draft": certain_drafter(lambda history: int(draft(history).argmax())),
    }[name]
    played = play(rule, drafter, target, params, NUM_SEEDS)
    expected = law(target, params, 2)
    assert len(expected) >= 10
    assert p_value(Counter(played.texts), expected) > 0.001
    q, p = next_law(target, params, ()), next_law(draft, params, ())
    alpha = played.num_accepted / played.num_tested
    error = 0.5 / np.sqrt(played.num_tested)
    if name == "rejection":
        assert abs(alpha - sum(min(x, p.get(i, 0.0)) for i, x in q.items())) < 4 * error
    assert alpha < 1


def test_a_draft_model_under_the_rejection_rule() -> None:
    """Rows 37 and 38, the model in fewer bits as its own draft: T = 0 beside T = 1 in one batch,
    greedy texts and logprobs are the plain ones, and seeds give different texts."""
    llm = LLM("smollm2-135m", max_model_len=256, draft_model="smollm2-135m", draft_quantize="q4_0")
    greedy = SamplingParams(temperature=0, max_tokens=24, logprobs=1)
    params = [greedy, *(greedy.replace(temperature=1.0, seed=seed) for seed in range(10))]
    plain = llm.generate(TEXT, greedy.replace(speculative="off"))[0].outputs[0]
    rejecting = [p.replace(acceptance="rejection", num_draft_tokens=3) for p in params]
    outputs = llm.generate([TEXT] * len(params), rejecting)
    assert outputs[0].outputs[0].token_ids == plain.token_ids
    assert outputs[0].outputs[0].logprobs == plain.logprobs
    assert len({tuple(o.outputs[0].token_ids) for o in outputs[1:]}) >= 8
    for output in outputs:
        account = output.metrics.speculation
        assert account is not None
        assert 0 < account.num_accepted <= account.num_tested <= account.num_drafted
        assert output.outputs[0].cumulative_logprob is not None
        assert np.isfinite(output.outputs[0].cumulative_logprob)
