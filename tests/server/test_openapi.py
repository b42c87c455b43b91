"""schemathesis over the server's own OpenAPI document: no 5xx, and answers are what it says.

HEADRACE_OPENAPI_EXAMPLES chooses how many requests per operation; `make test-abuse` sends more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from live_server import LiveServer, serving
from neighbour import used_blocks

pytestmark = pytest.mark.models
NUM_EXAMPLES = int(os.environ.get("HEADRACE_OPENAPI_EXAMPLES", "12"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    options = ("--max-model-len", "128", "--request-timeout", "5")
    with serving("smollm2-135m", *options) as running:
        yield running
        assert running.idle()
        running.json("/cache/reset", {"pins": True})
        assert used_blocks(running) == 0


def test_answers_are_what_the_document_says(server: LiveServer) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [o for o in operations if o.path != "/events"]  # its answers have no end
    assert len(operations) > 10
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=60)

        check()


def test_every_reference_leads_somewhere(server: LiveServer) -> None:
    document = server.json("/openapi.json")

    def walk(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for inner in value.values():
                yield from walk(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner)

    references = set(walk(document))
    assert references
    for reference in references:
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_lists_are_checked_up_to_the_first_wrong_item() -> None:
    """A report on each of half a million wrong items took five seconds and a gigabyte."""
    from headrace.server.app import POST

    def lists(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if value.get("type") == "list":
                yield value
            for inner in value.values():
                yield from lists(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from lists(inner)

    for path, (_, model) in POST.items():
        for found in lists(model.__pydantic_core_schema__):
            assert found.get("fail_fast"), f"{path}: {found}"
