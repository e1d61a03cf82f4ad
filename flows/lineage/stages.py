"""What a stage reads and writes, from `dvc.yaml`, its only declaration.

A stage's *key* is the hash of what DVC hashes: the contents of its dependencies and the values of its
parameters. Its *receipt* holds the hash of each output. Files and folders are hashed as DVC hashes them, so
keys, receipts and `dvc.lock` agree. Besides the declared dependencies, a stage with the parameters of the
agent or of the data depends on the files that they name: prompts and the user's code; training depends on the
user's code of its algorithm and loss, and on the files of trajectories, or the teacher's folder, that the
algorithm names; and whatever reads an environment's downloaded data set depends on its checksums. DVC does
not know these unless they are in `agents` or `envs`, nor the parameters that `dvc.yaml` cannot name
(`_undeclared_keys`). Leaves out: running anything, and DVC itself, whose import takes seconds.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from envs.errors import ConfigError
from envs.files import drop_incomplete_line, read_as, write_atomically
from envs.registry import Split, get_env, is_user_env
from envs.requirements.data_sets import RECEIPT, DataSet
from tasks.algorithms.distillation import Distillation
from tasks.algorithms.offline import OfflineAlgorithm
from tasks.config.data import FOLDER as DATA
from tasks.config.data import HUB
from tasks.config.parameters import differing_values, flat
from tasks.config.pipelines import PIPELINES_FILE, Pipeline, read_yaml
from tasks.config.user_code import CODE, agent_code, algorithm_code, environment_code
from tasks.data.hashes import path_md5, text_md5
from tasks.data.items import items_md5
from tasks.evaluation.outcomes import EVALUATION, OUTCOMES
from tasks.runs.folders import EVALUATION_TRAJECTORIES, RUNS, relative_within
from tasks.runs.rounds import BEST, read_rounds
from tasks.tracking.lineage_record import LINEAGE, read_lineage
from tasks.verl.checkpoints import complete_steps

STAGES_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
FINISHED = Path("train", "finished")
"""The file in the workspace with the key of the training that was completed there."""
INPUTS = Path("train", "inputs.json")
"""The file in the workspace with parameters and hashes of the files that the training there reads, code left
out."""
MAX_NAME_BYTES = 255
"""Linux's limit for the name of a file."""
IfChanged = Literal["refuse", "restart", "resume"]
"""What a run does about an interrupted training whose inputs have changed."""

_OUTPUTS = ("outs", "metrics", "plots")
"""What a stage writes, in `dvc.yaml`; DVC's commands for metrics and plots read the last two."""
_EXPRESSION = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of one pipeline in one workspace."""

    name: str
    workspace: Path
    command: str
    """The command by which `dvc repro` runs the stage; the flow calls the same function."""
    deps: tuple[Path, ...]
    params: Mapping[str, object]
    """The parameters by dotted key within the pipeline, e.g. `{"train": {"lr": 3e-4, …}, "seed": 0}`."""
    outs: tuple[Path, ...]
    is_resumable: bool = False
    """Whether it goes on where it was stopped, for which DVC keeps its outputs (`persist: true`)."""
    user_code: tuple[Path, ...] = ()
    """The parts of `deps` that are the user's code, outside of the packages."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a stage wrote, handed to the stages that read it."""

    stage: str
    outputs: Mapping[str, str]
    """Path relative to the workspace → MD5 as in `dvc.lock`."""


def default_workspace(name: str) -> Path:
    """The workspace of a pipeline whose parameters are those of `pipelines.yaml`; DVC's own."""
    return RUNS / name


def workspace_of(name: str, *, overrides: Mapping[str, object], workspace: Path | None) -> Path:
    """The workspace of a run of pipeline `name`: `workspace`, if the run names one."""
    home = default_workspace(name)
    if workspace is not None or not overrides:
        return workspace or home
    text = json.dumps(dict(overrides), sort_keys=True)
    return home.with_name(f"{home.name}-{text_md5(text)[:8]}")


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

    def resolve(template: str | dict[str, object]) -> Path:
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
        keys += _undeclared_keys(stage_name, pipeline)
        stages[stage_name] = Stage(
            name=stage_name,
            workspace=workspace,
            command=_interpolate(body["cmd"], key=name, item=values),
            deps=tuple(resolve(dep) for dep in body["deps"]),
            params={key: lookup(values, key) for key in keys},
            outs=tuple(resolve(out) for kind in _OUTPUTS for out in body.get(kind, [])),
            is_resumable=any(map(_is_kept, body.get("outs", []))),
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


def check_written(stage: Stage, stages: Iterable[Stage]) -> None:
    """Raise `ConfigError` if an output of one of `stages` is missing that `stage` reads."""
    for writer in stages:
        for path in writer.outs:
            if path in stage.deps and not path.exists():
                raise ConfigError(
                    f"{path} is not there, and stage {stage.name} reads it; run the stage {writer.name} first"
                )


def has_inputs(stage: Stage) -> bool:
    """Whether everything that `stage` reads is there."""
    return all(dep.exists() or _is_of_hub(dep) for dep in stage.deps)


def stage_key(stage: Stage) -> str:
    """Hash of the contents of `stage`'s dependencies and of its parameters.

    Raises `ConfigError` for a missing dependency.
    """
    facts = json.dumps([stage.name, _relative_deps(stage, code=True), stage.params], sort_keys=True)
    return text_md5(facts)


def hash_deps(stage: Stage) -> dict[str, str]:
    """The hash of everything that `stage` reads. Raises `ConfigError` for a missing dependency."""
    return {str(dep): _input_md5(dep) for dep in stage.deps}


def _relative_deps(stage: Stage, *, code: bool) -> dict[str, str]:
    """The hashes of what `stage` reads: without `code`, not of the project's and the user's code.

    Paths in the workspace are relative to it, so that each workspace has the same keys.
    """
    return {
        str(relative_within(dep, stage.workspace)): _input_md5(dep)
        for dep in stage.deps
        if code or not (dep.parts[0] in CODE or dep in stage.user_code)
    }


def row_sources(params: Mapping[str, Any]) -> list[str]:
    """Where the user's own rows come from, by the parameters of a pipeline or a stage: files below `data/`,
    and data sets on a hub."""
    parts = params["data"]["parts"].values()
    return list(dict.fromkeys(source for part in parts for source in (part["train"], part["test"]) if source))


def cache_key(stage: Stage, key: str) -> str:
    """The name under which Prefect stores the receipt of a `stage` that has run on the inputs of `key`.

    It is the name of a file: that of a workspace whose path is too long for it is hashed.
    """
    path = str(stage.workspace.resolve())
    name = f"wingspan{path.replace('/', '-')}-{key}"
    return name if len(os.fsencode(name)) <= MAX_NAME_BYTES else f"wingspan-{text_md5(path)}-{key}"


def make_receipt(stage: Stage) -> Receipt:
    """Hash the outputs of `stage`, which has run. Raises `FileNotFoundError` for a missing one."""
    outputs = {str(out.relative_to(stage.workspace)): path_md5(out) for out in stage.outs}
    return Receipt(stage.name, outputs)


def find_difference(stage: Stage, receipt: Receipt) -> str | None:
    """How the outputs of `stage` differ from those of `receipt`; None if they do not."""
    outs = {str(out.relative_to(stage.workspace)): out for out in stage.outs}
    if outs.keys() != receipt.outputs.keys():
        return f"{STAGES_FILE} declares other outputs"
    for name, out in outs.items():
        if not out.exists():
            return f"{out} is missing"
        if path_md5(out) != receipt.outputs[name]:
            return f"{out} was changed"
    return None


def claim_checkpoints(train: Stage, *, if_changed: IfChanged) -> bool:
    """Clear `train/`, and with it the policy and its evaluation, unless it holds training to resume; returns
    whether it does.

    Training that was completed is done anew where its inputs or its code have changed. Training that was
    interrupted resumes with other code, as after the fix of a bug; what happens where its inputs have changed
    is for `if_changed` to say. Raises `ConfigError` as `check_resume`.
    """
    check_resume(train, if_changed=if_changed)
    if would_resume(train, if_changed=if_changed):
        for file in (train.workspace / "train").glob("*.jsonl"):
            drop_incomplete_line(file)
        _write_inputs(train)
        return True
    # First: without these, nothing of `train/` is resumed. In this order: if this process ends between the
    # two, a completed training is still marked as one.
    for mark in (INPUTS, FINISHED):
        (train.workspace / mark).unlink(missing_ok=True)
    shutil.rmtree(train.workspace / "train", ignore_errors=True)
    shutil.rmtree(train.workspace / "policy", ignore_errors=True)
    for name in (EVALUATION, OUTCOMES, EVALUATION_TRAJECTORIES):
        (train.workspace / name).unlink(missing_ok=True)
    _write_inputs(train)
    return False


def would_resume(stage: Stage, *, if_changed: IfChanged) -> bool:
    """Whether `stage` is training, and `train/` holds some that would be resumed.

    Raises `ConfigError` for a missing input.
    """
    if not stage.is_resumable:
        return False
    mark = stage.workspace / FINISHED
    if mark.exists():
        return mark.read_text() == stage_key(stage)
    changes = changed_inputs(stage)
    return changes is not None and (not changes or if_changed == "resume")


class _Inputs(TypedDict):
    """The content of `INPUTS`."""

    params: dict[str, Any]
    deps: dict[str, str]
    """File or folder → MD5."""
    rows: NotRequired[dict[str, str]]
    """The same of the user's rows."""


def check_resume(
    train: Stage, *, if_changed: IfChanged, items: Split | None = None, warmup: Stage | None = None
) -> None:
    """Raise `ConfigError` for an interrupted training with checkpoints, or offline with rounds, whose inputs
    have changed, where `if_changed` is to refuse; where it is to resume, only for rounds of another length
    and for more steps than there shall be.

    `items`: those of the pipeline now, before `prepare` has written them. `warmup`: the stage of that name,
    before it has run: with other parameters than in the last run here, training would start from another
    policy.
    """
    if if_changed == "restart" or (train.workspace / FINISHED).exists():
        return
    folder = train.workspace / "train"
    steps = complete_steps(folder / "checkpoints") or [result.last_step for result in read_rounds(folder)]
    if not steps:
        return
    if if_changed == "resume":
        _check_rounds(train, trained=steps[-1])
        return
    changes = changed_inputs(train, items=items)
    if changes is not None and warmup is not None:
        changes = [*_changed_warmup(warmup), *changes]
    if changes:
        raise ConfigError(
            f"{folder} has unfinished training (step {steps[-1]}) from other inputs: "
            f"{'; '.join(changes)}. Undo this, give another --workspace (a sweep: --folder), or choose: "
            "--if-changed restart deletes that training, --if-changed resume goes on with it"
        )


def _check_rounds(train: Stage, *, trained: int) -> None:
    """Raise `ConfigError` unless a training of `trained` steps can go on in the rounds of `train`: the
    checkpoints of ends of rounds that it did not have are gone."""
    inputs = _read_inputs(train)
    if inputs is None:
        return
    before, after = inputs["params"]["train"], train.params["train"]
    assert isinstance(after, dict)
    remedy = (
        "set that, give another --workspace (a sweep: --folder), or delete that training by --if-changed "
        "restart"
    )
    if before["steps_per_round"] != after["steps_per_round"]:
        raise ConfigError(
            f"train.steps_per_round {after['steps_per_round']}: the unfinished training in "
            f"{train.workspace / 'train'} has {before['steps_per_round']}, and can only be resumed with it; "
            f"{remedy}"
        )
    if trained > after["steps"]:
        raise ConfigError(
            f"train.steps {after['steps']}: the unfinished training in {train.workspace / 'train'} has "
            f"{trained} steps, and can only be resumed with as many or more; {remedy}"
        )


def changed_inputs(train: Stage, *, items: Split | None = None) -> list[str] | None:
    """What differs between the inputs of the training in `train/` and those of `train`, one line each.

    `items`: those that `prepare` would write now; they count where the user's rows have changed since. None
    if there is no record of the inputs. Raises `ConfigError` for a missing input.
    """
    before = _read_inputs(train)
    if before is None:
        return None
    after = _inputs(train)
    params_before, params_after = (dict(flat(inputs["params"], sep=".")) for inputs in (before, after))
    params = differing_values(params_before, params_after)
    changes = [f"{key}: {earlier} → {later}" for key, (earlier, later) in params.items()]
    deps_before, deps_after = before["deps"], after["deps"]
    rows_before, rows_after = before.get("rows", {}), after["rows"]
    if items is not None and rows_before != rows_after:
        deps_after |= {"data/train.jsonl": items_md5(items.train), "data/test.jsonl": items_md5(items.test)}
    changed_deps = [
        _describe_change(dep, *hashes) for dep, hashes in differing_values(deps_before, deps_after).items()
    ]
    # The cause before its effects; rows that give the same items change nothing. The folder of the rows
    # stands for other files there, such as images that they name.
    changed_rows = [path for path, md5 in rows_before.items() if md5 != rows_after.get(path, md5)]
    changed_rows = [path for path in changed_rows if path != DATA] or changed_rows
    causes = [_describe_change(path, rows_before[path], rows_after[path]) for path in changed_rows]
    return [*changes, *(causes if changed_deps else []), *changed_deps]


def _changed_warmup(warmup: Stage) -> list[str]:
    """The parameters of the block `warmup` that differ from those of the last run here, one line each."""
    try:
        recorded_params = read_lineage(warmup.workspace / LINEAGE).parameters
    except ConfigError:  # no record, or one of another version
        return []
    before, after = (
        dict(flat({"warmup": values.get("warmup")}, sep=".")) for values in (recorded_params, warmup.params)
    )
    changes = differing_values(before, after)
    return [f"{key}: {earlier} → {later}" for key, (earlier, later) in changes.items()]


def _describe_change(path: str, before: str | None, after: str | None) -> str:
    hashes = [md5 and md5.removeprefix("hub:")[:10] for md5 in (before, after)]
    if None in hashes:
        return f"{path} was {'added' if before is None else 'taken away'}"
    return f"{path} has other content (MD5 {hashes[0]} → {hashes[1]})"


def _read_inputs(train: Stage) -> _Inputs | None:
    file = train.workspace / INPUTS
    return read_as(_Inputs, file, remedy=f"restore it, or delete {file.parent} to train from the start")


def _write_inputs(train: Stage) -> None:
    write_atomically(train.workspace / INPUTS, json.dumps(_inputs(train), indent=1))


def _inputs(train: Stage) -> _Inputs:
    """The inputs as JSON has them, to be compared with the record of earlier ones."""
    files = [source for source in row_sources(train.params) if not source.startswith(HUB)]
    rows = {path: _input_md5(Path(path)) for path in (*files, *([DATA] if files else []))}
    inputs: _Inputs = json.loads(
        json.dumps({"params": train.params, "deps": _relative_deps(train, code=False), "rows": rows})
    )
    return inputs


def mark_finished(train: Stage, key: str) -> None:
    """Note that the training with `key` is complete."""
    write_atomically(train.workspace / FINISHED, key)


def _input_md5(path: Path) -> str:
    if path.exists():
        return path_md5(path)
    if _is_of_hub(path):
        return f"hub:{path}"  # of a model on the hub, only the name is hashed
    raise ConfigError(f"{path} is not there, and a stage reads it; first run the stage that writes it")


def _is_of_hub(path: Path) -> bool:
    """Whether the missing `path` may be the name of a model on a hub."""
    return not (path.parts[0] in (*CODE, DATA, str(RUNS)) or path.is_absolute() or path.suffix)


def _undeclared_keys(stage: str, pipeline: Pipeline) -> list[str]:
    """Parameters that `stage` uses and `dvc.yaml` does not name, because a pipeline need not have them: DVC
    refuses one that is not in the file."""
    if stage == "provision" and pipeline.servers:
        return ["servers"]
    if stage == "train" and pipeline.train.final_policy == BEST:
        return ["evaluate.temperature"]  # of the quick evaluations, which decide the policy
    return []


def _is_kept(out: object) -> bool:
    return isinstance(out, dict) and any(options.get("persist") for options in out.values())


def _interpolate(template: str, *, key: str, item: Mapping[str, object]) -> str:
    def value_of(match: re.Match[str]) -> str:
        expression = match[1]
        return key if expression == "key" else str(lookup(item, expression.removeprefix("item.")))

    return _EXPRESSION.sub(value_of, template)


def lookup(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; of an empty one, `values`. Raises `KeyError` or `TypeError` without one."""
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

    agent, modules, files = pipeline.agent, list[Path](), list[Path | None]()
    if "data" in stage.params:
        modules += environment_code(pipeline.data.envs)
        files += _data_set_receipts(pipeline)
    if "agent" in stage.params:
        modules += agent_code(agent)
        files += [agent.prompt, *(judge.prompt for judge in agent.judges.values())]
    if "train" in stage.params:
        algorithm = pipeline.train.algorithm
        modules += algorithm_code(algorithm)
        if isinstance(algorithm, OfflineAlgorithm):
            files += algorithm.data
        if isinstance(algorithm, Distillation) and isinstance(algorithm.teacher_source, Path):
            files.append(algorithm.teacher_source)
    code = drop_declared(dict.fromkeys(modules))
    return replace(stage, deps=stage.deps + code + drop_declared(files), user_code=code)


def _data_set_receipts(pipeline: Pipeline) -> list[Path]:
    """The receipts of the downloaded data sets of its environments: each has the checksums of the data set's
    files.

    Those that are made here follow from the code and from versions of packages.
    """
    specs = [get_env(env) for env in pipeline.data.envs if not is_user_env(env)]
    needs = [need for spec in specs for need in spec.requirements if isinstance(need, DataSet)]
    receipts = dict.fromkeys(need.folder / RECEIPT for need in needs if need.make is None)
    return [receipt for receipt in receipts if receipt.exists()]


def _without_warmup(stages: dict[str, Stage]) -> dict[str, Stage]:
    (folder,) = stages["warmup"].outs
    return {
        name: replace(stage, deps=tuple(dep for dep in stage.deps if dep != folder))
        for name, stage in stages.items()
        if name != "warmup"
    }
