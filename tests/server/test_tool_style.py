"""Tools through chat templates: the 70 of the suite and our own two, each asked how it does it."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.text_data import vocabulary_suite
from headrace.errors import ModelFileError, PromptError, UsageError
from headrace.formats.chat_fallback import FALLBACK_TEMPLATES
from headrace.formats.chat_template import ChatTemplate
from headrace.server.parsing.reasoning import reasoning_format
from headrace.server.parsing.tool_messages import CALL_SHAPES, CallShape, folded, shaped
from headrace.server.parsing.tool_request import ToolRequest, read_tools
from headrace.server.parsing.tool_style import needs_style, tool_style

SPECIAL = {"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a place",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "where"}},
                "required": ["city"],
            },
        },
    }
]


def called(call_id: str, city: str) -> dict[str, Any]:
    arguments = json.dumps({"city": city})
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "weather", "arguments": arguments},
    }


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is it warmer?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [called("call_a1", "Oslo"), called("call_b2", "Rome")],
    },
    {"role": "tool", "tool_call_id": "call_a1", "content": "nine degrees"},
    {"role": "tool", "tool_call_id": "call_b2", "content": [{"type": "text", "text": "twenty"}]},
    {"role": "assistant", "content": "In Rome."},
    {"role": "user", "content": "Thank you"},
]
NEEDLES = ("weather", "Oslo", "Rome", "nine degrees", "twenty", "In Rome.", "Thank you")


@pytest.fixture(scope="module")
def request_() -> ToolRequest:
    return read_tools(TOOLS, None, None)


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplate]:
    return dict(_templates(vocabulary_suite() / "templates"))


def _templates(directory: Path) -> Iterator[tuple[str, ChatTemplate]]:
    for path in sorted(directory.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        yield path.stem, ChatTemplate(source, SPECIAL, path.stem)
    yield "gemma3", ChatTemplate(FALLBACK_TEMPLATES["gemma3"], SPECIAL, "built in")
    yield "chatml", ChatTemplate(CHATML, SPECIAL, "chatml")


def test_a_conversation_with_calls_renders_on_every_template(
    templates: dict[str, ChatTemplate], request_: ToolRequest
) -> None:
    """Tools, both calls, both results and what follows are all in the prompt, in this order."""
    forms = []
    for name, template in templates.items():
        if name == "fireworks-ai-llama-3-firefunction-v2":
            continue  # needs a variable of its own, `functions`, for any chat at all
        style = tool_style(template)
        text = template.render(style.messages(CONVERSATION, request_), tools=style.tools(request_))
        for needle in NEEDLES:
            assert needle in text, (name, needle)
        assert "Weather of a place" in text, name
        positions = [text.rindex(n) for n in ("twenty", "In Rome.", "Thank you")]
        assert positions == sorted(positions), name
        forms.append((style.form, style.native))
    assert len(forms) == 71
    assert forms.count(("hermes", True)) >= 10
    assert forms.count(("json", True)) >= 10


@pytest.mark.parametrize(
    ("name", "form", "native"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", "hermes", True),
        ("Qwen-Qwen3-0.6B", "hermes", True),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", True),
        ("meta-llama-Llama-3.1-8B-Instruct", "json", True),
        ("mistralai-Mistral-Nemo-Instruct-2407", "json", True),
        ("Qwen3-Coder", "json", False),  # its calls are XML, which we do not read
        ("google-gemma-2-2b-it", "json", False),
        ("gemma3", "json", False),
        ("chatml", "json", False),
    ],
)
def test_the_format_is_the_template_s_own_where_we_read_it(
    templates: dict[str, ChatTemplate], name: str, form: str, native: bool
) -> None:
    style = tool_style(templates[name])
    assert (style.form, style.native) == (form, native)


def test_a_parser_that_was_asked_for_is_used(templates: dict[str, ChatTemplate]) -> None:
    style = tool_style(templates["Qwen3-Coder"], "hermes")
    assert (style.form, style.native) == ("hermes", True)
    style = tool_style(templates["chatml"], "hermes")
    assert (style.form, style.native) == ("hermes", False)
    assert tool_style(templates["Qwen-Qwen3-0.6B"], "none").form == "none"
    with pytest.raises(UsageError, match="'xml'"):
        tool_style(templates["chatml"], "xml")


def test_our_own_instructions_open_the_conversation(
    templates: dict[str, ChatTemplate], request_: ToolRequest
) -> None:
    system = {"role": "system", "content": "Be brief."}
    style = tool_style(templates["chatml"])
    first = style.messages([system, *CONVERSATION], request_)[0]
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\nYou can call functions.")
    assert style.messages(CONVERSATION, request_)[0]["role"] == "system"
    # Gemma 2 has no system role: the instructions open the first turn of the user.
    style = tool_style(templates["google-gemma-2-2b-it"])
    first = style.messages(CONVERSATION, request_)[0]
    assert first["role"] == "user"
    assert first["content"].endswith("Where is it warmer?")
    none = read_tools(TOOLS, "none", None)
    assert style.messages(CONVERSATION, none)[0] == CONVERSATION[0]
    assert style.tools(none) is None


def test_folding_writes_calls_and_results_as_text() -> None:
    plain = folded(CONVERSATION)
    assert [m["role"] for m in plain] == ["user", "assistant", "user", "assistant", "user"]
    assert plain[1]["content"] == (
        '[{"name": "weather", "arguments": {"city": "Oslo"}}, '
        '{"name": "weather", "arguments": {"city": "Rome"}}]'
    )
    assert plain[2]["content"] == "Result of weather: nine degrees\nResult of weather: twenty"
    assert folded([{"role": "tool", "content": "x"}])[0]["content"] == "Result of function: x"


def test_shapes_of_calls() -> None:
    assert shaped(CONVERSATION, CallShape())[1]["tool_calls"][0]["function"]["arguments"] == {
        "city": "Oslo"
    }
    short = shaped(CONVERSATION, CallShape(text_arguments=True, no_content=True, short_ids=True))
    call = short[1]["tool_calls"][0]
    assert short[1]["content"] is None
    assert call["function"]["arguments"] == '{"city": "Oslo"}'
    assert len(call["id"]) == 9
    assert call["id"] == short[2]["tool_call_id"]
    single = shaped(CONVERSATION, CallShape(single=True))
    assert [m["role"] for m in single[1:5]] == ["assistant", "tool", "assistant", "tool"]
    assert [m.get("tool_call_id") for m in single[1:5]] == [None, "call_a1", None, "call_b2"]
    assert CONVERSATION[1]["content"] is None  # the client's messages are left alone


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("x", "messages[0].tool_calls must be a list"),
        (["x"], "messages[0].tool_calls[0] must be an object"),
        ([{"id": "a", "function": {"arguments": "{}"}}], "tool_calls[0].function.name"),
        ([{"id": 3, "function": {"name": "f", "arguments": "{}"}}], "tool_calls[0].id"),
        ([{"function": {"name": "f", "arguments": "{"}}], "tool_calls[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": "[1]"}}], "tool_calls[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": "[" * 99999}}], "function.arguments"),
        ([{"function": {"name": "f"}}], "tool_calls[0].function.arguments"),
    ],
)
def test_malformed_calls_are_refused_by_name(calls: Any, words: str) -> None:
    with pytest.raises(PromptError) as caught:
        folded([{"role": "assistant", "content": "x", "tool_calls": calls}])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}", "{%"],
)
def test_a_template_beyond_its_limits_is_asked_once(source: str) -> None:
    with pytest.raises(ModelFileError):
        tool_style(ChatTemplate(source, SPECIAL, "hostile"))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just('{"a": 1}'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "type", "function", "name", "arguments", "text"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
A_CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.just("f"), "arguments": ANYTHING})},
    optional={"id": ANYTHING},
)
A_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer"])},
    optional={
        "content": ANYTHING,
        "tool_calls": st.lists(A_CALL, max_size=3) | ANYTHING,
        "tool_call_id": st.sampled_from(["a", "b"]) | ANYTHING,
        "name": ANYTHING,
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(A_MESSAGE | ANYTHING, max_size=5), st.sampled_from(CALL_SHAPES))
def test_whatever_messages_come_they_are_shaped_or_refused(
    messages: list[Any], shape: CallShape
) -> None:
    for work in (folded, lambda given: shaped(given, shape)):
        before = copy.deepcopy(messages)
        with contextlib.suppress(PromptError):
            for message in work(messages):
                assert message["role"]
                assert isinstance(message["content"], str | None)
        assert messages == before


def test_needs_style(request_: ToolRequest) -> None:
    nothing = read_tools(None, None, None)
    assert needs_style(CONVERSATION, nothing)
    assert needs_style(CONVERSATION[:1], request_)
    assert not needs_style([*CONVERSATION[:1], CONVERSATION[4]], nothing)


def test_how_answers_reason(templates: dict[str, ChatTemplate]) -> None:
    user = [{"role": "user", "content": "Hello <think>"}]

    def found(name: str, parser: str = "auto", **variables: Any) -> str:
        template = templates[name]
        return reasoning_format(
            template.source, template.render(user, variables=variables)[-40:], parser
        )

    assert found("Qwen-Qwen3-0.6B") == "tagged"
    assert found("Qwen-Qwen3-0.6B", enable_thinking=False) == "none"
    for name in ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "Qwen-QwQ-32B"):
        assert found(name, enable_thinking=True) == "opened"
        assert found(name, enable_thinking=False) == "none"
    assert found("Qwen-Qwen2.5-7B-Instruct") == "none"
    assert found("Qwen-Qwen2.5-7B-Instruct", "think") == "tagged"
    assert found("Qwen-QwQ-32B", "none") == "none"
    with pytest.raises(UsageError, match="'harmony'"):
        found("chatml", "harmony")
