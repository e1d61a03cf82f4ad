"""What AgentGym's clients send: a session, an item, an action, under the names of their environment."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from envs.serve.ids import MAX_ID

SessionId = Annotated[int, Field(ge=0, le=MAX_ID)]
Index = Annotated[int, Field(ge=0, le=MAX_ID)]
"""Place of an item, as in `textcraft_12`."""


class Create(BaseModel):
    """Body of `POST /create`: nothing."""


class TextCraftCreate(Create):
    """TextCraft's client names a game of its own here, always null."""

    commands: None = None
    goal: None = None


class OfSession(BaseModel):
    """What names its session."""

    session: Annotated[SessionId, Field(alias="id")]


class Reset(OfSession):
    """Body of `POST /reset`, as most clients send it."""

    index: Annotated[Index, Field(alias="data_idx")]


class TextCraftReset(Reset):
    """TextCraft's may leave the index out."""

    index: Annotated[Index, Field(alias="data_idx")] = 0


class Step(OfSession):
    """Body of `POST /step`."""

    action: str


class AlfWorldReset(OfSession):
    """ALFWorld's: a game, and the kind of world, of which there is one here."""

    index: Annotated[Index, Field(alias="game")]
    world_type: Literal["Text"] = "Text"


class OfNumberedSession(OfSession):
    """What WebShop's, SearchQA's and WebArena's clients name their session by."""

    session: Annotated[SessionId, Field(alias="env_idx")]


class NumberedStep(OfNumberedSession):
    """Body of their `POST /step`."""

    action: str


class WebShopReset(OfNumberedSession):
    """WebShop's."""

    index: Annotated[Index, Field(alias="session_id")]


class SearchQACreate(Create):
    """SearchQA's client names an item; `reset` names it again."""

    index: Annotated[Index, Field(alias="id")] = 0


class SearchQAReset(OfNumberedSession):
    """SearchQA's."""

    index: Annotated[Index, Field(alias="id")]


class WebArenaReset(OfNumberedSession):
    """WebArena's: an item; its seed, always 0, has no meaning."""

    index: Annotated[Index, Field(alias="idx")]
    seed: Literal[0] = 0
