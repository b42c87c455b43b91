"""The rejection rule inside the engine: the target's law, whatever drafts come and however they are
cut; and the texts do not depend on neighbours."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from speculation.drafters import AnyDrafter, Liar, Seer
from speculation.toy_rounds import p_value
from toy import FULL, ToyModel, make_engine, run_all, window_group

from headrace.engine.params import SamplingParams

BOTH = (FULL, window_group())
VOCAB = 6
PROMPT = [1, 4, 2, 0, 5]
PARAMS = SamplingParams(
    temperature=1.0,
    max_tokens=4,
    speculative="draft",
    num_draft_tokens=2,
    acceptance="rejection",
)
NUM_TEXTS = 3000


def law(model: ToyModel, length: int) -> dict[tuple[int, ...], float]:
    """Of texts behind PROMPT, from the toy's logits alone."""
    found = {}
    for text in product(range(VOCAB), repeat=length):
        probability = 1.0
        for i, token in enumerate(text):
            row = model.logits([*PROMPT, *text[:i]]).astype(np.float64)
            row = np.exp(row - row.max())
            probability *= row[token] / row.sum()
        found[text] = probability
    return found


@pytest.mark.parametrize("kind", ["seer", "liar", "any"])
def test_rounds_draw_from_the_targets_law(kind: str) -> None:
    """A point mass as draft. Seer guesses what plain decoding would draw: noise that the rule must
    not use again. Lengths of drafts must not depend on that noise; here they do not."""
    model = ToyModel(BOTH, vocab=VOCAB)
    drafters = {"seer": Seer(model), "liar": Liar(model), "any": AnyDrafter(model, 1)}
    engine = make_engine(model, max_num_seqs=32, budget=64, draft=drafters[kind])
    requests = [engine.add(PROMPT, PARAMS.replace(seed=seed)) for seed in range(NUM_TEXTS // 3)]
    run_all(engine)
    while len(requests) < NUM_TEXTS:
        requests += [
            engine.add(PROMPT, PARAMS.replace(seed=seed))
            for seed in range(len(requests), len(requests) + NUM_TEXTS // 3)
        ]
        run_all(engine)
    texts = Counter(tuple(r.generations[0].token_ids[:3]) for r in requests)
    assert p_value(texts, law(model, 3)) > 0.001
    total = engine.speculator.total
    assert total.num_accepted > NUM_TEXTS / 10
    assert total.num_tested - total.num_accepted > NUM_TEXTS / 10


def test_a_seeded_text_does_not_depend_on_neighbours() -> None:
    texts = []
    for others in (0, 3):
        model = ToyModel(BOTH)
        engine = make_engine(model, draft=Seer(model))
        request = engine.add(PROMPT, PARAMS.replace(seed=5, max_tokens=30, num_draft_tokens=3))
        for i in range(others):
            engine.add(PROMPT[i:], PARAMS.replace(seed=i, max_tokens=20, acceptance="coupled"))
        run_all(engine)
        texts.append(request.generations[0].token_ids)
    assert texts[0] == texts[1]


def test_greedy_is_greedy() -> None:
    model = ToyModel(BOTH)
    engine = make_engine(model, draft=AnyDrafter(model, 2))
    requests = [
        engine.add(PROMPT, PARAMS.replace(temperature=0, max_tokens=30, speculative=kind))
        for kind in ("draft", "off")
    ]
    run_all(engine)
    assert requests[0].generations[0].token_ids == requests[1].generations[0].token_ids
