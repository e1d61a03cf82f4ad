"""Facts of AgentGym's HTTP protocol that server and client share (WooooDyy/AgentGym at 3ef9235).

One server serves one environment. `POST /create` makes an instance and answers its number; `POST /reset`,
`POST /step` and `POST /close` act on it, `GET /observation` looks at it. What names the instance and the
item, and what an answer is called, differs between environments: here is what a client must know of it, in
`envs/serve/agentgym/` what a server answers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from envs.registry import ENVIRONMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One environment's words."""

    name: str = ""
    """What AgentGym's own server calls the environment; empty if it does not say."""
    session_key: str = "id"
    """What requests call the instance."""
    item_key: str = "data_idx"
    """What a reset calls the item's number."""
    create_body: Mapping[str, int | None] = field(default_factory=dict)
    """What AgentGym's client sends with a create, which has no effect."""
    reset_extras: Mapping[str, str | int] = field(default_factory=dict)
    """What else is sent with a reset."""
    opens_with_prompt: bool = False
    """Whether `GET /observation` has the opening, and the answer to a reset only a part of it."""
    opens_at: str = ""
    """Where the opening begins in the answer to a reset; instructions stand before it."""
    text_key: str = "observation"
    """What an answer to a step calls what is seen."""
    end_key: str = "done"
    actions_path: str = ""
    """Where the actions that there are now are asked for, after the end, too, if answers do not have them."""
    points: float = 1.0
    """What AgentGym gives for a reward of 1."""
    score_key: str = ""
    """What an answer to a step calls the points of the episode so far, where rewards are taken from these:
    AgentGym's own leave out what an episode has at its reset."""
    success_above: float = 0.995
    """An episode that ends with more than this share of the points is solved: all of them, but for rounding,
    unless the environment solves an item with fewer."""


_DIALECTS = {
    "textcraft": Dialect(name="TextCraft", create_body={"commands": None, "goal": None}),
    # minigrid's reward: less for more steps, 0 for a failed mission
    "babyai": Dialect(name="BabyAI", success_above=0.0),
    "miniwob": Dialect(success_above=0.0),  # not AgentGym's; its rewards are -1 to 1
    "sciworld": Dialect(name="ScienceWorld", points=100.0, score_key="score"),
    "alfworld": Dialect(name="AlfWorld", item_key="game", reset_extras={"world_type": "Text"}),
    "searchqa": Dialect(session_key="env_idx", item_key="id", create_body={"id": 0}, opens_at="Question:"),
    "webarena": Dialect(
        session_key="env_idx",
        item_key="idx",
        reset_extras={"seed": 0},
        opens_with_prompt=True,
        end_key="terminated",
    ),
    "webshop": Dialect(
        session_key="env_idx", item_key="session_id", text_key="state", actions_path="/available_actions"
    ),
}
_GREETING = re.compile(r'"This is environment (.+)\."')
ACTIONS = "Available actions: "
"""The text between the observation and the list of possible actions, where a policy is shown both."""
_STAND_INS = ("-mini", "-local")


def family_name(env: str) -> str:
    """AgentGym's environment that `env` is played as: a stand-in's real one, without options."""
    name = env.partition(":")[0]
    for ending in _STAND_INS:
        name = name.removesuffix(ending)
    return name


def dialect_of(env: str) -> Dialect:
    """The dialect of an environment; for one without an entry, the plain one."""
    return _DIALECTS.get(family_name(env), Dialect())


def greeting(env: str) -> str:
    """What `GET /` answers on a server of `env`."""
    return f"This is environment {env}."


def find_other_env(answer: str, env: str) -> str | None:
    """The environment that the JSON of an answer to `GET /` names, if it is known and not `env`.

    AgentGym's WebShop, WebArena and SearchQA name none.
    """
    match = _GREETING.fullmatch(answer.strip())
    if match is None or match[1] in (env, dialect_of(env).name):
        return None
    is_ours = ":" in match[1] or match[1] in ENVIRONMENTS
    is_known = is_ours or any(match[1] == dialect.name for dialect in _DIALECTS.values())
    return match[1] if is_known else None
