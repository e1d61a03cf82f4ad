"""Facts of AgentGym's HTTP protocol that server and client share (WooooDyy/AgentGym at 3ef9235).

One server serves one environment. `POST /create` answers `{"id": …}`; `POST /reset {id, data_idx}`,
`POST /step {id, action}` and `POST /close {id}` act on that instance, `GET /observation?id=…` looks at it.
What differs between environments is here and in `envs/serve/agentgym/families.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How AgentGym counts what is counted from 0 to 1 here."""

    points: float = 1.0
    """What AgentGym gives for a reward of 1."""
    success_above: float = 0.0
    """An episode that ends with more than this share of the points is solved."""


_DIALECTS = {"sciworld": Dialect(points=100.0, success_above=0.995)}


def dialect_of(env: str) -> Dialect:
    """The dialect of an environment; for one that AgentGym does not have, the plain one."""
    return _DIALECTS.get(env, Dialect())
