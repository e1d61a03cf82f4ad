"""What serving costs: TextCraft behind `wingspan serve-env`, played over loopback by our own client.

    python -m bench.serve --clients 64 --steps 30000 --protocol openenv
    python -m bench.serve --abandon 10000

Prints one JSON object. With `--steps`, every client plays in a session of its own, all at once, from this
process (one core) against the server's (another):

- `steps_per_s`: steps answered per second of wall time; a reset every 25 steps is counted in the time and
  not as a step
- `server_cpu_ms`, `client_cpu_ms`: CPU time of either process per step
- `p50_ms`, `p99_ms`: what a client waited for one step

With `--abandon`, so many sessions are opened, started and left alone, twice, until they have expired:

- `mb_before`, `mb_full`, `mb_after`, `mb_full_again`, `mb_after_again`: resident memory of the server
- `sessions`: of each round, as the server's metrics count them when all are open
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

import aiohttp
import psutil

from envs.registry import get_env
from envs.remote.servers import Servers, WireProtocol

STEPS_PER_EPISODE = 25
IDLE_S = 45.0
"""Long enough to open all sessions of a round before the first expires."""

ACTIONS = ("inventory", "get 2 oak logs", "get 1 cobblestone", "craft 4 oak planks using 1 oak logs")


@contextmanager
def serving(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server of TextCraft in a process of its own: its URL and the process."""
    code = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"
    command = [sys.executable, "-c", code, "serve-env", "textcraft", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        url = re.search(r"http://[^ ,]+", said)
        if url is None:
            raise RuntimeError(f"the server did not start: {said!r}")
        yield url.group(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


async def steps(url: str, server: psutil.Process, *, clients: int, total: int, protocol: WireProtocol) -> Any:
    """Play `total` steps, shared among `clients`."""
    servers = Servers([url], protocol=protocol)
    # What `ACTIONS` make is the goal of none of these.
    train = [item for item in get_env("textcraft").split(0).train if item.metadata["depth"] > 1]
    waited_s: list[float] = []

    envs = [servers.make() for _ in range(clients)]

    async def play(client: int) -> None:
        env = envs[client]
        for number in range(client, total, clients):
            turn = number // clients
            if turn and turn % STEPS_PER_EPISODE == 0:
                await env.reset(train[client])
            started = time.perf_counter()
            result = await env.step(ACTIONS[turn % len(ACTIONS)])
            waited_s.append(time.perf_counter() - started)
            if not result.observation or result.terminated:
                raise RuntimeError(f"step {turn} of client {client} went wrong: {result}")

    own = psutil.Process()
    for env, item in zip(envs, train, strict=False):
        await env.reset(item)  # recipes are looked up once per item and process
    before = cpu_s(server), cpu_s(own)
    started = time.perf_counter()
    await asyncio.gather(*map(play, range(clients)))
    wall_s = time.perf_counter() - started
    spent = cpu_s(server) - before[0], cpu_s(own) - before[1]
    for env in envs:
        await env.close()
    waited_s.sort()
    return {
        "clients": clients,
        "protocol": protocol,
        "steps": len(waited_s),
        "steps_per_s": round(len(waited_s) / wall_s),
        "server_cpu_ms": round(1e3 * spent[0] / len(waited_s), 4),
        "client_cpu_ms": round(1e3 * spent[1] / len(waited_s), 4),
        "p50_ms": round(1e3 * statistics.median(waited_s), 2),
        "p99_ms": round(1e3 * waited_s[len(waited_s) * 99 // 100], 2),
    }


async def abandon(url: str, server: psutil.Process, *, total: int) -> Any:
    """Two rounds of sessions that nobody closes."""
    found: dict[str, Any] = {"abandoned": total, "sessions": [], "mb_before": megabytes(server)}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16)) as http:
        for again in ("", "_again"):
            started = time.perf_counter()
            gate = asyncio.Semaphore(16)

            async def leave(index: int, gate: asyncio.Semaphore = gate) -> None:
                async with gate:
                    async with http.post(f"{url}/create", json={}) as response:
                        response.raise_for_status()
                        session_id = (await response.json())["id"]
                    body = {"id": session_id, "data_idx": index % 544}
                    async with http.post(f"{url}/reset", json=body) as response:
                        response.raise_for_status()
                    body = {"id": session_id, "action": "get 3 oak logs"}
                    async with http.post(f"{url}/step", json=body) as response:
                        response.raise_for_status()

            await asyncio.gather(*map(leave, range(total)))
            found.setdefault("requests_per_s", round(3 * total / (time.perf_counter() - started)))
            found["sessions"].append(await live(http, url))
            found[f"mb_full{again}"] = megabytes(server)
            while await live(http, url):
                await asyncio.sleep(0.5)
            found[f"mb_after{again}"] = megabytes(server)
    return found


async def live(http: aiohttp.ClientSession, url: str) -> int:
    """Sessions, as the server's metrics have them."""
    async with http.get(f"{url}/metrics") as response:
        match = re.search(r'wingspan_sessions_live\{env="textcraft"\} (\S+)', await response.text())
    assert match is not None
    return int(float(match.group(1)))


def cpu_s(process: psutil.Process) -> float:
    """User and system time so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def megabytes(process: psutil.Process) -> float:
    """Resident memory."""
    return round(process.memory_info().rss / 1e6, 1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="cost of serving an environment")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--protocol", choices=["openenv", "agentgym"], default="openenv")
    parser.add_argument("--abandon", type=int, help="leave so many sessions behind, instead")
    arguments = parser.parse_args()
    if arguments.abandon is not None:
        with serving("--max-sessions", str(arguments.abandon), "--idle-s", str(IDLE_S)) as (url, process):
            found = asyncio.run(abandon(url, process, total=arguments.abandon))
    else:
        with serving() as (url, process):
            found = asyncio.run(
                steps(
                    url,
                    process,
                    clients=arguments.clients,
                    total=arguments.steps,
                    protocol=arguments.protocol,
                )
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
