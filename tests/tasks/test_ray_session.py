"""What a session with Ray must leave as it was."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks.cluster import setup_worker
from tasks.cluster.session import disconnect_ray, start_local_ray


@pytest.fixture
def sigterm_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


def is_caught(number: int) -> bool:
    """Whether the system calls a handler; `signal.getsignal` knows only what Python has set."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


@pytest.mark.heavy
@pytest.mark.usefixtures("sigterm_handler")
def test_sigterm_still_has_its_handler_after_ray_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    start_local_ray(num_cpus=1)
    [raylet] = [p for p in psutil.Process().children(recursive=True) if p.name() == "raylet"]
    assert any(setup_worker.__file__ in argument for argument in raylet.cmdline())
    assert is_caught(signal.SIGTERM)
    disconnect_ray()
    assert is_caught(signal.SIGTERM)
