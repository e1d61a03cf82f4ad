"""What `wingspan envs` says: the environments that there are, and whether they can be played here."""

from collections.abc import Sequence

from envs.registry import EnvSpec, env_names, get_env
from envs.requirements import Package

COLUMNS = ("environment", "state", "items", "source")


def environment_rows() -> list[Sequence[str]]:
    """One row an environment: its name, whether it is installed, its items, where they come from."""
    return [_row(get_env(name)) for name in env_names()]


def _row(spec: EnvSpec) -> Sequence[str]:
    lacks = [(need, remedy) for need in spec.needs if (remedy := need.missing()) is not None]
    state = "; ".join(f"missing {need.name}: {remedy}" for need, remedy in lacks) or "installed"
    items = "unknown"
    if not spec.own_items:
        items = "your data"
    elif not any(isinstance(need, Package) for need, _ in lacks):  # programs are needed to play only
        split = spec.split(0)
        items = f"{len(split.train)} train, {len(split.test)} test"
    return (spec.name, state, items, spec.source)
