"""Schemathesis over the server's own description: whatever is sent, no 5xx, and answers as described."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.serving import Served, served

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture(scope="module")
def textcraft() -> Iterator[Served]:
    with served("textcraft", "--max-sessions", "200") as server:
        yield server


def create_session(url: str) -> int:
    session_id = httpx.post(f"{url}/create", json={}).raise_for_status().json()["id"]
    assert isinstance(session_id, int)
    return session_id


def send_anything(operation: Any, mode: GenerationMode, live: int) -> None:
    """What is well-formed is sent to the session `live`, so that it gets through to the environment."""

    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def sends(case: "schemathesis.Case[Any]") -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and "id" in case.body:
            case.body["id"] = live
        case.call_and_validate(checks=CHECKS)

    sends()


@pytest.mark.heavy
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_nothing_that_is_sent_breaks_the_server(textcraft: Served, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{textcraft.url}/openapi.json")
    paths = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and operation.definition.raw.keys().isdisjoint(
            ("requestBody", "parameters")
        ):
            continue  # nothing is sent that could be wrong
        live = create_session(textcraft.url)
        send_anything(operation, mode, live)
        httpx.post(f"{textcraft.url}/close", json={"id": live})
        paths.add(operation.path)
    assert {"/create", "/reset", "/step", "/close", "/observation", "/detail", "/state"} <= paths
