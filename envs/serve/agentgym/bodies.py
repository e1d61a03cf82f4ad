"""What AgentGym's clients send: a session, an item, an action, under the names of their environment."""

from typing import Annotated

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
    """Body of `POST /reset`."""

    index: Annotated[Index, Field(alias="data_idx")]


class TextCraftReset(Reset):
    """TextCraft's may leave the index out."""

    index: Annotated[Index, Field(alias="data_idx")] = 0


class Step(OfSession):
    """Body of `POST /step`."""

    action: str
