"""The choice of the backend that runs untrusted code; there is no way to run it outside a sandbox.

The backend belongs to the machine, not to a run: `WINGSPAN_SANDBOX` names one, otherwise the first of
`BACKENDS` that works is used.
"""

import os

from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import CheckedRequirement
from envs.sandbox.backend import Backend
from envs.sandbox.bubblewrap import Bubblewrap
from envs.sandbox.containers import Containers
from envs.sandbox.enroot import Enroot

CHOICE_VARIABLE = "WINGSPAN_SANDBOX"
BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (Bubblewrap(), Containers("podman"), Containers("docker"), Enroot())
}
"""The backends by name; the fastest to start comes first."""


def choose_backend() -> Backend:
    """Return the backend that the user named, or the first that works here.

    Raises `ConfigError` for an unknown name. Raises `MissingDependency`, with the remedy for each candidate,
    if none works.
    """
    choice = os.environ.get(CHOICE_VARIABLE)
    if choice and choice not in BACKENDS:
        raise ConfigError(f"{CHOICE_VARIABLE}={choice} is no sandbox; there are: {', '.join(BACKENDS)}")
    remedies = []
    for backend in [BACKENDS[choice]] if choice else BACKENDS.values():
        remedy = backend.find_remedy()
        if remedy is None:
            return backend
        remedies.append(f"{backend.name}: {remedy}")
    raise MissingDependency(
        "no sandbox for code, and it never runs without one. Any of these provides one: "
        + "; ".join(remedies)
    )


def _find_remedy() -> str | None:
    try:
        choose_backend()
    except MissingDependency as error:
        return str(error)
    return None


SANDBOX = CheckedRequirement("a sandbox", _find_remedy)
"""The requirement of code that runs in a sandbox."""
