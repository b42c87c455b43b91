"""SamplingParams: off values, ranges, names (rows 25, 29-32, 35 of known faults)."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.params import DEFAULT_STAGES, SamplingParams
from headrace.errors import UsageError


def test_defaults_change_nothing() -> None:
    p = SamplingParams()
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.typical_p) == (1.0, 1.0, 0, 0.0, 1.0)
    assert (p.repetition_penalty, p.presence_penalty, p.frequency_penalty) == (1.0, 0.0, 0.0)
    assert p.stages == DEFAULT_STAGES
    assert not p.greedy


def test_immutable_copies_and_round_trips() -> None:
    p = SamplingParams(stop="end", stop_token_ids=[1, 2], logit_bias={"3": 1}, seed=2**64 - 1)
    assert p.stop == ("end",)
    assert p.logit_bias == {3: 1.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.temperature = 0.5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(p)) == copy.deepcopy(p) == p
    assert SamplingParams.from_dict(p.to_dict()) == p
    assert p.replace(temperature=0).greedy
    assert p.temperature == 1.0


def test_numpy_numbers_are_numbers() -> None:
    p = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        allowed_token_ids=np.array([1, 2]),  # type: ignore[arg-type]
    )
    assert (p.temperature, p.top_k, p.allowed_token_ids) == (0.5, 3, (1, 2))
    assert type(p.top_k) is int


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("n", 0, "1 … 1024"),
        ("n", True, "1 … 1024"),
        ("temperature", -0.1, "0 … 1000"),
        ("temperature", math.nan, "0 … 1000"),
        ("temperature", math.inf, "0 … 1000"),
        ("temperature", 1e-9, "0 (greedy) or 1e-05 … 1000"),
        ("temperature", "hot", "0 … 1000"),
        ("top_p", -0.01, "0 or more"),
        ("top_p", math.nan, "0 or more"),
        ("top_k", -2, "-1 or more"),
        ("top_k", 1.5, "-1 or more"),
        ("min_p", 1.01, "0 … 1"),
        ("typical_p", 0.0, "above 0"),
        ("repetition_penalty", 0.0, "0.01 … 100"),
        ("presence_penalty", 1e6, "-100 … 100"),
        ("frequency_penalty", math.nan, "-100 … 100"),
        ("seed", -1, "0 … 18446744073709551615"),
        ("seed", 2**64, "0 … 18446744073709551615"),
        ("max_tokens", -1, "0 or more"),
        ("min_tokens", -1, "0 or more"),
        ("logprobs", -1, "0 … 1000000"),
        ("trace", 1001, "0 … 1000"),
        ("ignore_eos", 1, "true or false"),
        ("logprobs_mode", "cooked", '"raw" or "processed"'),
        ("logit_bias", [1, 2], "must map token ids"),
        ("logit_bias", {"a": 1}, "An id in logit_bias"),
        ("logit_bias", {1: math.nan}, "-1000 … 1000"),
        ("logit_bias", {-5: 1.0}, "0 … 2147483647"),
        ("allowed_token_ids", [], "no token could be drawn"),
        ("allowed_token_ids", [-5], "0 … 2147483647"),
        ("stop_token_ids", "12", "list of token ids"),
        ("stop", "", "empty string"),
        ("stop", [1], "strings only"),
        ("stop", 5, "a string or a list of strings"),
        ("stages", ["top_k"], "with bias and penalties first"),
        ("stages", "top_k", "with bias and penalties first"),
    ],
)
def test_bad_values_name_field_value_and_range(field: str, value: object, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    message = str(caught.value)
    assert field in message
    assert allowed in message
    assert len(message) < 300


@pytest.mark.parametrize("make", [lambda kw: SamplingParams(**kw), SamplingParams.from_dict])
def test_misspelt_names_are_errors_with_a_suggestion(make) -> None:
    with pytest.raises(UsageError, match=r"'temprature'. Did you mean temperature\?"):
        make({"temprature": 1})
    with pytest.raises(UsageError, match=r"'best_of'\.$"):
        make({"best_of": 2})
    with pytest.raises(UsageError, match=r"'topk'. Did you mean top_k\?"):
        SamplingParams().replace(topk=3)
    with pytest.raises(UsageError, match=r"unknown stage 'topp'. Did you mean top_p\?"):
        make({"stages": [*DEFAULT_STAGES[:5], "topp", "min_p"]})


def test_contradictions_are_errors() -> None:
    with pytest.raises(UsageError, match="min_tokens = 9 is larger than max_tokens = 4"):
        SamplingParams(min_tokens=9, max_tokens=4)
    assert SamplingParams(min_tokens=9, max_tokens=None).max_tokens is None
    with pytest.raises(UsageError, match="bans every id"):
        SamplingParams(allowed_token_ids=[1], banned_token_ids=[1, 2]).validate_for(10)
    with pytest.raises(UsageError, match="bans the whole vocabulary"):
        SamplingParams(banned_token_ids=[0, 1]).validate_for(2)


@pytest.mark.parametrize(
    "field", ["logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"]
)
def test_ids_outside_the_vocabulary_are_refused(field: str) -> None:
    """Row 35: an id no model has must never reach the sampler."""
    value = {10**6: 1.0} if field == "logit_bias" else [10**6]
    params = SamplingParams(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"{field} holds id 1000000, .* 0 … 49151"):
        params.validate_for(49152)
    params.validate_for(10**6 + 1)
    with pytest.raises(UsageError, match=field):
        SamplingParams(**{field: {-5: 1.0} if field == "logit_bias" else [-5]})  # type: ignore[arg-type]


def test_top_k_and_top_p_beyond_their_meaning_are_off() -> None:
    """Rows 30, 31."""
    assert SamplingParams(top_k=9_999_999).top_k == 9_999_999
    assert SamplingParams(top_p=0).greedy
    assert SamplingParams(top_p=1.5).top_p == 1.5


@given(st.dictionaries(st.text(max_size=12), st.integers() | st.floats() | st.text(max_size=5)))
def test_any_mapping_gives_params_or_one_clear_sentence(values: dict[str, object]) -> None:
    known = set(SamplingParams().to_dict())
    try:
        SamplingParams.from_dict(values)
    except UsageError as error:
        message = str(error)
    else:
        message = ""
        assert set(values) <= known
    assert "\n" not in message
