"""Records the lineage of a run while its stages work: `lineage.json` in the workspace, and `code.patch`.

Leaves out MLflow: `tasks/tracking/tracker.py` sends it `lineage.json`. A run whose stages
are all up to date records nothing: the lineage is that of the run that made the outputs.
"""

import hashlib
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from envs.errors import ConfigError
from envs.redaction import redact
from envs.registry import get_env
from envs.requirements.data_sets import RECEIPT, DataSet
from flows.lineage.stages import Receipt, Stage, hash_deps, row_sources
from flows.plan import Plan
from tasks.config.data import FOLDER as DATA
from tasks.config.data import HUB
from tasks.config.pipelines import Pipeline
from tasks.config.user_code import CODE, environment_code
from tasks.data.hashes import path_md5
from tasks.runs.provenance import (
    describe_machine,
    head_commit,
    installed_packages,
    make_patch,
    uncommitted_files,
)
from tasks.tracking.lineage_record import (
    LINEAGE,
    OF_HUB,
    PATCH,
    CodeVersion,
    EnvironmentRecord,
    LineageRecord,
    StageRecord,
    read_lineage,
)


class Recorder:
    """Writes the lineage of one run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._code: CodeVersion | None = None

    def begin(self, stage: Stage, *, key: str, is_resumed: bool) -> None:
        """Record what `stage` reads, whose hash is `key`; `is_resumed`: it goes on with the work of earlier
        attempts.
        """
        earlier = self._read()
        record = self._describe(earlier)
        earlier_codes: tuple[CodeVersion, ...] = ()
        servers: dict[str, tuple[str, ...]] = {}
        if "rollout" in stage.params:  # it runs the agent's episodes
            settings = self._plan.pipeline.servers
            servers = {env: tuple(env_settings.recorded_urls) for env, env_settings in settings.items()}
        if is_resumed and (attempt := earlier.stages.get(stage.name) if earlier else None):
            earlier_codes = tuple(dict.fromkeys((*attempt.resumed, attempt.code)))
            for env, urls in attempt.servers.items():
                servers[env] = tuple(dict.fromkeys((*urls, *servers.get(env, ()))))
        entry = StageRecord(
            key=key,
            code=record.code,
            resumed=tuple(code for code in earlier_codes if code != record.code),
            params=tuple(stage.params),
            reads=hash_deps(stage),
            servers=servers,
        )
        self._write(record, stage=stage.name, entry=entry)

    def finish(self, receipt: Receipt) -> None:
        """Record what the stage of `receipt` wrote."""
        record = self._read()
        if record is None or receipt.stage not in record.stages:
            return
        entry = record.stages[receipt.stage].model_copy(update={"writes": dict(receipt.outputs)})
        self._write(record, stage=receipt.stage, entry=entry)

    def accept(self, receipt: Receipt) -> None:
        """Remove the record if it is not of the outputs of `receipt`, which DVC has brought here."""
        record = self._read()
        entry = record.stages.get(receipt.stage) if record else None
        if entry is not None and entry.writes != receipt.outputs:
            (self._plan.workspace / LINEAGE).unlink()

    def _read(self) -> LineageRecord | None:
        file = self._plan.workspace / LINEAGE
        try:
            return read_lineage(file) if file.exists() else None
        except ConfigError:  # of another version; it is replaced
            return None

    def _write(self, record: LineageRecord, *, stage: str, entry: StageRecord) -> None:
        stages = {**record.stages, stage: entry}
        ordered_stages = {name: stages[name] for name in self._plan.stages if name in stages}
        items = _count_items(self._plan.workspace)
        record.model_copy(update={"stages": ordered_stages, "items": items}).write(self._plan.workspace)

    def _describe(self, earlier: LineageRecord | None) -> LineageRecord:
        """The present record, with the earlier entries of its stages."""
        plan, pipeline = self._plan, self._plan.pipeline
        data = data_hashes(pipeline, plan.stages)
        patch_md5 = earlier.patch_md5 if earlier else None
        if self._code is None:
            files = uncommitted_files(leave_out=[*map(Path, data)])
            patch = (make_patch(files) if files else None) or None
            self._code = CodeVersion(
                commit=head_commit(),
                uncommitted=None if files is None else tuple(files),
                changes_md5=None if patch is None else _md5(patch),
            )
            patch_md5 = self._write_patch(patch)
        return LineageRecord(
            pipeline=plan.name,
            workspace=str(plan.workspace),
            overrides=dict(plan.overrides),
            parameters=pipeline.model_dump(mode="json"),
            code=self._code,
            patch_md5=patch_md5,
            python=platform.python_version(),
            machine=describe_machine(),
            packages=installed_packages(),
            environments={env: describe_environment(env) for env in pipeline.data.envs},
            data=data,
            prompts=_hash_all(prompt_files(pipeline)),
            stages=earlier.stages if earlier else {},
        )

    def _write_patch(self, patch: bytes | None) -> str | None:
        """The MD5 of the file; None if there is no patch, or if it would hold a secret."""
        file = self._plan.workspace / PATCH
        file.unlink(missing_ok=True)
        if patch is None or redact(text := patch.decode(errors="surrogateescape")) != text:
            return None
        file.write_bytes(patch)
        return _md5(patch)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def data_hashes(pipeline: Pipeline, stages: Mapping[str, Stage]) -> dict[str, str]:
    """The inputs of the stages that are neither code nor written by a stage: file or folder → hash. Of the
    user's data, only the files that `pipeline` names."""
    outs = {out for stage in stages.values() for out in stage.outs}
    prompts = set(prompt_files(pipeline))
    sources = [
        dep
        for stage in stages.values()
        for dep in stage.deps
        if dep not in outs
        and dep not in prompts
        and dep not in stage.user_code
        and dep.parts[0] not in CODE
        and dep != Path(DATA)
        and dep.name not in ("constraints.txt", RECEIPT)  # in Git; with the environments
    ]
    params = pipeline.model_dump(mode="json", include={"data"})
    hub = {source: OF_HUB + source for source in row_sources(params) if source.startswith(HUB)}
    files = [Path(source) for source in row_sources(params) if source not in hub]
    return _hash_all(dict.fromkeys((*files, *sources))) | hub


def prompt_files(pipeline: Pipeline) -> list[Path]:
    """The files of prompts that `pipeline` names."""
    agent = pipeline.agent
    files = [agent.prompt, *(judge.prompt for judge in agent.judges.values())]
    return [file for file in files if file is not None]


def _hash_all(paths: Iterable[Path]) -> dict[str, str]:
    return {str(path): path_md5(path) if path.exists() else f"{OF_HUB}{path}" for path in paths}


def describe_environment(name: str) -> EnvironmentRecord:
    """The versions and the code of the environment `name`, and its data sets that are here."""
    spec = get_env(name)
    packages = {}
    for package in spec.packages:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue  # it runs on another machine
    receipts = {need.name: need.folder / RECEIPT for need in spec.requirements if isinstance(need, DataSet)}
    data_sets = {data_set: path_md5(file) for data_set, file in receipts.items() if file.exists()}
    code = _hash_all(path for path in environment_code([name]) if path.parts[0] not in CODE)
    return EnvironmentRecord(packages=packages, data_sets=data_sets, code=code)


def _count_items(workspace: Path) -> dict[str, int]:
    files = {split: workspace / "data" / f"{split}.jsonl" for split in ("train", "test")}
    return {split: file.read_bytes().count(b"\n") for split, file in files.items() if file.exists()}
