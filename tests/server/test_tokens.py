"""/tokenize and its relatives, against the tokenizer itself."""

from __future__ import annotations

import pytest

from headrace.engine.model import OpenModel, open_model
from live_server import LiveServer

pytestmark = pytest.mark.models

TEXTS = [
    "Hello, world",
    " leading",
    "日本語 👩‍👩‍👧 Ж",
    "<|im_start|>user\nHi<|im_end|>",
    "a\x00b",
    "",
]


@pytest.fixture(scope="module")
def model() -> OpenModel:
    return open_model("smollm2-135m", offline=True)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_the_tokenizers_and_lead_back_to_the_text(
    smollm2: LiveServer, model: OpenModel, text: str
) -> None:
    want = model.tokenizer.encode(text)
    answer = smollm2.json("/tokenize", {"prompt": text, "return_token_strs": True})
    assert answer["tokens"] == want
    assert answer["count"] == len(want)
    assert answer["max_model_len"] == 1024
    assert answer["token_strs"] == [model.tokenizer.token_text(i) for i in want]
    back = smollm2.json("/detokenize", {"tokens": want})
    assert back == {"prompt": text, "content": text}


def test_the_form_of_llama_cpp(smollm2: LiveServer, model: OpenModel) -> None:
    text = "<|im_end|> 👩‍👩‍👧"
    answer = smollm2.json("/tokenize", {"content": text, "with_pieces": True})
    assert [piece["id"] for piece in answer["tokens"]] == model.tokenizer.encode(text)
    pieces = [piece["piece"] for piece in answer["tokens"]]
    assert pieces[0] == "<|im_end|>"
    assert any(isinstance(piece, list) for piece in pieces), "no token is part of a character"
    data = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in pieces)
    assert data.decode() == text
    ids = smollm2.json("/tokenize", {"content": text})["tokens"]
    assert ids == model.tokenizer.encode(text)
    plain = smollm2.json("/tokenize", {"content": text, "parse_special": False})["tokens"]
    assert plain == model.tokenizer.encode(text, parse_special=False) != ids


def test_a_conversation_has_the_ids_that_chat_computes(smollm2: LiveServer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = smollm2.json("/tokenize", {"messages": messages})["tokens"]
    chat = smollm2.json(
        "/v1/chat/completions",
        {"messages": messages, "max_tokens": 1, "return_token_ids": True},
    )
    assert ids == chat["prompt_token_ids"]
    text = smollm2.json("/apply-template", {"messages": messages})["prompt"]
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")
    assert smollm2.json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] == ids
    closed = smollm2.json(
        "/apply-template", {"messages": messages, "add_generation_prompt": False}
    )["prompt"]
    assert closed + "<|im_start|>assistant\n" == text


def test_a_long_text(smollm2: LiveServer, model: OpenModel) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 20_000
    answer = smollm2.json("/tokenize", {"prompt": text})
    assert answer["count"] == len(answer["tokens"]) > 100_000
    assert smollm2.json("/detokenize", {"tokens": answer["tokens"]})["prompt"] == text
    error = smollm2.refusal("/tokenize", {"prompt": "x" * ((1 << 20) + 1)})
    assert error["param"] == "prompt"


def test_refusals(smollm2: LiveServer) -> None:
    for ids in ([1_000_000], [-5], [49152], [2**40], [0, 1, 2**63]):
        error = smollm2.refusal("/detokenize", {"tokens": ids})
        assert str(ids[-1]) in error["message"]
    assert smollm2.refusal("/detokenize", {"tokens": ["1"]})["param"] == "tokens"
    assert smollm2.refusal("/detokenize", {})["param"] == "tokens"
    for body in ({}, {"prompt": "a", "content": "a"}, {"prompt": "a", "messages": []}):
        assert "only one" in smollm2.refusal("/tokenize", body)["message"]
    assert "empty" in smollm2.refusal("/tokenize", {"messages": []})["message"]
    assert smollm2.refusal("/tokenize", {"prompt": "a", "add_specials": True})["param"] == (
        "add_specials"
    )
    assert smollm2.refusal("/tokenize", {"prompt": "a", "model": "other"}, 404)["code"] == (
        "model_not_found"
    )


def test_a_template_of_the_request_is_a_text_and_never_a_file(smollm2: LiveServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]

    def prompt(template: str) -> str:
        body = {"messages": messages, "chat_template": template}
        text: str = smollm2.json("/apply-template", body)["prompt"]
        return text

    assert prompt("/etc/hostname") == "/etc/hostname"
    assert prompt("{{ messages[0].content }}!") == "Hi!"
    for broken in ("{{ messages[0].content", "{% for %}", "{{ 1 // 0 }}", "{{ 'x' * 10**9 }}"):
        for path in ("/apply-template", "/tokenize", "/v1/chat/completions"):
            error = smollm2.refusal(path, {"messages": messages, "chat_template": broken})
            assert "template" in error["message"]


def test_what_a_client_needs_to_stand_in_for_a_tokenizer(
    smollm2: LiveServer, model: OpenModel
) -> None:
    info = smollm2.json("/tokenizer_info")
    for name in ("eos", "bos", "pad"):
        token, token_id = info[f"{name}_token"], info[f"{name}_token_id"]
        ids = smollm2.json("/tokenize", {"prompt": token, "add_special_tokens": False})["tokens"]
        assert ids == [token_id] == [getattr(model.tokenizer, f"{name}_id")]
    assert info["chat_template"] == model.chat_template().source
    assert info["vocab_size"] == model.tokenizer.num_ids


def test_props(smollm2: LiveServer) -> None:
    props = smollm2.json("/props")
    assert props["default_generation_settings"] == {"n_ctx": 1024}
    assert props["model_alias"] == "smollm2-135m"
    assert "/" not in props["model_path"]
