"""What AgentGym's clients send: a session, an item, an action, under the names of their environment."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from envs.serve.ids import MAX_ID

SessionId = Annotated[int, Field(ge=0, le=MAX_ID)]
Index = Annotated[int, Field(ge=0, le=MAX_ID)]
"""Index of an item, as in `textcraft_12`."""


class Create(BaseModel):
    """Body of `POST /create`: empty."""


class TextCraftCreate(Create):
    """TextCraft's client could name a game of its own; it always sends null."""

    commands: None = None
    goal: None = None


class SessionRequest(BaseModel):
    """A request about a session; the body of `POST /close` and the query of every GET."""

    session: Annotated[SessionId, Field(alias="id")]


class Reset(SessionRequest):
    """Body of `POST /reset`, as most clients send it."""

    index: Annotated[Index, Field(alias="data_idx")]


class TextCraftReset(Reset):
    """TextCraft's client may leave the index out."""

    index: Annotated[Index, Field(alias="data_idx")] = 0


class Step(SessionRequest):
    """Body of `POST /step`."""

    action: str


class AlfWorldReset(SessionRequest):
    """An ALFWorld game and the kind of its world, of which there is one here."""

    index: Annotated[Index, Field(alias="game")]
    world_type: Literal["Text"] = "Text"


class EnvIdxRequest(SessionRequest):
    """A request about a session of WebShop, SearchQA or WebArena."""

    session: Annotated[SessionId, Field(alias="env_idx")]


class EnvIdxStep(EnvIdxRequest):
    """Body of their `POST /step`."""

    action: str


class WebShopReset(EnvIdxRequest):
    """Body of WebShop's `POST /reset`."""

    index: Annotated[Index, Field(alias="session_id")]


class SearchQACreate(Create):
    """SearchQA's client names an item, and names it again in its reset."""

    index: Annotated[Index, Field(alias="id")] = 0


class SearchQAReset(EnvIdxRequest):
    """Body of SearchQA's `POST /reset`."""

    index: Annotated[Index, Field(alias="id")]


class WebArenaReset(EnvIdxRequest):
    """An item of WebArena; its seed, always 0, has no meaning."""

    index: Annotated[Index, Field(alias="idx")]
    seed: Literal[0] = 0
