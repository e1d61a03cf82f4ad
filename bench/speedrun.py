"""The speedrun: how long a policy takes to reach the goal's success rate on TextCraft, with a random seed.

    make speedrun
    python -m bench.speedrun --seed 7

Runs all stages of `textcraft-cpu` as it is in `pipelines.yaml`, in a workspace of its own, and checks that
success at temperature 1 on the 100 test goals reaches the goal. Prints one JSON object:

- `seed`: of warm-up, training and sampling
- `success`, `greedy`: after training, on the 100 test goals; `before`: success after the warm-up
- `minutes`: from the command to the report
- `cpu_s`: CPU time of all processes of the run, read twice a second
- `peak_memory_gb`: the most memory of all processes together (PSS), read when it has grown by 2%
- `joules`: of the processors' packages (Linux, RAPL), null where the machine does not tell

Fails if the goal is missed. docs/speedrun.md has the record's history.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tasks.runs.usage import ProcessUsage

ROOT = Path(__file__).parents[1]
GOAL = 0.75
_POLL_S = 0.5
_RAPL = Path("/sys/class/powercap")


def read_energy(zones: Path = _RAPL) -> dict[Path, int]:
    """Microjoules of each processor package since some moment; empty where they cannot be read.

    Other zones are parts of a package, such as its cores, or hold it, such as that of the whole platform.
    """
    with suppress(OSError):
        packages = [n.parent for n in zones.glob("intel-rapl:*/name") if n.read_text().startswith("package")]
        return {zone / "energy_uj": int((zone / "energy_uj").read_text()) for zone in packages}
    return {}


def joules_between(before: dict[Path, int], after: dict[Path, int]) -> float | None:
    """None if there is no counter; a counter that reached its end began at 0 again, once at most."""
    if not before or before.keys() != after.keys():
        return None
    total = 0
    for counter, start in before.items():
        total += after[counter] - start
        if after[counter] < start:
            total += int(counter.with_name("max_energy_range_uj").read_text())
    return total / 1e6


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="drawn by default")
    parser.add_argument("--goal", type=float, default=GOAL)
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="for the workspace")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10_000) if arguments.seed is None else arguments.seed
    workspace = arguments.folder / f"speedrun-{seed}" / "run"  # alone, so that it copies no warm-up
    if (ROOT / workspace).exists():
        raise SystemExit(
            f"{workspace} exists: a run of this seed would resume; remove it or give another --seed"
        )
    wingspan = Path(sys.executable).with_name("wingspan")
    command = [str(wingspan), "run", "textcraft-cpu", "--workspace", str(workspace), "--set", f"seed={seed}"]
    energy, start = read_energy(), time.monotonic()
    run = subprocess.Popen(command, cwd=ROOT)
    usage = ProcessUsage(psutil.Process(run.pid))
    while run.poll() is None:
        usage.look()
        time.sleep(_POLL_S)
    minutes = (time.monotonic() - start) / 60
    if run.returncode:
        raise SystemExit(f"the run failed with status {run.returncode}")
    joules = joules_between(energy, read_energy())
    evaluation = json.loads((ROOT / workspace / "evaluation.json").read_text())
    success = evaluation["after"]["sampled"]["success"]
    result = {
        "seed": seed,
        "success": success,
        "greedy": evaluation["after"]["greedy"]["success"],
        "before": evaluation["before"]["sampled"]["success"],
        "minutes": round(minutes, 2),
        "cpu_s": round(usage.cpu_s),
        "peak_memory_gb": round(usage.peak_memory / 1e9, 2),
        "joules": None if joules is None else round(joules),
    }
    print(json.dumps(result))
    if success < arguments.goal:
        raise SystemExit(f"success {success} misses the goal of {arguments.goal}")


if __name__ == "__main__":
    main()
