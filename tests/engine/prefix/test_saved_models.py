"""Prefixes of the real models across processes: hits are served, with the bits of a cold run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.llm import LLM
from headrace.engine.model import native_executor, open_model
from headrace.engine.params import SamplingParams
from headrace.errors import UsageError
from headrace.ops import native
from headrace.ops.native import NativeModel

pytestmark = pytest.mark.models

ROOT = Path(__file__).parents[3]
SMOL, GEMMA = "smollm2-135m", "gemma3-270m"
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun. "
#: Over the window of gemma3 (512) and inside it; at a block border and beside it.
LENGTHS = (31, 48, 540)
GREEDY = SamplingParams(temperature=0, max_tokens=4, logprobs=3)
SEEDED = SamplingParams(seed=7, max_tokens=4, logprobs=3)

ASK = """
import json, sys
from headrace.engine.llm import LLM
from headrace.engine.params import SamplingParams
name, directory, prompts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with LLM(name, max_model_len=1024, kv_save=directory) as llm:
    report = llm.engine.cache.restored
    answers = []
    for params in ({"temperature": 0}, {"seed": 7}):
        for output in llm.generate(prompts, SamplingParams(max_tokens=4, logprobs=3, **params)):
            [done] = output.outputs
            floats = [[(i, e.logprob) for i, e in p.items()] for p in done.logprobs]
            answers.append([output.num_cached_tokens, done.token_ids, floats])
    llm.engine.check_invariants()
print(json.dumps([[report.num_positions, report.num_dropped, report.reason], answers]))
"""


@pytest.fixture(scope="module")
def smol() -> Iterator[LLM]:
    with LLM(SMOL, max_model_len=1024, enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def gemma() -> Iterator[LLM]:
    with LLM(GEMMA, max_model_len=1024, enable_prefix_caching=False) as llm:
        yield llm


def like(llm: LLM, **options: Any) -> LLM:
    """Another engine over the same model and packed weights."""
    executor = llm.engine.executor
    assert isinstance(executor, NativeModel)
    make = partial(native_executor, weights=executor.weights)
    return LLM(options.pop("model", llm.model), make_executor=make, max_model_len=1024, **options)


def cold_answers(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[Any]]:
    answers = []
    for output in llm.generate(prompts, params):
        assert output.num_cached_tokens == 0
        [done] = output.outputs
        assert done.logprobs is not None
        floats = [[[i, e.logprob] for i, e in p.items()] for p in done.logprobs]
        answers.append([done.token_ids, floats])
    return answers


@pytest.mark.parametrize("name", [SMOL, GEMMA])
def test_a_new_process_goes_on_with_the_same_bits(
    name: str, save_dir: Path, request: pytest.FixtureRequest
) -> None:
    cold: LLM = request.getfixturevalue("smol" if name == SMOL else "gemma")
    ids = cold.encode(TEXT * 60)
    prompts = [[ids[length], *ids[1:length]] for length in LENGTHS]  # nothing in common
    with like(cold, kv_save=save_dir) as llm:
        assert llm.engine.cache.restored is not None
        assert llm.engine.cache.restored.reason == f"{save_dir} holds no saved prefixes."
        llm.generate(prompts, GREEDY)
        again = [output.num_cached_tokens for output in llm.generate(prompts, GREEDY)]
    saved = llm.engine.cache.saved
    assert saved is not None
    assert saved.reason is None
    asks = [*prompts, [*prompts[-1], 5]]
    asked = subprocess.run(
        [sys.executable, "-c", ASK, name, str(save_dir), json.dumps(asks)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "HEADRACE_DEBUG_INVARIANTS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (num_positions, num_dropped, reason), answers = json.loads(asked.stdout)
    assert (num_positions, num_dropped, reason) == (saved.num_positions, 0, None)
    assert [cached for cached, *_ in answers[: len(prompts)]] == again
    for (cached, *_), prompt in zip(answers, [*asks, *asks], strict=True):
        assert cached >= (len(prompt) - 1) // 16 * 16 > 0
    expected = [*cold_answers(cold, asks, GREEDY), *cold_answers(cold, asks, SEEDED)]
    assert [answer for _, *answer in answers] == expected


def test_what_was_computed_otherwise_is_refused_in_one_sentence(
    smol: LLM, gemma: LLM, save_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = smol.encode(TEXT)
    with like(smol, kv_save=save_dir) as llm:
        llm.generate([prompt], GREEDY)

    def reason_of(base: LLM, **options: Any) -> str:
        llm = like(base, **options)
        report = llm.engine.cache.restore(save_dir)
        assert (report.num_nodes, report.num_positions) == (0, 0)
        assert llm.engine.cache.tree is not None
        assert llm.engine.cache.tree.num_nodes == 0
        said = str(report.reason)
        start = f"The prefixes saved in {save_dir} were computed with "
        assert said.startswith(start)
        assert said.endswith(", so none of them is used.")
        return said.removeprefix(start).removesuffix(", so none of them is used.")

    assert reason_of(gemma) == f"another model ({SMOL})"
    assert reason_of(smol, kv_cache_dtype="f16") == "another KV number format (bf16, here f16)"
    assert reason_of(smol, block_size=32) == "another block size (16, here 32)"
    mixed = replace(smol.model, tokenizer=gemma.model.tokenizer)
    assert reason_of(smol, model=mixed) == "another tokenizer (same size)"
    with monkeypatch.context() as patch:
        patch.setattr(native, "NUMERICS_ID", "headrace-2")
        assert reason_of(smol).startswith("other arithmetic (headrace-1/")
    requantised = LLM(SMOL, max_model_len=64, quantize="q4_0", num_threads=1)
    report = requantised.engine.cache.restore(save_dir)
    assert f"another model ({SMOL})" in str(report.reason)
    same = like(smol, num_threads=1, kv_cache_memory="64MiB", max_num_seqs=2)
    assert same.engine.cache.restore(save_dir).reason is None
    [output] = same.generate([prompt], GREEDY)
    assert output.num_cached_tokens == len(prompt) - 1


def test_the_same_file_elsewhere_is_the_same_model(smol: LLM, save_dir: Path) -> None:
    """By content: neither its name nor its time of change counts."""
    with like(smol, kv_save=save_dir) as llm:
        llm.generate(["The sea is"], GREEDY)
    link = save_dir / "other name.gguf"
    link.write_bytes(smol.model.path.read_bytes())
    os.utime(link, (1, 1))
    moved = like(smol, model=open_model(str(link)), kv_save=save_dir)
    assert moved.engine.cache.restored is not None
    assert moved.engine.cache.restored.reason is None
    assert moved.engine.cache.restored.num_positions > 0


def test_kv_save_asks_for_what_it_needs(smol: LLM) -> None:
    with pytest.raises(UsageError, match="kv_save needs the prefix cache, which is off"):
        like(smol, kv_save="/tmp", enable_prefix_caching=False)
    for name in ("", "a\0b", b"/tmp", 5):
        with pytest.raises(UsageError, match=r"kv_save = .* is not a directory's name"):
            like(smol, kv_save=name)
    with pytest.raises(UsageError, match="is a file; it must be a directory"):
        like(smol, kv_save=__file__)


def test_a_directory_may_be_named_by_a_text(smol: LLM, save_dir: Path) -> None:
    llm = like(smol)
    llm.generate([TEXT], GREEDY)
    assert llm.engine.cache.save(str(save_dir)).reason is None
    report = like(smol).engine.cache.restore(str(save_dir))
    assert (report.reason, report.num_positions > 0) == (None, True)
