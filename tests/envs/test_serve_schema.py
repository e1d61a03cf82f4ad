"""Schemathesis over the server's own description: whatever is sent, no 5xx, and answers as described."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.examples import examples
from tests.support.serving import ServerProcess, serve_env

if TYPE_CHECKING:
    import schemathesis


@pytest.fixture(scope="module")
def textcraft() -> Iterator[ServerProcess]:
    with serve_env("textcraft", "--max-sessions", "200") as server:
        yield server


def create_session(url: str) -> int:
    session_id = httpx.post(f"{url}/create", json={}).raise_for_status().json()["id"]
    assert isinstance(session_id, int)
    return session_id


def send_anything(operation: Any, *, is_wellformed: bool, live: int) -> None:
    """What is well-formed is sent to the session `live`, so that it gets through to the environment."""
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    mode = GenerationMode.POSITIVE if is_wellformed else GenerationMode.NEGATIVE
    conformance = [
        not_a_server_error,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.status_code_conformance,
    ]

    @settings(max_examples=examples(12), derandomize=True, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def sends(case: "schemathesis.Case[Any]") -> None:
        if is_wellformed and isinstance(case.body, dict) and "id" in case.body:
            case.body["id"] = live
        case.call_and_validate(checks=conformance)

    sends()


@pytest.mark.heavy
@pytest.mark.parametrize("is_wellformed", [True, False])
def test_nothing_that_is_sent_breaks_the_server(textcraft: ServerProcess, is_wellformed: bool) -> None:
    import schemathesis
    from schemathesis.core.result import Ok

    schema = schemathesis.openapi.from_url(f"{textcraft.url}/openapi.json")
    paths = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        has_input = not operation.definition.raw.keys().isdisjoint(("requestBody", "parameters"))
        if not is_wellformed and not has_input:
            continue  # nothing is sent that could be wrong
        live = create_session(textcraft.url)
        send_anything(operation, is_wellformed=is_wellformed, live=live)
        httpx.post(f"{textcraft.url}/close", json={"id": live})
        paths.add(operation.path)
    assert {"/create", "/reset", "/step", "/close", "/observation", "/detail", "/state"} <= paths
