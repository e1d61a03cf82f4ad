"""Compares horizon schedules at equal environment steps.

    python -m bench.horizon_study run textcraft-cpu --folder runs/horizon-study --seeds 5
    python -m bench.horizon_study table runs/horizon-study

`run` trains the pipeline once for each schedule and seed, and skips what has finished. The schedules go from
the first to the last of the pipeline's `horizon.max_turns`: `stepwise` (equal stages), `linear`, `adaptive`
(whose stages last twice as long at most), `fixed-short` (the first value) and `fixed-long` (the last). After
every round, all test items (`--items`) are evaluated with `evaluate.max_turns`, which is the same for all.
Parts with their own horizon keep it.

`table` prints a row for each schedule. The runs are compared at equal environment steps, because a step costs
more with a longer horizon: at the smallest total of all runs, success interpolated between the evaluations.

- `success`: mean over seeds, with a 95% interval (Student's t)
- `difference`: mean over seeds of the difference to `stepwise` with the same seed, with its interval
- `p`: two-sided, by the exact paired sign-flip test; with n seeds it is 2/2ⁿ at least, so that five seeds
  cannot show significance at 5%
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agents.horizon import Horizon
from tasks.config.pipelines import load_pipeline
from tasks.reporting.compare import RunSummary, markdown, read_run

REFERENCE = "stepwise"
T_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""97.5th percentiles of Student's t with 1 to 9 degrees of freedom."""
HEADER = ("schedule", "seeds", "environment steps", "success", f"difference to {REFERENCE}", "p")


def schedules(stages: Sequence[int], *, steps: int) -> dict[str, dict[str, Any]]:
    """The horizon blocks of the study, by name; `stages`: turns of the stepwise one, in `steps` steps."""
    first, last = stages[0], stages[-1]
    per_stage = math.ceil(steps / len(stages))
    rule = {"window": 3, "min_steps": 6, "max_steps": max(6, 2 * per_stage)}
    blocks: dict[str, dict[str, Any]] = {
        REFERENCE: {
            "type": "scaling_inter_stepwise",
            "max_turns": list(stages),
            "steps_per_stage": per_stage,
        },
        "linear": {"type": "linear", "max_turns": [first, last], "steps": steps},
        "adaptive": {"type": "adaptive", "max_turns": list(stages), "raise_when": rule},
        "fixed-short": {"type": "fixed", "max_turns": [first]},
        "fixed-long": {"type": "fixed", "max_turns": [last]},
    }
    for block in blocks.values():
        Horizon.model_validate(block)
    return blocks


def success_at(curve: Sequence[tuple[float, float]], steps: float) -> float:
    """Success after `steps` environment steps, interpolated between the evaluations of `curve`.

    Raises `ValueError` for more steps than the curve has.
    """
    for (before, first), (after, last) in pairwise(curve):
        if before <= steps <= after and after > before:
            return first + (last - first) * (steps - before) / (after - before)
    raise ValueError(f"{steps:g} environment steps: the curve ends at {curve[-1][0]:g}")


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean of up to ten values, by Student's t; from -∞ to ∞ for a single one."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = T_QUANTILES[len(values) - 2] * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the mean of paired differences: the share of the sign patterns whose mean is as far
    from 0 (Fisher's randomization test)."""
    observed = abs(sum(differences)) - 1e-12
    patterns = list(product((1, -1), repeat=len(differences)))
    extreme = sum(
        abs(sum(sign * value for sign, value in zip(pattern, differences, strict=True))) >= observed
        for pattern in patterns
    )
    return extreme / len(patterns)


def rows(runs: Mapping[str, Mapping[int, RunSummary]]) -> list[list[str]]:
    """The table's rows; `runs`: by schedule and seed."""
    budget = min(run.environment_steps for seeds in runs.values() for run in seeds.values())
    success = {
        name: {seed: success_at(run.curve, budget) for seed, run in seeds.items()}
        for name, seeds in runs.items()
    }
    table = []
    for name, by_seed in success.items():
        row = [name, str(len(by_seed)), f"{budget:,.0f}", _with_interval(list(by_seed.values()))]
        shared = sorted(by_seed.keys() & success.get(REFERENCE, {}).keys())
        differences = [by_seed[seed] - success[REFERENCE][seed] for seed in shared]
        if name == REFERENCE or not differences:
            table.append([*row, "-", "-"])
        else:
            table.append([*row, _with_interval(differences), f"{sign_flip_p(differences):.3f}"])
    return table


def _with_interval(values: Sequence[float]) -> str:
    low, high = mean_interval(values)
    return f"{fmean(values):.3f} [{low:.3f}, {high:.3f}]"


def read_runs(folder: Path) -> dict[str, dict[int, RunSummary]]:
    """The finished runs in `folder`, by schedule and seed."""
    runs: dict[str, dict[int, RunSummary]] = {}
    for workspace in sorted(folder.glob("*-seed*")):
        name, _, seed = workspace.name.rpartition("-seed")
        if _is_finished(workspace):
            runs.setdefault(name, {})[int(seed)] = read_run(workspace)
    return runs


def _is_finished(workspace: Path) -> bool:
    return (workspace / "evaluation.json").exists() and (workspace / "report" / "index.html").exists()


def train(pipeline_name: str, *, folder: Path, seeds: int, items: int, settings: Sequence[str]) -> None:
    """Train every schedule with every seed; the seeds of one number come together."""
    pipeline = load_pipeline(pipeline_name)
    blocks = schedules(pipeline.horizon.max_turns, steps=pipeline.train.steps)
    for seed, (name, block) in product(range(seeds), blocks.items()):
        workspace = folder / f"{name}-seed{seed}"
        if _is_finished(workspace):
            continue
        options = [f"seed={seed}", f"evaluate.quick_items={items}", f"horizon={json.dumps(block)}", *settings]
        wingspan = Path(sys.executable).with_name("wingspan")
        command = [str(wingspan), "run", pipeline_name, "--workspace", str(workspace)]
        subprocess.run([*command, *(part for option in options for part in ("--set", option))], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("pipeline")
    run.add_argument("--folder", type=Path, required=True)
    run.add_argument("--seeds", type=int, default=5)
    run.add_argument("--items", type=int, default=100_000, help="of the evaluations after each round")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `wingspan run`")
    commands.add_parser("table").add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        train(args.pipeline, folder=args.folder, seeds=args.seeds, items=args.items, settings=args.set)
    else:
        print(markdown(HEADER, rows(read_runs(args.folder))))


if __name__ == "__main__":
    main()
