"""docs/api.md and docs/server.md say what the server does: lists, limits, commands."""

from __future__ import annotations

import re
import shlex

import pytest

from documented import blocks
from headrace.server import app, body, fields, settings
from headrace.server.intake import common as intake
from headrace.server.protocol import common as protocol
from live_server import ROOT, LiveServer, serving

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def section(start: str, end: str) -> str:
    return PAGE[PAGE.index(start) : PAGE.index(end, PAGE.index(start))]


def words(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def test_every_route_is_on_the_page() -> None:
    shown = set(re.findall(r"`(GET|POST) ([^`]+)`", PAGE)) - {("GET", "/openapi.json")}
    real = {("GET", path.replace(":path", "")) for path in app.GET}
    assert shown == real | {("POST", path) for path in app.POST}


def test_every_field_is_on_the_page() -> None:
    shown = words(section("## Fields", "**Ignored**"))
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        missing = set(app.POST[path][1].model_fields) - shown
        assert not missing, path


def test_ignored_and_refused_fields_are_those_of_the_program() -> None:
    known = set().union(*(model.model_fields for _, model in app.POST.values()))
    assert words(section("**Ignored**", "**Refused**")) == fields.NEUTRAL
    refused = words(section("**Refused**", "Any other name"))
    assert refused == set(fields.UNSUPPORTED) - known


def test_limits_are_those_of_the_program() -> None:
    limits = section("## Limits", "## Errors")
    for shown in (
        f"{settings.DEFAULT_MAX_BODY_BYTES >> 20} MiB",
        f"{settings.ServeSettings(('x',)).max_nesting} levels",
        f"{body.BODY_TIMEOUT_S:g} s to arrive",
        f"{protocol.MAX_FIELDS} fields",
        f"| {fields.MAX_SAMPLES}; {intake.MAX_PROMPTS:,} |",
        f"| {fields.MAX_TOP_LOGPROBS} |",
        f"{fields.MAX_STOP_STRINGS} strings of {fields.MAX_STOP_CHARACTERS:,} characters",
        f"{fields.MAX_BAD_WORDS} words; {protocol.MAX_BIASES:,} ids",
        f"{settings.ServeSettings(('x',)).max_buffered_deltas} results",
    ):
        assert shown in limits


@pytest.mark.models
@pytest.mark.parametrize(
    "line",
    [
        line
        for block in blocks("docs/server.md", "bash")
        for line in block.splitlines()
        if "headrace serve" in line
    ],
)
def test_servers_of_the_page_start(line: str) -> None:
    """As they stand, but on a free port."""
    given, _, rest = line.partition("headrace serve ")
    environment = dict(word.split("=", 1) for word in given.split())
    model, *options = shlex.split(rest)
    if "--port" in options:
        at = options.index("--port")
        del options[at : at + 2]
    as_json = "json" in options
    with serving(model, *options, env=environment, step_limits=True) as server:
        assert server.healthy()
        headers = {"authorization": f"Bearer {environment.get('HEADRACE_API_KEY', 'none')}"}
        served = server.get("/v1/models", headers=headers).json()["data"][0]["id"]
        assert served == ("gpt-small" if "gpt-small" in options else model)
        assert server.log().startswith("{") == as_json


@pytest.mark.models
def test_row_32_each_field_has_the_fate_that_the_page_gives_it(server: LiveServer) -> None:
    base = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    path = "/v1/chat/completions"
    for name in sorted(fields.NEUTRAL):
        answer = server.post(path, {**base, name: "x"})
        assert answer.status_code == 200, name
        assert answer.headers["x-headrace-ignored"] == name
    for name, off in sorted(fields.UNSUPPORTED.items()):
        assert server.refusal(path, {**base, name: "x"})["param"] == name
        for value in off:
            answer = server.post(path, {**base, name: value})
            assert answer.headers["x-headrace-ignored"] == name, answer.text
    assert server.refusal(path, {**base, "temprature": 1})["message"].endswith(
        "Did you mean temperature?"
    )
