"""Compares a run with a second one of the same seed that is killed (`kill -9`) and resumed, to the last bit.

    python -m bench.same_bits textcraft-cpu --folder runs/same-bits --steps 20 --kills 3
    python -m bench.same_bits textcraft-cpu --folder runs/same-bits-async --set train.async={}
    python -m bench.same_bits textcraft-cpu --folder runs/same-bits-busy --kills 0 --busy 3

Both train `--steps` steps in one round, with a checkpoint every five. The kills come at moments drawn
uniformly from the time that the remaining steps took in the first run, in seconds after the second has begun
to train. With `--busy`, other processes compute during the second run, and its threads meet in another order.
Prints one JSON object: the moments, the steps on disk after each, and what is equal (`bench/equal_runs.py`).
"""

import argparse
import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.equal_runs import command, compare, read_steps, start
from bench.processes import busy_processes

SAVE_EVERY = 5
POLL_S = 0.2
BEGINS_TO_TRAIN = "train: running"
"""A line of the output of `wingspan run`."""


def command_of(pipeline: str, workspace: Path, *, steps: int, settings: Sequence[str]) -> list[str]:
    options = [
        *(f"train.{name}={steps}" for name in ("steps", "steps_per_round")),
        f"train.save_every={SAVE_EVERY}",
        "evaluate.quick_items=4",
        "evaluate.samples_per_item=1",
        *settings,
    ]
    return command(pipeline, workspace, settings=options)


def kill_after(line: Sequence[str], seconds: float, *, log: Path) -> None:
    """Start the run, and kill it `seconds` after it has begun to train."""
    earlier_starts = log.read_text().count(BEGINS_TO_TRAIN)
    process = start(line, log=log)
    while log.read_text().count(BEGINS_TO_TRAIN) == earlier_starts:
        if process.poll() is not None:
            raise SystemExit(f"the run ended before its training; see {log}")
        time.sleep(POLL_S)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the run ended before it was killed; see {log}")
        time.sleep(POLL_S)
    descendants = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(descendants, timeout=60)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pipeline")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside the second run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in `wingspan run`"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    # Separate folders: in the same one, the second run would copy the warm-up of the first.
    undisturbed, killed = (arguments.folder / name / "run" for name in ("undisturbed", "killed"))
    log = arguments.folder / "log"
    first, second = (
        command_of(arguments.pipeline, workspace, steps=arguments.steps, settings=arguments.set)
        for workspace in (undisturbed, killed)
    )
    if start(first, log=log).wait() != 0:
        raise SystemExit(f"the undisturbed run failed; see {log}")
    seconds = [values["seconds"] for values in read_steps(undisturbed)]
    rng = random.Random(arguments.seed)
    moments, steps_found = [], []
    with busy_processes(arguments.busy):
        for _ in range(arguments.kills):
            moments.append(round(rng.uniform(0, sum(seconds[len(read_steps(killed)) :])), 1))
            kill_after(second, moments[-1], log=log)
            steps_found.append(len(read_steps(killed)))
        if start(second, log=log).wait() != 0:
            raise SystemExit(f"the second run did not finish; see {log}")
    result = compare(undisturbed, killed, steps=arguments.steps)
    print(
        json.dumps({"training_s": sum(seconds), "killed_at_s": moments, "steps_found": steps_found} | result)
    )


if __name__ == "__main__":
    main()
