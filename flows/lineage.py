"""What a stage reads and writes, from `dvc.yaml`, its only declaration.

A stage's *key* is the hash of what DVC hashes: the contents of its dependencies and the values of its
parameters. Its *receipt* holds the hash of each output. Files and folders are hashed as DVC hashes them, so
keys, receipts and `dvc.lock` agree. Besides the declared dependencies, a stage with the parameters of the
agent or of the data depends on the files that they name: prompts and the user's code. DVC does not know
these unless they are in `agents` or `envs`. Leaves out: running anything, and DVC itself, whose import takes
seconds.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from envs.errors import ConfigError
from envs.files import write_atomically
from tasks.config.pipelines import PIPELINES_FILE, Pipeline, read_yaml
from tasks.config.user_code import agent_code, environment_code
from tasks.data.sources import FOLDER as DATA

STAGES_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
IGNORE_FILE = Path(".dvcignore")
RUNS = Path("runs")
FINISHED = Path("train", "finished")
"""In the workspace: the key of the training that was completed there."""
CODE = ("envs", "agents", "tasks", "flows")
"""Packages: a dependency in one of them is code, not data."""

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
    user_code: tuple[Path, ...] = ()
    """Those of `deps` that are the user's code, outside of the packages."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a stage wrote, handed to the stages that read it."""

    stage: str
    outputs: Mapping[str, str]
    """Path relative to the workspace → MD5 as in `dvc.lock`."""


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

    def resolve(template: Any) -> Path:
        text = next(iter(template)) if isinstance(template, dict) else template
        path = Path(_interpolate(text, key=name, item=values))
        return workspace / path.relative_to(home) if path.is_relative_to(home) else path

    stages = {}
    for stage_name, declaration in declarations.items():
        if "do" not in declaration:
            continue  # the base model, which belongs to no pipeline
        body = declaration["do"]
        prefix = f"pipelines.{name}"
        keys = [
            _interpolate(key, key=name, item=values).removeprefix(prefix).removeprefix(".")
            for block in body["params"]
            for key in block[str(PIPELINES_FILE)]
        ]
        stages[stage_name] = Stage(
            name=stage_name,
            workspace=workspace,
            deps=tuple(resolve(dep) for dep in body["deps"]),
            params={key: _lookup(values, key) for key in keys},
            outs=tuple(resolve(out) for out in body["outs"]),
        )
    stages = {name: _add_user_files(stage, pipeline) for name, stage in stages.items()}
    return stages if pipeline.warmup is not None else _without_warmup(stages)


def check_inputs(stages: Iterable[Stage]) -> None:
    """Raise `ConfigError` for a missing file that a stage reads and no earlier stage writes."""
    outputs: set[Path] = set()
    for stage in stages:
        for dep in stage.deps:
            if dep not in outputs and not dep.exists() and not _is_of_hub(dep):
                raise ConfigError(
                    f"{dep} is not there, and stage {stage.name} reads it; restore it: git checkout {dep}"
                )
        outputs.update(stage.outs)


def stage_key(stage: Stage, *, code: bool = True) -> str:
    """Hash of the contents of `stage`'s dependencies and of its parameters.

    `code=False` leaves out the project's and the user's code, as for checkpoints. Raises `ConfigError` for a
    missing dependency.
    """
    deps = {
        str(dep.relative_to(stage.workspace) if dep.is_relative_to(stage.workspace) else dep): _input_md5(dep)
        for dep in stage.deps
        if code or not (dep.parts[0] in CODE or dep in stage.user_code)
    }
    facts = json.dumps([stage.name, deps, stage.params], sort_keys=True)
    return hashlib.md5(facts.encode(), usedforsecurity=False).hexdigest()


def cache_key(stage: Stage, key: str) -> str:
    """The name under which Prefect stores the receipt of a `stage` that has run on the inputs of `key`."""
    workspace = str(stage.workspace.resolve()).replace("/", "-")
    return f"wingspan{workspace}-{key}"


def make_receipt(stage: Stage) -> Receipt:
    """Hash the outputs of `stage`, which has run. Raises `FileNotFoundError` for a missing one."""
    outputs = {str(out.relative_to(stage.workspace)): path_md5(out) for out in stage.outs}
    return Receipt(stage.name, outputs)


def holds(stage: Stage, receipt: Receipt) -> bool:
    """Whether the outputs of `stage` exist and are those of `receipt`."""
    return all(out.exists() for out in stage.outs) and make_receipt(stage) == receipt


def claim_checkpoints(train: Stage) -> bool:
    """Clear `train/` unless it holds training from the same inputs; returns whether there is some to resume.

    Code is not among these inputs, so that training that a bug has stopped resumes after the fix. Training
    that was completed is an exception: there is nothing to resume, and other code would not have made it.
    """
    if would_resume(train):
        return True
    folder = train.workspace / "train"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(train.workspace / "policy", ignore_errors=True)
    write_atomically(folder / "key", stage_key(train, code=False))
    return False


def would_resume(train: Stage) -> bool:
    """Whether `train/` holds training from the same inputs. Raises `ConfigError` for a missing input."""
    owner, mark = train.workspace / "train" / "key", train.workspace / FINISHED
    if not owner.exists() or owner.read_text() != stage_key(train, code=False):
        return False
    return not mark.exists() or mark.read_text() == stage_key(train)


def mark_finished(train: Stage, key: str) -> None:
    """Note that the training with `key` is complete."""
    write_atomically(train.workspace / FINISHED, key)


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
        return f"hub:{path}"  # a model on the hub is hashed by its name and revision
    raise ConfigError(f"{path} is not there, and a stage reads it; first run the stage that writes it")


def _is_of_hub(path: Path) -> bool:
    """Whether the missing `path` may be the name of a model on a hub."""
    return not (path.parts[0] in (*CODE, DATA, str(RUNS)) or path.is_absolute() or path.suffix)


@cache
def _file_md5(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _files_of(folder: Path) -> Iterator[Path]:
    patterns = _ignore_patterns()

    def filter_names(names: list[str]) -> list[str]:
        return [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]

    for root, folders, files in os.walk(folder):
        folders[:] = filter_names(folders)  # in place: os.walk descends into what is left
        yield from (Path(root, name) for name in filter_names(files))


def _ignore_patterns() -> list[str]:
    lines = IGNORE_FILE.read_text().splitlines() if IGNORE_FILE.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _interpolate(template: str, *, key: str, item: Mapping[str, Any]) -> str:
    def value_of(match: re.Match[str]) -> str:
        expression = match[1]
        return key if expression == "key" else str(_lookup(item, expression.removeprefix("item.")))

    return _EXPRESSION.sub(value_of, template)


def _lookup(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for part in key.split(".") if key else ():
        value = value[part]
    return value


def _add_user_files(stage: Stage, pipeline: Pipeline) -> Stage:
    declared_deps = [dep.resolve() for dep in stage.deps]

    def drop_declared(paths: Iterable[Path | None]) -> tuple[Path, ...]:
        return tuple(
            path
            for path in paths
            if path is not None and not any(path.resolve().is_relative_to(dep) for dep in declared_deps)
        )

    agent, modules, prompts = pipeline.agent, list[Path](), list[Path | None]()
    if "data" in stage.params:
        modules += environment_code(pipeline.data)
    if "agent" in stage.params:
        modules += agent_code(agent)
        prompts += [agent.prompt, *(judge.prompt for judge in agent.judges.values())]
    code = drop_declared(dict.fromkeys(modules))
    return replace(stage, deps=stage.deps + code + drop_declared(prompts), user_code=code)


def _without_warmup(stages: dict[str, Stage]) -> dict[str, Stage]:
    (folder,) = stages["warmup"].outs
    return {
        name: replace(stage, deps=tuple(dep for dep in stage.deps if dep != folder))
        for name, stage in stages.items()
        if name != "warmup"
    }
