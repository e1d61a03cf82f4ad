"""A pytest plugin: which sandbox backends work on this machine, probed once for all workers of a run.

Tests of every backend are parametrised with the working ones; the summary names the others in one line.
"""

import json
from typing import Any

import pytest

from envs.sandbox.backend import Backend
from envs.sandbox.sandbox import BACKENDS

_REMEDIES = pytest.StashKey[dict[str, str | None]]()
_INPUT = "sandbox_remedies"


def working_sandboxes(config: pytest.Config) -> list[Backend]:
    """The backends whose probe found no way out."""
    return [BACKENDS[name] for name, remedy in _remedies(config).items() if remedy is None]


def _remedies(config: pytest.Config) -> dict[str, str | None]:
    """By backend: None if it works, else what would make it work."""
    if _REMEDIES not in config.stash:
        # pytest-xdist: all workers must collect the same tests, so they take the controller's answer.
        from_controller = getattr(config, "workerinput", {}).get(_INPUT)
        config.stash[_REMEDIES] = (
            json.loads(from_controller)
            if from_controller
            else {name: backend.find_remedy() for name, backend in BACKENDS.items()}
        )
    return config.stash[_REMEDIES]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist's hook: what the controller passes to a worker."""
    node.workerinput[_INPUT] = json.dumps(_remedies(node.config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line on the backends that were not tested."""
    absent = [f"{name} ({remedy})" for name, remedy in config.stash.get(_REMEDIES, {}).items() if remedy]
    if absent:
        terminalreporter.write_line(
            f"sandboxes not tested, because they do not work here: {'; '.join(absent)}"
        )
