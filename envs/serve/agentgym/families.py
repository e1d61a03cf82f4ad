"""Which environment's clients are spoken to how."""

from envs.remote.agentgym import family_name
from envs.serve.agentgym.family import Family
from envs.serve.agentgym.plain import PLAIN, SCIWORLD, TEXTCRAFT
from envs.serve.agentgym.told import ALFWORLD, SEARCHQA, WEBARENA, WEBSHOP

_FAMILIES = {
    "textcraft": TEXTCRAFT,
    "sciworld": SCIWORLD,
    "alfworld": ALFWORLD,
    "searchqa": SEARCHQA,
    "webarena": WEBARENA,
    "webshop": WEBSHOP,
}


def family_of(env: str) -> Family:
    """Those of an environment; one that AgentGym does not have is spoken to as BabyAI is."""
    return _FAMILIES.get(family_name(env), PLAIN)
