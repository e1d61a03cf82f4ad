"""How the clients of each of AgentGym's environments are answered."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from envs.builtin.sciworld import find_variation
from envs.remote.agentgym import family_name
from envs.serve.agentgym import bodies
from envs.serve.sessions import EnvSession, EnvSessions

Reader = Callable[[EnvSessions, EnvSession], Awaitable[object]]
"""Makes the answer about a session; its return annotation is the type in the OpenAPI document."""


def _read(model: type[BaseModel], **facts: str) -> Reader:
    """A reader of fields that `EnvSession` has itself, and of `facts` that the environment gives
    (`Inspectable`): a field of the model → the name of the fact."""

    async def read(sessions: EnvSessions, session: EnvSession) -> BaseModel:
        values = {field: await sessions.inspect(session, fact) for field, fact in facts.items()}
        fields = [field for field in model.model_fields if field not in facts and hasattr(session, field)]
        return model.model_validate({**{field: getattr(session, field) for field in fields}, **values})

    read.__annotations__["return"] = model
    return read


def _inspect(fact: str, answer: object = dict[str, object]) -> Reader:
    """A reader of a fact that the environment gives (`Inspectable`), of type `answer`."""

    async def read(sessions: EnvSessions, session: EnvSession) -> object:
        return await sessions.inspect(session, fact)

    read.__annotations__["return"] = answer
    return read


async def _observation(_: EnvSessions, session: EnvSession) -> str:
    return session.observation


async def _id(_: EnvSessions, session: EnvSession) -> int:
    return session.id


_CREATE = _read(bodies.CreateAnswer)
_RESET = _read(bodies.ResetAnswer)
_STEP = _read(bodies.ScoredState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Answers to the clients of one environment. The defaults are BabyAI's."""

    create_answer: Reader = _CREATE
    reset_answer: Reader = _RESET
    step_answer: Reader = _STEP
    close_answer: object = True
    queries: Mapping[str, Reader] = field(default_factory=lambda: {"/observation": _RESET, "/detail": _RESET})
    """By path: GET requests about a session whose episode has begun."""
    item_number: Callable[[int], int] = int
    """The item's number for a request's number: upstream's server may accept more numbers than it has
    items."""
    needs_reset: bool = True
    """If not, a step or query before any reset starts the item with the session's own number, and a reset may
    leave the index out."""


def family_of(env: str) -> Family:
    """The family of an environment; one that AgentGym does not have is served as BabyAI is."""
    return _FAMILIES.get(family_name(env), Family())


def _textcraft_goal(number: int) -> int:
    """The number of a goal as AgentGym's server counts: after the last goal comes the first."""
    from envs.builtin.textcraft.world import goals

    return number % len(goals())


async def _sciworld_reset(sessions: EnvSessions, session: EnvSession) -> bodies.SciWorldReset:
    assert session.item is not None
    task, variation = find_variation(session.item.index)
    description = (await sessions.inspect(session, "task_description"))["task_description"]
    return bodies.SciWorldReset(
        observation=session.observation.removeprefix(f"{description}\n"),  # a step's does not begin with it
        done=session.done,
        task_name=task.name,
        var_num=variation,
        task_description=description,
        **await sessions.inspect(session, "points"),
    )


async def _sciworld_step(sessions: EnvSessions, session: EnvSession) -> bodies.ScoredState:
    points = await sessions.inspect(session, "points")
    return bodies.ScoredState(observation=session.observation, done=session.done, **points)


async def _webshop_reset(sessions: EnvSessions, session: EnvSession) -> list[str | None]:
    return [await sessions.inspect(session, "observation"), None]


async def _webshop_state(sessions: EnvSessions, session: EnvSession) -> dict[str, str]:
    facts = {fact: await sessions.inspect(session, fact) for fact in ("html", "instruction_text")}
    return {"url": "", **facts}


async def _searchqa_prompt(sessions: EnvSessions, session: EnvSession) -> str:
    """The whole prompt, instructions included, which is what AgentGym's clients are shown."""
    return f"{sessions.spec.instructions}\n\n{session.observation}"


async def _webarena_create(_: EnvSessions, session: EnvSession) -> bodies.WebArenaCreate:
    return bodies.WebArenaCreate(env_idx=session.id)


_ALFWORLD_STATE = {"observation": "observation", "available_actions": "available_actions"}
_ALFWORLD_STEP = _read(bodies.AlfWorldStep, **_ALFWORLD_STATE)
_SCIWORLD_FACTS = ("action_hint", "goals", "task_description", "object_tree", "state")

_FAMILIES = {
    "textcraft": Family(
        create_answer=_read(bodies.TextCraftReset),
        reset_answer=_read(bodies.TextCraftReset),
        step_answer=_read(bodies.EpisodeState),
        queries={"/observation": _observation, "/detail": _read(bodies.TextCraftReset)},
        item_number=_textcraft_goal,
        needs_reset=False,
    ),
    "sciworld": Family(
        reset_answer=_sciworld_reset,
        step_answer=_sciworld_step,
        queries={
            "/observation": _observation,
            "/detail": _sciworld_reset,
            **{f"/{fact}": _inspect(fact) for fact in _SCIWORLD_FACTS},
        },
    ),
    "alfworld": Family(
        reset_answer=_read(bodies.AlfWorldReset, task_type="task_type", **_ALFWORLD_STATE),
        step_answer=_ALFWORLD_STEP,
        queries={
            "/observation": _inspect("observation", str),
            "/available_actions": _inspect("available_actions", list[str]),
            "/detail": _ALFWORLD_STEP,
        },
    ),
    "searchqa": Family(
        create_answer=_id,
        reset_answer=_searchqa_prompt,
        step_answer=_read(bodies.SearchQAStep),
        queries={"/observation": _searchqa_prompt},
    ),
    "webarena": Family(
        create_answer=_webarena_create,
        reset_answer=_read(bodies.WebArenaReset, observation="page", sites="sites", object="intent"),
        step_answer=_read(bodies.WebArenaStep),
        close_answer={"closed": "closed"},
        queries={"/observation": _observation},
    ),
    "webshop": Family(
        create_answer=_id,
        reset_answer=_webshop_reset,
        step_answer=_read(bodies.WebShopStep, state="observation"),
        queries={
            "/observation": _inspect("observation", str),
            "/available_actions": _inspect("available_actions"),
            "/instruction_text": _inspect("instruction_text", str),
            "/state": _webshop_state,
        },
    ),
}
