"""lm-eval over HTTP says what the engine says in its own process: the same floats, the same flags.

The tokenizer is the server's (tokenizer_backend=remote): no file of it is on the client's side.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from live_server import ROOT

TASKS = Path("tests/clients/lm_eval_tasks")
QUESTIONS = [json.loads(line) for line in (ROOT / TASKS / "rivers.jsonl").read_text().splitlines()]
NUM_CHOICES = 3

SCORES = """
from headrace.engine.llm import LLM
from headrace.engine.params import SamplingParams
llm = LLM("smollm2-135m", max_model_len=2048, kv_cache_memory="256MiB")
result = []
for context, continuation in data:
    start = len(llm.encode(context))
    ids = llm.encode(context + continuation)
    [scored] = llm.generate([{"prompt_token_ids": ids}],
                            SamplingParams(prompt_logprobs=1, max_tokens=0, temperature=0))
    entries = [e[t] for t, e in zip(ids[start:], scored.prompt_logprobs[start:])]
    result.append([sum(e.logprob for e in entries), all(e.rank == 1 for e in entries)])
"""

CHATS = """
from headrace.engine.llm import LLM
from headrace.engine.params import SamplingParams
llm = LLM("smollm2-135m", max_model_len=2048, kv_cache_memory="256MiB")
params = SamplingParams(temperature=0, max_tokens=16, stop=["\\n"])
result = [llm.chat([{"role": "user", "content": text}], params)[0].outputs[0].text for text in data]
"""


def evaluate(out: Path, model: str, arguments: str, task: str, *more: str) -> list[Any]:
    """lm-eval's own record of each question, in order."""
    command = Path(sys.executable).with_name("lm-eval")
    done = subprocess.run(
        [
            str(command), "run", "--model", model, "--model_args", arguments, "--tasks", task,
            "--include_path", str(TASKS), "--output_path", str(out), "--log_samples", *more,
        ],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [file] = out.rglob(f"samples_{task}_*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) == len(QUESTIONS)
    return sorted(records, key=lambda record: record["doc_id"])


@pytest.mark.parametrize("concurrent", [1, 4])
def test_log_likelihoods_are_the_engines_own(
    offline: Path, api: str, in_process: Callable[[str, Any], Any], concurrent: int
) -> None:
    arguments = (
        f"base_url={api}/completions,model=smollm2-135m,tokenizer_backend=remote,"
        f"num_concurrent={concurrent}"
    )
    records = evaluate(offline / "out", "local-completions", arguments, "headrace_rivers")
    got = [
        [float(record["filtered_resps"][n][0]), record["filtered_resps"][n][1] in (True, "True")]
        for record in records
        for n in range(NUM_CHOICES)
    ]
    pairs = [[q["question"], f" {choice}"] for q in QUESTIONS for choice in q["choices"]]
    want = in_process(SCORES, pairs)
    assert got == want
    assert {greedy for _, greedy in got} == {True, False}, "both flags must occur"


def test_chat_generation_is_the_engines_own(
    offline: Path, api: str, in_process: Callable[[str, Any], Any]
) -> None:
    arguments = f"base_url={api}/chat/completions,model=smollm2-135m"
    records = evaluate(
        offline / "out", "local-chat-completions", arguments, "headrace_answers",
        "--apply_chat_template",
    )  # fmt: skip
    got = [record["resps"][0][0] for record in records]
    assert got == in_process(CHATS, [q["question"] for q in QUESTIONS])


def test_completion_generation_with_the_remote_tokenizer(offline: Path, api: str) -> None:
    arguments = f"base_url={api}/completions,model=smollm2-135m,tokenizer_backend=remote"
    records = evaluate(offline / "out", "local-completions", arguments, "headrace_answers")
    assert all(isinstance(record["resps"][0][0], str) for record in records)
