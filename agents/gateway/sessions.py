"""Sessions: one episode each, until it is ended or forgotten.

Owns ids, the cap, idle expiry, and the cancellation of requests when their session ends.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agents.gateway.conversation import ChatTurn
from agents.gateway.generation import CONTEXT_FULL, NO_TURNS_LEFT, GenerationRequest
from agents.gateway.limits import GatewayLimits
from agents.gateway.policy import Answer, Policy
from agents.gateway.recording import Recording
from agents.types import Label, StopReason, Trajectory
from envs.errors import SamplerFailed, WingspanError, describe
from envs.network.server import RequestRejected
from envs.types import Item

PREFIX = "session-"
"""Start of every session's id, by which an API key is recognized as one."""


@dataclass(slots=True, eq=False, kw_only=True)
class GatewaySession:
    """One episode of an agent program."""

    policy: Policy
    item: Item
    url: str
    """The gateway's own."""
    sample_index: int = 0
    name: str | None = None
    """The sampler's seed and key, which stands in messages; None takes a random one, not the id: who knows
    that may use the session."""
    max_turns: int
    expires: bool
    """Whether it is forgotten when it is idle for too long."""
    metadata: Mapping[str, Label] = field(default_factory=dict)
    """Becomes the trajectory's labels."""
    session_id: str = field(default_factory=lambda: PREFIX + secrets.token_urlsafe(16))
    used_at: float = field(default_factory=time.monotonic)
    fault: WingspanError | None = None
    """Why a request failed, unless the program or the policy is at fault; None again when a request that
    began later has been answered."""
    stop_reason: StopReason = StopReason.TERMINATED
    """Why there are no more turns: a request found no room, or no turn left, and none that began later was
    answered; else `TERMINATED`, the program's own end."""
    histories: dict[str, Sequence[ChatTurn]] = field(default_factory=dict)
    """Conversations that later requests of the Responses API may continue: up to and with an answer, without
    instructions, by the answer's id."""
    _recording: Recording = field(init=False)
    _running: "set[asyncio.Task[Answer]]" = field(default_factory=set)
    _has_ended: bool = False
    _num_pending: int = 0
    _num_requests: int = 0
    _last_failed: int = 0
    """The requests that had begun when one failed last."""

    def __post_init__(self) -> None:
        self._recording = Recording(self.name or f"session-{secrets.token_hex(8)}", self.policy.rendering)

    @property
    def base_url(self) -> str:
        """The URL as OpenAI's clients take it."""
        return f"{self.url}/sessions/{self.session_id}/v1"

    @property
    def api_key(self) -> str:
        """Selects the session at the gateway's common URL."""
        return self.session_id

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._running)

    @property
    def turns(self) -> int:
        """Completions so far."""
        return self._recording.turns

    def answer(self, generation: GenerationRequest) -> "asyncio.Task[Answer]":
        """The session's next turn, which is cancelled with the session's end, or if that came first. Raises
        as `Policy.answer`."""
        task = asyncio.create_task(self._answer(generation))
        if self._has_ended:  # while the request's body was on its way
            task.cancel()
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def trajectory(
        self,
        *,
        reward: float = 0.0,
        success: bool = False,
        turn_rewards: Sequence[float] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Trajectory:
        """The samples so far, for training. `turn_rewards`: one for each turn, in the order of the answers,
        in addition to `reward`. Raises `ValueError` for another number of them."""
        return self._recording.trajectory(
            self.item,
            sample_index=self.sample_index,
            reward=reward,
            success=success,
            turn_rewards=turn_rewards,
            stop_reason=self.stop_reason,
            metrics=metrics or {},
            labels=self.metadata,
        )

    def end(self) -> None:
        """Record nothing more, cancel the requests under way and those whose bodies are still read."""
        self._has_ended = True
        for task in self._running:
            task.cancel()

    def _done(self, task: "asyncio.Task[Answer]") -> None:
        self._running.discard(task)
        self.used_at = time.monotonic()

    async def _answer(self, generation: GenerationRequest) -> Answer:
        # A request under way counts as a turn, a rejected one does not: of concurrent requests, as many are
        # answered as there are turns.
        if self.turns + self._num_pending >= self.max_turns:
            self._fail(StopReason.MAX_TURNS)
            why = f"this session has had its {self.max_turns} turns; end it"
            raise RequestRejected(400, why, code=NO_TURNS_LEFT)
        self._num_pending += 1
        self._num_requests += 1
        number = self._num_requests
        try:
            answer = await self.policy.answer(generation, self._recording)
        except RequestRejected as rejection:
            if rejection.code == CONTEXT_FULL:
                self._fail(StopReason.MAX_CONTEXT)
            raise
        except WingspanError as fault:
            self._fail(fault)
            raise
        except Exception as error:
            self._fail(SamplerFailed(f"the gateway raised {describe(error)}"))
            raise
        finally:
            self._num_pending -= 1
        if number > self._last_failed:  # a request that began before says nothing about another that failed
            self.stop_reason = StopReason.TERMINATED
            self.fault = None
        return answer

    def _fail(self, cause: StopReason | WingspanError) -> None:
        """A request got no answer: for lack of room or turns, or by a fault."""
        if isinstance(cause, StopReason):
            self.stop_reason = cause
        else:
            self.fault = cause
        self._last_failed = self._num_requests


class GatewaySessions:
    """The live sessions of one gateway."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._open: OrderedDict[str, GatewaySession] = OrderedDict()

    @property
    def live(self) -> int:
        """The number of open sessions."""
        self._forget_idle()
        return len(self._open)

    def open(self, session: GatewaySession) -> GatewaySession:
        """Let requests find a new session. Raises `RequestRejected` if there are too many."""
        if self.live >= self._limits.max_sessions:
            why = f"all {self._limits.max_sessions} sessions are in use"
            raise RequestRejected(429, f"{why}; end some, or serve with a larger --max-sessions")
        self._open[session.session_id] = session
        return session

    def find(self, session_id: str) -> GatewaySession:
        """The session of an id; counts as its use. Raises `RequestRejected` 404."""
        self._forget_idle()
        session = self._open.get(session_id)
        if session is None:
            why = f"it was ended, or unused for {self._limits.idle_s:g} s"
            raise RequestRejected(
                404, f"there is no session {session_id!r}: {why}; open another", code="session_not_found"
            )
        session.used_at = time.monotonic()
        self._open.move_to_end(session_id)
        return session

    def end(self, session: GatewaySession) -> None:
        """Forget a session; to end it again does nothing."""
        session.end()
        self._open.pop(session.session_id, None)

    def _forget_idle(self) -> None:
        before = time.monotonic() - self._limits.idle_s
        idle = [s for s in self._open.values() if s.expires and not s.busy and s.used_at < before]
        for session in idle:
            self.end(session)
