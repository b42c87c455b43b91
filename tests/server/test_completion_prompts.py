"""Prompts at the edges: empty, too long, cut, doubled BOS, gaps; and prompts without an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.engine.llm import LLM
from headrace.engine.params import SamplingParams
from live_server import LiveServer

pytestmark = pytest.mark.models


def next_is_fine(server: LiveServer) -> None:
    choice = server.json("/v1/completions", {"prompt": "Once", "max_tokens": 2})["choices"][0]
    assert choice["finish_reason"] in ("length", "stop")


# ---- fault 49: over-long prompts ----------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [None, 0, 1, 16, 2000])
@pytest.mark.parametrize("length", [511, 512, 513, 2000])
@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_is_refused_with_all_three_numbers(
    guarded: LiveServer, length: int, max_tokens: int | None, stream: bool
) -> None:
    body: dict[str, Any] = {"prompt": [[28] * length], "stream": stream}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    asked = 1 if max_tokens is None else max_tokens
    if length + asked <= 512:
        answer = guarded.post("/v1/completions", body)
        assert answer.status_code == 200
        if not stream:
            usage = answer.json()["usage"]
            assert usage["prompt_tokens"] == length
            assert usage["completion_tokens"] <= asked
        return
    error = guarded.refusal("/v1/completions", body)
    assert error["code"] == "context_length_exceeded"
    for number in (512, length, *([max_tokens] if max_tokens else [])):
        assert str(number) in error["message"]
    next_is_fine(guarded)


def test_a_long_conversation_is_never_cut_in_silence(guarded: LiveServer) -> None:
    """Fault 57: the fact stands at the head, where a silent cut would lose it."""
    text = "The secret number is 7341. " + "Nothing else matters here. " * 400
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
    error = guarded.refusal("/v1/chat/completions", body)
    assert error["code"] == "context_length_exceeded"
    count = guarded.json("/tokenize", {"messages": body["messages"]})["count"]
    for number in (512, count, 8):
        assert str(number) in error["message"]
    answer = guarded.json("/v1/completions", {
        "prompt": text, "max_tokens": 8, "truncate_prompt_tokens": 500,
    })  # fmt: skip
    total = guarded.json("/tokenize", {"prompt": text})["count"]
    assert answer["usage"]["prompt_tokens"] == 500
    assert answer["timings"]["truncated_n"] == total - 500
    body["truncate_prompt_tokens"] = -1
    body["max_tokens"] = 1
    chat = guarded.json("/v1/chat/completions", body)
    assert chat["usage"]["prompt_tokens"] == 511
    assert chat["timings"]["truncated_n"] == count - 511


def test_a_text_that_cannot_fit_is_not_even_tokenized(guarded: LiveServer) -> None:
    error = guarded.refusal("/v1/completions", {"prompt": "x" * 3_000_000})
    assert error["code"] == "context_length_exceeded"
    messages = [{"role": "user", "content": "x" * 3_000_000}]
    error = guarded.refusal("/v1/chat/completions", {"messages": messages})
    assert error["code"] == "context_length_exceeded"


def test_more_prompts_than_the_server_ever_holds(guarded: LiveServer) -> None:
    """Not "busy": clients would try again for ever."""
    answer = guarded.json("/v1/completions", {"prompt": ["Hi"] * 4, "max_tokens": 1})
    assert len(answer["choices"]) == 4
    error = guarded.refusal("/v1/completions", {"prompt": ["Hi"] * 5, "max_tokens": 1})
    assert "5 prompts" in error["message"]


# ---- fault 50: empty prompts --------------------------------------------------------------------

EMPTY: list[Any] = ["", [""], [], [[]], ["a", ""], [[1], []]]


@pytest.mark.parametrize("prompt", EMPTY, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_prompt_without_bos(smollm2: LiveServer, prompt: Any, stream: bool) -> None:
    error = smollm2.refusal("/v1/completions", {"prompt": prompt, "stream": stream})
    assert "empty" in error["message"]
    next_is_fine(smollm2)


def test_an_empty_prompt_with_bos_is_the_bos(gemma3: LiveServer) -> None:
    answer = gemma3.json("/v1/completions", {"prompt": "", "max_tokens": 2})
    assert answer["usage"]["prompt_tokens"] == 1
    gemma3.refusal("/v1/completions", {"prompt": [[]]})
    gemma3.refusal("/v1/completions", {"prompt": "", "add_special_tokens": False})


def test_empty_contents_of_messages(smollm2: LiveServer) -> None:
    answer = smollm2.json(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": ""}], "max_tokens": 2},
    )
    assert answer["usage"]["prompt_tokens"] > 3
    for messages in ([], [{"role": "user"}], [{"role": "user", "content": None}]):
        smollm2.refusal("/v1/chat/completions", {"messages": messages})
    next_is_fine(smollm2)


# ---- fault 51, 52: prompts without an answer, echo ----------------------------------------------


def test_only_the_prompt_is_computed(smollm2: LiveServer) -> None:
    body = {"prompt": "The cat sat on the mat.", "echo": True, "max_tokens": 0, "logprobs": 1}
    choice = smollm2.json("/v1/completions", body)["choices"][0]
    assert choice["text"] == body["prompt"]
    assert choice["finish_reason"] == "length"
    lists = choice["logprobs"]
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) > 5
    assert lists["token_logprobs"][0] is None
    assert all(value <= 0 for value in lists["token_logprobs"][1:])
    stream = smollm2.post("/v1/completions", {**body, "stream": True}).text.split("\n\n")
    events = [json.loads(line[6:]) for line in stream if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == body["prompt"]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    told = [event["choices"][0]["logprobs"] for event in events]
    assert [x for each in told if each for x in each["tokens"]] == lists["tokens"]
    plain = smollm2.json("/v1/completions", {"prompt": "Hi", "max_tokens": 0})
    assert plain["choices"][0]["text"] == ""
    assert plain["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("token", [49152, 10**6, 2**63, -1])
def test_an_echo_of_ids_that_are_none(smollm2: LiveServer, token: int) -> None:
    body = {"prompt": [[1, token]], "echo": True, "max_tokens": 0, "logprobs": 1}
    assert str(token) in smollm2.refusal("/v1/completions", body)["message"]


def test_echoed_logprobs_are_the_models_own(smollm2: LiveServer) -> None:
    text = "Water boils at one hundred degrees."
    body = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    lists = smollm2.json("/v1/completions", body)["choices"][0]["logprobs"]
    with LLM("smollm2-135m", max_model_len=1024) as llm:
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1, logprobs=1)
        [output] = llm.generate(text, params)
    assert output.prompt_logprobs is not None
    want = [
        None if entry is None else entry[token].logprob
        for token, entry in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
    ]
    assert lists["token_logprobs"][:-1] == want
    assert len(lists["tokens"]) == len(output.prompt_token_ids) + 1
    for chosen, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
        assert chosen in top.values()


# ---- fault 55: two BOS tokens -------------------------------------------------------------------


def test_a_conversation_starts_with_one_bos(gemma3: LiveServer) -> None:
    chat = gemma3.json("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "return_token_ids": True,
    })  # fmt: skip
    bos = gemma3.json("/tokenizer_info")["bos_token_id"]
    assert chat["prompt_token_ids"].count(bos) == 1
    assert chat["prompt_token_ids"][0] == bos


def test_a_text_that_brings_its_own_bos_gets_a_warning(gemma3: LiveServer) -> None:
    body = {"prompt": "<bos>Hello", "max_tokens": 1, "return_token_ids": True}
    answer = gemma3.post("/v1/completions", body)
    bos = gemma3.json("/tokenizer_info")["bos_token_id"]
    assert answer.json()["choices"][0]["prompt_token_ids"][:2] == [bos, bos]
    assert "two BOS" in answer.headers["x-headrace-warning"]
    one = gemma3.post("/v1/completions", {**body, "add_special_tokens": False})
    assert one.json()["choices"][0]["prompt_token_ids"].count(bos) == 1
    assert "x-headrace-warning" not in one.headers


# ---- suffix -------------------------------------------------------------------------------------


def test_a_suffix_is_refused_where_no_gap_can_be_marked(smollm2: LiveServer) -> None:
    error = smollm2.refusal("/v1/completions", {"prompt": "def f(", "suffix": "return x"})
    assert error["param"] == "suffix"
    next_is_fine(smollm2)


@pytest.mark.large
class TestQwen:
    """qwen2.5-coder-0.5b: no BOS, tokens for gaps."""

    def test_a_gap_is_filled(self, qwen: LiveServer) -> None:
        body = {
            "prompt": "def add(first, ",
            "suffix": "):\n    return first + second\n",
            "max_tokens": 32,
            "temperature": 0,
            "return_token_ids": True,
        }
        choice = qwen.json("/v1/completions", body)["choices"][0]
        assert choice["text"].startswith("second):")
        marks = "<|fim_prefix|>{prompt}<|fim_suffix|>{suffix}<|fim_middle|>".format(**body)
        ids = qwen.json("/tokenize", {"prompt": marks})["tokens"]
        assert choice["prompt_token_ids"] == ids
        before = qwen.json("/tokenize", {"prompt": body["prompt"]})["tokens"]
        as_ids = qwen.json("/v1/completions", {**body, "prompt": before})["choices"][0]
        assert as_ids["prompt_token_ids"] == ids
        for name, value in (("echo", True), ("truncate_prompt_tokens", 5)):
            assert qwen.refusal("/v1/completions", {**body, name: value})["param"] == name
        plain = {name: value for name, value in body.items() if name != "suffix"}
        assert (
            qwen.json("/v1/completions", {**body, "suffix": ""})["choices"][0]["text"]
            == qwen.json("/v1/completions", plain)["choices"][0]["text"]
        )

    @pytest.mark.parametrize("prompt", EMPTY, ids=str)
    def test_empty_prompts(self, qwen: LiveServer, prompt: Any) -> None:
        assert "empty" in qwen.refusal("/v1/completions", {"prompt": prompt})["message"]
        next_is_fine(qwen)

    def test_a_message_without_content(self, qwen: LiveServer) -> None:
        messages = [{"role": "user", "content": ""}]
        answer = qwen.json("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
        assert answer["usage"]["prompt_tokens"] > 0
