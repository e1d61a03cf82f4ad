"""What all tests share: their markers, time limits and order, and the way to import verl."""

import asyncio
import functools
import gc
import inspect
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from envs.redaction import scope_of_secrets
from envs.registry import ENVIRONMENTS
from flows.endings.guardian import MARK, end_guarded, guard
from tasks.verl.cpu import fork_server

# For the tests and what they start, before anything imports torch: several tests run at a time, and threads
# that wait for each other on busy cores take ten times the time of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test fails by the time that it took: a test that hangs has a limit of its own (pyproject.toml).
settings.register_profile("wingspan", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=20)  # of `make test-fast`
settings.load_profile("wingspan")

pytest_plugins = ["tests.support.command_line", "tests.support.sandboxes"]
SLOW_TIMEOUT_S = 600
LONGEST_FILES = (
    "test_flow.py",
    "test_verl_ppo.py",
    "test_deployments.py",
    "test_verl_train.py",
    "test_cluster.py",
    "test_network.py",
    "test_offline.py",
)
"""A worker takes whole files: one of these that began last would leave all cores but one idle."""
LONG_FILES = (
    "test_conformance.py",
    "test_cli.py",
    "test_tracking.py",
    "test_sciworld.py",
    "test_dvc_commands.py",
    "test_dvc.py",
    "test_browser.py",
    "test_webarena.py",
    "test_report.py",
)
"""Those that are long although none of their tests is slow: from two and a half minutes to 45 s."""
PROGRAMS = {"browser": ("test_browser.py", "miniwob", "webarena"), "java": ("sciworld", "jvm")}
"""By marker: a part of the id (file, function or parameter) of each test that starts this program."""


def pytest_configure() -> None:
    """Guard the session: what tests start, and their files, end with it, if it is killed as well.

    The folders of `tmp_path` stay: pytest keeps those of the last sessions.
    """
    if MARK not in os.environ:  # workers inherit it
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        guard(prefix="w-")  # short: the paths of sockets in a run's folder have a limit


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all files of tests without garbage collection: half of their time is spent in it, and what they
    make stays. It is not looked through later, either, and what tests import is not each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Leave what there is to the end of the process: pytest would look through it five times, for seconds."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Run a coroutine test in its own event loop, which ends with it; pytest alone would fail such a test."""
    if inspect.iscoroutinefunction(test := pyfuncitem.obj):
        pyfuncitem.obj = functools.wraps(test)(lambda **fixtures: asyncio.run(test(**fixtures)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder and programs, give slow tests more time, and put long files first."""
    for item in items:
        item.add_marker(item.path.relative_to(Path(__file__).parent).parts[0])
        for marker, parts in PROGRAMS.items():
            if any(part in item.nodeid for part in parts):
                item.add_marker(marker)
        if "verl" in getattr(item, "fixturenames", ()):
            item.add_marker("heavy")
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    slow_files = {item.path for item in items if item.get_closest_marker("slow") is not None}

    def rank(item: pytest.Item) -> tuple[int, int]:
        """That of its file, and the file's place among those of this rank."""
        name = item.path.name
        if name in LONGEST_FILES:
            return 0, LONGEST_FILES.index(name)
        if item.path in slow_files:
            return 1, 0
        return (2, LONG_FILES.index(name)) if name in LONG_FILES else (3, 0)

    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def fork_server_holder() -> Iterator[ExitStack]:
    """Keeps one fork server for all tests of this worker: a new one takes 5 CPU-seconds for its imports.

    A file whose tests end it closes the stack, and enters `fork_server.keep_open()` again after them.
    """
    with ExitStack() as holder:
        holder.enter_context(fork_server.keep_open())
        yield holder


@pytest.fixture(scope="module", autouse=True)
def own_registrations() -> Iterator[None]:
    """Forget the environments and secrets that a file of tests registers: files run in any order."""
    with ENVIRONMENTS.scope(), scope_of_secrets():
        yield


@pytest.fixture(autouse=True)
def _own_registrations_of_a_test() -> Iterator[None]:
    """Forget the environments and secrets that a test registers."""
    with ENVIRONMENTS.scope(), scope_of_secrets():
        yield


@pytest.fixture(autouse=True)
def _undo_a_command() -> Iterator[None]:
    """Undo what a command that a test has called in this process has set for itself.

    The temporary folder of its guard would give later tests longer paths than Ray's sockets may have, and its
    settings of Prefect would silence Prefect's logs.
    """
    mark, folder = os.environ.get(MARK), os.environ.get("TMPDIR")
    settings = _prefect_settings()
    yield
    for name in _prefect_settings().keys() - settings.keys():
        del os.environ[name]
    os.environ |= settings
    if mark is not None and os.environ.get(MARK) != mark:
        end_guarded()
        os.environ[MARK] = mark
        os.environ["TMPDIR"] = folder or mark
        tempfile.tempdir = None


@pytest.fixture
def brief_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What resists its cancellation is left behind after 0.1 s, not after a second."""
    monkeypatch.setattr("envs.runtime.time_limits.END_S", 0.1)


def _prefect_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}


@pytest.fixture(scope="module")
def verl() -> Iterator[ModuleType]:
    """verl, imported as every training process imports it: with the plugin.

    Whoever imports it first in a process decides, so every test that imports it asks for this.
    """
    from tasks.verl.cpu import PLUGIN_ENV

    before = dict(os.environ)
    os.environ |= PLUGIN_ENV
    import verl
    import verl.trainer.ppo.v1

    yield verl
    os.environ.clear()
    os.environ |= before
