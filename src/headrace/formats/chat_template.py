"""Chat templates: a list of messages to the one text, and the ids, that the model was trained on.

The template comes from the user, the GGUF file, or Hugging Face files; where a file has none, from
`chat_fallback.py`. It is untrusted (`chat_sandbox.py`), compiled on first use and kept.

BOS: `encode_chat` gives exactly one when the model asks for one, whether the template writes it or
not; when the model does not (add_bos false), what the template writes stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ModelFileError, PromptError, UsageError
from headrace.formats.chat_fallback import FALLBACK_TEMPLATES
from headrace.formats.tokenizer import Tokenizer
from headrace.formats.tokenizer_hf import read_json_file
from headrace.formats.tokenizer_load import ModelFiles

if TYPE_CHECKING:
    from headrace.formats.chat_render import CompiledTemplate

Message = Mapping[str, Any]

#: Longest template, in characters.
MAX_SOURCE = 1 << 20

_MARK = "\ue000headrace-continues-here\ue001"


class ChatTemplate:
    """One template with the special tokens it may name. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """source: jinja2 text. special_tokens: "bos_token" and so on. origin: for messages."""
        if len(source) > MAX_SOURCE:
            raise ModelFileError(
                f"the chat template ({origin}) has {len(source)} characters; limit {MAX_SOURCE}"
            )
        self.source = source
        self.origin = origin
        self._special = dict(special_tokens)
        self._compiled: CompiledTemplate | None = None
        self._lock = threading.Lock()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        continue_final_message: leave the last message open, for the model to go on with it.
        variables: extra names for the template (`enable_thinking` and the like). Raises PromptError
        when the messages are empty or malformed or the template refuses them; ModelFileError when
        the template itself is broken or beyond its limits.
        """
        plain = plain_messages(messages, developer="developer" in self.source)
        if continue_final_message:
            if not isinstance(plain[-1]["content"], str):
                raise PromptError("the last message has no text to continue")
            plain[-1] = {**plain[-1], "content": plain[-1]["content"] + _MARK}
            add_generation_prompt = False
        names: dict[str, Any] = {**self._special, **(variables or {})}
        names.update(
            messages=plain,
            tools=list(tools) if tools else None,
            documents=names.get("documents"),
            add_generation_prompt=add_generation_prompt,
        )
        text = self._render(names)
        if continue_final_message:
            head, mark, _ = text.rpartition(_MARK)
            if not mark:
                raise PromptError("this chat template can not continue the last message")
            text = head
        if not text:
            raise PromptError("the chat template makes an empty prompt of these messages")
        return text

    def _render(self, names: Mapping[str, Any]) -> str:
        with self._lock:
            if self._compiled is None:
                from headrace.formats.chat_render import CompiledTemplate  # jinja2 only for chats

                self._compiled = CompiledTemplate(self.source, self.origin)
        return self._compiled.render(names)


def plain_messages(messages: Sequence[Message], *, developer: bool = False) -> list[dict[str, Any]]:
    """Checked copies of the messages, text parts joined to one text.

    The role "developer" becomes "system" unless the template knows it. An empty content is allowed
    (the turn is then empty). Raises PromptError, naming the message by its number from 0.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise PromptError("messages must be a list of {role, content}")
    if not messages:
        raise PromptError("messages is empty: a chat needs at least one message")
    plain = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise PromptError(f"message {number} is not an object with role and content")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise PromptError(f"message {number} has no role")
        if role == "developer" and not developer:
            role = "system"
        content = _plain_content(message.get("content"), number)
        if content is None and not message.get("tool_calls"):
            raise PromptError(f"message {number} ({role}) has no content")
        plain.append({**message, "role": role, "content": content})
    return plain


def _plain_content(content: object, number: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise PromptError(f"the content of message {number} is neither text nor a list of parts")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise PromptError(
                f"message {number} holds a part of type {kind!r}; only text is supported"
            )
        texts.append(part["text"])
    return "".join(texts)


#: What encode_chat passes on to ChatTemplate.render.
RENDER_OPTIONS = ("add_generation_prompt", "continue_final_message", "tools", "variables")


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], **options: Any
) -> list[int]:
    """Ids of a conversation, ready to continue. options: those of ChatTemplate.render.

    Exactly one BOS in front when the tokenizer adds one; otherwise what the template wrote.
    """
    for name in options:
        if name not in RENDER_OPTIONS:
            raise UsageError(
                f"unknown chat option {name!r} (known: {', '.join(RENDER_OPTIONS)}); names of the "
                "template's own go into variables={…}"
            )
    ids = tokenizer.encode(template.render(messages, **options), add_special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids


def load_chat_template(
    checkpoint: ModelFiles, tokenizer: Tokenizer, *, override: str | None = None, name: str = ""
) -> ChatTemplate:
    """The template of an opened model.

    override: a file with a template, or the template itself (anything with "{%" or "{{"). name: one
    of several named templates ("tool_use"); the default one otherwise. Raises UsageError for a bad
    override or an unknown name, ModelFileError when the model has no template and none is built in.
    """
    special = special_tokens(tokenizer)
    if override is not None:
        return ChatTemplate(_user_template(override), special, "given by the user")
    named = _gguf_templates(checkpoint) if checkpoint.kind == "gguf" else _hf_templates(checkpoint)
    if name:
        if name not in named:
            known = ", ".join(sorted(named)) or "none"
            raise UsageError(f"the model has no chat template {name!r} (it has: {known})")
        return ChatTemplate(named[name], special, f"named {name}")
    if "default" in named:
        return ChatTemplate(named["default"], special, "of the model")
    if checkpoint.architecture in FALLBACK_TEMPLATES:
        source = FALLBACK_TEMPLATES[checkpoint.architecture]
        return ChatTemplate(source, special, f"built in for {checkpoint.architecture}")
    raise ModelFileError(
        f"{checkpoint.source} has no chat template: give one with --chat-template FILE, "
        "or use plain completion (headrace generate)"
    )


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The names that templates use for special tokens; a token that is missing is ""."""
    info = tokenizer.info
    ids = {"bos": info.bos_id, "eos": info.eos_id, "unk": info.unk_id, "pad": info.pad_id}
    return {
        f"{name}_token": "" if i is None else tokenizer.token_text(i) for name, i in ids.items()
    }


def _user_template(override: str) -> str:
    if "{%" in override or "{{" in override:
        return override
    try:
        path = Path(override).expanduser()
        if path.stat().st_size > MAX_SOURCE:
            raise UsageError(f"the chat template {override} is larger than {MAX_SOURCE} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~ of an unknown user
        raise UsageError(f"the chat template {override!r} can not be read: {error}") from error


def _gguf_templates(checkpoint: ModelFiles) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {}
    for name, value in checkpoint.metadata.items():
        if isinstance(value, str) and (name == key or name.startswith(key + ".")):
            found[name[len(key) + 1 :] or "default"] = value
    return found


def _hf_templates(checkpoint: ModelFiles) -> dict[str, str]:
    directory = Path(checkpoint.source)
    found: dict[str, str] = {}
    config = read_json_file(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(config, str):
        found["default"] = config
    elif isinstance(config, list):
        for entry in config:
            if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
                found[str(entry.get("name") or "default")] = entry["template"]
    files = {"default": directory / "chat_template.jinja"}
    for path in sorted(directory.glob("additional_chat_templates/*.jinja")):
        files[path.stem] = path
    for name, path in files.items():
        if path.is_file():
            if path.stat().st_size > MAX_SOURCE:
                raise ModelFileError(f"{path} is larger than {MAX_SOURCE} bytes")
            found[name] = path.read_text(encoding="utf-8")
    return found
