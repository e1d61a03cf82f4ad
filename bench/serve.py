"""The cost of serving: TextCraft behind `wingspan serve-env`, stepped over loopback by Wingspan's client.

    python -m bench.serve --clients 64 --steps 30000 --protocol wingspan
    python -m bench.serve --abandon 10000

Prints one JSON object. With `--steps`, all clients step their own sessions at the same time, in this process
(one core) against the server's (another):

- `steps_per_s`: steps answered per second of wall time; a reset every 25 steps is counted in the time and
  not as a step
- `server_cpu_ms`, `client_cpu_ms`: CPU time of either process per step
- `p50_ms`, `p99_ms`: latency of one step

With `--abandon`, so many sessions are opened, started and left alone, twice, until they have expired:

- `mb_before`, `mb_full`, `mb_after`, `mb_full_again`, `mb_after_again`: resident memory of the server
- `sessions`: of each round, according to the server's metrics when all are open
- `requests_per_s`: of the first round
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from bench.processes import cpu_s
from envs.registry import get_env
from envs.remote.servers import Servers, WireProtocol

STEPS_PER_EPISODE = 25
IDLE_S = 45.0
"""Long enough to open all sessions of a round before the first expires."""

ACTIONS = ("inventory", "get 2 oak logs", "get 1 cobblestone", "craft 4 oak planks using 1 oak logs")


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server of TextCraft in a new process: its URL and the process."""
    code = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"
    command = [sys.executable, "-c", code, "serve-env", "textcraft", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        url = re.search(r"http://[^ ,]+", line)
        if url is None:
            raise RuntimeError(f"the server did not start: {line!r}")
        yield url.group(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


async def steps(url: str, server: psutil.Process, *, clients: int, total: int, protocol: WireProtocol) -> Any:
    """Play `total` steps, shared among `clients`."""
    servers = Servers("textcraft", [url], protocol=protocol)
    # None of these has a goal that `ACTIONS` reach.
    train = [item for item in get_env("textcraft").split(0).train if item.metadata["depth"] > 1]
    latencies_s: list[float] = []

    envs = [servers.make() for _ in range(clients)]

    async def play(client: int) -> None:
        env = envs[client]
        for number in range(client, total, clients):
            turn = number // clients
            if turn and turn % STEPS_PER_EPISODE == 0:
                await env.reset(train[client])
            start_s = time.perf_counter()
            result = await env.step(ACTIONS[turn % len(ACTIONS)])
            latencies_s.append(time.perf_counter() - start_s)
            if not result.observation or result.terminated:
                raise RuntimeError(f"step {turn} of client {client} went wrong: {result}")

    this_process = psutil.Process()
    for env, item in zip(envs, train, strict=False):
        await env.reset(item)  # recipes are looked up once per item and process
    before = cpu_s(server), cpu_s(this_process)
    start_s = time.perf_counter()
    await asyncio.gather(*map(play, range(clients)))
    wall_s = time.perf_counter() - start_s
    server_s, client_s = cpu_s(server) - before[0], cpu_s(this_process) - before[1]
    for env in envs:
        await env.close()
    latencies_s.sort()
    return {
        "clients": clients,
        "protocol": protocol,
        "steps": len(latencies_s),
        "steps_per_s": round(len(latencies_s) / wall_s),
        "server_cpu_ms": round(1e3 * server_s / len(latencies_s), 4),
        "client_cpu_ms": round(1e3 * client_s / len(latencies_s), 4),
        "p50_ms": round(1e3 * statistics.median(latencies_s), 2),
        "p99_ms": round(1e3 * latencies_s[len(latencies_s) * 99 // 100], 2),
    }


async def abandon(url: str, server: psutil.Process, *, total: int) -> Any:
    """Two rounds of sessions that nobody closes."""
    result: dict[str, Any] = {"abandoned": total, "sessions": [], "mb_before": megabytes(server)}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:

        async def post(path: str, body: dict[str, Any]) -> Any:
            return (await http.post(path, json=body)).raise_for_status().json()

        async def leave(indices: Iterator[int]) -> None:
            for index in indices:
                session_id = (await post("/create", {}))["id"]
                await post("/reset", {"id": session_id, "data_idx": index % 544})
                await post("/step", {"id": session_id, "action": "get 3 oak logs"})

        for suffix in ("", "_again"):
            start_s = time.perf_counter()
            indices = iter(range(total))
            await asyncio.gather(*(leave(indices) for _ in range(16)))
            result.setdefault("requests_per_s", round(3 * total / (time.perf_counter() - start_s)))
            result["sessions"].append(await live(http))
            result[f"mb_full{suffix}"] = megabytes(server)
            while await live(http):
                await asyncio.sleep(0.5)
            result[f"mb_after{suffix}"] = megabytes(server)
    return result


async def live(http: httpx.AsyncClient) -> int:
    """Sessions, according to the server's metrics."""
    text = (await http.get("/metrics")).text
    match = re.search(r'wingspan_sessions_live\{env="textcraft"\} (\S+)', text)
    assert match is not None
    return int(float(match.group(1)))


def megabytes(process: psutil.Process) -> float:
    """Resident memory."""
    return round(process.memory_info().rss / 1e6, 1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="cost of serving an environment")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--protocol", choices=["wingspan", "agentgym"], default="wingspan")
    parser.add_argument("--abandon", type=int, help="leave so many sessions behind, instead")
    arguments = parser.parse_args()
    if arguments.abandon is not None:
        with serving("--max-sessions", str(arguments.abandon), "--idle-s", str(IDLE_S)) as (url, process):
            result = asyncio.run(abandon(url, process, total=arguments.abandon))
    else:
        with serving() as (url, process):
            result = asyncio.run(
                steps(
                    url,
                    process,
                    clients=arguments.clients,
                    total=arguments.steps,
                    protocol=arguments.protocol,
                )
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
