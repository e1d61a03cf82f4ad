"""`wingspan envs` and `wingspan pipelines`: what there is, and whether it can be used here."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten

from envs.errors import ConfigError, DamagedFile
from envs.registry import ENVIRONMENTS, FAMILIES, EnvSpec, FamilyModule, get_env
from envs.requirements.data_sets import DataSet
from envs.requirements.detection import Package, Requirement
from envs.sandbox.sandbox import BACKENDS
from flows.lineage.stages import default_workspace
from tasks.config.parameters import read_pipeline_name
from tasks.config.pipelines import load_pipeline, pipeline_names
from tasks.evaluation.outcomes import EVALUATION, POLICIES, read_evaluation
from tasks.runs.folders import RUNS, find_runs, is_workspace
from tasks.runs.state import read_state
from tasks.tracking.lineage_record import LINEAGE

COLUMNS = ("", "environment", "items", "source")
PIPELINE_COLUMNS = ("pipeline", "last run", "on", "what it is")
HERE, NOT_HERE = "\N{CHECK MARK}", "\N{BALLOT X}"

_ITEMS = 24
"""Characters of the cell with the number of items."""


def environment_rows(*, width: int | None) -> list[Sequence[str]]:
    """A row for each environment: whether it can be played here, its name, its items and their source.

    The families of environments and the code interpreter come last. Texts are cut to lines of `width`
    characters; None cuts nothing.
    """
    rows = [
        *map(_row, map(get_env, ENVIRONMENTS)),
        *(_family_row(name, family) for name, family in FAMILIES.items()),
        _interpreter_row(),
    ]
    if width is None:
        return rows
    names = max(len(name) for _, name, _, _ in rows)
    room = max(_ITEMS, width - 1 - names - _ITEMS - 3 * 2)
    return [
        (state, name, shorten(items, _ITEMS, placeholder="…"), shorten(source, room, placeholder="…"))
        for state, name, items, source in rows
    ]


def environment_facts(name: str) -> list[tuple[str, str]]:
    """The details of the environment or family `name`. Raises `ConfigError` for an unknown name."""
    family_name = name.removesuffix(":…")
    if family_name in FAMILIES and name not in ENVIRONMENTS:
        family = FAMILIES[family_name]
        return [
            ("environments", f"{family_name}:…, e.g. {family.EXAMPLE}"),
            ("source", family.SOURCE),
            *_needs([Package(package) for package in family.PACKAGES]),
        ]
    spec = get_env(name)
    return [
        ("environment", spec.name),
        ("items", _items(spec, _find_missing(spec.needs))),
        *([("source", spec.source)] if spec.source else []),
        ("expert", "solves items, for demonstrations" if spec.has_expert else "none: no warm-up"),
        ("rewards", "its own" if spec.has_rewards else "none: agent.reward must name one"),
        *_needs(spec.needs),
    ]


def pipeline_rows() -> list[Sequence[str]]:
    """A row for each pipeline: its name, the success of its last run, its device, its description."""
    rows: list[Sequence[str]] = []
    last_workspaces = _last_workspaces()
    for name in pipeline_names():
        try:
            pipeline = load_pipeline(name)
        except ConfigError as error:  # the other pipelines can be run
            rows.append((name, "", "", f"is refused: {error}"))
            continue
        description = pipeline.description or f"{pipeline.model} on {', '.join(pipeline.data.envs)}"
        rows.append((name, _last_run(name, last_workspaces.get(name)), pipeline.backend.device, description))
    return rows


def _last_workspaces() -> dict[str, Path]:
    """Pipeline → the workspace below `runs` in which a stage of it last began or ended.

    Leaves out workspaces of other checkouts below `runs`, and those whose record of parameters is damaged.
    """
    folders = [run.folder for run in find_runs([RUNS] if RUNS.is_dir() else [])]
    workspaces = [folder for folder in folders if is_workspace(folder) and not _is_of_checkout(folder)]
    last_workspaces: dict[str, Path] = {}
    for workspace in sorted(workspaces, key=_last_stage_time):
        with suppress(ConfigError):  # the others can be listed
            # `dvc repro` records no name: it runs in the folder that has it.
            last_workspaces[read_pipeline_name(workspace) or workspace.name] = workspace
    return last_workspaces


def _is_of_checkout(workspace: Path) -> bool:
    """Whether it is in the `runs` of a checkout below `runs`, as `wingspan reproduce --folder` makes one."""
    return RUNS.name in workspace.relative_to(RUNS).parent.parts


def _last_stage_time(workspace: Path) -> float:
    """Seconds since the epoch; 0 for a workspace without a record, as `dvc pull` makes it."""
    file = workspace / LINEAGE
    return file.stat().st_mtime if file.exists() else 0.0


def _last_run(name: str, workspace: Path | None) -> str:
    """Success of the sampled evaluation on the test split, before and after training, and where the run is,
    unless it is in the default workspace. Instead of a missing evaluation the run's state, of a damaged one
    the name of its file."""
    if workspace is None:
        return "never"
    folder = "" if workspace == default_workspace(name) else f" ({workspace.relative_to(RUNS)})"
    try:
        evaluation = read_evaluation(workspace)
    except DamagedFile:  # the others can be listed
        return f"{EVALUATION} is damaged{folder}"
    if not evaluation:
        return f"{read_state(workspace) or 'unfinished'}{folder}"
    rates = (evaluation[policy]["sampled"].get("success") for policy in POLICIES)
    return " \N{RIGHTWARDS ARROW} ".join("?" if rate is None else f"{rate:.2f}" for rate in rates) + folder


def _row(spec: EnvSpec) -> Sequence[str]:
    missing = _find_missing(spec.needs)
    return (_mark(not missing), spec.name, _items(spec, missing), spec.source)


def _items(spec: EnvSpec, missing: Iterable[Requirement]) -> str:
    if not spec.has_items:
        return "your data"
    if any(isinstance(need, Package | DataSet) for need in missing):  # programs are needed only to play
        return "unknown"
    if any(isinstance(need, DataSet) and not need.is_here for need in spec.needs):
        return "made when needed"
    split = spec.make_split(0)
    return f"{len(split.train)} train, {len(split.test)} test"


def _family_row(name: str, family: FamilyModule) -> Sequence[str]:
    missing = _find_missing(Package(package) for package in family.PACKAGES)
    return (_mark(not missing), f"{name}:…", "several", family.SOURCE)


def _interpreter_row() -> Sequence[str]:
    works = [name for name, backend in BACKENDS.items() if backend.find_remedy() is None]
    where = f"in {', '.join(works)}" if works else "no sandbox: wingspan doctor --all"
    return (_mark(bool(works)), "(code interpreter)", where, "docs/tools.md")


def _needs(needs: Iterable[Requirement]) -> list[tuple[str, str]]:
    """A row for each requirement: that it is installed, or the command that installs it."""
    rows = [(f"{_kind(need)} {need.name}", need.find_remedy()) for need in needs]
    return [(name, f"{HERE} is here" if remedy is None else f"{NOT_HERE} {remedy}") for name, remedy in rows]


def _kind(need: Requirement) -> str:
    """The kind of a requirement: a package and a data set may have the same name."""
    return "package" if isinstance(need, Package) else "data set" if isinstance(need, DataSet) else "program"


def _find_missing(needs: Iterable[Requirement]) -> Mapping[Requirement, str]:
    """The missing requirements, each with the command that installs it."""
    return {need: remedy for need in needs if (remedy := need.find_remedy()) is not None}


def _mark(is_here: bool) -> str:
    return HERE if is_here else NOT_HERE
