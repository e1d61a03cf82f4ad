"""Where untrusted code runs: behind walls that were found to stand, or nowhere.

There is no way to run code outside a sandbox. Which backend builds it is this machine's affair, not a
run's: `WINGSPAN_SANDBOX` names one, else the first that works is taken, in the order of `BACKENDS`.
"""

import os
from dataclasses import dataclass

from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import DOCKER, PODMAN
from envs.sandbox.backend import Backend
from envs.sandbox.bubblewrap import Bubblewrap
from envs.sandbox.containers import Containers
from envs.sandbox.enroot import Enroot

CHOICE_VARIABLE = "WINGSPAN_SANDBOX"
BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (Bubblewrap(), Containers(PODMAN), Containers(DOCKER), Enroot())
}
"""By name; the quickest to start first."""


def choose_backend() -> Backend:
    """The backend that the user named, or the first that works here.

    Raises `ConfigError` for a name that is none, and `MissingDependency` if none works; it names all that
    were tried, each with what would make it work.
    """
    remedies = {}
    for backend in _candidates():
        remedy = backend.find_remedy()
        if remedy is None:
            return backend
        remedies[backend.name] = remedy
    hints = "; ".join(f"{name}: {remedy}" for name, remedy in remedies.items())
    raise MissingDependency(
        f"no sandbox for code, and it never runs without one. Any of these gives one: {hints}"
    )


def _candidates() -> list[Backend]:
    choice = os.environ.get(CHOICE_VARIABLE)
    if not choice:
        return list(BACKENDS.values())
    if choice not in BACKENDS:
        raise ConfigError(f"{CHOICE_VARIABLE}={choice} is no sandbox; there are: {', '.join(BACKENDS)}")
    return [BACKENDS[choice]]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The requirement of an environment that runs code."""

    name: str = "a sandbox"

    def find_remedy(self) -> str | None:
        try:
            choose_backend()
        except MissingDependency as error:
            return str(error)
        return None
