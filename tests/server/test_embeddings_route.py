"""/v1/embeddings against the vectors of the engine, and through the OpenAI SDK."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from headrace import LLM, PoolingParams
from live_server import LiveServer

pytestmark = pytest.mark.models

TEXTS = ["The sea is calm tonight.", "def f(x): return x", "早起きは三文の徳。 " * 40]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", max_model_len=1024) as model:
        yield model


def vectors(answer: Any) -> list[npt.NDArray[np.float32]]:
    assert answer["object"] == "list"
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [np.array(item["embedding"], np.float32) for item in answer["data"]]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_every_form_of_input_has_the_engines_vectors(
    smollm2: LiveServer, llm: LLM, pooling: str
) -> None:
    want = [output.embedding for output in llm.embed(TEXTS, PoolingParams(pooling))]
    ids = [llm.encode(text) for text in TEXTS]
    for given in (TEXTS, ids):
        answer = smollm2.json("/v1/embeddings", {"input": given, "pooling": pooling})
        for found, exact in zip(vectors(answer), want, strict=True):
            assert exact is not None
            assert found.tobytes() == exact.tobytes()
            assert abs(float(np.linalg.norm(found.astype(np.float64))) - 1) < 1e-6
        count = sum(map(len, ids))
        assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    for one in (TEXTS[0], ids[0]):
        answer = smollm2.json("/v1/embeddings", {"input": one, "pooling": pooling})
        assert vectors(answer)[0].tobytes() == want[0].tobytes()  # type: ignore[union-attr]
    body = {"input": TEXTS, "pooling": pooling, "encoding_format": "base64"}
    for item, exact in zip(smollm2.json("/v1/embeddings", body)["data"], want, strict=True):
        assert base64.b64decode(item["embedding"]) == exact.tobytes()  # type: ignore[union-attr]


def test_beside_a_running_stream(smollm2: LiveServer, llm: LLM) -> None:
    """A step that pools rows and draws tokens: both are what they are alone."""
    body = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    alone = smollm2.json("/v1/completions", body)["choices"][0]["text"]
    [exact] = llm.embed(TEXTS[2])
    with smollm2.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        found = [vectors(smollm2.json("/v1/embeddings", {"input": TEXTS[2]}))[0] for _ in range(3)]
        text = "".join(piece for line in stream.iter_lines() for piece in texts_of(line))
    assert text == alone
    assert exact.embedding is not None
    assert {vector.tobytes() for vector in found} == {exact.embedding.tobytes()}


def texts_of(line: str) -> list[str]:
    if not line.startswith("data: {"):
        return []
    return [choice["text"] for choice in json.loads(line[6:])["choices"]]


def test_many_inputs(smollm2: LiveServer) -> None:
    texts = [f"Number {number} of many." for number in range(300)]
    found = vectors(smollm2.json("/v1/embeddings", {"input": texts}))
    assert len({vector.tobytes() for vector in found}) == 300
    assert "2048" in smollm2.refusal("/v1/embeddings", {"input": ["a"] * 2049})["message"]


def test_the_sdk(smollm2: LiveServer, llm: LLM) -> None:
    """It asks for base64 by itself and decodes it."""
    import openai

    client = openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none")
    answer = client.embeddings.create(model="smollm2-135m", input=TEXTS[:2])
    for item, output in zip(answer.data, llm.embed(TEXTS[:2]), strict=True):
        assert output.embedding is not None
        assert np.array(item.embedding, np.float32).tobytes() == output.embedding.tobytes()
    size = len(answer.data[0].embedding)
    client.embeddings.create(model="smollm2-135m", input="a", dimensions=size)
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="smollm2-135m", input="a", dimensions=size - 1)
    assert caught.value.param == "dimensions"


def test_refusals(smollm2: LiveServer) -> None:
    for body, param in (
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, None),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({}, "input"),
        ({"input": "a", "priority": 1000}, "priority"),
        ({"input": "a", "timeout": 0}, "timeout"),
    ):
        assert smollm2.refusal("/v1/embeddings", body)["param"] == param
    for given in ("", [""], [[]], [[10**6]], [[-1]], [[0, 1], []]):
        smollm2.refusal("/v1/embeddings", {"input": given})
    error = smollm2.refusal("/v1/embeddings", {"input": [[28] * 1025]})
    assert error["code"] == "context_length_exceeded"
    whole = smollm2.json("/v1/embeddings", {"input": [[28] * 1024]})
    assert whole["usage"]["prompt_tokens"] == 1024
    cut = smollm2.json("/v1/embeddings", {"input": [[28] * 1500], "truncate_prompt_tokens": 1024})
    assert cut["timings"]["truncated_n"] == 476
