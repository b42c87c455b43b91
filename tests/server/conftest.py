"""Servers that several tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from live_server import API_KEY, LiveServer, serving


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LiveServer]:
    options = ("--max-model-len", "1024", "--trust-request-chat-template")
    with serving("smollm2-135m", *options, step_limits=True) as server:
        yield server


@pytest.fixture(scope="session")
def guarded() -> Iterator[LiveServer]:
    """A context of 512 tokens, two sequences at once, a queue of two, an API key."""
    limits = ("--max-model-len", "512", "--max-num-seqs", "2", "--max-queued-requests", "2")
    with serving("smollm2-135m", *limits, env={"HEADRACE_API_KEY": API_KEY}) as server:
        server.http.headers["authorization"] = f"Bearer {API_KEY}"
        yield server


@pytest.fixture(scope="session")
def gemma3() -> Iterator[LiveServer]:
    """A tokenizer that adds a BOS."""
    with serving("gemma3-270m", "--max-model-len", "1024") as server:
        yield server


@pytest.fixture(scope="session")
def qwen() -> Iterator[LiveServer]:
    """No BOS; tokens for gaps; a template with tools. For tests marked large."""
    with serving("qwen2.5-coder-0.5b", "--max-model-len", "1024") as server:
        yield server
