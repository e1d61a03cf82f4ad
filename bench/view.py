"""`wingspan view` with many trajectories: how long its index takes, and how long lists and single ones take.

    python -m bench.view [TRAJECTORIES] [--folder FOLDER]

Writes a workspace of random episodes with groups of 8, 96 of each step (TextCraft's metadata, 5 to 16 turns
of about 25 sampled tokens, prompts of 200 tokens), indexes it, and asks a running viewer over HTTP. Printed
are the sizes, the time of the first index and of the update after one more step, and for each kind of request
the median and the slowest of 20, each with other values, and their mean CPU time, the client's included. The
memory is that of the process with the viewer, before and after all requests: the index stays on the disk.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from tasks.runs.folders import find_runs
from tasks.viewer.app import viewer_app
from tasks.viewer.index import RunIndex
from tasks.viewer.viewer import Viewer
from tests.support.http_server import serving_in_thread

PER_STEP, GROUP = 96, 8
ITEMS = 400
"""Of the training; each comes as often as any other."""
REQUESTS = 20
WORDS = [f"{a}{b}" for a in ("oak", "dye", "stick", "planks", "red", "iron") for b in ("", "s", "ed", "ing")]


def write_run(folder: Path, *, trajectories: int) -> int:
    """Returns the number of steps."""
    rng = random.Random(0)
    steps = -(-trajectories // PER_STEP)
    (folder / "train" / "trajectories").mkdir(parents=True)
    for step in range(1, steps + 1):
        write_step(folder, step, rng=rng)
    return steps


def write_step(folder: Path, step: int, *, rng: random.Random) -> None:
    lines = []
    for index in range(PER_STEP):
        if index % GROUP == 0:
            number = ((step - 1) * PER_STEP + index) // GROUP % ITEMS
            prompt = [rng.randrange(2000) for _ in range(200)]
        lines.append(json.dumps(make_line(number, index % GROUP, prompt, version=step - 1, rng=rng)))
    file = folder / "train" / "trajectories" / f"step_{step:04d}.jsonl"
    file.write_text("\n".join(lines) + "\n")


def make_line(
    number: int, sample: int, prompt: list[int], *, version: int, rng: random.Random
) -> dict[str, object]:
    success = rng.random() < 0.5
    turns = []
    for _ in range(rng.randrange(5, 17)):
        words = rng.choices(WORDS, k=12)
        thought, action = " ".join(words[:8]), " ".join(words[8:])
        count = rng.randrange(15, 35)
        completion = {
            "token_ids": [rng.randrange(2000) for _ in range(count)],
            "logprobs": [-rng.random() for _ in range(count)],
            "finish_reason": "stop",
            "policy_version": version,
        }
        observation = f"Could not find {words[0]} {rng.randrange(10**6)}"
        turns.append(
            {
                "completion": completion,
                "text": f"Thought: {thought}\nAction: {action}",
                "thought": thought,
                "action": action,
                "observation": observation,
                "reward": 0.0,
                "observation_ids": [rng.randrange(2000) for _ in range(7)],
                "observation_spans": [[2, 6]],
                "is_malformed": rng.random() < 0.1,
                "prompt_ids": None,
                "state": None,
                "previous_turn": None,
                "sampling_s": rng.random(),
                "env_s": rng.random(),
            }
        )
    return {
        "item": {"item_id": f"textcraft_{number}", "env": "textcraft", "metadata": {"depth": number % 4 + 1}},
        "sample_index": sample,
        "prompt_ids": prompt,
        "turns": turns,
        "stop_reason": "terminated" if success else "max_turns",
        "reward": float(success),
        "success": success,
        "seconds": rng.random(),
        "metrics": {"parse_failures": rng.randrange(3), "segments": 1},
        "labels": {},
    }


def requests(
    rng: random.Random, *, steps: int
) -> Iterator[tuple[str, Callable[[], tuple[str, dict[str, Any]]]]]:
    """Kinds of requests, each with a function that makes one."""

    def list_by(make_query: Callable[[], str]) -> Callable[[], tuple[str, dict[str, Any]]]:
        return lambda: ("trajectories", {"q": make_query()})

    def address() -> str:
        return f"step_{rng.randrange(1, steps + 1):04d}:{rng.randrange(1, PER_STEP + 1)}"

    def word() -> str:
        return rng.choice(WORDS)

    num_items = min(ITEMS, steps * PER_STEP // GROUP)

    yield "list: all", list_by(lambda: "")
    yield (
        "list: all, sorted by reward",
        lambda: ("trajectories", {"q": "", "sort": "-reward", "offset": rng.randrange(1000)}),
    )
    yield (
        "list: failed at a depth, long",
        list_by(lambda: f"success:false depth:{rng.randrange(1, 5)} turns>12"),
    )
    yield "list: a range of steps", list_by(lambda: f"step:{rng.randrange(steps)}.. stop:max_turns")
    yield "list: a common word", list_by(word)
    yield "list: two words in order", list_by(lambda: f'"{word()} {word()}" success:true')
    yield "list: a rare number", list_by(lambda: str(rng.randrange(10**6)))
    yield "list: not an observation", list_by(lambda: f"-observation:{word()}")
    yield "groups: all", lambda: ("groups", {"sort": "-spread"})
    yield "filters of a list", lambda: ("facets", {"q": f"depth:{rng.randrange(1, 5)}"})
    yield "one trajectory", lambda: ("trajectory", {"address": address()})
    yield "its tokens", lambda: ("tokens", {"address": address()})
    yield "its place in the whole list", lambda: ("place", {"address": address()})
    yield "its group side by side", lambda: ("sides", {"group": address()})
    yield "an item over the training", lambda: ("item", {"item": f"textcraft_{rng.randrange(num_items)}"})
    yield "the run", lambda: ("run", {})


def measure(folder: Path, *, trajectories: int) -> None:
    run_folder = folder / "run"
    start_s = time.perf_counter()
    steps = write_run(run_folder, trajectories=trajectories)
    files = list((run_folder / "train" / "trajectories").iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"{steps * PER_STEP} trajectories of {size / steps / PER_STEP / 1e3:.1f} kB in {steps} files, "
          f"{size / 1e6:.0f} MB (written in {time.perf_counter() - start_s:.0f} s)")  # fmt: skip
    (run,) = find_runs([run_folder])
    index = RunIndex(run, cache=folder / "cache")
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    index.update()
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    index_size = sum(file.stat().st_size for file in index.file.parent.iterdir())
    print(f"index: {wall_s:.1f} s ({cpu_s:.1f} s of CPU time), {index_size / 1e6:.0f} MB on disk")
    write_step(run_folder, steps + 1, rng=random.Random(1))
    start_s = time.perf_counter()
    index.update()
    print(f"update after one more step: {1e3 * (time.perf_counter() - start_s):.0f} ms")

    process = psutil.Process()
    memory = process.memory_info().rss
    rng = random.Random(2)
    app = viewer_app(Viewer([run_folder], cache=folder / "cache"), host="127.0.0.1")
    with serving_in_thread(app) as url, httpx.Client(base_url=url, timeout=60) as client:
        client.get("/api/state?run=run")
        for name, make in requests(rng, steps=steps):
            times, start_cpu_s = [], time.process_time()
            for _ in range(REQUESTS):
                path, params = make()
                start_s = time.perf_counter()
                answer = client.get(f"/api/{path}", params={"run": "run", **params})
                times.append(1e3 * (time.perf_counter() - start_s))
                answer.raise_for_status()
            cpu = 1e3 * (time.process_time() - start_cpu_s) / REQUESTS
            wall = f"{statistics.median(times):6.0f} ms, slowest {max(times):6.0f} ms"
            print(f"{name:32} {wall}; {cpu:4.0f} ms of CPU time")
    growth = process.memory_info().rss - memory
    print(f"memory of the viewer: {memory / 1e6:.0f} MB, {growth / 1e6:.0f} MB more after all requests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trajectories", type=int, nargs="?", default=100_000)
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; default: a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        measure(Path(folder), trajectories=arguments.trajectories)


if __name__ == "__main__":
    main()
