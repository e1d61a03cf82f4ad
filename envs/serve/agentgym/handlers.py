"""Handlers of AgentGym's requests."""

from envs.network.server import RequestRejected
from envs.remote.agentgym import dialect_of
from envs.serve.agentgym.bodies import request_models
from envs.serve.agentgym.families import family_of
from envs.serve.openenv_bodies import HttpReset
from envs.serve.sessions import EnvSession, EnvSessions
from envs.serve.wire import HttpCall, validate
from envs.types import Item


class AgentGym:
    """The handlers, for one environment."""

    def __init__(self, sessions: EnvSessions) -> None:
        self._sessions = sessions
        self._dialect = dialect_of(sessions.spec.name)
        self.family = family_of(sessions.spec.name)
        self.models = request_models(self._dialect, needs_index=self.family.needs_reset)

    def accepts(self, body: object) -> bool:
        """Whether a body is for this protocol, and not OpenEnv's: WebShop calls an item as OpenEnv calls a
        session."""
        keys = {self._dialect.session_key, self._dialect.item_key} - HttpReset.model_fields.keys()
        return isinstance(body, dict) and (
            any(key in body for key in keys) or isinstance(body.get("action"), str)
        )

    def accepts_state(self, call: HttpCall) -> bool:
        """Whether a `GET /state` is for this protocol, and not OpenEnv's."""
        return "/state" in self.family.queries and self._dialect.session_key in call.query

    async def create(self, call: HttpCall) -> object:
        """`POST /create`: make an instance; its episode begins later."""
        validate(self.models.create, call.body)
        return await self.family.create_answer(self._sessions, self._sessions.open(call.owner))

    async def reset(self, call: HttpCall) -> object:
        """`POST /reset`: start an item on an instance."""
        request = validate(self.models.reset, call.body)
        session = self._sessions.find(request.session, call.owner)
        await self._sessions.reset(session, self._item(request.index, key=self._dialect.item_key))
        return await self.family.reset_answer(self._sessions, session)

    async def step(self, call: HttpCall) -> object:
        """`POST /step`: carry out an action."""
        request = validate(self.models.step, call.body)
        session = self._sessions.find(request.session, call.owner)
        await self._ensure_reset(session)
        await self._sessions.step(session, request.action)
        return await self.family.step_answer(self._sessions, session)

    async def close(self, call: HttpCall) -> object:
        """`POST /close`: free an instance."""
        request = validate(self.models.session, call.body)
        await self._sessions.close(self._sessions.find(request.session, call.owner))
        return self.family.close_answer

    async def answer_query(self, call: HttpCall) -> object:
        """A GET request about a session."""
        request = validate(self.models.session, dict(call.query), location="query")
        session = self._sessions.find(request.session, call.owner)
        await self._ensure_reset(session)
        if session.item is None:
            raise RequestRejected(409, f"the episode of session {session.id} has not begun; reset it")
        self._sessions.touch(session)
        return await self.family.queries[call.path](self._sessions, session)

    async def _ensure_reset(self, session: EnvSession) -> None:
        if session.item is None and not self.family.needs_reset:
            await self._sessions.reset(session, self._item(session.id, key="id"))

    def _item(self, number: int, *, key: str) -> Item:
        return self._sessions.item(self.family.item_number(number), field=("body", key))
