"""Environments in their own processes, on this machine and as Ray actors, with the same guarantees."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.errors import ConfigError, EnvCrashed, MissingDependency
from envs.registry import ENVIRONMENTS, get_env
from envs.runtime.hosted import Host, HostedEnv, restore_error
from envs.runtime.manager import EnvManager
from envs.runtime.processes import ProcessHost
from envs.runtime.worker import answer_error
from envs.types import Item, StepResult
from tests.support.hosted_threads import ThreadedRogue
from tests.support.hosted_toy import Rogue, make_failing, make_without_java
from tests.support.openings import read_opening
from tests.support.toy import ToyEnv, toy_item, toy_spec
from tests.support.waiting import wait_until_async

ITEM = Item(item_id="rogue_7", env="rogue", seed=3, metadata={"depth": [1, 2], "é": None})


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    import ray

    from tasks.cluster.session import start_local_ray

    start_local_ray(num_cpus=4)
    yield
    ray.shutdown()


@pytest.fixture(params=["process", pytest.param("ray", marks=pytest.mark.slow)])
def host_of(request: pytest.FixtureRequest) -> Any:
    if request.param == "process":
        return ProcessHost
    request.getfixturevalue("ray")
    from tasks.cluster.envs import RayHost

    return RayHost


async def close_all(env: HostedEnv, host: Host) -> None:
    await env.close()
    await host.close()


async def until_gone(pid: int) -> None:
    """Wait until a killed process has disappeared."""
    await wait_until_async(lambda: not psutil.pid_exists(pid))


async def test_answers_and_errors_arrive_unchanged(host_of: Any) -> None:
    host = host_of(Rogue)
    env = HostedEnv(host)
    with pytest.raises(RuntimeError, match="step before reset"):
        await env.step("pid")
    assert await env.reset(ITEM) == "rogue_7 3 {'depth': [1, 2], 'é': None}"
    for text in ("", "é 漢 🙂", "a\nb\r\n\x00", "x" * 3_000_000, "\ud800"):
        assert await env.step(text) == StepResult(text, reward=0.25)
    assert await env.step("end") == StepResult("end", reward=0.25, terminated=True, success=True)
    assert await env.step("cut") == StepResult("cut", reward=0.25, truncated=True)
    assert len((await env.step("repeat 1000000")).observation) == 3_000_000
    assert int((await env.step("pid")).observation) == env.pid != os.getpid()
    assert (await env.step("measure f1")).metrics == {"f1": 0.5}
    assert await env.inspect("pid") == {"pid": env.pid}
    with pytest.raises(ConfigError, match="Rogue knows no colour"):
        await env.inspect("colour")
    text = r"^rogue_7: step raised KeyError: 'a b' \(.*hosted_toy\.py:\d+\)\nin its process:\nTraceback "
    with pytest.raises(EnvCrashed, match=text):
        await env.step("raise a b")
    with pytest.raises(EnvCrashed, match=r"rogue_7: step raised ValueError: .* is nan"):
        await env.step("reward nan")
    with pytest.raises(MissingDependency, match=r"^apt-get install x\nin its process:\n"):
        await env.step("miss apt-get install x")
    await close_all(env, host)


def test_an_error_of_a_users_class_becomes_a_crash() -> None:
    class Mine(ConfigError):
        pass

    error = restore_error(answer_error(Mine("wrong")), subject="toy_1: step")
    assert type(error) is EnvCrashed
    assert str(error) == "toy_1: step raised wrong"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (make_without_java, MissingDependency, "install java"),
        (make_failing, EnvCrashed, "OSError: no such port"),
    ],
)
async def test_what_cannot_be_made_says_why(make: Any, error: Any, text: str) -> None:
    host = ProcessHost(make)
    env = HostedEnv(host)
    with pytest.raises(error, match=text):
        await env.reset(ITEM)
    await close_all(env, host)


async def test_a_killed_process_is_a_crash_at_once_and_known_to_be_dead(host_of: Any, tmp_path: Path) -> None:
    host = host_of(Rogue)
    env = HostedEnv(host)
    await env.prepare()
    assert env.is_alive
    await env.reset(ITEM)
    hanging = asyncio.create_task(env.step(f"hang {tmp_path / 'hangs'}"))
    await wait_until_async((tmp_path / "hangs").exists)
    assert env.pid is not None
    os.kill(env.pid, signal.SIGKILL)
    with pytest.raises(EnvCrashed, match=r"rogue_7: .*in step"):
        await asyncio.wait_for(hanging, 30)  # the step itself takes ten minutes
    assert not env.is_alive
    await env.close()
    assert "rogue_7" in await read_opening(env, ITEM)  # it starts another
    os.kill(env.pid, signal.SIGKILL)
    await wait_until_async(lambda: not env.is_alive)  # without a call
    await close_all(env, host)


async def test_cancelling_a_step_that_hangs_ends_its_process(host_of: Any) -> None:
    host = host_of(Rogue)
    env = HostedEnv(host)
    await env.reset(ITEM)
    pid = env.pid
    assert pid is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await env.step("hang")
    with pytest.raises(EnvCrashed, match="was cancelled"):
        await env.step("pid")
    await close_all(env, host)
    await until_gone(pid)


@pytest.mark.heavy
async def test_what_an_environment_starts_ends_with_it() -> None:
    host = ProcessHost(Rogue)
    closed_env, killed_env = HostedEnv(host), HostedEnv(host)
    for env in (closed_env, killed_env):
        await env.reset(ITEM)
    programs = [int((await env.step("spawn")).observation) for env in (closed_env, killed_env)]
    assert all(psutil.pid_exists(pid) for pid in programs)
    assert killed_env.pid is not None
    os.kill(killed_env.pid, signal.SIGKILL)
    await closed_env.close()
    for pid in programs:
        await until_gone(pid)
    await close_all(killed_env, host)


async def test_a_process_that_exits_says_how() -> None:
    host = ProcessHost(Rogue)
    env = HostedEnv(host)
    await env.reset(ITEM)
    with pytest.raises(EnvCrashed, match="ended with status 3 in step"):
        await env.step("exit 3")
    await env.close()
    await env.reset(ITEM)
    os.kill(env.pid or 0, signal.SIGSEGV)
    with pytest.raises(EnvCrashed, match="killed by SIGSEGV in step"):
        await env.step("hang")
    await close_all(env, host)


@pytest.mark.heavy
async def test_a_lost_fork_server_is_replaced() -> None:
    host = ProcessHost(Rogue)
    env = HostedEnv(host)
    await env.reset(ITEM)
    assert env.pid is not None
    worker = psutil.Process(env.pid)
    os.kill(worker.ppid(), signal.SIGKILL)
    with pytest.raises(EnvCrashed):
        await env.step("hang")
    await env.close()
    await until_gone(worker.pid)
    assert "rogue_7" in await read_opening(env, ITEM)
    await close_all(env, host)


async def test_a_process_that_cannot_be_started_costs_no_other_one() -> None:
    host = ProcessHost(Rogue)
    first, second = HostedEnv(host), HostedEnv(host)
    await first.reset(ITEM)
    server = psutil.Process(psutil.Process(first.pid).ppid())
    limits = server.rlimit(psutil.RLIMIT_NOFILE)
    server.rlimit(psutil.RLIMIT_NOFILE, (server.num_fds(), limits[1]))  # it can receive no socket
    with pytest.raises(EnvCrashed, match="could not be started"):
        await second.prepare()
    server.rlimit(psutil.RLIMIT_NOFILE, limits)
    assert "rogue_7" in await read_opening(second, ITEM)
    assert first.is_alive
    assert psutil.Process(second.pid).ppid() == server.pid
    await second.close()
    await close_all(first, host)


async def test_workers_share_what_was_imported_and_have_their_own_randomness() -> None:
    host = ProcessHost(Rogue, preload=("json", "no_such_module"))
    envs = [HostedEnv(host) for _ in range(8)]
    await asyncio.gather(*(env.prepare() for env in envs))
    pids = [env.pid or 0 for env in envs]
    assert len({psutil.Process(pid).ppid() for pid in pids}) == 1
    assert psutil.Process(psutil.Process(pids[0]).ppid()).ppid() == os.getpid()
    await asyncio.gather(*(env.close() for env in envs))
    assert not any(map(psutil.pid_exists, pids))  # not even as zombies
    await host.close()


@pytest.mark.heavy
async def test_where_modules_have_threads_workers_are_not_forked() -> None:
    host = ProcessHost(ThreadedRogue)
    env = HostedEnv(host)
    assert "rogue_7" in await read_opening(env, ITEM)
    pid = env.pid or 0
    assert "alone" in psutil.Process(pid).cmdline()
    program = int((await env.step("spawn")).observation)
    await env.close()
    await until_gone(program)
    assert not psutil.pid_exists(pid)
    await host.close()


def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Neither the fork server nor a worker that hangs."""
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path / "hangs")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "hanging\n"
    family = psutil.Process(parent.pid).children(recursive=True)
    assert len(family) >= 3
    parent.kill()
    parent.wait()
    dead, left = psutil.wait_procs(family, timeout=30)
    assert not left
    assert len(dead) == len(family)


PARENT = """
    import asyncio
    import sys
    from pathlib import Path
    from envs.runtime.hosted import HostedEnv
    from envs.runtime.processes import ProcessHost
    from tests.support.hosted_toy import Rogue
    from tests.support.waiting import wait_until_async
    from tests.envs.test_hosted import ITEM

    async def main():
        host = ProcessHost(Rogue)
        envs = [HostedEnv(host), HostedEnv(host)]
        for env in envs:
            await env.reset(ITEM)
        file = Path(sys.argv[1])
        hanging = asyncio.create_task(envs[0].step(f"hang {file}"))
        await wait_until_async(file.exists)
        print("hanging", flush=True)
        await hanging

    asyncio.run(main())
"""


async def test_a_kind_that_needs_processes_gets_them_and_the_pool_sees_no_difference() -> None:
    envs = EnvManager([toy_spec(ToyEnv, isolation="process")], capacity=2)
    before = psutil.Process().children(recursive=True)
    await envs.warm_up("toy", 2)
    server, *workers = (p for p in psutil.Process().children(recursive=True) if p not in before)
    assert [worker.ppid() for worker in workers] == [server.pid] * 2
    async with envs.lease("toy") as env:
        await env.reset(toy_item())
        results = [await env.step(action) for action in ("add 1", "nonsense", "add 2")]
    assert [result.reward for result in results] == [0.0, 0.0, 1.0]
    assert envs.metrics["toy"].step.count == 3
    for worker in workers:
        worker.kill()
        await until_gone(worker.pid)
    async with envs.lease("toy") as env:
        assert await env.reset(toy_item()) == "Goal: reach 3."
    assert envs.metrics["toy"].replaced == 1
    await envs.close()
    assert [p for p in psutil.Process().children(recursive=True) if p not in before] == []


def test_what_cannot_be_sent_to_a_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="class or a function of a module"):
        ProcessHost(lambda: ToyEnv())


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_each_environment_can_be_made_in_a_process(name: str) -> None:
    """It needs no data until its first reset."""
    ProcessHost(get_env(name).make)


async def test_giving_up_a_start_leaves_no_process() -> None:
    host = ProcessHost(Rogue)
    first = HostedEnv(host)
    await first.prepare()
    server = psutil.Process(psutil.Process(first.pid).ppid())
    starts = [asyncio.create_task(HostedEnv(host).prepare()) for _ in range(6)]
    await asyncio.sleep(0)
    for start in starts:
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)
    await wait_until_async(lambda: [worker.pid for worker in server.children()] == [first.pid])
    await close_all(first, host)
