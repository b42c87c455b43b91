"""Chat templates: the 70 of the suite against transformers, our Gemma template against the
published one, BOS rules (faults 55, 56), empty input (fault 50), hostile templates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ModelFileError, PromptError, UsageError
from headrace.formats.chat_fallback import FALLBACK_TEMPLATES
from headrace.formats.chat_template import ChatTemplate, encode_chat, load_chat_template
from headrace.formats.checkpoint import open_checkpoint
from headrace.formats.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": 'Hello <b>&"world"</b>  '}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ünïcode? 你好"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go\n\non"},
    ],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a <place>",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "where"}},
                "required": ["place"],
            },
        },
    }
]


@pytest.mark.torch
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("chat", sorted(CHATS))
def test_every_template_of_the_suite_renders_as_in_transformers(
    chat: str, tools: list[dict[str, Any]] | None, suite: Path
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    paths = sorted((suite / "templates").glob("*.jinja"))
    assert len(paths) == 70
    rendered = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        messages = CHATS[chat]
        try:
            (want,), _ = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=source,
                add_generation_prompt=True,
                **SPECIAL,
            )
        except Exception:
            # Refused there (roles that must alternate, say): it must be refused here, and clearly.
            with pytest.raises((PromptError, ModelFileError)):
                ChatTemplate(source, SPECIAL, path.name).render(messages, tools=tools)
            continue
        assert ChatTemplate(source, SPECIAL, path.name).render(messages, tools=tools) == want, (
            path.name
        )
        rendered += 1
    assert rendered >= 60


def test_builtin_gemma_template_equals_the_published_one(suite: Path) -> None:
    published = (suite / "templates" / "google-gemma-2-2b-it.jinja").read_text(encoding="utf-8")
    chat = [
        {"role": "user", "content": " one "},
        {"role": "assistant", "content": "two\n"},
        {"role": "user", "content": "three"},
    ]
    for prompt in (True, False):
        want = ChatTemplate(published, SPECIAL, "published").render(
            chat, add_generation_prompt=prompt
        )
        for architecture, source in FALLBACK_TEMPLATES.items():
            ours = ChatTemplate(source, SPECIAL, architecture)
            assert ours.render(chat, add_generation_prompt=prompt) == want


def test_builtin_gemma_template_puts_the_system_message_into_the_first_turn() -> None:
    template = ChatTemplate(FALLBACK_TEMPLATES["gemma3"], SPECIAL, "built in")
    assert template.render(CHATS["system"][:2]) == (
        "<BOS><start_of_turn>user\nBe brief.\n\nÜnïcode? 你好<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(PromptError, match="alternate"):
        template.render([{"role": "assistant", "content": "I begin"}])


def test_exactly_one_bos_after_template_and_tokenizer(
    vocabulary: Callable[[str], Tokenizer],
) -> None:
    """Row 55: the tokenizer adds BOS and the template writes one."""
    tokenizer = vocabulary("llama-spm")
    assert tokenizer.add_bos
    bos = tokenizer.bos_id
    writes = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}, "t")
    silent = ChatTemplate("{{ messages[0].content }}", {"bos_token": "<s>"}, "t")
    chat = [{"role": "user", "content": "Hello"}]
    assert encode_chat(tokenizer, writes, chat) == encode_chat(tokenizer, silent, chat)
    assert encode_chat(tokenizer, writes, chat).count(bos or -1) == 1


def test_a_bos_of_the_template_stays_when_the_tokenizer_adds_none(
    vocabulary: Callable[[str], Tokenizer],
) -> None:
    """Fault 56."""
    tokenizer = vocabulary("gpt-2")
    assert not tokenizer.add_bos
    bos = tokenizer.bos_id
    template = ChatTemplate("<|endoftext|>{{ messages[0].content }}", {}, "t")
    ids = encode_chat(tokenizer, template, [{"role": "user", "content": "Hello"}])
    assert ids == [bos, *tokenizer.encode("Hello")]


def test_raw_text_that_starts_with_bos_is_kept_and_warned_about(
    vocabulary: Callable[[str], Tokenizer], caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = vocabulary("llama-spm")
    assert tokenizer.encode("<s>Hello")[:2] == [tokenizer.bos_id] * 2
    assert "the prompt has two" in caplog.text
    caplog.clear()
    tokenizer.encode("Hello")
    tokenizer.encode("<s>Hello", parse_special=False)
    assert not caplog.text


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "empty"),
        ("hello", "list"),
        ({"role": "user"}, "list"),
        (["hello"], "message 0"),
        ([{"content": "x"}], "no role"),
        ([{"role": "user"}], "no content"),
        ([{"role": "user", "content": 3}], "neither text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
    ],
)
def test_malformed_messages_are_refused_clearly(messages: Any, words: str) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, "t")
    with pytest.raises(PromptError, match=words):
        template.render(messages)


def test_empty_content_gives_an_empty_turn_never_an_empty_prompt(
    vocabulary: Callable[[str], Tokenizer],
) -> None:
    """Fault 50: defined for a template that frames the turn, refused where nothing is left."""
    framed = ChatTemplate("<|im_start|>user\n{{ messages[0].content }}", {}, "t")
    empty = [{"role": "user", "content": ""}]
    assert encode_chat(vocabulary("qwen2"), framed, empty)
    with pytest.raises(PromptError, match="empty prompt"):
        ChatTemplate("{{ messages[0].content }}", {}, "t").render(empty)


def test_parts_developer_role_and_continuation() -> None:
    template = ChatTemplate(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}",
        {},
        "t",
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = [{"role": "developer", "content": parts}, {"role": "assistant", "content": "so "}]
    assert template.render(chat) == "[system]ab;[assistant]so ;>"
    assert template.render(chat, continue_final_message=True) == "[system]ab;[assistant]so "
    assert chat[1]["content"] == "so "


def test_long_conversations_stay_within_the_limits() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if loop.index0 == (messages | length) - 1 %}>{% endif %}"
        "{{ (messages | selectattr('role', 'equalto', 'user') | list | length) if false }}"
        "{{ m.content | trim }}{% endfor %}",
        {},
        "t",
    )
    chat = [{"role": "user", "content": "many words " * 50}] * 2000
    assert len(template.render(chat)) > 1_000_000


HOSTILE = {
    "lists": "{% for i in range(99999) %}{% set x = range(99999) | list | sort %}{% endfor %}",
    "output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "repeat": "{{ ('x' * 10000000) * 1000 }}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "doubling ~": "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}",
    "doubling +": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}"
    "{% endfor %}",
    "doubling block": "{% set n = namespace(x='xx') %}{% for i in range(99) %}"
    "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}{% endfor %}",
    "nested lists": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set n.x = [n.x, n.x] %}"
    "{% endfor %}{{ n.x }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "shift": "{{ 1 << 99999999999 }}",
    "format": "{{ '%999999999d' % 1 }}",
    "format star": "{{ '%*d' % (999999999, 1) }}",
    "format method": "{{ '{:>999999999}'.format(1) }}",
    "center": "{{ 'x' | center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "replace": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replace filter": "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}",
    "join": "{{ ('y' * 99999).join(['x'] * 99999) }}",
    "indent": "{{ ('\\n' * 99999) | indent(99999) }}",
    "macro": "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(40) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep source": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "syntax": "{% for %}",
}


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 999999999) }}",
        "{{ '{a:>{b}}'.format_map({'a': 1, 'b': 999999999}) }}",
        "{{ ('{:>{}}' | attr('format'))(1, 999999999) }}",
    ],
)
def test_format_methods_are_refused_before_they_write(source: str) -> None:
    with pytest.raises(ModelFileError, match=r"pads a text to an? (absurd|computed) length"):
        ChatTemplate(source, {}, "hostile").render([{"role": "user", "content": "x"}])


def test_harmless_format_methods_work() -> None:
    source = "{{ '{:>4}|{{}}|{a}'.format(1, a=2) }}"
    assert ChatTemplate(source, {}, "t").render([{"role": "user", "content": "x"}]) == "   1|{}|2"


def test_what_an_expression_raises_is_the_template_s_fault() -> None:
    with pytest.raises(PromptError, match="does not take these messages"):
        ChatTemplate("{{ '1e999' | float | int }}", {}, "t").render(
            [{"role": "user", "content": "x"}]
        )


@pytest.mark.parametrize("attack", sorted(HOSTILE))
def test_hostile_templates_end_in_a_model_error(attack: str) -> None:
    with pytest.raises((ModelFileError, PromptError)):
        ChatTemplate(HOSTILE[attack], {}, "hostile").render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self._TemplateReference__context }}",
        "{% include 'x' %}",
    ],
)
def test_templates_reach_nothing_outside(source: str) -> None:
    template = ChatTemplate(source + "{{ 'end' }}", {}, "hostile")
    try:
        text = template.render([{"role": "user", "content": "x"}])
    except (PromptError, ModelFileError):
        return
    assert text == "end"


def test_sources_of_templates(
    suite: Path, vocabulary: Callable[[str], Tokenizer], tmp_path: Path
) -> None:
    tokenizer = vocabulary("gpt-2")
    checkpoint = open_checkpoint(suite / "ggml-vocab-command-r.gguf")
    default = load_chat_template(checkpoint, tokenizer)
    tool_use = load_chat_template(checkpoint, tokenizer, name="tool_use")
    assert default.source != tool_use.source
    with pytest.raises(UsageError, match=r"'poetry'.*rag, tool_use"):
        load_chat_template(checkpoint, tokenizer, name="poetry")
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}!", encoding="utf-8")
    mine = load_chat_template(checkpoint, tokenizer, override=str(file))
    assert mine.render([{"role": "user", "content": "x"}]) == "<|endoftext|>!"
    with pytest.raises(UsageError, match=r"missing\.jinja"):
        load_chat_template(checkpoint, tokenizer, override=str(tmp_path / "missing.jinja"))
    bare = open_checkpoint(suite / "ggml-vocab-gpt-2.gguf")
    with pytest.raises(ModelFileError, match="--chat-template"):
        load_chat_template(bare, vocabulary("gpt-2"))
