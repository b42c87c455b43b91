"""Arrivals, prompts and files: what a run sends, and when."""

from __future__ import annotations

import json
import math
import random
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.serve.arrivals import offsets
from headrace.bench.serve.dataset import (
    Lengths,
    Prefixes,
    Prompt,
    Source,
    chosen,
    random_prompts,
    repeated_prefixes,
)  # fmt: skip
from headrace.bench.serve.files import HASH_BLOCK, read_prompts, read_sharegpt, read_trace
from headrace.bench.serve.jobs import CHAT, COMPLETIONS, BodyOptions, make_jobs
from headrace.errors import UsageError

IDS = Source(words=False)
WORDS = Source(words=True, chat=True)
TEXT = Source(words=True)


# ---- arrivals -----------------------------------------------------------------------------------


def gaps(rate: float, burstiness: float, count: int = 20_000) -> list[float]:
    times = offsets(count, rate, burstiness, random.Random(7))
    assert times[0] == 0.0
    return [b - a for a, b in pairwise(times)]


def test_poisson_arrivals() -> None:
    """Gaps are exponential: mean, variation and a Kolmogorov-Smirnov distance whose bound is
    exceeded by chance once in a thousand seeds; this one is fixed."""
    found = sorted(gaps(rate=8.0, burstiness=1.0))
    n = len(found)
    assert statistics.fmean(found) == pytest.approx(1 / 8, rel=4 / math.sqrt(n))
    distance = max(abs((i + 0.5) / n - (1 - math.exp(-8 * gap))) for i, gap in enumerate(found))
    assert distance < 1.95 / math.sqrt(n)
    # Counts per second of a Poisson process have variance = mean.
    counts = [0] * 2000
    for time_s in offsets(16_000, 8.0, 1.0, random.Random(8)):
        if time_s < len(counts):
            counts[int(time_s)] += 1
    mean = statistics.fmean(counts[:1900])
    assert statistics.variance(counts[:1900]) / mean == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape(burstiness: float) -> None:
    found = gaps(rate=5.0, burstiness=burstiness)
    mean = statistics.fmean(found)
    assert mean == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(found) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_arrivals_at_the_edges() -> None:
    assert offsets(3, math.inf, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]
    assert offsets(5, 3.0, 1.0, random.Random(1)) == offsets(5, 3.0, 1.0, random.Random(1))
    rates = [(rate, 1.0) for rate in (0.0, -1.0, math.nan, 1e-300)]
    shapes = [(1.0, burstiness) for burstiness in (0.0, math.inf, math.nan, 1e-300)]
    for rate, burstiness in (*rates, *shapes):
        with pytest.raises(UsageError, match=r"--request-rate|--burstiness"):
            offsets(1, rate, burstiness, random.Random(0))


# ---- prompts ------------------------------------------------------------------------------------


def key(prompt: Prompt) -> str:
    return json.dumps(prompt.content)


def units(prompt: Prompt) -> list[Any]:
    """Ids, or words."""
    content: Any = prompt.content
    text = content[0]["content"] if prompt.is_chat else content
    return text.split() if isinstance(text, str) else list(text)


@pytest.mark.parametrize("source", [IDS, WORDS, TEXT])
def test_random_prompts(source: Source) -> None:
    prompts = random_prompts(200, Lengths(40, 10, 0.5), source, seed=3)
    assert len({key(p) for p in prompts}) == 200
    assert prompts == random_prompts(200, Lengths(40, 10, 0.5), source, seed=3)
    assert prompts != random_prompts(200, Lengths(40, 10, 0.5), source, seed=4)
    assert {p.num_prompt for p in prompts} == set(range(20, 61))
    assert {p.max_tokens for p in prompts} == set(range(5, 16))
    for prompt in prompts:
        assert len(units(prompt)) == prompt.num_prompt


@pytest.mark.parametrize("source", [IDS, WORDS, TEXT])
def test_repeated_prefixes(source: Source) -> None:
    prompts = repeated_prefixes(9, Prefixes(3, 20, 5), 7, source, seed=1)
    assert len({key(p) for p in prompts}) == 9
    texts = [units(p) for p in prompts]
    for i, text in enumerate(texts):
        assert len(text) == 25
        assert text[:20] == texts[i % 3][:20]
    assert len({str(text[:20]) for text in texts}) == 3


def test_lengths_that_are_none() -> None:
    for lengths in ((0, 1, 0.0), (1, 0, 0.0), (1, 1, 1.0), (1, 1, -0.1), (1, 1, math.nan)):
        with pytest.raises(UsageError, match="--random"):
            Lengths(*lengths)


def test_more_prompts_than_the_file_has() -> None:
    read = [Prompt(str(i), None, None) for i in range(4)]
    assert chosen(read, None, 9, 0) == [Prompt(str(i), None, 9) for i in range(4)]
    twice = chosen(read, 8, 9, 0)
    assert twice[:4] == chosen(read, 4, 9, 0)
    assert sorted(p.content for p in twice[4:]) == ["0", "1", "2", "3"]


# ---- files --------------------------------------------------------------------------------------


def lines(path: Path, *values: Any) -> Path:
    path.write_text("\n".join(json.dumps(v, ensure_ascii=False) for v in values) + "\n", "utf-8")
    return path


def test_a_file_of_prompts(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    file = lines(
        tmp_path / "p.jsonl",
        {"prompt": "line\u2028separator", "max_tokens": 3},
        {"prompt": [1, 2], "output_len": 4},
        {"messages": messages},
    )
    assert read_prompts(file) == [
        Prompt("line\u2028separator", None, 3),
        Prompt([1, 2], None, 4),
        Prompt(messages, None, None),
    ]


def test_conversations(tmp_path: Path) -> None:
    turns = [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}]
    path = tmp_path / "s.json"
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": []}]))
    assert read_sharegpt(path) == [Prompt("q", None, None)]


def test_a_trace(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "t.jsonl",
        {"timestamp": 3000, "input_length": 1500, "output_length": 7, "hash_ids": [1, 2, 9]},
        {"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2]},
        {"offset_s": 1.5, "prompt": "x", "max_tokens": 2},
    )
    [(t0, first), (t1, second), (t2, third)] = read_trace(file, IDS, seed=0)
    assert (t0, t1, t2) == (0.0, 0.5, 2.0)
    assert second == Prompt("x", None, 2)
    assert (first.num_prompt, first.max_tokens) == (1030, 5)
    assert (third.num_prompt, len(third.content)) == (1500, 1500)
    shared = 2 * HASH_BLOCK
    assert first.content[:shared] == third.content[:shared]
    assert first.content[shared:] != third.content[shared : shared + 6]
    assert read_trace(file, IDS, seed=0) == read_trace(file, IDS, seed=0)
    [_, _, (_, chat)] = read_trace(file, WORDS, seed=0)
    message: Any = chat.content[0]
    assert len(message["content"].split()) == 1500


@pytest.mark.parametrize(
    ("read", "line", "message"),
    [
        (read_prompts, "{", "line 1 is not JSON"),
        (read_prompts, "3", "line 1 is not a JSON object"),
        (read_prompts, '{"prompt": ""}', 'needs "prompt"'),
        (read_prompts, '{"prompt": [1, -2]}', 'needs "prompt"'),
        (read_prompts, '{"prompt": "x", "max_tokens": 0}', '"max_tokens" must be'),
        (read_prompts, "", "has no prompts"),
        (read_sharegpt, '{"prompt": "x"}', 'no list "conversations"'),
        (lambda p: read_trace(p, IDS, 0), '{"input_length": 3}', 'needs "timestamp"'),
        (
            lambda p: read_trace(p, IDS, 0),
            '{"timestamp": 1e308, "input_length": 3}',
            'needs "timestamp"',
        ),
        (
            lambda p: read_trace(p, IDS, 0),
            '{"offset_s": 1%s, "input_length": 3}' % ("0" * 400),
            'needs "timestamp"',
        ),
        (lambda p: read_trace(p, IDS, 0), '{"timestamp": 3}', 'neither "input_length"'),
        (
            lambda p: read_trace(p, IDS, 0),
            '{"timestamp": 3, "input_length": 3, "hash_ids": ["a"]}',
            '"hash_ids" must be',
        ),
        (lambda p: read_trace(p, IDS, 0), "", "has no requests"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, read: Any, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=message):
        read(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prompts(tmp_path / "binary")


# ---- bodies -------------------------------------------------------------------------------------


def test_bodies() -> None:
    options = BodyOptions(CHAT, "m", 0.5, True, {"top_k": 3, "temperature": 1})
    [job] = make_jobs([Prompt("q", None, 8)], options)
    assert json.loads(job.body + b"}") == {
        "model": "m", "messages": [{"role": "user", "content": "q"}], "max_tokens": 8,
        "temperature": 1, "ignore_eos": True, "top_k": 3, "stream": True,
    }  # fmt: skip
    with pytest.raises(UsageError, match="takes no token ids"):
        make_jobs([Prompt([1], None, None)], options)
    with pytest.raises(UsageError, match="takes no messages"):
        make_jobs([Prompt([{"role": "user"}], None, None)], BodyOptions(COMPLETIONS, "m"))
    with pytest.raises(UsageError, match="--extra-body cannot set stream"):
        BodyOptions(COMPLETIONS, "m", extra={"stream": False})
    with pytest.raises(UsageError, match="--endpoint must be"):
        BodyOptions("/v1/responses", "m")
