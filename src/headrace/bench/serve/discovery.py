"""What a server says about itself before a run: its models, and how it counts tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.bench.serve.client import Client, fetch
from headrace.bench.serve.dataset import Prompt
from headrace.bench.serve.failures import RequestFailed
from headrace.bench.serve.timeline import error_message_of
from headrace.errors import EndpointError

_CPU_SECONDS = re.compile(
    rb"^process_cpu_seconds_total(?:\{[^}\n]*\})? +([0-9.e+]{1,30})\s*$", re.M
)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """num_ids: size of the vocabulary, where the server says it."""

    name: str
    num_ids: int | None = None


async def find_model(client: Client, wanted: str | None) -> ServedModel:
    """The wanted model, else the first of /v1/models. A server without that route serves whatever
    is wanted. Raises EndpointError."""
    url = client.target.url
    try:
        status, body = await fetch(client, "GET", "/v1/models")
    except RequestFailed as failure:
        raise EndpointError(f"{url} cannot be measured: {failure.detail}.") from None
    models = _models(body) if status == 200 else []
    found = next((m for m in models if wanted in (None, m.name)), None)
    if found is not None:
        return found
    if wanted is not None:
        return ServedModel(wanted)
    said = error_message_of(body) if status != 200 else "it lists no model"
    key = status in (401, 403)
    remedy = "give the key with --api-key or OPENAI_API_KEY" if key else "name one with --model"
    raise EndpointError(f"{url}/v1/models answers {status}: {said.rstrip('.')}; {remedy}.")


def _models(body: bytes) -> list[ServedModel]:
    try:
        data = json.loads(body)["data"]
        return [ServedModel(str(entry["id"]), _num_ids(entry)) for entry in data]
    except (ValueError, RecursionError, KeyError, TypeError):
        return []


def _num_ids(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    value = meta.get("n_vocab") if isinstance(meta, dict) else None
    return value if isinstance(value, int) and value > 1 else None


async def server_cpu_s(client: Client) -> float | None:
    """CPU seconds of the server's process so far, where its /metrics say them (the standard
    collector of Prometheus clients does)."""
    try:
        status, body = await fetch(client, "GET", "/metrics", timeout_s=5.0)
    except RequestFailed:
        return None
    found = _CPU_SECONDS.search(body) if status == 200 else None
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


async def exact_lengths(
    client: Client, model: str, prompts: Sequence[Prompt]
) -> tuple[list[Prompt], bool]:
    """Random words cut or lengthened until the server's /tokenize counts the tokens that were asked
    for, a chat's template included; and whether that worked for all. Where a server does not count,
    they stay as they are: about one token per word, the template on top."""
    made, exact = [], True
    for prompt in prompts:
        if exact and prompt.num_prompt is not None:
            prompt, exact = await _exact(client, model, prompt)
        made.append(prompt)
    return made, exact


async def _exact(client: Client, model: str, prompt: Prompt) -> tuple[Prompt, bool]:
    """Walks along the line through the last two counts; words of common vocabularies are one token
    each, so that the second try is right."""
    assert prompt.num_prompt is not None
    words = _text(prompt).split()
    size, slope, before = len(words), 1.0, None
    for _ in range(8):
        tried = _with_text(prompt, " ".join(words[i % len(words)] for i in range(size)))
        count = await _count(client, model, tried)
        if count is None:
            break
        if count == prompt.num_prompt:
            return tried, True
        if before is not None and before[0] != size:
            slope = max((count - before[1]) / (size - before[0]), 0.1)
        before = (size, count)
        step = round((prompt.num_prompt - count) / slope)
        size = max(size + (step or (1 if count < prompt.num_prompt else -1)), 1)
        if size == before[0]:  # one word and the template are longer than that
            break
    return prompt, False


def _text(prompt: Prompt) -> str:
    content = prompt.content
    first = content[0] if prompt.is_chat else content
    return str(first["content"] if isinstance(first, dict) else first)


def _with_text(prompt: Prompt, text: str) -> Prompt:
    chat = [{"role": "user", "content": text}]
    return replace(prompt, content=chat if prompt.is_chat else text)


async def _count(client: Client, model: str, prompt: Prompt) -> int | None:
    """Tokens of a prompt, or None where the server does not tell."""
    asked: dict[str, Any] = {"model": model}
    if prompt.is_chat:
        asked |= {"messages": prompt.content, "add_generation_prompt": True}
    else:
        asked |= {"prompt": prompt.content}
    try:
        status, body = await fetch(client, "POST", "/tokenize", json.dumps(asked).encode())
        count = json.loads(body)["count"] if status == 200 else None
    except (RequestFailed, ValueError, RecursionError, KeyError, TypeError):
        return None
    return count if isinstance(count, int) and count > 0 else None
