"""A jinja2 environment for chat templates that come with model files, which nobody has vetted.

jinja2's immutable sandbox keeps a template from reaching Python objects; it does not keep it from
using up time and memory. This environment adds budgets: loop rounds and macro calls, the size of
every text and sequence that an operator, filter or method would build (checked before it is built),
and the length of the output. All are counts, so that a template either always renders or never.
"""

from __future__ import annotations

import json
import operator
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Longest text or sequence a template may build, in characters or items; also the output's limit.
MAX_SIZE = 16 << 20
#: Loop rounds, calls and filters (a long list counts more), over one rendering.
MAX_STEPS = 1_000_000
#: Items visited to find out how large values are.
MAX_VISITED = 4_000_000
#: Characters written in all, also those that are assigned and dropped.
MAX_WRITTEN = 4 * MAX_SIZE
_MAX_INT_BITS = 1024

_TICK, _CONCAT = "__headrace_tick", "__headrace_concat"


class TemplateLimitError(TemplateError):
    """A template used up its budget."""


class Budget(threading.local):
    """What one rendering has used, in each thread its own; raises TemplateLimitError beyond the
    limits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new rendering."""
        self.steps = self.written = self.visited = 0

    def tick(self, characters: int = 0, steps: int = 1) -> None:
        """Count steps of work that write `characters` of the template's own text."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise TemplateLimitError(f"it needs more than {MAX_STEPS} steps")
        if characters:
            self.write(characters)

    def write(self, characters: int) -> None:
        """Count text that is written, be it to the output, a block assignment or a macro."""
        self.written += characters
        if self.written > MAX_WRITTEN:
            raise TemplateLimitError(f"it writes more than {MAX_WRITTEN} characters")

    def size_of(self, value: object) -> int:
        """Characters and items of a value written out, at least; shared parts count each time."""
        if isinstance(value, str | bytes):
            return len(value)
        total, stack = 0, [value]
        while stack:  # nested lists that share parts are walked as they would be written
            item = stack.pop()
            if isinstance(item, str | bytes):
                total += len(item)
            elif isinstance(item, Mapping):
                stack.extend(item.values())
                total += len(item)
            elif isinstance(item, list | tuple | set | frozenset):
                stack.extend(item)
            total += 1
            self.visited += 1
            if total > MAX_SIZE or len(stack) > MAX_SIZE or self.visited > MAX_VISITED:
                raise TemplateLimitError(f"it builds a value of more than {MAX_SIZE} characters")
        return total


def check_size(size: int) -> None:
    """Raise TemplateLimitError for a text or sequence that would be too large."""
    if size > MAX_SIZE:
        raise TemplateLimitError(f"it builds a text of more than {MAX_SIZE} characters")


#: Filters that write values out or build larger texts; the others only pick from their input.
_MEASURED = frozenset(
    {
        "string",
        "join",
        "tojson",
        "pprint",
        "replace",
        "center",
        "indent",
        "format",
        "batch",
        "slice",
        "xmlattr",
        "wordwrap",
        "urlize",
        "urlencode",
        "escape",
        "e",
        "forceescape",
        "striptags",
        "sum",
        "title",
        "capitalize",
    }
)


#: Filters whose time does not depend on how long a list is.
_CONSTANT = frozenset({"length", "count", "first", "last", "default", "d", "attr", "items"})


class _Instrument(NodeTransformer):
    """Counts loop rounds and macro calls, and routes `~` through a checked function."""

    def _counted(self, node: Any) -> Any:
        own_text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        call = nodes.Call(nodes.Name(_TICK, "load"), [nodes.Const(own_text)], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return self.generic_visit(node)

    visit_For = visit_Macro = visit_CallBlock = _counted

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_CONCAT, "load"), list(node.nodes), [], None, None).set_lineno(
            node.lineno
        )


class GenerationTag(Extension):
    """`{% generation %}` … marks assistant text for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 (the base class's own form)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of one template. It renders in several threads at a time, in each once."""

    intercepted_binops = frozenset({"*", "**", "%", "+", "<<"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        self.budget = Budget()
        self.finalize = self._finalize
        self.filters = {name: self._guarded(name, f) for name, f in self.filters.items()}
        self.filters["tojson"] = self._guarded("tojson", _tojson)
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda form: datetime.now().strftime(form),
        )
        self.globals[_TICK] = self.budget.tick
        self.globals[_CONCAT] = self._concat

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        transformed: nodes.Template = _Instrument().visit(tree)
        return transformed

    def call_binop(self, context: Context, operator_text: str, left: Any, right: Any) -> Any:
        _check_binop(operator_text, left, right)
        return super().call_binop(context, operator_text, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.tick()
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format and format_map
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_text_method(getattr(method, "__name__", ""), owner, args, kwargs, self.budget)
        return super().call(context, obj, *args, **kwargs)

    def _finalize(self, value: object) -> object:
        if isinstance(value, str):
            self.budget.write(len(value))
        elif not isinstance(value, int | float | Undefined | None):
            self.budget.write(self.budget.size_of(value))
        return value

    def _concat(self, *parts: object) -> str:
        check_size(sum(self.budget.size_of(part) for part in parts))
        return "".join(map(str, parts))

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose inputs, and the size of what it builds, are checked first."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            steps = 1
            if name not in _CONSTANT:
                steps += (
                    sum(len(a) for a in args if hasattr(a, "__len__") and type(a) is not str) // 4
                )
            self.budget.tick(steps=steps)
            return function(*args, **kwargs)

        def measured(*args: Any, **kwargs: Any) -> Any:
            self.budget.tick()
            values = [a for a in (*args, *kwargs.values()) if not isinstance(a, Context)]
            sizes = [self.budget.size_of(a) for a in values if not callable(a)]
            if name == "replace" and len(sizes) >= 3:
                check_size(sizes[-3] + sizes[-3] * sizes[-1])
            elif name == "join":
                check_size(sum(sizes[-2:]) * (1 + sizes[-1]))
            elif name in ("center", "indent", "format", "batch", "slice", "xmlattr", "wordwrap"):
                numbers = [a for a in values if isinstance(a, int)]
                check_size(max(sizes, default=0) * (1 + sum(max(0, n) for n in numbers)))
                if name == "format":
                    _check_format(values)
            return function(*args, **kwargs)

        guarded = measured if name in _MEASURED else counted
        for attribute in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(function, attribute):
                setattr(guarded, attribute, getattr(function, attribute))
        return guarded


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _tojson(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: jinja2's own filter escapes <, > and & for web pages."""
    if isinstance(indent, int) and not 0 <= indent <= 16:
        raise TemplateLimitError("it indents JSON by more than 16")
    return json.dumps(
        value,
        indent=indent,
        ensure_ascii=ensure_ascii,
        separators=separators,
        sort_keys=sort_keys,
    )


def _check_binop(symbol: str, left: Any, right: Any) -> None:
    if symbol in ("*", "**", "<<") and isinstance(left, int) and isinstance(right, int):
        bits = {
            "*": left.bit_length() + right.bit_length(),
            "**": left.bit_length() * abs(right),
            "<<": left.bit_length() + abs(right),
        }[symbol]
        if bits > _MAX_INT_BITS:
            raise TemplateLimitError("it computes a number of absurd size")
    elif symbol == "*":
        for sequence, count in ((left, right), (right, left)):
            if hasattr(sequence, "__len__") and isinstance(count, int):
                check_size(len(sequence) * max(0, count))
    elif symbol == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        check_size(len(left) + len(right))
    elif symbol == "%" and isinstance(left, str):
        _check_format((left, right))


def _check_format(values: Iterable[object]) -> None:
    """Refuse format strings with widths that pad to absurd lengths, or take widths as arguments."""
    for value in values:
        if isinstance(value, str):
            digits = 0
            for character in value:
                digits = digits + 1 if character.isdigit() else 0
                if digits > 4 and ("%" in value or "{" in value):
                    raise TemplateLimitError("it pads a text to an absurd length")
            if ("%" in value and "*" in value) or _NESTED_FIELD.search(value.replace("{{", "")):
                raise TemplateLimitError("it pads a text to a computed length")


#: A format string with a field inside a field, such as "{:>{}}".
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")

_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


def _check_text_method(
    name: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], budget: Budget
) -> None:
    """Check what a str method would build, before it runs."""
    if name in _PADDING:
        width = max((operator.index(a) for a in (*args, *kwargs.values()) if isinstance(a, int)),
                    default=8)  # fmt: skip
        check_size(len(text) * max(1, width) if name == "expandtabs" else max(len(text), width))
    elif name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        check_size(len(text) + text.count(old) * len(new))
    elif name == "join" and args:
        budget.size_of(args[0])
        count = len(args[0]) if hasattr(args[0], "__len__") else 0
        check_size(count * (1 + len(text)) + budget.size_of(args[0]))
    elif name in ("format", "format_map"):
        _check_format((text,))
        check_size(budget.size_of(list(args)) + budget.size_of(dict(kwargs)) + len(text))
    elif name == "translate":
        raise TemplateLimitError("it uses str.translate")
