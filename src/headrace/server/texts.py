"""Texts: prompts, conversations and grammars of one model, made ready for its engine.

What takes long is done in worker threads, a few at a time, so that streams do not wait for it.
Lives on the asyncio thread; knows no engine and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.engine.admission import check_text_size
from headrace.engine.model import OpenModel
from headrace.errors import (
    HeadraceError,
    ModelFileError,
    PromptError,
    UsageError,
)
from headrace.formats.chat_template import MAX_SOURCE, ChatTemplate, encode_chat, special_tokens
from headrace.formats.fill_in_middle import GapTokens, gap_tokens
from headrace.server.parsing.tool_messages import CALL_SHAPES
from headrace.server.parsing.tool_style import ToolStyle, tool_style
from headrace.server.settings import ServeSettings
from headrace.structured.compiler import CompiledGrammar, GrammarCompiler
from headrace.structured.spec import StructuredOutputs

T = TypeVar("T")

#: Characters that are tokenized at once; longer texts go to a worker thread.
INLINE_CHARACTERS = 8192
#: So many of them are worked on together: each takes a core, and memory in proportion.
MAX_LONG_WORK = 2


class Texts:
    """template: instead of the model's own, text or file."""

    def __init__(
        self, settings: ServeSettings, model: OpenModel, max_model_len: int, template: str | None
    ) -> None:
        self.tokenizer = model.tokenizer
        self._settings = settings
        self._model = model
        self._max_model_len = max_model_len
        self._template_override = template
        self._template: ChatTemplate | None = None
        self._tool_style: ToolStyle | None = None
        self.gap_tokens: GapTokens | None = None  # None: cannot fill gaps
        self._long_work = asyncio.Semaphore(MAX_LONG_WORK)
        self._grammars = GrammarCompiler(model.tokenizer)
        self._compiling = asyncio.Semaphore(MAX_LONG_WORK)

    def warm_up(self) -> list[int]:
        """Does once what the first request would otherwise wait for: libraries, tokenizer,
        template. The ids of a short prompt. Raises HeadraceError for a broken template of the
        user's; a model without one serves completions only."""
        self.gap_tokens = gap_tokens(self._model.checkpoint.metadata, self.tokenizer)
        try:
            template = self.template()
            ids = encode_chat(self.tokenizer, template, [{"role": "user", "content": "Hello"}])
            self._tool_style = tool_style(template, self._settings.tool_call_parser)
            return ids
        except HeadraceError:
            if self._template_override is not None:
                raise
            return self.tokenizer.encode("Hello")

    def prepare_grammars(self) -> None:
        """Reads the vocabulary for structured output: 0.2 s for 49,152 ids, 2 s for 262,144, and
        half of it with the interpreter's lock held, so before anybody waits."""
        with contextlib.suppress(UsageError):  # without the library, such requests are refused
            self._grammars.prepare()

    def template(self, source: str | None = None) -> ChatTemplate:
        """The model's template, or a request's own text, which is never taken for a file's name
        and which only a server that was told to trusts. Raises PromptError without one."""
        if source is not None and not self._settings.trust_request_chat_template:
            raise PromptError(
                "chat_template: this server takes no templates from requests "
                "(--trust-request-chat-template)."
            )
        try:
            if source is not None:
                return ChatTemplate(source, special_tokens(self.tokenizer), "of the request")
            if self._template is None:
                self._template = self._model.chat_template(self._template_override)
        except ModelFileError as error:
            raise PromptError(str(error)) from None
        return self._template

    @property
    def template_source(self) -> str | None:
        """The text of the template in use; None for a model that has none."""
        try:
            return self.template().source
        except PromptError:
            return None

    async def tool_style(self, template: ChatTemplate) -> ToolStyle:
        """How this template does tools; known beforehand for the model's own. A request's template
        is asked only a few times, since it may take long over each."""
        if template is self._template and self._tool_style is not None:
            return self._tool_style
        parser = self._settings.tool_call_parser
        return await self.off_loop(
            MAX_SOURCE,
            lambda: self._blaming(tool_style, template, parser, shapes=CALL_SHAPES[:1]),
        )

    async def encode(self, texts: Sequence[str], *, add_special: bool = True) -> list[list[int]]:
        """Ids of texts; one that no context could hold is refused before it is tokenized."""
        encode = self.tokenizer.encode
        for text in texts:
            self._check_size(len(text))
        return await self.off_loop(
            sum(map(len, texts)), lambda: [encode(text, add_special=add_special) for text in texts]
        )

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], template: ChatTemplate, **options: Any
    ) -> list[int]:
        """Ids of a conversation. options: see formats.chat_template.ChatTemplate.render."""
        size = conversation_size(messages, options.get("tools"))
        self._check_size(size)
        return await self.off_loop(
            self._rendering_size(size, template, options),
            lambda: self._blaming(encode_chat, self.tokenizer, template, messages, **options),
        )

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], template: ChatTemplate, **options: Any
    ) -> str:
        """The text of a conversation; options as above."""
        size = conversation_size(messages, options.get("tools"))
        return await self.off_loop(
            self._rendering_size(size, template, options),
            lambda: self._blaming(template.render, messages, **options),
        )

    def _rendering_size(self, size: int, template: ChatTemplate, options: Mapping[str, Any]) -> int:
        """What a template of the request's own does has nothing to do with what it is given."""
        if template is not self._template:
            return size + MAX_SOURCE
        return size + len(str(options.get("variables") or ""))

    def _check_size(self, num_characters: int) -> None:
        check_text_size(num_characters, self._max_model_len, self.tokenizer.max_token_bytes)

    def _blaming(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """A template that fails on a request's messages is the request's trouble."""
        try:
            return work(*arguments, **options)
        except ModelFileError as error:
            raise PromptError(str(error)) from None

    async def compile(self, outputs: StructuredOutputs) -> CompiledGrammar:
        """The grammar of what an answer must look like. Raises UsageError."""
        async with self._compiling:
            return await asyncio.to_thread(self._grammars.compile, outputs)

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Runs work here when it is small, else in a thread, so that streams do not wait."""
        if size <= INLINE_CHARACTERS:
            return work()
        async with self._long_work:
            return await asyncio.to_thread(work)


def conversation_size(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> int:
    """About how many characters there are to render."""
    size = 32 * len(messages)
    for message in messages:
        size += len(str(message.get("content", "")))
        if message.get("tool_calls"):
            size += len(str(message["tool_calls"]))
    return size + sum(len(str(tool)) for tool in tools or ())
