"""Trains one pipeline with several settings and seeds, and compares them.

    python -m bench.study run algorithms textcraft-cpu --folder runs/algorithms --seeds 0 1 2
    python -m bench.study run horizons textcraft-cpu --folder runs/horizons --seeds 0 1 2 3 4
    python -m bench.study table runs/algorithms --reference grpo

`run` trains the pipeline once for each variant of the study and each seed, and skips what has finished. Runs
of one seed share their warm-up:

- `algorithms`: `grpo` and other values of `train.algorithm`, `observation-loss` (`grpo` with
  `train.observation_loss`) and `async` (`grpo` with `train.async`).
- `horizons`: from the first to the last of the pipeline's `horizon.max_turns`, `stepwise` (equal stages),
  `linear`, `adaptive` (whose stages last twice as long at most), `fixed-short` (the first value) and
  `fixed-long` (the last). Parts with their own horizon keep it. Of `--set horizon…`, the
  variants take `max_turns`.

After every round, all test items (`--items`) are evaluated, with the same `evaluate.max_turns` for all.

`table` prints a row for each variant, with 95% intervals (Student's t) over seeds in brackets:

- `before`, `after`: success after the warm-up, and after training
- `lowest gain`: the smallest difference of the two, in points
- `steps`: environment steps
- `at equal steps`: success at the smallest total of all runs, interpolated between evaluations; a training
  step costs more with a longer horizon or with more groups
- `difference`: mean over seeds of the difference to the reference's success at equal steps with the same seed
- `p`: two-sided, by the exact paired sign-flip test; with n seeds it is 2/2ⁿ at least, so that five seeds
  cannot show significance at 5%

`wingspan compare runs/algorithms --reference grpo` compares the settings in full, with curves.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from agents.horizon import Horizon
from envs.errors import WingspanError
from flows.cli.options import parse_settings
from flows.lineage.stages import IfChanged
from flows.lock import lock
from flows.sweep.flow import LOG, run_all
from flows.sweep.plan import SweepPlan, plan_variants
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.evaluation.intervals import t_interval
from tasks.evaluation.paired import paired_test
from tasks.reporting.comparison.curves import Curve, interpolate
from tasks.reporting.comparison.runs import read_run
from tasks.reporting.pages import markdown
from tasks.tracking.record import read_record

HEADER = (
    *("variant", "seeds", "before", "after", "lowest gain", "steps"),
    *("at equal steps", "difference", "p"),
)


def algorithms(pipeline: Pipeline) -> dict[str, list[str]]:
    """The settings of each variant, as `--set` takes them."""
    names = ("ppo", "rloo", "reinforce_plus_plus", "dapo", "gspo", "cispo", "maxrl", "gigpo")
    grpo = "train.algorithm=grpo"
    return {
        "grpo": [grpo],
        **{name: [f"train.algorithm={name}"] for name in names},
        "observation-loss": [grpo, "train.observation_loss=0.1"],
        "async": [grpo, "train.async={}"],
    }


def horizons(pipeline: Pipeline) -> dict[str, list[str]]:
    """The settings of each variant, as `--set` takes them."""
    blocks = schedules(pipeline.horizon.max_turns, steps=pipeline.train.steps)
    return {name: [f"horizon={json.dumps(block)}"] for name, block in blocks.items()}


STUDIES = {"algorithms": algorithms, "horizons": horizons}


def schedules(stages: Sequence[int], *, steps: int) -> dict[str, dict[str, Any]]:
    """The blocks of `horizons`, by name; `stages`: turns of the stepwise one, in `steps` steps."""
    first, last = stages[0], stages[-1]
    per_stage = math.ceil(steps / len(stages))
    rule = {"window": 3, "min_steps": 6, "max_steps": max(6, 2 * per_stage)}
    blocks: dict[str, dict[str, Any]] = {
        "stepwise": {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One finished run."""

    before: float
    after: float
    """Success before and after training."""
    curve: Curve
    """(environment steps, success): the evaluation before, after each round, and after training."""

    @property
    def environment_steps(self) -> float:
        """Of the whole training."""
        return self.curve[-1][0]


def rows(runs: Mapping[str, Mapping[int, StudyRun]], *, reference: str) -> list[list[str]]:
    """The table's rows; `runs`: by variant and seed, of which `reference` is a variant."""
    budget = min(run.environment_steps for seeds in runs.values() for run in seeds.values())
    success = {
        name: {seed: interpolate(run.curve, budget) for seed, run in seeds.items()}
        for name, seeds in runs.items()
    }
    table = []
    for name, by_seed in success.items():
        seeds = runs[name].values()
        row = [
            name,
            str(len(by_seed)),
            f"{fmean(run.before for run in seeds):.3f}",
            _with_interval([run.after for run in seeds]),
            f"{100 * min(run.after - run.before for run in seeds):+.1f}",
            f"{fmean(run.environment_steps for run in seeds):,.0f}",
            _with_interval(list(by_seed.values())),
        ]
        shared_seeds = sorted(by_seed.keys() & success[reference].keys())
        if name == reference or not shared_seeds:
            table.append([*row, "-", "-"])
            continue
        reference_values, own_values = (
            [values[seed] for seed in shared_seeds] for values in (success[reference], by_seed)
        )
        differences = [b - a for a, b in zip(reference_values, own_values, strict=True)]
        table.append(
            [*row, _with_interval(differences), f"{paired_test(reference_values, own_values).p_value:.3f}"]
        )
    return table


def _with_interval(values: Sequence[float]) -> str:
    mean = f"{fmean(values):.3f}"
    if len(values) < 2:
        return mean
    low, high = t_interval(values)
    return f"{mean} [{low:.3f}, {high:.3f}]"


def read_runs(folder: Path) -> dict[str, dict[int, StudyRun]]:
    """The finished runs in `folder`, by variant and seed."""
    runs: dict[str, dict[int, StudyRun]] = {}
    for workspace in sorted(folder.glob("*-seed*")):
        name, _, seed = workspace.name.rpartition("-seed")
        if read_record(workspace).get("finished"):
            run = read_run(workspace)
            points = dict(run.quick_points) | dict(run.test_points)  # of all items by default
            curve = run.curve(sorted(points.items()), "environment_steps")
            runs.setdefault(name, {})[int(seed)] = StudyRun(before=run.before, after=run.after, curve=curve)
    return runs


def plan_study(
    study: str,
    pipeline_name: str,
    *,
    folder: Path,
    seeds: Sequence[int],
    only: Sequence[str],
    items: int,
    settings: Sequence[str],
    if_changed: IfChanged,
) -> SweepPlan:
    """A run of each variant of the study, or of those named by `only`, with each seed.

    Raises `SystemExit` for an unknown variant, and otherwise as `plan_variants` does.
    """
    overrides = parse_settings(list(settings))
    variants = STUDIES[study](load_pipeline(pipeline_name, overrides=overrides))
    unknown = [name for name in only if name not in variants]
    if unknown:
        raise SystemExit(f"--only {' '.join(unknown)}: {study} has {', '.join(variants)}")
    if study == "horizons":  # every variant has a block that was made of what is set here
        overrides = {key: value for key, value in overrides.items() if key.split(".")[0] != "horizon"}
    return plan_variants(
        pipeline_name,
        variants={name: parse_settings(variants[name]) for name in only or variants},
        seeds=seeds,
        settings={"evaluate.quick_items": items, **overrides},
        folder=folder,
        if_changed=if_changed,
    )


def train(plan: SweepPlan) -> None:
    """Train what has not finished."""
    with lock(plan.folder, option="--folder"):
        run_all(
            plan,
            temporary=tempfile.gettempdir(),
            on_change=lambda run, state: print(f"{run.name}: {state}, output in {run.workspace / LOG}"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("study", choices=STUDIES)
    run.add_argument("pipeline")
    run.add_argument("--folder", type=Path, required=True)
    run.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    run.add_argument("--only", nargs="+", default=[], metavar="VARIANT", help="default: all variants")
    run.add_argument("--items", type=int, default=100_000, help="of the evaluations after each round")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in `wingspan run`")
    run.add_argument(
        "--if-changed", choices=get_args(IfChanged), default="refuse", help="as in `wingspan run`"
    )
    show = commands.add_parser("table")
    show.add_argument("folder", type=Path)
    show.add_argument("--reference", required=True, metavar="VARIANT")
    args = parser.parse_args()
    if args.command == "run":
        try:
            plan = plan_study(
                args.study,
                args.pipeline,
                folder=args.folder,
                seeds=args.seeds,
                only=args.only,
                items=args.items,
                settings=args.set,
                if_changed=args.if_changed,
            )
            train(plan)
        except WingspanError as error:
            raise SystemExit(f"error: {error}") from None
        except KeyboardInterrupt:
            print(
                "stopped; finished runs and checkpoints are kept, and the same command goes on",
                file=sys.stderr,
            )
            raise SystemExit(130) from None
        return
    runs = read_runs(args.folder)
    if args.reference not in runs:
        raise SystemExit(
            f"--reference {args.reference}: {args.folder} has {', '.join(runs) or 'no finished run'}"
        )
    print(markdown(HEADER, rows(runs, reference=args.reference)))


if __name__ == "__main__":
    main()
