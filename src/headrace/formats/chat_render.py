"""Compile and render one chat template, and say in our own errors what went wrong.

Apart from `chat_template.py` so that jinja2 is imported only when there is a chat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from headrace.errors import ModelFileError, PromptError
from headrace.formats.chat_sandbox import MAX_SIZE, ChatEnvironment, TemplateLimitError


class CompiledTemplate:
    """A template in its own environment. Safe to use from several threads."""

    def __init__(self, source: str, origin: str) -> None:
        """origin: where the template is from, for messages. Raises ModelFileError if broken."""
        self._origin = origin
        self._environment = ChatEnvironment()
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f"the chat template ({origin}) is broken in line {error.lineno}: {error.message}"
            ) from error
        except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise ModelFileError(
                f"the chat template ({origin}) can not be compiled: {error or type(error).__name__}"
            ) from error

    def render(self, names: Mapping[str, Any]) -> str:
        """The text for these names. Raises PromptError when the template refuses them, and
        ModelFileError when it is beyond its limits."""
        self._environment.budget.reset()
        try:
            return self._written(names)
        except TemplateLimitError as error:
            raise ModelFileError(
                f"the chat template ({self._origin}) is refused: {error}"
            ) from error
        except TemplateError as error:
            reason = error.message or type(error).__name__
        except (RecursionError, MemoryError, ArithmeticError) as error:
            raise ModelFileError(
                f"the chat template ({self._origin}) is refused: {type(error).__name__}"
            ) from error
        except Exception as error:  # a template can raise whatever its expressions raise
            reason = str(error)
        raise PromptError(f"the chat template does not take these messages: {reason}")

    def _written(self, names: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(names):
            size += len(piece)
            if size > MAX_SIZE:
                raise TemplateLimitError(f"it writes more than {MAX_SIZE} characters")
            pieces.append(piece)
        return "".join(pieces)
