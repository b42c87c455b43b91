"""--kv-save over the life of servers: what one computed, the next one need not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from live_server import ROOT, serving

pytestmark = pytest.mark.models

PROMPT = "Once upon a time, in a village by the sea, there lived a fisherman. " * 8


def test_the_next_server_has_what_the_last_one_saved(save_dir: Path) -> None:
    directory = save_dir / "kv"
    flags = ("smollm2-135m", "--max-model-len", "512", "--kv-save", str(directory))
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 2}
    with serving(*flags) as server:
        cold = server.json("/v1/completions", body)
        assert f"{directory} holds no saved prefixes." in server.log()
        stream = {**body, "prompt": PROMPT[9:], "max_tokens": 64, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=stream) as running:
            lines = running.iter_lines()
            next(lines)
            saved = server.json("/cache/save", {})
            assert any("[DONE]" in line for line in lines)
        assert saved["saved"] is True
        assert saved["reason"] is None
        assert saved["positions"] >= cold["usage"]["prompt_tokens"]
        [path] = directory.glob("*.prefixes")
        assert path.stat().st_size == saved["bytes"]
        assert server.stop() == 0
        assert f"saved to {directory}: " in server.log()
    with serving(*flags) as server:
        warm = server.json("/v1/completions", body)
        assert f"restored from {directory}: " in server.log()
        num_prompt = warm["usage"]["prompt_tokens"]
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == num_prompt - 1
        assert warm["choices"] == cold["choices"]
        told = server.json("/cache")["restored"]
        assert told["reason"] is None
        assert told["positions"] >= num_prompt
        server.process.send_signal(signal.SIGTERM)  # twice: who hurries gets no new save, no harm
        server.process.send_signal(signal.SIGTERM)
    generate = [
        sys.executable, "-m", "headrace.cli.main", "generate", "smollm2-135m", "--json", "-p",
        PROMPT, "-n", "8", "--temp", "0", "--kv-save", str(directory),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(generate, capture_output=True, text=True, check=True, env=environment)
    answer = json.loads(done.stdout)
    assert answer["outputs"][0]["text"] == cold["choices"][0]["text"]
    assert answer["num_cached_tokens"] == num_prompt - 1
