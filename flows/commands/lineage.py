"""`wingspan lineage`: what a model was made from, by the lineage that its run has recorded."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.config.parameters import flat
from tasks.config.user_code import CODE
from tasks.data.hashes import path_md5
from tasks.reporting.pages import format_count
from tasks.reporting.reproduction import shorten
from tasks.runs.folders import relative_within
from tasks.runs.provenance import PACKAGES, dirty_tag
from tasks.tracking.lineage_record import CodeVersion, StageRecord
from tasks.tracking.references import FoundRun, Registration, test_of

STAGE_COLUMNS = ("stage", "", "file or folder", "commit or MD5")
_BUILT_IN = "part of that code"
_CHANGES = {"false": "", "true": " + changes", "unknown": " + unknown changes"}


def describe(run: FoundRun, registration: Registration | None, *, has_answer: bool) -> dict[str, object]:
    """The whole lineage, for programs.

    `has_answer`: whether MLflow has answered; if not, `versions` is None.
    """
    versions = [
        {"name": v.name, "version": str(v.version), "aliases": list(v.aliases), "test": test_of(v)}
        for v in (registration.versions if registration else ())
    ]
    return {
        "reference": run.reference,
        "folder": str(run.folder) if run.is_workspace else None,
        "mlflow_run": run.run_id,
        "state": registration and registration.state,
        "versions": versions if has_answer else None,
        "is_unchanged": is_unchanged(run),
        "lineage": run.lineage.model_dump(mode="json"),
    }


def fact_rows(run: FoundRun, registration: Registration | None) -> Iterator[tuple[str, str]]:
    """Names and values, for people."""
    lineage = run.lineage
    state = "" if registration is None else f", {registration.state}"
    yield "run", f"{lineage.workspace}, pipeline {lineage.pipeline}{state}"
    if run.run_id is not None:
        yield "MLflow run", run.run_id
    is_same = is_unchanged(run)
    if is_same is not None:
        yield run.reference, "as the run wrote it" if is_same else "CHANGED since the run wrote it"
    for version in registration.versions if registration else ():
        aliases = f" ({', '.join(version.aliases)})" if version.aliases else ""
        yield "model", f"models:/{version.name}/{version.version}{aliases}"
        if test := test_of(version):
            yield "tested", _format_test(test)
    yield "code", format_code(lineage.code)
    if lineage.code.uncommitted:
        patch = "in code.patch" if lineage.patch_md5 else "not recorded"
        yield "patch", f"{patch}; files: {', '.join(lineage.code.uncommitted)}"
    yield "seed", str(lineage.seed)
    writes = lineage.stages["prepare"].writes if "prepare" in lineage.stages else {}
    for split, count in lineage.items.items():
        yield f"items, {split}", f"{count}, MD5 {writes.get(f'data/{split}.jsonl', 'unknown')}"
    for path, md5 in lineage.data.items():
        yield "data", f"{path}, {md5 if ':' in md5 else f'MD5 {md5}'}"
    for path, md5 in lineage.prompts.items():
        yield "prompt", f"{path}, MD5 {md5}"
    if not lineage.prompts:
        yield "prompts", _BUILT_IN
    for env, record in lineage.environments.items():
        parts = [f"code {path}, MD5 {md5}" for path, md5 in record.code.items()]
        parts += [f"{name} {version}" for name, version in record.packages.items()]
        parts += [f"data set {name}, receipt MD5 {md5}" for name, md5 in record.data_sets.items()]
        yield "environment", f"{env}: {', '.join(parts) or _BUILT_IN}"
    for name, stage in lineage.stages.items():
        for env, urls in stage.servers.items():
            yield f"servers, {name}", f"{env}: {', '.join(urls)}"
    versions = [f"{name} {lineage.packages[name]}" for name in PACKAGES if name in lineage.packages]
    yield "packages", f"Python {lineage.python}, {', '.join(versions)}; {len(lineage.packages)} in all"
    yield "machine", lineage.machine
    overrides = ", ".join(f"{key}={value}" for key, value in flat(lineage.overrides, sep="."))
    yield "parameters", f"pipelines.yaml of that code, and {overrides or 'nothing else'}"


def stage_rows(run: FoundRun) -> Iterator[tuple[str, ...]]:
    """The rows by `STAGE_COLUMNS`: the code of each stage, then one for each file that it reads or writes."""
    workspace = Path(run.lineage.workspace)
    for name, stage in run.lineage.stages.items():
        code = [path for path in stage.reads if Path(path).parts[0] in CODE]
        amount = "1 file or folder" if len(code) == 1 else f"{len(code)} files and folders"
        yield name, "code", amount, _commits(stage)
        for path, md5 in stage.reads.items():
            if path not in code:
                yield name, "reads", str(relative_within(Path(path), workspace)), shorten(md5)
        for path, md5 in stage.writes.items():
            yield name, "writes", path, shorten(md5)
        if not stage.writes:
            yield name, "writes", "unfinished", ""


def is_unchanged(run: FoundRun) -> bool | None:
    """Whether the folder still holds what a stage wrote there; None if no stage wrote this folder."""
    path = Path(run.reference)
    if not run.is_workspace or not path.exists():
        return None
    writes = {out: md5 for stage in run.lineage.stages.values() for out, md5 in stage.writes.items()}
    md5 = writes.get(str(path.resolve().relative_to(run.folder.resolve())))
    return None if md5 is None else path_md5(path) == md5


def format_code(code: CodeVersion) -> str:
    """The state of the code in words."""
    if code.commit is None:
        return "outside of a Git repository, or before its first commit"
    if code.uncommitted is None:
        return f"commit {code.commit}; whether all code was committed is unknown"
    changes = f", and {format_count(len(code.uncommitted), 'uncommitted file')}" if code.uncommitted else ""
    return f"commit {code.commit}{changes}"


def _format_test(test: Mapping[str, str]) -> str:
    if "difference" not in test:
        return f"against {test.get('against', 'nothing')}"
    return (
        f"against {test['against']}: {test['difference']} success (95% interval {test['interval']}), "
        f"p = {test['p_value']}, {test['items']} items"
    )


def _commits(stage: StageRecord) -> str:
    return ", then ".join(
        f"{(code.commit or 'no commit')[:10]}{_CHANGES[dirty_tag(code.uncommitted)]}"
        for code in (*stage.resumed, stage.code)
    )
