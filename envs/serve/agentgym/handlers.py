"""Handlers of AgentGym's requests."""

from typing import Any

from envs.serve.agentgym.families import Family, family_of
from envs.serve.sessions import EnvSession, EnvSessions, RequestRejected
from envs.serve.wire import Call, validate
from envs.types import Item


class AgentGym:
    """The handlers, for one environment."""

    def __init__(self, sessions: EnvSessions) -> None:
        self._sessions = sessions
        self.family: Family = family_of(sessions.spec.name)
        self._session_key = self.family.close.model_fields["session"].alias or "session"
        self._index_key = self.family.reset.model_fields["index"].alias or "index"

    def accepts(self, body: object) -> bool:
        """Whether a body is for this protocol, and not OpenEnv's."""
        if not isinstance(body, dict):
            return False
        return self._session_key in body or self._index_key in body or isinstance(body.get("action"), str)

    def accepts_state(self, call: Call) -> bool:
        """Whether a `GET /state` is for this protocol, and not OpenEnv's."""
        return "/state" in self.family.queries and self._session_key in call.query

    async def create(self, call: Call) -> object:
        """`POST /create`: make an instance; its episode begins later."""
        validate(self.family.create, call.body)
        return self.family.created(self._sessions.open(call.owner))

    async def reset(self, call: Call) -> object:
        """`POST /reset`: start an item on an instance."""
        request: Any = validate(self.family.reset, call.body)
        session = self._sessions.find(request.session, call.owner)
        await self._sessions.reset(session, self._item(request.index, key=self._index_key))
        return await self.family.opened(self._sessions, session)

    async def step(self, call: Call) -> object:
        """`POST /step`: carry out an action."""
        request: Any = validate(self.family.step, call.body)
        session = self._sessions.find(request.session, call.owner)
        await self._reset_itself(session)
        result = await self._sessions.step(session, request.action)
        return await self.family.stepped(self._sessions, session, result)

    async def close(self, call: Call) -> object:
        """`POST /close`: free an instance."""
        request = validate(self.family.close, call.body)
        await self._sessions.close(self._sessions.find(request.session, call.owner))
        return self.family.closed

    async def answer_query(self, call: Call) -> object:
        """A GET request about a session."""
        request = validate(self.family.close, dict(call.query), location="query")
        session = self._sessions.find(request.session, call.owner)
        await self._reset_itself(session)
        if session.item is None:
            raise RequestRejected(409, f"the episode of session {session.session_id} has not begun; reset it")
        return await self.family.queries[call.path].read(self._sessions, session)

    async def _reset_itself(self, session: EnvSession) -> None:
        if self.family.resets_itself and session.item is None:
            await self._sessions.reset(session, self._item(session.session_id, key="id"))

    def _item(self, number: int, *, key: str) -> Item:
        return self._sessions.item(self.family.item_number(number), field=("body", key))
