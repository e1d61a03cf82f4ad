"""What AgentGym's clients of the web and the house send, and what they read, in their order (at 3ef9235)."""

from typing import Any

import httpx
import pytest

from envs.registry import get_env
from tests.support.serving import listening

ID = object()
"""The number that `/create` answered."""

Call = tuple[str, str, dict[str, Any], Any]
"""Method, path, body or query, and the answer's shape: types, or keys with types, or the answer itself."""

CLIENTS: dict[str, list[Call]] = {
    "webshop-mini": [
        ("POST", "/create", {}, int),
        ("POST", "/reset", {"env_idx": ID, "session_id": 3}, [str, None]),
        ("GET", "/observation", {"env_idx": ID}, str),
        (
            "POST",
            "/step",
            {"env_idx": ID, "action": "search[tea]"},
            {"state": str, "reward": float, "done": bool},
        ),
        ("GET", "/available_actions", {"env_idx": ID}, {"has_search_bar": bool, "clickables": list}),
        ("GET", "/instruction_text", {"env_idx": ID}, str),
        ("GET", "/state", {"env_idx": ID}, {"url": str, "html": str, "instruction_text": str}),
        ("POST", "/close", {"env_idx": ID}, True),
    ],
    "searchqa-mini": [
        ("POST", "/create", {"id": 0}, int),
        ("POST", "/reset", {"env_idx": ID, "id": 2}, str),
        ("GET", "/observation", {"env_idx": ID}, str),
        (
            "POST",
            "/step",
            {"env_idx": ID, "action": "<search>airport</search>"},
            {"observation": str, "reward": float, "done": bool},
        ),
        (
            "POST",
            "/step",
            {"env_idx": ID, "action": "<answer>nobody knows</answer>"},
            {"observation": str, "reward": float, "done": bool},
        ),
        ("POST", "/close", {"env_idx": ID}, True),
    ],
    "alfworld-mini": [
        ("POST", "/create", {}, {"id": int}),
        (
            "POST",
            "/reset",
            {"id": ID, "game": 1, "world_type": "Text"},
            {"observation": str, "available_actions": list, "task_type": str},
        ),
        (
            "POST",
            "/step",
            {"id": ID, "action": "look"},
            {"observation": str, "available_actions": list, "reward": float, "done": bool},
        ),
        ("GET", "/available_actions", {"id": ID}, list),
        ("GET", "/observation", {"id": ID}, str),
        ("GET", "/detail", {"id": ID}, {"observation": str, "done": bool}),
        ("POST", "/close", {"id": ID}, True),
    ],
    "webarena-local": [
        ("POST", "/create", {}, {"env_idx": int}),
        (
            "POST",
            "/reset",
            {"env_idx": ID, "seed": 0, "idx": 0},
            {"observation": str, "sites": list, "object": str},
        ),
        ("GET", "/observation", {"env_idx": ID}, str),
        (
            "POST",
            "/step",
            {"env_idx": ID, "action": "I give up. In summary, the next action is ```stop [N/A]```"},
            {"observation": str, "reward": float, "terminated": bool, "truncated": bool, "info": None},
        ),
        ("POST", "/close", {"env_idx": ID}, {"closed": str}),
    ],
}


@pytest.mark.heavy
@pytest.mark.parametrize("env", CLIENTS)
async def test_what_a_client_sends_is_answered_with_what_it_reads(env: str) -> None:
    spec = get_env(env)
    if any(need.find_remedy() for need in spec.needs):
        pytest.skip(f"{env} needs something that is not installed")
    async with listening(spec) as url, httpx.AsyncClient(base_url=url, timeout=120) as http:
        number = None
        for method, path, request_fields, shape in CLIENTS[env]:
            content = {name: number if value is ID else value for name, value in request_fields.items()}
            response = await (
                http.get(path, params=content) if method == "GET" else http.post(path, json=content)
            )
            assert response.status_code == 200, response.text
            reply = response.json()
            assert fits(reply, shape), (path, reply)
            if path == "/create":
                number = reply if isinstance(reply, int) else next(iter(reply.values()))


async def test_a_page_and_its_actions_are_separated() -> None:
    """AgentGym's client shows the one and asks for the other; the policy here sees both."""
    spec = get_env("webshop-mini")
    if any(need.find_remedy() for need in spec.needs):
        pytest.skip("webshop-mini needs something that is not installed")
    async with listening(spec) as url, httpx.AsyncClient(base_url=url) as http:
        number = (await http.post("/create")).json()
        page, _ = (await http.post("/reset", json={"env_idx": number, "session_id": 0})).json()
        assert page.startswith("WebShop [SEP] Instruction: [SEP] ")
        assert "Available actions" not in page
        actions = (await http.get("/available_actions", params={"env_idx": number})).json()
        assert actions == {"has_search_bar": True, "clickables": ["search"]}


async def test_openenvs_session_id_is_no_item_of_webshop() -> None:
    spec = get_env("webshop-mini")
    if any(need.find_remedy() for need in spec.needs):
        pytest.skip("webshop-mini needs something that is not installed")
    async with listening(spec) as url, httpx.AsyncClient(base_url=url) as http:
        opening = (await http.post("/reset", json={"item_id": "webshop-mini_0"})).json()
        session: dict[str, Any] = {"session_id": opening["metadata"]["session_id"]}
        step = (await http.post("/step", json={"action": {"text": "search[tea]"}, **session})).json()
        assert "[SEP] Page 1 (Total results: " in step["observation"]["text"]
        again = (await http.post("/reset", json={"item_id": "webshop-mini_0", **session})).json()
        assert again["observation"] == opening["observation"]


def fits(reply: Any, shape: Any) -> bool:
    """Whether an answer has the shape; an object may have more keys."""
    match shape:
        case dict():
            return isinstance(reply, dict) and all(
                name in reply and fits(reply[name], shape[name]) for name in shape
            )
        case list():
            return isinstance(reply, list) and len(reply) == len(shape) and all(map(fits, reply, shape))
        case type():
            return isinstance(reply, int | float if shape is float else shape)
    return bool(reply == shape)
