"""Kills processes of a run (`kill -9`), and compares it with an undisturbed run to the last bit.

    python -m bench.kills textcraft-cpu --folder runs/kills --moments 3
    python -m bench.kills textcraft-cpu --folder runs/async --processes trainer --set train.async={}
    python -m bench.kills textcraft-cpu --folder runs/servers --servers mlflow-server environment-server
    python -m bench.kills textcraft-cpu --folder runs/worker --servers prefect-server prefect-worker
    python -m bench.kills textcraft-cpu --folder runs/worker --servers prefect-server prefect-worker \\
        --processes prefect-worker-starting

The pipeline runs twice undisturbed, the second time, as in all later runs, from the finished warm-up of the
first. Then, for each kind of process and each moment, one process of that kind is killed, at a time drawn
uniformly from the time that such a process lived in the undisturbed run, counted from its start. If the
command then fails, it is given once more. Afterwards nothing of the run may be left: no process, no file in
shared memory, nothing in the temporary folder. Servers that runs use (`--servers`, `bench/servers.py`) are
killed as well, and start again after `--down-s`. With `prefect-worker`, all runs are those of a deployment,
and the command is the one that starts it (`bench/deployed.py`); `prefect-worker-starting` kills the worker
between the start of the run's process and the start of the flow.

`--folder` keeps the log of each run, the workspaces of those that differ, and `kills.jsonl`, the results;
what has a result there is not run again. Prints a table:

- `kills`, and how many of these runs completed by themselves, or after the same command
- `equal`: runs that are equal to the undisturbed one, as `bench/equal_runs.py` compares them
- `left behind`: what was left of the runs
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.deployed import PROCESS, deployed_command
from bench.equal_runs import command, compare, read_steps, start
from bench.servers import SERVERS, PrefectServer, PrefectWorker, Server
from tasks.reporting.pages import markdown
from tests.support.processes import processes_with

STEPS = 4
SETTINGS = (
    f"train.steps={STEPS}",
    "train.steps_per_round=2",
    "train.save_every=1",
    "rollout.items_per_step=8",
    "evaluate.max_turns=10",
    "evaluate.quick_items=4",
    "evaluate.samples_per_item=1",
    "warmup.demonstrations=40",
    "warmup.steps=2",
)
"""Few and short steps, whose groups still have rewards that differ."""

PROCESSES = {
    "flow": PROCESS,
    "ray-gcs": r"/gcs_server ",
    "raylet": r"/raylet/raylet ",
    "ray-agent": r"^ray::(Dashboard|RuntimeEnv)Agent",
    "trainer": r"^ray::Trainer",
    "sampler": r"^ray::(Cpu|Vllm)Sampler",
    "update-worker": r"^ray::WorkerDict",
    "queue": r"^ray::(TransferQueue|SimpleStorage)",
    "fork-server": r"-m tasks\.verl\.cpu\.fork_server ",
    "temporary-prefect-server": r"prefect\.server",
    "environment-worker": r"fork_server",
}
"""By kind: what is in the command line of such a process. The process of the flow is the command, unless the
run is that of a deployment."""
STARTING = "prefect-worker-starting"
"""A kind of kill: that of the worker, while the process that it has started is not yet that of the flow."""
STARTED = r"prefect\.runner\._workspace_supervisor"
"""What is in the command line of such a process."""
MARK = "WINGSPAN_KILLS"
"""The environment variable that all processes of a run inherit, the guardian included."""
POLL_S = 0.2
TIMEOUT_S = 400.0
"""For a run that has been disturbed."""
END_S = 20.0
"""For the end of what a command has started, after its own."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """When processes of one kind lived in an undisturbed run, in seconds since its command."""

    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one kill."""

    process: str
    number: int
    after_s: float
    """Between the start of the first such process and the kill."""
    steps: int
    """On disk at the kill."""
    status: int | None
    """Of the command whose process was killed; None if it was still running after `TIMEOUT_S`."""
    second_status: int | None
    """Of the same command, if that was given again."""
    seconds: float
    """From the first command to the end."""
    is_equal: bool
    comparison: dict[str, Any]
    left: list[str]

    @property
    def is_completed(self) -> bool:
        return (self.second_status if self.status != 0 else 0) == 0


class Bench:
    """A folder of runs of one pipeline."""

    def __init__(
        self,
        pipeline: str,
        folder: Path,
        *,
        settings: Sequence[str],
        servers: Sequence[Server] = (),
        down_s: float = 0.0,
    ) -> None:
        """`servers`: they are running; `down_s`: seconds from the kill of one of them to its next start."""
        self._servers = {server.name: server for server in servers}
        self._down_s = down_s
        self.folder = folder.resolve()
        self.workspace = self.folder / "run"
        self._undisturbed = self.folder / "undisturbed"
        self._start = self.folder / "start"
        self._lives = self.folder / "lives.json"
        # Short, because Ray's sockets have paths below it.
        self._temporary = Path(tempfile.gettempdir(), f"kills-{os.getpid()}")
        server_settings = [setting for server in servers for setting in server.settings]
        settings = [*SETTINGS, *server_settings, *settings]
        self._is_deployed = PrefectWorker.name in self._servers
        self._line = (
            deployed_command(pipeline, self.workspace, settings=settings, variables=self.variables)
            if self._is_deployed
            else command(pipeline, self.workspace, settings=settings)
        )

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of each run: its own Prefect, MLflow and temporary folder."""
        # torch compiles there what all runs use
        compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "inductor"))
        variables: dict[str, str] = {}
        for server in self._servers.values():
            variables.update(server.variables)
        return {
            MARK: str(self.folder),
            "PREFECT_HOME": str(self.folder / "prefect"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db",
            "TMPDIR": str(self._temporary),
            "TORCHINDUCTOR_CACHE_DIR": compiled,
            **variables,
        }

    def prepare(self) -> dict[str, Life]:
        """Run undisturbed, unless that was done; returns when the processes of such a run live.

        Raises `SystemExit` if it was done with other servers.
        """
        if self._lives.exists():
            lives = {name: Life(**life) for name, life in json.loads(self._lives.read_text()).items()}
            servers = [name for name in SERVERS if name in lives]
            if set(servers) != self._servers.keys():
                needed = f"with --servers {' '.join(servers)}" if servers else "without --servers"
                raise SystemExit(f"the runs in {self.folder} are {needed}; give that, or another --folder")
            return lives
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.workspace, self._undisturbed, self._start):
            shutil.rmtree(folder, ignore_errors=True)
        self._run_undisturbed()
        self.workspace.rename(self._undisturbed)
        # The workspace as it was before training; the records are of the run that made it.
        later = ("train", "policy", "report", "curves", "evaluation*", "metrics.json", "groups.json")
        ignored = shutil.ignore_patterns(*later, "timing.json", "mlflow.json", "prefect.json", "lock")
        shutil.copytree(self._undisturbed, self._start, ignore=ignored)
        shutil.copytree(self._start, self.workspace)
        lives = self._run_undisturbed()
        comparison = self.compare()
        if not _is_equal(comparison):
            raise SystemExit(f"two undisturbed runs differ: {comparison}; see {self.folder}")
        self._lives.write_text(json.dumps({name: asdict(life) for name, life in lives.items()}, indent=1))
        return lives

    def kill(self, kind: str, life: Life, *, number: int, seed: int) -> Result:
        """Run from the finished warm-up, kill a process of `kind`, give the command again if it fails."""
        chance = random.Random(f"{seed}/{kind}/{number}")
        share = chance.random()
        while True:
            shutil.rmtree(self.workspace, ignore_errors=True)
            shutil.copytree(self._start, self.workspace)
            log = self.folder / f"{kind}-{number}.log"
            log.unlink(missing_ok=True)
            shared_files = _shared_files()
            begin = time.monotonic()
            process = self._start_command(log)
            after_s = share * (life.last_s - life.first_s)
            if self._kill_after(after_s, kind, process, chance):
                break
            share *= chance.random()  # the run was faster than the undisturbed one
        if (server := self._find_server(kind)) is not None:
            time.sleep(self._down_s)
            server.start()
        steps = len(read_steps(self.workspace))
        status = second_status = self._end(process)
        if status != 0:
            second_status = self._end(self._start_command(log))
        seconds = time.monotonic() - begin
        left = self._find_left(shared_files)
        comparison = self.compare() if second_status == 0 else {}
        return Result(
            process=kind,
            number=number,
            after_s=round(after_s, 1),
            steps=steps,
            status=status,
            second_status=None if status == 0 else second_status,
            seconds=round(seconds, 1),
            is_equal=_is_equal(comparison),
            comparison=comparison,
            left=left,
        )

    def compare(self) -> dict[str, Any]:
        """The last run with the undisturbed one."""
        return compare(self._undisturbed, self.workspace, steps=STEPS)

    def _start_command(self, log: Path) -> subprocess.Popen[bytes]:
        self._temporary.mkdir(exist_ok=True)
        return start(self._line, log=log, environment={**os.environ, **self.variables})

    def _run_undisturbed(self) -> dict[str, Life]:
        log = self.folder / "undisturbed.log"
        shared_files = _shared_files()
        begin = time.monotonic()
        process = self._start_command(log)
        lives: dict[str, Life] = {}
        while process.poll() is None:
            now = time.monotonic() - begin
            for kind in {kind for kind, _ in self._processes(process)}:
                first_s = lives[kind].first_s if kind in lives else now
                lives[kind] = Life(first_s=first_s, last_s=now)
            time.sleep(POLL_S)
        if process.returncode != 0:
            raise SystemExit(f"the undisturbed run failed; see {log}")
        if left := self._find_left(shared_files):
            raise SystemExit(f"an undisturbed run left behind {', '.join(left)}")
        return lives

    def _kill_after(
        self, seconds: float, kind: str, process: subprocess.Popen[bytes], chance: random.Random
    ) -> bool:
        """Kill a process of `kind` so long after the first was started; whether the run lasted as long."""
        due = None
        while process.poll() is None:
            pids = [pid for name, pid in self._processes(process) if name == kind]
            now = time.monotonic()
            if pids and due is None:
                due = now + seconds
            if pids and due is not None and now >= due:
                if (server := self._find_server(kind)) is not None:
                    server.kill()
                    return True
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(sorted(pids)), signal.SIGKILL)
                    return True
            time.sleep(POLL_S if due is None else min(POLL_S, max(0.0, due - now)))
        return False

    def _find_server(self, kind: str) -> Server | None:
        """The server that a kill of `kind` ends, if it ends one."""
        return self._servers.get(PrefectWorker.name if kind == STARTING else kind)

    def _end(self, process: subprocess.Popen[bytes]) -> int | None:
        """Wait for the command; its status, None if it was stopped because it took too long."""
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def _processes(self, process: subprocess.Popen[bytes]) -> Iterator[tuple[str, int]]:
        """The living processes of the run that `process` has started, of the kinds in `PROCESSES`, and its
        servers: kind, id."""
        yield from ((name, server.pid) for name, server in self._servers.items())
        for pid, line in self._marked_processes().items():
            if pid == process.pid:
                if not self._is_deployed:
                    yield "flow", pid
                continue
            if re.search(STARTED, line):
                yield STARTING, pid
            for kind, pattern in PROCESSES.items():
                if re.search(pattern, line):
                    yield kind, pid
                    break

    def _marked_processes(self) -> dict[int, str]:
        lines = processes_with(f"{MARK}={self.folder}")
        return {pid: line for pid, line in lines.items() if line}  # a zombie has none

    def _find_left(self, shared_files: Mapping[str, float]) -> list[str]:
        """What a run has left that has ended; `shared_files`: those before it. Removes it."""
        deadline = time.monotonic() + END_S
        while self._marked_processes() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        left = [f"process {line}" for line in self._marked_processes().values()]
        for pid in self._marked_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Those that a process has open are of other programs on this machine.
        mapped_files = _mapped_files()
        for name, modified in _shared_files().items():
            if shared_files.get(name) != modified and name not in mapped_files:
                left.append(name)
                if Path(name).is_dir():
                    shutil.rmtree(name, ignore_errors=True)
                else:
                    Path(name).unlink(missing_ok=True)
        left += [str(path) for path in self._temporary.iterdir()]
        shutil.rmtree(self._temporary)
        return left


def _is_equal(comparison: Mapping[str, Any]) -> bool:
    return bool(comparison) and all(value for name, value in comparison.items() if name.endswith("_equal"))


def _shared_files() -> dict[str, float]:
    """Files in shared memory, with their times."""
    times = {}
    for path in SHARED_MEMORY.iterdir():
        with suppress(OSError):
            times[str(path)] = path.stat().st_mtime
    return times


def _mapped_files() -> set[str]:
    """Files in shared memory that a living process maps."""
    files = set()
    for pid in psutil.pids():
        with suppress(OSError):
            text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            files |= set(re.findall(rf"{SHARED_MEMORY}/\S+", text))
    return files


def table(results: Sequence[Result]) -> str:
    """One row for each kind of process."""
    rows = []
    for kind in dict.fromkeys(result.process for result in results):
        own = [result for result in results if result.process == kind]
        left = Counter(line.split("/")[-1] for result in own for line in result.left)
        rows.append(
            [
                kind,
                str(len(own)),
                str(sum(result.status == 0 for result in own)),
                str(sum(result.status != 0 and result.is_completed for result in own)),
                str(sum(result.is_equal for result in own)),
                ", ".join(f"{count} × {line}" for line, count in left.items()) or "nothing",
            ]
        )
    header = ("process", "kills", "completed by itself", "after the same command", "equal", "left behind")
    return markdown(header, rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pipeline")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--moments", type=int, default=3, help="for each kind of process")
    kinds = [*PROCESSES, *SERVERS, STARTING]
    parser.add_argument("--processes", nargs="+", choices=kinds, help="default: all that a run has")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=[], help="that the runs use")
    parser.add_argument("--down-s", type=float, default=5.0, help="for which a killed server is gone")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in `wingspan run`"
    )
    arguments = parser.parse_args()
    if PrefectWorker.name in arguments.servers and PrefectServer.name not in arguments.servers:
        parser.error(f"--servers {PrefectWorker.name} needs {PrefectServer.name} as well")
    processes = arguments.processes or ()
    if STARTING in processes and PrefectWorker.name not in arguments.servers:
        parser.error(f"--processes {STARTING} needs --servers {PrefectServer.name} {PrefectWorker.name}")
    if missing := [name for name in SERVERS if name in processes and name not in arguments.servers]:
        names = " ".join(missing)
        parser.error(f"--processes {names} needs --servers {names} as well")
    folder = arguments.folder.resolve() / "servers"
    servers = [
        server(folder, pipeline=arguments.pipeline)
        for name, server in SERVERS.items()
        if name in arguments.servers
    ]
    bench = Bench(
        arguments.pipeline, arguments.folder, settings=arguments.set, servers=servers, down_s=arguments.down_s
    )
    try:
        for server in servers:
            server.start()
        run(bench, arguments)
    finally:
        for server in servers:
            server.kill()


def run(bench: Bench, arguments: argparse.Namespace) -> None:
    """Kill what the command line asks for, and print the table."""
    lives = bench.prepare()
    kinds = arguments.processes or lives
    if missing := [kind for kind in kinds if kind not in lives]:
        raise SystemExit(f"--processes {' '.join(missing)}: a run of {arguments.pipeline} has none")
    file = bench.folder / "kills.jsonl"
    results = [Result(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(result.process, result.number) for result in results}
    for number in range(arguments.moments):
        for kind in kinds:
            if (kind, number) in done:
                continue
            result = bench.kill(kind, lives[kind], number=number, seed=arguments.seed)
            with file.open("a") as output:
                output.write(json.dumps(asdict(result)) + "\n")
            print(json.dumps(asdict(result)), flush=True)
            if not result.is_equal:
                kept = bench.folder / f"{kind}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                bench.workspace.rename(kept)
            results.append(result)
    print(table(results))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; results are kept, and the same command goes on")
