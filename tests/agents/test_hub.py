"""What is asked of a model hub that is a server of the test's own."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agents.huggingface.hub import check_model, count_parameters
from envs.errors import ConfigError
from tests.support.http_server import serving_in_thread


def test_the_hub_is_asked_for_a_model_until_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, asked_for = [404, 200], list[str]()

    def show(request: Request) -> JSONResponse:
        asked_for.append(request.url.path)
        body = {"id": "me/seven", "siblings": [], "safetensors": {"parameters": {"F32": 7}, "total": 7}}
        return JSONResponse(body, status_code=statuses.pop(0))

    with serving_in_thread(Starlette(routes=[Route("/api/models/me/seven", show)])) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        with pytest.raises(ConfigError, match="model 'me/seven' is not a folder, and asking the hub for it"):
            check_model("me/seven")
        check_model("me/seven")
        assert count_parameters("me/seven") == 7
    assert asked_for == ["/api/models/me/seven"] * 2
