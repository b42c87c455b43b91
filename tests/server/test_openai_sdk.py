"""The official openai package against a real server: what its users write, sync and async."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel, Field

from headrace import __version__
from headrace.engine.llm import LLM
from headrace.engine.params import SamplingParams
from live_server import LiveServer, strict_json

pytestmark = pytest.mark.models

MODEL = "smollm2-135m"
MESSAGES = [{"role": "user", "content": "Name three rivers of Europe."}]


@pytest.fixture
def client(smollm2: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=smollm2.api, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, max_model_len=1024, kv_cache_memory="512MiB") as made:
        yield made


# ---- chat ---------------------------------------------------------------------------------------


def test_a_chat_answer_is_the_engines_own(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=24,
        extra_body={"cache_prompt": False},
    )  # fmt: skip
    [want] = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=24))
    [choice] = answer.choices
    assert choice.message.content == want.outputs[0].text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == want.outputs[0].finish_reason
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint.startswith(f"headrace-{__version__}-")
    assert answer.usage.prompt_tokens == len(want.prompt_token_ids)
    assert answer.usage.completion_tokens == len(want.outputs[0].token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream_joins_to_the_whole_answer(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24,
        "extra_body": {"cache_prompt": False},
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    *content, last, counts = chunks
    assert content[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in content) == (
        whole.choices[0].message.content
    )
    assert all(c.choices[0].finish_reason is None and c.usage is None for c in content)
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert not last.choices[0].delta.content
    assert counts.choices == []
    assert counts.usage.model_dump() == whole.usage.model_dump()
    assert len({(c.id, c.created, c.model, c.system_fingerprint) for c in chunks}) == 1


def test_the_sdks_own_stream_reader_builds_the_same_answer(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL, "messages": MESSAGES, "temperature": 0, "stop": [","],
        "extra_body": {"cache_prompt": False},
    }  # fmt: skip
    with client.chat.completions.stream(
        **asked, logprobs=True, top_logprobs=2, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        built = stream.get_final_completion()
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].logprobs.content == whole.choices[0].logprobs.content
    assert built.usage == whole.usage


def test_async_clients_together(smollm2: LiveServer, client: openai.OpenAI) -> None:
    def asked(number: int) -> dict[str, object]:
        text = f"Write about the number {number}."
        messages = [{"role": "user", "content": text}]
        return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 12}

    async def one(api: openai.AsyncOpenAI, number: int) -> str:
        if number % 2:
            answer = await api.chat.completions.create(**asked(number))
            return answer.choices[0].message.content
        stream = await api.chat.completions.create(**asked(number), stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=smollm2.api, api_key="none") as api:
            return await asyncio.gather(*(one(api, number) for number in range(8)))

    alone = [client.chat.completions.create(**asked(n)) for n in range(8)]
    assert asyncio.run(together()) == [a.choices[0].message.content for a in alone]


def test_logprobs_are_the_engines_own(client: openai.OpenAI, llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=12, logprobs=5)
    [want] = llm.chat(MESSAGES, params)
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=1, seed=3, max_tokens=12, logprobs=True,
        top_logprobs=5,
    )  # fmt: skip
    entries = want.outputs[0].logprobs
    content = answer.choices[0].logprobs.content
    assert len(content) == len(entries)
    for got, token, entry in zip(content, want.outputs[0].token_ids, entries, strict=True):
        assert got.logprob == entry[token].logprob
        assert bytes(got.bytes) == llm.tokenizer.token_bytes(token)
        best = sorted(entry.values(), key=lambda item: item.rank)[:5]
        assert [top.logprob for top in got.top_logprobs] == [item.logprob for item in best]
    assert b"".join(bytes(c.bytes) for c in content).decode().strip()


def test_row_27_a_seed_repeats_and_is_echoed(client: openai.OpenAI) -> None:
    def ask(seed: int | None) -> tuple[str, int]:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=1, max_tokens=16, seed=seed
        )
        return answer.choices[0].message.content, answer.model_extra["seed"]

    first, again, other = ask(42), ask(42), ask(43)
    assert first == again
    assert first[0] != other[0]
    assert (first[1], other[1]) == (42, 43)
    drawn = ask(None)  # the seed that the server drew repeats the answer
    assert ask(drawn[1]) == drawn
    chunks = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=1, max_tokens=16, seed=42, stream=True
    )
    assert [c.model_extra["seed"] for c in chunks if "seed" in c.model_extra] == [42]


def test_n_samples_of_one_prompt(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, temperature=1, seed=5, max_tokens=10
    )
    [want] = llm.chat(MESSAGES, SamplingParams(n=3, temperature=1, seed=5, max_tokens=10))
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.message.content for c in answer.choices] == [o.text for o in want.outputs]
    assert len({c.message.content for c in answer.choices}) == 3
    assert answer.usage.completion_tokens == sum(len(o.token_ids) for o in want.outputs)


def test_stop_bias_and_penalties_reach_the_engine(client: openai.OpenAI, llm: LLM) -> None:
    token = llm.tokenizer.encode(" the", add_special=False)[0]
    biased = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=4, logit_bias={str(token): 100}
    )
    assert biased.choices[0].message.content == " the the the the"
    fields = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
    extra = {"top_k": 40, "min_p": 0.02, "repetition_penalty": 1.2, "min_tokens": 3}
    params = {"temperature": 0.9, "top_p": 0.95, "seed": 9, "max_tokens": 24, "stop": [".", "\n\n"]}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, **fields, **params, extra_body=extra
    )
    [want] = llm.chat(MESSAGES, SamplingParams(**fields, **extra, **params))
    assert answer.choices[0].message.content == want.outputs[0].text
    assert answer.choices[0].finish_reason == want.outputs[0].finish_reason


def test_messages_in_parts_and_with_roles(client: openai.OpenAI) -> None:
    """Content parts and the newer role name are spelled-out forms of the same conversation."""
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why rain?"}]
    parts = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Why "},
                                     {"type": "text", "text": "rain?"}]},
    ]  # fmt: skip
    answers = [
        client.chat.completions.create(model=MODEL, messages=m, temperature=0, max_tokens=8)
        for m in (plain, parts)
    ]
    assert answers[0].choices[0].message == answers[1].choices[0].message
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens


# ---- structured answers -------------------------------------------------------------------------


class River(BaseModel):
    name: str = Field(max_length=20)
    countries: list[str] = Field(max_length=2)
    length_km: int = Field(ge=1, le=9999)


def test_parse_returns_the_pydantic_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=200, response_format=River
    )
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, River)
    assert choice.message.parsed == River.model_validate(strict_json(choice.message.content))


def test_parse_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=200, response_format=River
    ) as stream:
        for _ in stream:
            pass
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, River)


def test_parse_of_a_cut_answer_says_that_it_was_cut(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=3, response_format=River
        )


# ---- legacy completions -------------------------------------------------------------------------


def test_completions_of_texts_and_ids(client: openai.OpenAI, llm: LLM) -> None:
    texts = ["The sea is", "A mill has"]
    ids = [llm.tokenizer.encode(text) for text in texts]
    by_text = client.completions.create(model=MODEL, prompt=texts, temperature=0, max_tokens=6)
    by_ids = client.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=6)
    want = llm.generate(texts, SamplingParams(temperature=0, max_tokens=6))
    assert [c.text for c in by_text.choices] == [w.outputs[0].text for w in want]
    assert [c.text for c in by_ids.choices] == [c.text for c in by_text.choices]
    assert [c.index for c in by_text.choices] == [0, 1]
    assert by_text.object == "text_completion"
    one = client.completions.create(model=MODEL, prompt=ids[0], temperature=0, max_tokens=6)
    assert one.choices[0].text == by_ids.choices[0].text
    streamed = ["", ""]
    for chunk in client.completions.create(
        model=MODEL, prompt=texts, temperature=0, max_tokens=6, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [c.text for c in by_text.choices]


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_rows_51_and_52_echo_scores_the_prompt(
    client: openai.OpenAI, llm: LLM, max_tokens: int
) -> None:
    ids = llm.tokenizer.encode("The mill stands by the river, and the river turns the mill.")
    asked = {"temperature": 0, "max_tokens": max_tokens, "seed": 1234}
    answer = client.completions.create(model=MODEL, prompt=[ids], echo=True, logprobs=1, **asked)
    params = SamplingParams(prompt_logprobs=1, logprobs=1, **asked)
    [want] = llm.generate([{"prompt_token_ids": ids}], params)
    lists = answer.choices[0].logprobs
    prompt = [e[t].logprob for t, e in zip(ids[1:], want.prompt_logprobs[1:], strict=True)]
    output = want.outputs[0]
    drawn = [e[t].logprob for t, e in zip(output.token_ids, output.logprobs or [], strict=True)]
    assert lists.token_logprobs == [None, *prompt, *drawn]
    assert lists.top_logprobs[0] is None
    assert len(lists.tokens) == len(lists.text_offset) == len(ids) + max_tokens
    scored = list(zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True))[1:]
    assert all(top[name] == value and len(top) <= 2 for name, value, top in scored)
    assert answer.choices[0].text == llm.decode(ids, skip_special=False) + output.text
    assert answer.usage.completion_tokens == max_tokens
    assert math.isfinite(sum(prompt))
    greedy = [value == max(top.values()) for _, value, top in scored]  # as lm-eval decides it
    ranks = [e[t].rank == 1 for t, e in zip(ids[1:], want.prompt_logprobs[1:], strict=True)]
    assert greedy[: len(ranks)] == ranks
    assert all(greedy[len(ranks) :])


def test_best_of_returns_the_most_probable_samples(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "The sea is", "temperature": 1, "seed": 2, "max_tokens": 6}
    drawn = client.completions.create(**asked, n=4, logprobs=0).choices
    best = client.completions.create(**asked, n=1, best_of=4).choices
    means = {c.text: sum(c.logprobs.token_logprobs) / len(c.logprobs.tokens) for c in drawn}
    assert [c.text for c in best] == [max(means, key=means.get)]


# ---- the rest of the SDK ------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "headrace"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("another/model")
    assert caught.value.code == "model_not_found"


def test_raw_responses_and_request_ids(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, user="someone",
        extra_headers={"x-request-id": "my-own-name"},
    )  # fmt: skip
    assert raw.headers["x-request-id"] == "my-own-name"
    assert raw.headers["x-headrace-ignored"] == "user"
    assert raw.headers["content-type"] == "application/json"
    strict_json(raw.content)
    assert raw.parse()._request_id == "my-own-name"
    names = {
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1)._request_id
        for _ in range(2)
    }
    assert len(names) == 2
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=MESSAGES, max_tokens=2
    ) as response:
        assert response.headers["x-request-id"]
        assert strict_json(response.read())["object"] == "chat.completion"
