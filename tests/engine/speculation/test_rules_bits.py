"""The native rejection rule against its definition in plain Python, bit by bit, and the drafter's
side with it: the stages, streams 1 to 3, masks, logprobs, rows that cannot be drawn from."""

from __future__ import annotations

import numpy as np
import sampler_oracle as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sampler import cases, check_logprobs, check_trace, mask_words

from headrace.engine.sampler import RowStatus, SampledToken, make_state
from headrace.engine.speculation.drafter import Distribution
from headrace.engine.speculation.rejection import (
    RejectionRule,
    draw_drafts,
)
from headrace.engine.speculation.rule import DraftRow

RULE = RejectionRule()


def state_of(params, prompt, output, seed, index):
    state = make_state(params, prompt, seed=seed, sample_index=index)
    for token in output:
        state.accept(token)
    return state


def listed(d: Distribution) -> dict[int, float]:
    return dict(zip(d.ids.tolist(), d.probs.tolist(), strict=True))


def distribution(probabilities: dict[int, float]) -> Distribution:
    ids = np.array(list(probabilities), np.int32)
    return Distribution(ids, np.array(list(probabilities.values()), np.float64))


def same_bits(a: dict[int, float], b: dict[int, float]) -> bool:
    return list(a) == list(b) and [oracle.bits(x) for x in a.values()] == [
        oracle.bits(x) for x in b.values()
    ]


def check_rule(row, params, prompt, output, seed, index, position, mask, draft_row, point) -> None:
    """Drafter and rule on one position, next to the oracle's."""
    num_ids = len(row)
    logits = np.array([row, draft_row], np.float32)
    state = state_of(params, prompt, output, seed, index)
    words = None if mask is None else mask_words(mask, num_ids)
    args = (params, prompt, output, params.stop_token_ids, seed, index, position, mask)
    want = oracle.draw(logits[1], num_ids, *args, stream=1)
    drawn = draw_drafts(logits[1:], [state], [position], num_ids, None, [words])[0]
    assert (drawn is None) == (want.status != "OK")
    if drawn is None:
        return
    draft, p = drawn
    assert draft == want.token
    assert want.final is not None
    expected = oracle.probabilities(want.final)
    assert same_bits(listed(p), expected)
    if point:
        expected = {draft: 1.0}
    tested = DraftRow(state, position, draft, None if point else p, words)
    got = RULE.draw(logits[:1], [tested], num_ids, None)[0]
    got = SampledToken(got, RowStatus.OK) if isinstance(got, int) else got
    target = oracle.draw(logits[0], num_ids, *args)
    assert got.status.name == target.status
    if target.final is None:
        assert got.token == -1
        return
    q = oracle.probabilities(target.final)
    target.token = oracle.reject(q, expected, draft, seed, position, index)
    assert got.token == target.token
    check_logprobs(got, target, params)
    if params.trace:
        check_trace(got, target, params)


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_equals_the_definition_bit_by_bit(case, data) -> None:
    row, _, params, prompt, output, seed, index, position, mask = case
    if data.draw(st.booleans(), "near"):
        noise = st.floats(-1, 1, width=32)
        draft_row = [x + data.draw(noise) for x in row]
    else:
        draft_row = data.draw(st.permutations(row))
    point = data.draw(st.booleans(), "point")
    check_rule(row, params, prompt, output, seed, index, position, mask, draft_row, point)
