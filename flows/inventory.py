"""What `wingspan envs` says: the environments that there are, and whether they can be played here."""

from collections.abc import Iterable, Mapping, Sequence

from envs.data_sets import DataSet
from envs.registry import EnvSpec, Family, env_names, families, get_env
from envs.requirements import Package, Requirement
from envs.sandbox import BACKENDS

COLUMNS = ("environment", "state", "items", "source")


def environment_rows() -> list[Sequence[str]]:
    """One row an environment: its name, whether it is installed, its items, where they come from.

    After those with a name of their own come the families, and Python in a sandbox, which tools play.
    """
    return [*map(_row, map(get_env, env_names())), *map(_family_row, families()), _interpreter_row()]


def _row(spec: EnvSpec) -> Sequence[str]:
    lacks = _lacks(spec.needs)
    items = "unknown"
    if not spec.own_items:
        items = "your data"
    elif not any(isinstance(need, Package | DataSet) for need in lacks):  # programs are needed to play only
        split = spec.split(0)
        items = f"{len(split.train)} train, {len(split.test)} test"
    return (spec.name, _state(lacks), items, spec.source)


def _family_row(family: Family) -> Sequence[str]:
    lacks = _lacks(Package(name) for name in family.packages)
    return (f"{family.name}:…", _state(lacks), f"e.g. {family.example}", family.source)


def _interpreter_row() -> Sequence[str]:
    works = [name for name, backend in BACKENDS.items() if backend.missing() is None]
    state = f"in {', '.join(works)}" if works else "missing a sandbox: wingspan doctor tells what can be had"
    return ("(code interpreter)", state, "", "tools code_interpreter and code_session (docs/tools.md)")


def _lacks(needs: Iterable[Requirement]) -> dict[Requirement, str]:
    """What is missing, and the command that brings it."""
    return {need: remedy for need in needs if (remedy := need.missing()) is not None}


def _state(lacks: Mapping[Requirement, str]) -> str:
    return "; ".join(f"missing {need.name}: {remedy}" for need, remedy in lacks.items()) or "installed"
