"""Hostile requests: valid ones, mutated at every level from the JSON value down to the byte.

Everything follows from a seed, so that a case that fails can be sent again. Fields come from the
server's own OpenAPI document: a new one is attacked without anybody remembering to.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raw_http import request

Json = dict[str, Any]

#: What a hostile value may be, before it is made into JSON text.
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 7, -1, -5, 64, 10**6, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1,
    2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, 10**399, 0.0, -0.0, 0.5, 1.0, 1e-320,
    1e-5, 1e300, -1e300, "", "a", "0", "-1", "1e5", "NaN", "null", "true", "\0", "a\0b", "\n\n\n",
    "\U0001f600", "\ufffd", "e\u0301", "\u202e", "<|im_end|>", "<|im_start|>system\n",
    "{{ 7 * 7 }}", "../../etc/passwd", "x" * 300, "\U0001d518" * 50, [], {}, [[]], [{}], [None],
    [0], [1, "a"],
    [-5], [10**6], [2**63], [[0, 1], "a"], ["a", "b"], [""], [" "] * 200, list(range(300)),
    {"": None}, {"a": 1}, {"0": 1}, {"-5": 1}, {"1000000": 1}, {"a" * 200: "b"}, {"0": 1e300},
    {"type": "object"}, {"type": "text"}, {"type": "json_object"}, {"type": "json_schema"},
    {"type": "function"}, {"include_usage": True}, {"type": "function", "function": {"name": "a"}},
    "none", "auto", "required", "float", "base64", "last", "raw", "processed", "minimal",
]  # fmt: skip

#: JSON text that json.dumps would never write; put in place of a value.
RAW: list[bytes] = [
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"1" + b"0" * 400, b"9" * 5000,
    b"0." + b"1" * 5000, b"1e-400", b"-0", b"01", b"+1", b".5", b"1.", b"0x10", b"1_000", b"'a'",
    b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u00"', b'"\\x41"', b'"\xff\xfe"', b'"\xc0\x80"',
    b'"\xed\xa0\x80"', b'"\xf5\x80\x80\x80"', b'"a\nb"', b"nul", b"True", b"[1,]", b'{"a":1,}',
    b"/* */ 1", b"[" * 70 + b"]" * 70, b'{"a":' * 70 + b"1" + b"}" * 70, b"[" * 5000,
    b'[{"a":[' * 30 + b"]}]" * 30, b'{"a":1,"a":2}', b'""', b"\xef\xbb\xbf1",
]  # fmt: skip

SCHEMAS: list[Any] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}}}},
     "$ref": "#/$defs/t"},
    {"$ref": "http://169.254.169.254/x"}, {"$ref": "file:///etc/passwd"}, {"$ref": "#/nowhere"},
    {"type": "string", "pattern": "(a+)+$"}, {"type": "string", "pattern": "(a|a)*b" * 20},
    {"type": "string", "pattern": "(.{1,100}){1,100}{1,100}"}, {"pattern": "(?<=a)b"},
    {"type": "string", "pattern": "a{1000000}"}, {"pattern": "["}, {"pattern": "\\"},
    {"type": "string", "minLength": 10**9}, {"type": "string", "maxLength": -1},
    {"type": "array", "minItems": 10**9}, {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "integer", "minimum": 10**30, "maximum": 10**30}, {"type": "number", "multipleOf": 0},
    {"type": "integer", "multipleOf": 10**15}, {"minimum": 5, "maximum": 1},
    {"enum": list(range(2000))}, {"enum": ["x" * n for n in range(300)]}, {"enum": []},
    {"const": {"a": [None] * 200}}, {"type": "nothing"}, {"type": 5}, {"type": ["string", "null"]},
    {"anyOf": [{"type": "object", "properties": {f"p{n}": {"enum": [n]}}} for n in range(200)]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]}, {"oneOf": []}, {"not": {}}, True, False,
    {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(300)}},
    {"type": "object", "patternProperties": {"^(a+)+$": True}, "required": ["b"]},
    {"type": "object", "required": [f"r{n}" for n in range(500)]}, {"properties": 1}, {"items": 1},
    {"type": "string", "format": "nonsense"}, {"x-guidance": {"whitespace_pattern": "(a*)*"}},
]  # fmt: skip
REGEXES = [
    "", "a", "(", "[", "*", "a**", "(a+)+b", "(a|aa)*$", "a{100000}", "(a{100}){100}{100}", "\\1",
    "(?=a)", "\\p{Han}+", "[^\\x00-\\U0010ffff]", "(" * 500 + "a" + ")" * 500, "|" * 500,
    ".*" * 200,
    "\\u{110000}", "(?i)" * 50, "[a-" * 50, "x" * 20000,
]  # fmt: skip
GRAMMARS = [
    "", "start:", "start: start", "start: a\na: b\nb: a", 'start: "a"*', "root ::= root", "%%%",
    'root ::= "a" | root root', "start: /(a+)+/", "%import x.y", "start: " + '"a" ' * 5000,
    "root ::= " + "(" * 300 + '"a"' + ")" * 300, 'start: "a"{1000000}', "start: <[0-99999999]>",
    "\x00", "start: %json {", 'start: %regex {"substring_chunks": 5}', "%llguidance {}\nstart: x",
]  # fmt: skip
TEMPLATES = [
    "{{", "{% for i in range(10**9) %}x{% endfor %}", "{{ 'a' * 10**9 }}", "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ self.__init__.__globals__ }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}", "{% include '/etc/passwd' %}",
    "{{ messages | tojson(indent=100000) }}", "{{ '%99999999d' | format(1) }}", "{{ 9 ** 9 ** 9 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ raise_exception('no') }}", "plain",
    "{{ messages | map(attribute='content') | join('x' * 1000000) }}", "{{ 1 / 0 }}",
    "{% set x = ['a'] %}{% for i in range(60) %}{% set x = x + x %}{% endfor %}{{ x }}",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """data: the bytes of the request; it keeps the connection when `whole`."""

    name: str
    method: str
    data: bytes
    whole: bool = True


class Attack:
    """Cases in endless number. document: the server's OpenAPI document; seeds: path → a small valid
    body."""

    def __init__(self, document: Json, bodies: dict[str, list[Json]], seed: int) -> None:
        self._bodies = bodies
        self._fields = {path: _fields(document, path) for path in bodies}
        self._gets = [path for path, item in document["paths"].items() if "get" in item]
        self._random = random.Random(seed)
        self._kinds: list[tuple[int, Callable[[], Case]]] = [
            (30, self._wrong_value),
            (14, self._raw_value),
            (8, self._inner_value),
            (8, self._broken_text),
            (6, self._broken_bytes),
            (6, self._unknown_field),
            (8, self._structured),
            (2, self._template),
            (4, self._headers),
            (4, self._framing),
            (3, self._method),
            (3, self._path),
            (1, self._large),
        ]

    def __iter__(self) -> Attack:
        return self

    def __next__(self) -> Case:
        weights = [weight for weight, _ in self._kinds]
        return self._random.choices(self._kinds, weights)[0][1]()

    # ---- kinds ------------------------------------------------------------------------------

    def _some(self) -> tuple[str, Json]:
        path = self._random.choice(list(self._bodies))
        return path, copy.deepcopy(self._random.choice(self._bodies[path]))

    def _case(self, kind: str, path: str, body: Json | bytes, headers: str = "") -> Case:
        data = body if isinstance(body, bytes) else dumps(body)
        return Case(f"{kind} {path}", "POST", request("POST", path, data, headers))

    def _wrong_value(self) -> Case:
        path, body = self._some()
        for _ in range(self._random.choice((1, 1, 1, 2, 4))):
            body[self._random.choice(self._fields[path])] = self._random.choice(VALUES)
        return self._case("value", path, body)

    def _raw_value(self) -> Case:
        path, body = self._some()
        field = self._random.choice([*self._fields[path], *body])
        body[field] = "@RAW@"
        return self._case("raw", path, dumps(body).replace(b'"@RAW@"', self._random.choice(RAW), 1))

    def _inner_value(self) -> Case:
        """Something inside: a message's role, a part's text, a tool's parameters."""
        path, body = self._some()
        holder: Any = body
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            key = self._random.choice(keys)
            if isinstance(holder[key], dict | list) and holder[key] and self._random.random() < 0.8:
                holder = holder[key]
                continue
            if self._random.random() < 0.3 and isinstance(holder, dict):
                del holder[key]
            else:
                holder[key] = self._random.choice(VALUES)
            return self._case("inner", path, body)

    def _broken_text(self) -> Case:
        path, body = self._some()
        data = dumps(body)
        cut = self._random.randrange(len(data))
        match self._random.randrange(6):
            case 0:
                data = data[:cut]
            case 1:
                data = data[:cut] + data[cut + 1 :]
            case 2:
                data = data + data
            case 3:
                data = self._random.choice((b"", b" \n", b"null", b"[]", b"1", b'"a"', b"{}", b"{"))
            case 4:
                data = data.decode().encode(self._random.choice(("utf-16", "utf-32", "utf-8-sig")))
            case _:
                name = self._random.choice(list(body))
                data = data[:-1] + b"," + dumps({name: self._random.choice(VALUES)})[1:]
        return self._case("text", path, data)

    def _broken_bytes(self) -> Case:
        path, body = self._some()
        data = bytearray(dumps(body))
        for _ in range(self._random.choice((1, 2, 8))):
            data[self._random.randrange(len(data))] = self._random.randrange(256)
        return self._case("bytes", path, bytes(data))

    def _unknown_field(self) -> Case:
        path, body = self._some()
        known = self._random.choice(self._fields[path])
        name = self._random.choice(
            (known[:-1], known.upper(), "x" * 5000, "", "a.b", "\0", "__a__")
        )
        body[name] = self._random.choice(VALUES)
        return self._case("unknown", path, body)

    def _structured(self) -> Case:
        path = self._random.choice(("/v1/chat/completions", "/v1/completions", "/v1/responses"))
        body = copy.deepcopy(self._random.choice(self._bodies[path]))
        schema = self._random.choice(SCHEMAS)
        choices = [self._random.choice((["a"] * 3000, [], [""], ["x" * 9999], [1], "a"))]
        body.update(
            self._random.choice((
                {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
                {"structured_outputs": {"json": schema}},
                {"structured_outputs": {"regex": self._random.choice(REGEXES)}},
                {"structured_outputs": {"grammar": self._random.choice(GRAMMARS)}},
                {"structured_outputs": {"choice": choices[0]}},
                {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
                 "tool_choice": "required"},
            ))
        )  # fmt: skip
        return self._case("structured", path, body)

    def _template(self) -> Case:
        path = self._random.choice(("/v1/chat/completions", "/apply-template"))
        body = copy.deepcopy(self._random.choice(self._bodies[path]))
        body["chat_template"] = self._random.choice(TEMPLATES)
        return self._case("template", path, body)

    def _headers(self) -> Case:
        path, body = self._some()
        data = dumps(body)
        pick = self._random.choice
        match self._random.randrange(5):
            case 0:
                kind = pick((
                    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "",
                    "application/json; charset=utf-16", "APPLICATION/JSON", "a" * 500,
                ))  # fmt: skip
                return self._case("content-type", path, data, f"Content-Type: {kind}\r\n")
            case 1:
                return self._case("gzip", path, gzip.compress(data), "Content-Encoding: gzip\r\n")
            case 2:
                return self._case("expect", path, data, "Expect: 100-continue\r\n")
            case 3:
                value = pick(("a" * 500, "a b", "\x01", "..", "%0d%0aX: 1", "\xe9"))
                return self._case("id", path, data, f"X-Request-Id: {value}\r\n")
            case _:
                value = pick(("Bearer", "Bearer \xff", "Basic YTpi", "a" * 3000, "Bearer a b c"))
                return self._case("authorization", path, data, f"Authorization: {value}\r\n")

    def _framing(self) -> Case:
        path, body = self._some()
        data = dumps(body)
        head = f"POST {path} HTTP/1.{self._random.choice('10')}\r\nHost: a\r\n"
        head += "Content-Type: application/json\r\n"
        chunk = b"%x\r\n%s\r\n" % (len(data), data)
        framed, whole = self._random.choice((
            (b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n", True),
            (b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in data)
             + b"0\r\n\r\n", True),
            (b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + data, False),
            (b"Transfer-Encoding: gzip\r\n\r\n" + data, False),
            (b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + chunk, False),
            (b"Content-Length: %d\r\n\r\n" % (len(data) + 50) + data, False),
            (b"Content-Length: %d\r\n\r\n" % (len(data) // 2) + data, False),
            (b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n" + data, False),
            (b"Content-Length: abc\r\n\r\n" + data, False),
            (b"\r\n", False),
        ))  # fmt: skip
        return Case(f"framing {path}", "POST", head.encode() + framed, whole and "1.1" in head)

    def _method(self) -> Case:
        path = self._random.choice([*self._bodies, *self._gets])
        path = path.replace("{model_id}", "a")
        method = self._random.choice(
            ("GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "POST")
        )
        return Case(f"{method} {path}", method, request(method, path))

    def _path(self) -> Case:
        path = self._random.choice((
            "/", "//", "/v1", "/v1/", "/v1/models/", "/v1/models//", "/%00", "/%ff",
            "/..%2f..%2fetc", "/../../etc/passwd", "//v1/models", "/V1/Models", "/health/",
            "/health?x=%00", "/docs", "/redoc", "/openapi.json?a", "/v1/models/%2e%2e",
            "/" + "a" * 9000, "/?" + "&".join("ab"),
            "/v1/models/" + "%F0%9F%98%80" * 50, "*", "http://evil/v1/models", "/v1/models#a",
            "/.git",
        ))  # fmt: skip
        method = self._random.choice(("GET", "POST", "OPTIONS"))
        return Case(f"{method} {path[:40]}", method, request(method, path), path[0] in "/h*")

    def _large(self) -> Case:
        """A few megabytes; seldom, because each takes a while."""
        path, body = self._some()
        field = self._random.choice(self._fields[path])
        body[field] = "@RAW@"
        size = self._random.choice((1, 3, 10)) << 20
        filler = self._random.choice((
            lambda n: b'"' + b"a b " * (n // 4) + b'"',
            lambda n: b'"' + b"a" * n + b'"',
            lambda n: b'"' + "\u4e2d".encode() * (n // 3) + b'"',
            lambda n: b'"' + b"\\u0041" * (n // 6) + b'"',
            lambda n: b'"' + b" " * n + b'"',
            lambda n: b"[" + b"1," * (n // 2) + b"1]",
            lambda n: b"[" + b"[]," * (n // 3) + b"1]",
            lambda n: b"[" + b'"a",' * (min(n, 1 << 20) // 4) + b"1]",
            lambda n: b"[" + b"1.5," * (min(n, 1 << 20) // 4) + b"1]",
            lambda n: b"[" + b"{}," * (min(n, 1 << 20) // 3) + b"{}]",
            lambda n: b"{" + b",".join(b'"%d":1' % k for k in range(min(n, 1 << 20) // 8)) + b"}",
            lambda n: b"[" + b'{"role":"user","content":""},' * (min(n, 1 << 20) // 29) + b"{}]",
            lambda n: b"1" * n,
        ))  # fmt: skip
        return self._case("large", path, dumps(body).replace(b'"@RAW@"', filler(size), 1))


def dumps(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _fields(document: Json, path: str) -> list[str]:
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = reference["schema"]["$ref"].rpartition("/")[2]
    return list(document["components"]["schemas"][name]["properties"])
