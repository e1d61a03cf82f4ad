"""Requests by AgentGym's protocol: whose session, which item, what is answered."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from envs.serve.agentgym.bodies import OfSession
from envs.serve.agentgym.families import family_of
from envs.serve.agentgym.family import Family, Look
from envs.serve.sessions import EnvSession, EnvSessions, RequestRejected
from envs.serve.wire import OWNER, answer, body_of, checked
from envs.types import Item


class AgentGym:
    """The handlers, for one environment."""

    def __init__(self, sessions: EnvSessions) -> None:
        self._sessions = sessions
        self.family: Family = family_of(sessions.spec.name)

    @property
    def looks(self) -> Mapping[str, Look]:
        """By path: what may be asked by GET of a session whose episode has begun."""
        return self.family.looks

    def is_meant(self, body: object) -> bool:
        """Whether a body is for this protocol, and not OpenEnv's."""
        if not isinstance(body, dict):
            return False
        fields = self.family.reset.model_fields
        names = {fields[name].alias for name in ("session", "index")}
        return not names.isdisjoint(body) or isinstance(body.get("action"), str)

    def is_asked(self, request: web.Request) -> bool:
        """Whether a query is for this protocol, and not OpenEnv's."""
        return self._session_name in request.query

    async def create(self, request: web.Request) -> web.Response:
        """Make an instance; its episode begins later."""
        checked(self.family.create, await body_of(request))
        session = self._sessions.open(request[OWNER])
        return answer(self.family.created(session))

    async def reset(self, request: web.Request, body: object) -> web.Response:
        """Start an item on an instance."""
        wanted: Any = checked(self.family.reset, body)
        session = self._find(wanted.session, request)
        name = self.family.reset.model_fields["index"].alias or "index"
        await self._sessions.reset(session, self._item(wanted.index, field=name))
        return answer(await self.family.opened(self._sessions, session))

    async def step(self, request: web.Request, body: object) -> web.Response:
        """Carry out an action."""
        wanted: Any = checked(self.family.step, body)
        session = self._find(wanted.session, request)
        await self._begin(session)
        result = await self._sessions.step(session, wanted.action)
        return answer(await self.family.stepped(self._sessions, session, result))

    async def close(self, request: web.Request) -> web.Response:
        """Free an instance."""
        wanted = checked(self.family.of_session, await body_of(request))
        await self._sessions.close(self._find(wanted.session, request))
        return answer(self.family.closed)

    async def look(self, request: web.Request) -> web.Response:
        """Answer a GET request about a session."""
        wanted: OfSession = checked(self.family.of_session, dict(request.query), place="query")
        session = self._find(wanted.session, request)
        await self._begin(session)
        if session.item is None:
            raise RequestRejected(409, f"the episode of session {session.session_id} has not begun; reset it")
        return answer(await self.looks[request.path].read(self._sessions, session))

    async def _begin(self, session: EnvSession) -> None:
        """Start the item of the instance's own number where the clients may leave the reset out, and have."""
        if self.family.begins_unasked and session.item is None:
            await self._sessions.reset(session, self._item(session.session_id, field="id"))

    @property
    def _session_name(self) -> str:
        name = self.family.of_session.model_fields["session"].alias
        assert name is not None
        return name

    def _item(self, number: int, *, field: str) -> Item:
        return self._sessions.item(self.family.number_of(number), field=("body", field))

    def _find(self, session_id: int, request: web.Request) -> EnvSession:
        return self._sessions.find(session_id, request[OWNER])
