"""Speculation as HTTP users see it: chosen and counted per request, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from live_server import LiveServer, serving
from neighbour import used_blocks
from raw_http import RawClient
from scraping import Change, scrape

pytestmark = pytest.mark.models

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
#: A model goes on with it as it began, so guesses from what was said come true.
REFRAIN = "one two three four five six seven, one two three four five six seven, one two"
THREE = {"method": "ngram", "num_draft_tokens": 3}


def counts(answer: Any) -> tuple[int, int]:
    """(drafted, accepted), which are told in two ways."""
    timings = answer["timings"]
    drafted, accepted = timings["draft_n"], timings["draft_n_accepted"]
    assert 0 <= accepted <= drafted
    if "completion_tokens_details" in answer["usage"]:
        details = answer["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == accepted
        assert details["rejected_prediction_tokens"] == drafted - accepted
    more = timings["drafting"]
    assert sum(more["accepted_per_position"]) == accepted <= more["tested"] <= drafted
    return drafted, accepted


def asked(path: str, **fields: Any) -> dict[str, Any]:
    limit = {"max_output_tokens" if path == RESPONSES else "max_tokens": 40}
    if path == COMPLETIONS:
        return {"prompt": REFRAIN, **limit, **fields}
    messages = [{"role": "user", "content": f"Go on for ever: {REFRAIN}"}]
    return {"input" if path == RESPONSES else "messages": messages, **limit, **fields}


def said(answer: Any) -> Any:
    if answer["object"] != "response":
        return answer["choices"]
    return [{**item, "id": None} for item in answer["output"]]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("wish", ["ngram", True, THREE, {"acceptance": "coupled"}])
def test_the_answer_is_that_of_plain_decoding(smollm2: LiveServer, path: str, wish: Any) -> None:
    body = asked(path, temperature=0.7, seed=3, frequency_penalty=0.1)
    plain = smollm2.json(path, {**body, "speculative": "off"})
    assert "draft_n" not in plain["timings"]
    guessed = smollm2.json(path, {**body, "speculative": wish})
    counts(guessed)
    assert said(guessed) == said(plain)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3, "temperature": 0.8, "repetition_penalty": 1.05, "logprobs": 2},
        {"stop": ["four five"], "temperature": 0},
        {"min_tokens": 30, "temperature": 0, "logprobs": 0},
        {"temperature": 0, "structured_outputs": {"regex": "(( three| four| one| two)){12}"}},
        {"temperature": 0, "logit_bias": {"28": -5}, "sampler_trace": 2},
    ],
)
def test_every_field_means_what_it_meant(smollm2: LiveServer, fields: dict[str, Any]) -> None:
    body = asked(COMPLETIONS, seed=1, return_token_ids=True, **fields)
    plain, guessed = (
        smollm2.json(COMPLETIONS, {**body, "speculative": wish}) for wish in (False, THREE)
    )
    assert counts(guessed)[0] > 0
    assert guessed["choices"] == plain["choices"]


def test_a_stream_brings_several_tokens_at_once(smollm2: LiveServer) -> None:
    body = asked(COMPLETIONS, temperature=0, logprobs=1, return_token_ids=True, speculative=THREE)
    whole = smollm2.json(COMPLETIONS, body)
    drafted, accepted = counts(whole)
    assert accepted > 10
    change = Change(smollm2)
    events = smollm2.events(
        COMPLETIONS, {**body, "stream_options": {"continuous_usage_stats": True}}
    )
    parts = [event["choices"][0] for event in events if event["choices"]]
    [choice] = whole["choices"]
    assert "".join(part["text"] for part in parts) == choice["text"]
    tokens = [part["token_ids"] for part in parts if part.get("token_ids")]
    assert [token for part in tokens for token in part] == choice["token_ids"]
    assert max(map(len, tokens)) == 4
    assert len(tokens) == 40 - accepted
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [x for part in parts if part["logprobs"] for x in part["logprobs"][name]]
        assert joined == choice["logprobs"][name], name
    told = [event["usage"]["completion_tokens"] for event in events]
    assert told == sorted(told)
    details = events[-1]["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == accepted
    assert details["rejected_prediction_tokens"] == drafted - accepted
    # k tokens of one step are k gaps of a k-th each.
    assert change.of("inter_token_latency_seconds_count") == 39
    assert change.of("streamed_tokens_total") == 40
    gaps_s = change.of("inter_token_latency_seconds_sum")
    assert gaps_s == pytest.approx(change.of("request_decode_time_seconds_sum"), rel=0.02)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_other_streams_join_to_the_whole_too(smollm2: LiveServer, path: str) -> None:
    body = asked(path, temperature=0.4, seed=8, speculative=THREE)
    whole = smollm2.json(path, body)
    assert counts(whole)[1] > 0
    stream = smollm2.post(path, {**body, "stream": True})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line[:7] == "data: {"]
    if path == CHAT:
        pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
        want = whole["choices"][0]["message"]["content"]
    else:
        pieces = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        want = whole["output"][0]["content"][0]["text"]
    assert "".join(pieces) == want


def test_metrics_and_the_log_count_what_answers_say(smollm2: LiveServer) -> None:
    change = Change(smollm2)
    name = "a-name-of-its-own"
    answers = [
        smollm2.post(
            CHAT, asked(CHAT, temperature=0, speculative=THREE), headers={"x-request-id": name}
        ).json(),
        smollm2.json(COMPLETIONS, asked(COMPLETIONS, temperature=0, n=2, speculative="ngram")),
        smollm2.json(COMPLETIONS, asked(COMPLETIONS, temperature=0)),
    ]
    drafted, accepted = map(sum, zip(*map(counts, answers[:2]), strict=True))
    assert accepted > 0
    assert change.of("spec_decode_num_draft_tokens_total") == drafted
    assert change.of("spec_decode_num_accepted_tokens_total") == accepted
    rounds = sum(answer["timings"]["drafting"]["rounds"] for answer in answers[:2])
    assert change.of("spec_decode_num_drafts_total") == rounds
    tested = sum(answer["timings"]["drafting"]["tested"] for answer in answers[:2])
    assert change.of("spec_decode_num_tested_tokens_total") == tested
    positions = [
        change.of(key, **dict(labels))
        for key, labels in scrape(smollm2)
        if key == "spec_decode_num_accepted_tokens_per_pos_total"
    ]
    assert sum(positions) == accepted
    assert positions == sorted(positions, reverse=True)
    [line] = [line for line in smollm2.log().splitlines() if f"request_id={name}" in line]
    timings = answers[0]["timings"]
    assert f" draft_n={timings['draft_n']} " in line
    assert f" draft_n_accepted={timings['draft_n_accepted']} " in line
    assert f" cached_tokens={timings['cache_n']} " in line


def test_rows_27_and_38_seeds_decide(smollm2: LiveServer) -> None:
    body = asked(COMPLETIONS, temperature=1, speculative=THREE) | {"max_tokens": 16}
    texts = [
        smollm2.json(COMPLETIONS, {**body, "seed": seed})["choices"][0]["text"]
        for seed in (42, 42, 43, *range(10))
    ]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[3:])) >= 2
    drawn = smollm2.json(COMPLETIONS, body)
    again = smollm2.json(COMPLETIONS, {**body, "seed": drawn["seed"]})
    assert again["choices"] == drawn["choices"]


def test_the_rejection_rule_repeats_by_its_seed(smollm2: LiveServer) -> None:
    body = asked(
        COMPLETIONS, temperature=0.5, seed=4, speculative={**THREE, "acceptance": "rejection"}
    )
    answers = [smollm2.json(COMPLETIONS, body) for _ in range(2)]
    assert counts(answers[0])[1] > 0
    assert answers[0]["choices"] == answers[1]["choices"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ("draft", "needs a draft model"),
        ({"method": "draft"}, "needs a draft model"),
        ("guess", '"off" or "ngram" or "draft"'),
        ({"method": 5}, '"off" or "ngram" or "draft"'),
        ({"methd": "ngram"}, "speculative.methd is unknown"),
        ({"num_draft_tokens": 0}, "1 … 64"),
        ({"num_draft_tokens": 65}, "1 … 64"),
        ({"num_draft_tokens": 2.5}, "1 … 64"),
        ({"acceptance": "always"}, '"coupled" or "rejection"'),
        (5, "speculative: off, ngram, draft, true, false or an object was expected"),
        (["ngram"], "off, ngram, draft, true, false or an object was expected"),
    ],
)
def test_wishes_that_are_none(smollm2: LiveServer, path: str, wish: Any, says: str) -> None:
    error = smollm2.refusal(path, asked(path, speculative=wish))
    assert says in error["message"]
    assert error["message"].count(". ") == 0, "one sentence"
    assert error["param"] == "speculative"


@pytest.mark.parametrize("field", ["num_draft_tokens", "acceptance"])
def test_how_to_guess_stands_inside(smollm2: LiveServer, field: str) -> None:
    error = smollm2.refusal(COMPLETIONS, asked(COMPLETIONS) | {field: 3})
    assert f'Did you mean "speculative": {{"{field}": …}}?' in error["message"]
    assert error["param"] == field


def test_who_leaves_in_the_middle_of_it(smollm2: LiveServer) -> None:
    body = asked(COMPLETIONS, ignore_eos=True, stream=True, speculative=THREE) | {"max_tokens": 900}
    alone = smollm2.json(COMPLETIONS, asked(COMPLETIONS, temperature=0))["choices"]
    for _ in range(5):
        client = RawClient(smollm2.url)
        client.post(COMPLETIONS, body)
        assert b"data: " in client.peek(2000)
        client.socket.close()
    beside = smollm2.json(COMPLETIONS, asked(COMPLETIONS, temperature=0, speculative=True))
    assert beside["choices"] == alone
    assert smollm2.idle(1.0)
    assert used_blocks(smollm2) == 0


@pytest.fixture(scope="module")
def drafting() -> Iterator[LiveServer]:
    """The same model in fewer bits guesses, by default."""
    options = (
        "--draft-model",
        "smollm2-135m",
        "--draft-quantize",
        "q4_0",
        "--speculative",
        "draft",
    )
    with serving("smollm2-135m", "--max-model-len", "512", *options) as server:
        yield server


def test_a_draft_model_of_the_servers_own(drafting: LiveServer) -> None:
    body = asked(COMPLETIONS, temperature=0.5, seed=2)
    for off in ("off", False, {"method": "off"}):
        plain = drafting.json(COMPLETIONS, {**body, "speculative": off})
        assert "draft_n" not in plain["timings"], off
    for wish in (None, True, "draft", {"num_draft_tokens": 2}, THREE):
        answer = drafting.json(COMPLETIONS, {**body, "speculative": wish})
        drafted, accepted = counts(answer)  # without a number, as many as pay: perhaps none
        if isinstance(wish, dict):
            assert 0 < accepted <= drafted, wish
        assert answer["choices"] == plain["choices"], wish
    stream = drafting.post(COMPLETIONS, {**body, "stream": True})
    events = [json.loads(line[6:]) for line in stream.text.split("\n\n") if line[:7] == "data: {"]
    joined = "".join(event["choices"][0]["text"] for event in events)
    assert joined == plain["choices"][0]["text"]
    assert drafting.idle()
    assert used_blocks(drafting) == 0
