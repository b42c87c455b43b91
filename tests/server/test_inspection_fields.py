"""What somebody who looks into an answer needs: ids of prompt and output, sampler traces, forks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from live_server import LiveServer

pytestmark = pytest.mark.models

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = "The sea is"


def asked(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": WORDS}]} if path == CHAT else {}
    fields = {"max_tokens": 6, "seed": 3, "return_token_ids": True, "sampler_trace": 5, **fields}
    return {**(prompt or {"prompt": WORDS}), **fields}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_tells_ids_and_traces_of_the_whole_answer(smollm2: LiveServer, path: str) -> None:
    body = asked(path, n=2, temperature=0.9, presence_penalty=0.5, ignore_eos=True)
    whole = smollm2.json(path, body)
    prompt = (whole if path == CHAT else whole["choices"][0])["prompt_token_ids"]
    told: dict[int, tuple[list[int], list[Any]]] = {}
    prompts: list[list[int]] = []
    for event in smollm2.events(path, body):
        for choice in event["choices"]:
            ids, traces = told.setdefault(choice["index"], ([], []))
            ids += choice.get("token_ids", [])
            traces += choice.get("sampler_trace", [])
            assert len(ids) == len(traces), "a trace for every id of the same chunk"
            given = (event if path == CHAT else choice).get("prompt_token_ids")
            if given is not None:
                assert not ids, "before all else"
                prompts.append(given)
    assert prompts == ([prompt] if path == CHAT else [prompt] * 2)
    for choice in whole["choices"]:
        assert told[choice["index"]] == (choice["token_ids"], choice["sampler_trace"])
    decoded = smollm2.json("/detokenize", {"tokens": prompt})["prompt"]
    assert WORDS in decoded


def test_a_trace_names_its_ids_and_can_be_followed(smollm2: LiveServer) -> None:
    body = asked(COMPLETIONS, temperature=0.7, repetition_penalty=1.3, top_k=40, max_tokens=3)
    [choice] = smollm2.json(COMPLETIONS, body)["choices"]
    for token, trace in zip(choice["token_ids"], choice["sampler_trace"], strict=True):
        assert trace["token"] == token
        snapshots = [trace["model"], *(stage["after"] for stage in trace["stages"])]
        named = {str(token), *(str(e["id"]) for s in snapshots for e in s["top"])}
        assert set(trace["texts"]) == named
        own = smollm2.json("/detokenize", {"tokens": [token]})["prompt"]
        assert trace["texts"][str(token)] == own
        for snapshot in snapshots:
            for entry in snapshot["top"]:
                expected = math.exp(entry["logit"] - snapshot["log_normaliser"])
                assert entry["probability"] == pytest.approx(expected, rel=1e-9)
        # What the grid says of 0.7 is what the temperature stage then did.
        stages = {stage["name"]: stage["after"] for stage in trace["stages"]}
        grid = trace["grid"]
        at = grid["temperature"].index(0.7)
        assert grid["entropy"][at] == stages["temperature"]["entropy"]
        assert grid["log_normaliser"][at] == stages["temperature"]["log_normaliser"]
        assert [0.7 * e["logit"] for e in stages["temperature"]["top"]] == pytest.approx(
            [e["logit"] for e in stages["penalties"]["top"]], rel=1e-12
        )


def test_a_fork_goes_on_from_ids(smollm2: LiveServer) -> None:
    """The answer of a conversation, continued after its third token as it went on by itself."""
    body = asked(CHAT, temperature=0, max_tokens=8, ignore_eos=True, sampler_trace=None)
    whole = smollm2.json(CHAT, body)
    prompt, ids = whole["prompt_token_ids"], whole["choices"][0]["token_ids"]
    fork = {
        "prompt": prompt + ids[:3], "add_special_tokens": False, "return_token_ids": True,
        "temperature": 0, "max_tokens": 5, "ignore_eos": True,
    }  # fmt: skip
    answer = smollm2.json(COMPLETIONS, fork)
    assert answer["choices"][0]["token_ids"] == ids[3:]
    assert answer["choices"][0]["prompt_token_ids"] == prompt + ids[:3]
    assert answer["timings"]["cache_n"] > 0
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert answer["timings"]["bound_fraction"] > 0
