"""What a stage depends on and leaves, read from `dvc.yaml`, its only declaration.

A stage's *key* is the hash of what DVC hashes: the contents of its dependencies and the values of its
parameters. Its *receipt* is the hash of each output. Files and folders are hashed as DVC hashes them,
so that keys, receipts and `dvc.lock` speak of the same things. Besides what is declared there, a stage that
obeys the settings of the agent or of the data depends on the files they name: a prompt, and code of the
user's own. DVC cannot know these unless they lie in `agents` or `envs`. Leaves out: running anything, and
DVC itself, whose import costs seconds.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from envs.errors import ConfigError
from tasks.config.pipelines import PIPELINES_FILE, read_yaml
from tasks.config.settings import Pipeline
from tasks.config.user_code import agent_code, environment_code
from tasks.data.sources import FOLDER as DATA

STAGES_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
IGNORE_FILE = Path(".dvcignore")
RUNS = Path("runs")
CODE = ("envs", "agents", "tasks", "flows")
"""The packages: a dependency in one of them is code, not data."""

Receipt = dict[str, str]
"""Output path, relative to the workspace → its MD5 as in `dvc.lock`."""

_EXPRESSION = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of one pipeline in one workspace."""

    name: str
    workspace: Path
    deps: tuple[Path, ...]
    params: Mapping[str, Any]
    """By dotted key within the pipeline, e.g. `{"train": {"lr": 3e-4, …}, "seed": 0}`."""
    outs: tuple[Path, ...]
    own_code: tuple[Path, ...] = ()
    """Those of `deps` that are a user's code, outside of the packages."""


def default_workspace(name: str) -> Path:
    """The workspace of a pipeline whose parameters are those of `pipelines.yaml`; DVC's own."""
    return RUNS / name


def declared_stages(name: str, *, pipeline: Pipeline, workspace: Path) -> dict[str, Stage]:
    """The stages of pipeline `name`, as `dvc.yaml` declares them, in its order.

    Paths under `runs/<name>` become paths under `workspace`. A pipeline without a warm-up has no
    such stage. Raises `ConfigError` for a missing `dvc.yaml`.
    """
    try:
        declarations = read_yaml(STAGES_FILE)["stages"]
    except (KeyError, TypeError):
        raise ConfigError(
            f"{STAGES_FILE} declares no stages; restore it: git checkout {STAGES_FILE}"
        ) from None
    values = pipeline.model_dump(mode="json")
    home = default_workspace(name)

    def placed(template: Any) -> Path:
        declared = next(iter(template)) if isinstance(template, dict) else template
        path = Path(_interpolated(declared, key=name, item=values))
        return workspace / path.relative_to(home) if path.is_relative_to(home) else path

    stages = {}
    for stage_name, declaration in declarations.items():
        if "do" not in declaration:
            continue  # not a pipeline's: the base model
        body = declaration["do"]
        prefix = f"pipelines.{name}"
        keys = [
            _interpolated(dotted, key=name, item=values).removeprefix(prefix).removeprefix(".")
            for block in body["params"]
            for dotted in block[str(PIPELINES_FILE)]
        ]
        stages[stage_name] = Stage(
            name=stage_name,
            workspace=workspace,
            deps=tuple(placed(dep) for dep in body["deps"]),
            params={dotted: _lookup(values, dotted) for dotted in keys},
            outs=tuple(placed(out) for out in body["outs"]),
        )
    stages = {name: _with_own_files(stage, pipeline) for name, stage in stages.items()}
    return stages if pipeline.warmup is not None else _without_warmup(stages)


def check_inputs(stages: Iterable[Stage]) -> None:
    """Raise `ConfigError` for a file that a stage reads and that neither is there nor is written by a stage
    before it."""
    written: set[Path] = set()
    for stage in stages:
        for dep in stage.deps:
            if dep not in written and not dep.exists() and not _is_of_hub(dep):
                raise ConfigError(
                    f"{dep} is not there, and stage {stage.name} reads it; restore it by: git checkout {dep}"
                )
        written.update(stage.outs)


def stage_key(stage: Stage, *, code: bool = True) -> str:
    """Hash of the contents of `stage`'s dependencies and of its parameters.

    `code=False` leaves the project's and the user's code out: what a checkpoint belongs to. Raises
    `ConfigError` for a dependency that is not there.
    """
    deps = {
        str(dep.relative_to(stage.workspace) if dep.is_relative_to(stage.workspace) else dep): _input_md5(dep)
        for dep in stage.deps
        if code or not (dep.parts[0] in CODE or dep in stage.own_code)
    }
    facts = json.dumps([stage.name, deps, stage.params], sort_keys=True)
    return hashlib.md5(facts.encode(), usedforsecurity=False).hexdigest()


def cache_key(stage: Stage, key: str) -> str:
    """What Prefect stores the receipt of `stage` under, once it has run on the inputs of `key`."""
    place = str(stage.workspace.resolve()).replace("/", "-")
    return f"wingspan{place}-{key}"


def receipt(stage: Stage) -> Receipt:
    """Hash of each output of a `stage` that has run. Raises `FileNotFoundError` if it left one out."""
    return {str(out.relative_to(stage.workspace)): path_md5(out) for out in stage.outs}


def holds(stage: Stage, expected: Receipt) -> bool:
    """Whether the outputs of `stage` are there and are those of the receipt `expected`."""
    return all(out.exists() for out in stage.outs) and receipt(stage) == expected


def path_md5(path: Path) -> str:
    """The MD5 of a file or folder as DVC writes it in `dvc.lock`."""
    if path.is_file():
        status = path.stat()
        return _file_md5(path, status.st_size, status.st_mtime_ns)
    entries = [
        {"md5": path_md5(file), "relpath": file.relative_to(path).as_posix()} for file in _files_of(path)
    ]
    entries.sort(key=lambda entry: entry["relpath"])
    listing = json.dumps(entries, sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _input_md5(path: Path) -> str:
    if path.exists():
        return path_md5(path)
    if _is_of_hub(path):
        return f"hub:{path}"  # its name and revision are all that there is to hash
    raise ConfigError(f"{path} is not there, and a stage reads it; run the stage that writes it first")


def _is_of_hub(path: Path) -> bool:
    """Whether `path`, where nothing is, may be the name of a model on a hub."""
    return not (path.parts[0] in (*CODE, DATA, str(RUNS)) or path.is_absolute() or path.suffix)


@cache
def _file_md5(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _files_of(folder: Path) -> Iterator[Path]:
    ignored = _ignored_names()

    def kept(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch(name, rule) for rule in ignored)]

    for root, folders, files in os.walk(folder):
        folders[:] = kept(folders)  # in place: os.walk goes down what is left
        yield from (Path(root, name) for name in kept(files))


def _ignored_names() -> list[str]:
    lines = IGNORE_FILE.read_text().splitlines() if IGNORE_FILE.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _interpolated(template: str, *, key: str, item: Mapping[str, Any]) -> str:
    def value_of(match: re.Match[str]) -> str:
        expression = match[1]
        return key if expression == "key" else str(_lookup(item, expression.removeprefix("item.")))

    return _EXPRESSION.sub(value_of, template)


def _lookup(values: Mapping[str, Any], dotted: str) -> Any:
    found: Any = values
    for part in dotted.split(".") if dotted else ():
        found = found[part]
    return found


def _with_own_files(stage: Stage, pipeline: Pipeline) -> Stage:
    declared = [dep.resolve() for dep in stage.deps]

    def undeclared(paths: Iterable[Path]) -> tuple[Path, ...]:
        return tuple(p for p in paths if not any(p.resolve().is_relative_to(dep) for dep in declared))

    agent, named, given = pipeline.agent, list[Path](), list[Path | None]()
    if "data" in stage.params:
        named += environment_code(pipeline.data)
    if "agent" in stage.params:
        named += agent_code(agent)
        given += [agent.prompt, *(judge.prompt for judge in agent.judges.values())]
    code = undeclared(dict.fromkeys(named))
    prompts = undeclared(path for path in given if path is not None)
    return replace(stage, deps=stage.deps + code + prompts, own_code=code)


def _without_warmup(stages: dict[str, Stage]) -> dict[str, Stage]:
    (dropped,) = stages["warmup"].outs
    return {
        name: replace(stage, deps=tuple(dep for dep in stage.deps if dep != dropped))
        for name, stage in stages.items()
        if name != "warmup"
    }
