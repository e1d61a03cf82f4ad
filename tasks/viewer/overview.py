"""A run on one page, from the small files of its workspace: parameters, steps, rounds, evaluations.

Files that no stage has written yet are None or empty, as are those that are being written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from envs.errors import ConfigError, DamagedFile, describe
from envs.files import is_locked, read_json_lines
from envs.types import replace_surrogates
from tasks.config.parameters import CHANGES, flat
from tasks.data.collapse import ALERTS
from tasks.evaluation.outcomes import EVALUATION, Evaluation, read_evaluation
from tasks.evaluation.record import is_record, read_record
from tasks.runs.folders import STATE, STEPS, RunFolder
from tasks.runs.parameters import recorded_parameters, try_read_json
from tasks.runs.rounds import RoundResult, list_round_files, read_rounds
from tasks.runs.state import RUNNING, read_state
from tasks.runs.steps import read_steps
from tasks.verl.rewinds import REWINDS

T = TypeVar("T")

SERIES = (
    "step", "episodes", "dropped", "reward", "success", "turns", "tokens_per_turn", "horizon", "entropy",
    "kl", "informative_groups", "parse_failures", "repetition", "policy_version", "staleness", "temperature",
    "seconds", "rollout_probs_diff_mean", "rollout_probs_diff_max",
)  # fmt: skip
"""The columns of the training steps that the page shows; those that a run does not have are left out."""
_WRITTEN = (
    "data", "provision.json", "warmup", "train", STEPS, "train/rounds", "train/trajectories",
    f"train/{ALERTS}", f"train/{REWINDS}", "policy", EVALUATION, "timing.json", "record.json",
    "trajectories.jsonl", CHANGES, "report", STATE,
)  # fmt: skip

_PARAMETERS = ("train/inputs.json", "report/parameters.json")
"""What `recorded_parameters` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in the list of runs."""

    name: str
    folder: str
    kind: str
    """`run`, `evaluation` or `file`."""
    pipeline: str | None
    step: int
    """The last step that was recorded; 0 before the first."""
    steps: int | None
    """How many the run was asked for; None if that is not recorded."""
    success: float | None
    """The success of the newest of: the final evaluation of the trained policy, the last step."""
    success_of: str
    """Which of the two."""
    is_finished: bool
    """Whether the final evaluation is there; always true of an evaluation or a file."""
    changed: Mapping[str, object]
    """Parameters that differ from the `pipelines.yaml` of its time: old and new value."""
    differing: Mapping[str, object]
    """Parameters that the listed runs of its pipeline do not have alike, with its own values."""
    curve: list[float | None]
    """Success by step."""
    written_at: float
    """Seconds since the epoch: when a file of the run was last written to."""
    state: str
    """`running` while a command works on it, else how the last one ended: `failed`, `stopped`, `killed`;
    empty if it succeeded, or if that is not recorded."""
    damage: str
    """What is wrong with the recorded steps, with `evaluation.json`, a round, the alerts or the rewinds;
    empty if each can be read, or is not there."""


def summarise_runs(runs: Sequence[RunFolder]) -> list[RunSummary]:
    """What a list says of `runs`."""
    summaries = [_summarise_now(run) for run in runs]
    parameters = [
        _parameters(run.folder, tuple(_signature(run.folder / name) for name in _PARAMETERS)) for run in runs
    ]
    by_pipeline: dict[str | None, list[Mapping[str, object]]] = {}
    for summary, values in zip(summaries, parameters, strict=True):
        by_pipeline.setdefault(summary.pipeline, []).append(values)
    keys = {name: _find_differing_keys(of_runs) for name, of_runs in by_pipeline.items() if name is not None}
    result = []
    for summary, values in zip(summaries, parameters, strict=True):
        own_keys = [key for key in keys.get(summary.pipeline or "", ()) if key in values]
        result.append(replace(summary, differing={key: values[key] for key in own_keys}))
    return result


def _summarise_now(run: RunFolder) -> RunSummary:
    # Not of the folder itself, which annotations change. A round that is mended in its place leaves the
    # folder of the rounds as it was.
    files = [run.folder / name for name in _WRITTEN] + list_round_files(run.folder / "train")
    signatures = tuple(map(_signature, [run.file] if run.file else files))
    state = read_state(run.folder) if run.file is None else RUNNING if is_locked(run.file) else ""
    return replace(_summarise(run, signatures), state=state)


def _find_differing_keys(parameters: Sequence[Mapping[str, object]]) -> list[str]:
    """The keys with several values. One that a run does not have makes no difference: while a run is trained,
    not all of its parameters are recorded."""
    first_values: dict[str, object] = {}
    differing: dict[str, None] = {}
    for values in parameters:
        for key, value in values.items():
            if first_values.setdefault(key, value) != value:
                differing[key] = None
    return [key for key in differing if key != "description"]


@lru_cache(maxsize=1000)
def _parameters(folder: Path, signatures: tuple[tuple[float, int], ...]) -> dict[str, object]:
    """The parameters by dotted key, as far as they are recorded. `signatures`: as for `_summarise`."""
    return dict(flat(recorded_parameters(folder), sep="."))


@lru_cache(maxsize=1000)
def _summarise(run: RunFolder, signatures: tuple[tuple[float, int], ...]) -> RunSummary:
    """`signatures`: of the files and folders that a run writes; the same ones give the same summary."""
    folder = run.folder
    parameters = try_read_json(folder / CHANGES) if run.file is None else {}
    pipeline = parameters.get("pipeline")
    steps, damage = _read_steps(folder) if run.file is None else ([], "")
    evaluation, damage_of_evaluation = _read_evaluation(folder) if run.file is None else ({}, "")
    others = [read(folder)[1] for read in (_read_rounds, _read_alerts, _read_rewinds)] if not run.file else []
    after = evaluation["after"]["sampled"].get("success") if evaluation else None
    kind = "file" if run.file else "evaluation" if is_record(folder) else "run"
    success, success_of = after, "evaluation after training"
    if kind == "evaluation":
        success, success_of = _recorded_success(folder), "evaluation"
    elif kind == "file" or (after is None and not steps):
        success, success_of = None, ""
    elif after is None:
        success, success_of = steps[-1].get("success"), f"step {steps[-1]['step']}"
    return RunSummary(
        name=run.name,
        folder=replace_surrogates(str(run.identity), by="?"),
        kind=kind,
        pipeline=pipeline if isinstance(pipeline, str) else None,
        step=max((step["step"] for step in steps), default=0),
        steps=_planned_steps(folder) if kind == "run" else None,
        success=success,
        success_of=success_of,
        is_finished=kind != "run" or after is not None,
        changed=_read_changed(parameters),
        differing={},
        curve=[step.get("success") for step in steps],
        written_at=max(written_at for written_at, _ in signatures),
        state="",
        damage=next(filter(None, (damage, damage_of_evaluation, *others)), ""),
    )


def read_overview(run: RunFolder) -> dict[str, object]:
    """The small files of a run: `series` (column → values by step), `rounds`, `evaluation`, `alerts`,
    `rewinds`, `seconds` by stage."""
    if run.file is not None:
        return {"series": {}, "rounds": [], "evaluation": {}, "alerts": [], "rewinds": [], "seconds": {}}
    folder = run.folder
    steps, _ = _read_steps(folder)
    columns = [column for column in SERIES if any(column in step for step in steps)]
    evaluation, _ = _read_evaluation(folder)
    rounds, _ = _read_rounds(folder)
    alerts, _ = _read_alerts(folder)
    rewinds, _ = _read_rewinds(folder)
    return {
        "series": {column: [step.get(column) for step in steps] for column in columns},
        "rounds": [asdict(done) for done in rounds],
        "evaluation": evaluation,
        "alerts": alerts,
        "rewinds": rewinds,
        "seconds": try_read_json(folder / "timing.json").get("stages", {}),
    }


def _read_steps(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The recorded steps, and what is wrong with their file if it is damaged."""
    return _try_read(partial(read_steps, folder, is_growing=True), default=[])


def _read_evaluation(folder: Path) -> tuple[Evaluation, str]:
    """`evaluation.json`, and what is wrong with it if it is damaged."""
    return _try_read(partial(read_evaluation, folder), default={})


def _read_rounds(folder: Path) -> tuple[list[RoundResult], str]:
    """The finished rounds, and what is wrong with one of them if it is damaged."""
    return _try_read(partial(read_rounds, folder / "train"), default=[])


def _read_alerts(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The signs of a collapse, and what is wrong with their file if it is damaged."""
    return _try_read(partial(read_json_lines, folder / "train" / ALERTS, is_growing=True), default=[])


def _read_rewinds(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The rewinds, and what is wrong with their file if it is damaged."""
    return _try_read(partial(read_json_lines, folder / "train" / REWINDS), default=[])


def _try_read(read: Callable[[], T], *, default: T) -> tuple[T, str]:
    try:
        return read(), ""
    except DamagedFile as error:
        return default, str(error)
    except OSError as error:
        return default, describe(error)


def _read_changed(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Key → old and new value; what is no such pair in a damaged file is left out."""
    changed = parameters.get("changed")
    pairs = changed.items() if isinstance(changed, dict) else ()
    return {key: pair for key, pair in pairs if isinstance(pair, list) and len(pair) == 2}


def _planned_steps(folder: Path) -> int | None:
    settings = recorded_parameters(folder).get("train")
    steps = settings.get("steps") if isinstance(settings, dict) else None
    return steps if isinstance(steps, int) else None


def _recorded_success(folder: Path) -> float | None:
    try:
        rates = read_record(folder).overall.rates
    except (ConfigError, KeyError):
        return None
    return next((rate.mean for name, rate in rates.items() if name.startswith("avg_at_")), None)


def _signature(path: Path) -> tuple[float, int]:
    """When a file was written to, in seconds since the epoch, and its size; zeros if there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0.0, 0
    return status.st_mtime, status.st_size
