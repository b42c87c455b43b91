"""The worker protocol with real processes, and that nothing imports a peer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.bench.peers.catalog import HEADRACE, PEERS, PeerEntry, find_peers
from headrace.bench.peers.peer import CannotRun, Load
from headrace.bench.peers.process import WorkerFailed, WorkerProcess
from headrace.bench.peers.worker import Worker
from headrace.errors import UsageError
from waiting import until

LOAD = Load(Path("/nowhere.gguf"), 1, 16, 1, 16)


def test_importing_the_bench_imports_no_engine() -> None:
    modules = [entry.module for entry in PEERS.values()]
    code = (
        "import sys, headrace.bench.compare, headrace.bench.compare_report, "
        "headrace.cli.bench_compare, headrace.bench.peers.worker; "
        "[entry.installed for entry in headrace.bench.peers.catalog.PEERS.values()]; "
        f"print([m for m in {[*modules, 'torch']!r} if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.stdout.strip() == "[]"


def test_names_of_engines_are_checked() -> None:
    assert [e.name for e in find_peers("llama_cpp_python, llama-cpp-python")] == [
        "llama-cpp-python"
    ]
    with pytest.raises(UsageError, match=r"'llama-cpp'\. Did you mean llama-cpp-python\?"):
        find_peers("llama-cpp")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ("{}", "KeyError"),
        ('{"do": "dance"}', "a worker knows no 'dance'"),
        ('{"do": "prefill", "ids": [1]}', "nothing is loaded"),
        ('{"do": "load", "model": "x", "wings": 2}', "TypeError"),
    ],
)
def test_a_bad_request_is_answered(line: str, said: str) -> None:
    answer = Worker(HEADRACE).answer(line)
    assert list(answer) == ["failed"]
    assert said in answer["failed"]


def test_a_model_that_is_not_there_is_a_sentence_and_the_worker_goes_on() -> None:
    with WorkerProcess(HEADRACE) as worker:
        for _ in range(2):
            with pytest.raises(WorkerFailed, match="nowhere") as failed:
                worker.load(LOAD)
            assert failed.value.alive


def test_an_idle_worker_is_stopped_and_uses_no_cpu() -> None:
    with WorkerProcess(HEADRACE) as worker:
        with pytest.raises(WorkerFailed):
            worker.load(LOAD)
        # the signal takes effect when its threads see it
        until(lambda: _state(worker.pid) == "T", "the worker is stopped")
        before = worker.cpu_seconds()
        time.sleep(0.2)
        assert worker.cpu_seconds() == before


def test_a_worker_that_dies_is_noticed() -> None:
    with WorkerProcess(HEADRACE) as worker:
        with pytest.raises(WorkerFailed):
            worker.load(LOAD)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match=r"was ended by SIGKILL") as failed:
            worker.prefill([1, 2])
        assert not failed.value.alive


def test_a_worker_that_ends_by_itself_says_its_last_words() -> None:
    unknown = PeerEntry("no-such-engine", "No engine", "none", "none:None", "")
    with (
        WorkerProcess(unknown) as worker,
        pytest.raises(WorkerFailed, match=r"No engine ended with 1; its last words: KeyError"),
    ):
        worker.load(LOAD)


def test_a_worker_that_hangs_is_given_up() -> None:
    with WorkerProcess(HEADRACE, timeout_s=0.0) as worker:
        with pytest.raises(WorkerFailed, match="did not answer within 0 s") as failed:
            worker.load(LOAD)
        assert not failed.value.alive


def test_an_engine_that_is_missing_fails_with_the_import_error() -> None:
    entry = PeerEntry("x", "X", "x", "no_such_file:X", "")
    answer = Worker(entry).answer(json.dumps({"do": "load", "model": "x"}))
    assert "ModuleNotFoundError" in answer["failed"]


@pytest.mark.large
def test_llama_cpp_and_headrace_draw_the_same_tokens(model_path: Path) -> None:
    from headrace.engine.model import open_model

    text = "The capital of France is Paris. The capital of Germany is Berlin. The capital of"
    ids = open_model(str(model_path)).tokenizer.encode(text)
    drawn = []
    for entry in (HEADRACE, PEERS["llama-cpp-python"]):
        with WorkerProcess(entry) as worker:
            facts = worker.load(Load(model_path, 2, 64, 2, 64))
            assert facts["version"]
            assert facts["settings"]
            prefill = worker.prefill(ids)
            decode = worker.decode(ids, 3)
            batch = worker.batch([ids, ids[::-1]], 4)
            assert prefill.seconds > 0
            assert decode.seconds > 0
            assert batch.seconds > 0
            assert decode.tokens == batch.tokens
            assert decode.tokens[:1] == prefill.tokens
            drawn.append(decode.tokens)
    assert drawn[0] == drawn[1]


@pytest.mark.large
def test_llama_cpp_refuses_a_directory(tmp_path: Path) -> None:
    with (
        WorkerProcess(PEERS["llama-cpp-python"]) as worker,
        pytest.raises(CannotRun, match="reads GGUF files only"),
    ):
        worker.load(Load(tmp_path, 1, 16, 1, 16))


@pytest.fixture
def model_path() -> Path:
    from headrace.formats.sources import resolve

    return resolve("smollm2-135m")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
