"""Evaluates any policy on any environment: `wingspan evaluate`, and the flow `evaluate-policy`."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from agents.clients.endpoint import ChatClient, Endpoint
from agents.samplers.local import LocalModel
from agents.types import Trajectory
from envs.errors import ConfigError
from envs.files import check_writable, drop_incomplete_line, write_atomically
from tasks.cluster.memory import check_sampling
from tasks.cluster.session import LOGS
from tasks.config.environments import check_environments
from tasks.config.episodes import check_agent
from tasks.data.files import check_data
from tasks.data.hashes import path_md5, text_md5
from tasks.data.items import item_to_json
from tasks.data.trajectories import read_trajectories, trajectory_to_dict, write_trajectories
from tasks.evaluation.models import SavedPolicy, identify_endpoint
from tasks.evaluation.policy import open_policy
from tasks.evaluation.record import EvaluationRecord, Sampling, is_record, read_record
from tasks.evaluation.request import EvaluationPlan, EvaluationRequest, make_evaluation
from tasks.evaluation.summary import outcome_of, results_of
from tasks.rollout.spec import get_max_turns
from tasks.runs.folders import FLOW_RUN, LOCK, RUNS, TRAJECTORIES, UNRECORDED
from tasks.runs.progress import SILENT, Progress
from tasks.runs.provenance import provenance, uncommitted_files

MAX_HASHED_BYTES = 100_000_000
"""Bytes of an uncommitted file; a larger one is known by its size and time."""
_PARTIAL = f"{TRAJECTORIES}.*.partial"
"""The episodes that have ended of an evaluation that has not; `*` is the hash of its inputs."""
_UNKNOWN = ""
"""Key of the hash of code that is not known."""
_NO_CODE = (".git", "__pycache__")
"""What a repository within this one has besides its code."""


def plan_evaluation(
    request: EvaluationRequest, policy: SavedPolicy | Endpoint, *, out: Path
) -> EvaluationPlan:
    """The plan of `request`, after all checks that need no episode.

    Raises `ConfigError` and `MissingDependency`.
    """
    plan = make_evaluation(request, policy)
    check_data(plan.pipeline.data)
    check_environments(plan.pipeline)
    check_agent(plan.pipeline)
    _check_folder(out)
    check_writable(out, remedy="choose another --out")
    if isinstance(policy, SavedPolicy):
        LocalModel(policy.folder).check()
        check_sampling(
            plan.pipeline,
            policy.folder,
            episodes=len(plan.items) * plan.spec.num_samples,
            on_gpus=plan.pipeline.backend.rollout == "vllm",
        )
    else:
        asyncio.run(ChatClient(policy).check())
    return plan


def evaluate_policy(
    plan: EvaluationPlan,
    policy: SavedPolicy | Endpoint,
    *,
    out: Path,
    is_tracked: bool = False,
    progress: Progress = SILENT,
) -> EvaluationRecord:
    """Run the episodes of `plan` and write `record.json` and `trajectories.jsonl` to `out`.

    Each episode is appended to a partial file as it ends, which replaces the trajectories of an earlier
    evaluation when all have ended. A call that was stopped or killed leaves the partial file, and the next
    call runs the rest; on the CPU to the same episodes, whose random numbers do not depend on each other. A
    failed episode is counted and is no outcome; one in a partial file is run again. The record's seconds are
    those of the last call.

    `is_tracked`: the caller will call `record_evaluation` (`tasks/tracking/evaluations.py`). Until that has
    succeeded, the next call with the same arguments returns the finished record and runs nothing.
    """
    total, start = len(plan.items) * plan.spec.num_samples, time.perf_counter()
    identity = dict(identify_endpoint(policy) if isinstance(policy, Endpoint) else policy.identify())
    out.mkdir(parents=True, exist_ok=True)
    unrecorded = out / UNRECORDED
    # Not the code: the record names its own.
    finished = _hash_inputs(plan, [identity, plan.split, plan.source, plan.ks])
    is_finished = unrecorded.exists() and unrecorded.read_text() == finished and not any(out.glob(_PARTIAL))
    if is_tracked and is_finished and is_record(out):
        progress.on_note("the evaluation has finished, and is only recorded in MLflow")
        return read_record(out)
    unrecorded.unlink(missing_ok=True)
    uncommitted = uncommitted_files(leave_out=[out])  # `out` may be in the repository
    facts = provenance(envs=plan.pipeline.data.envs, uncommitted=uncommitted)
    code = _hash_code(uncommitted, progress=progress)
    incomplete = _partial_file(_hash_inputs(plan, [identity, facts, code]), out)
    if _delete_other_partials(incomplete) and _UNKNOWN not in code:
        progress.on_note(
            "begins anew: an interrupted evaluation in this folder was of another policy, other items, "
            "settings or versions, or other code"
        )
    finished_samples = _read_partial(incomplete, plan)
    done = len(finished_samples)
    if finished_samples:
        progress.on_note(f"resumes: {done} of {total} episodes had ended")

    def end(trajectory: Trajectory) -> None:
        nonlocal done
        done += 1
        file.write(json.dumps(trajectory_to_dict(trajectory)) + "\n")
        progress.on_episodes(done, total)

    model = policy if isinstance(policy, Endpoint) else str(policy.folder)
    sampler = "" if isinstance(policy, Endpoint) else "the sampler and "
    progress.on_phase(f"starting {sampler}the environments")
    with (
        open_policy(plan.pipeline, model=model, logs=out / LOGS, on_trajectory=end) as run,
        incomplete.open("a", buffering=1) as file,  # a line at a time, which a kill leaves
    ):
        groups = run(plan.items, replace(plan.spec, finished_samples=finished_samples))
    record = _make_record(plan, identity, facts, groups, seconds=time.perf_counter() - start)
    record.write(out)
    if is_tracked:
        write_atomically(unrecorded, finished)
    incomplete.replace(out / TRAJECTORIES)  # last: until then, the next call can write the record
    return record


def _check_folder(out: Path) -> None:
    """Raise `ConfigError` unless `out` is missing, empty, or the folder of an evaluation."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set[str]()
    is_evaluation = is_record(out) or any(out.glob(_PARTIAL)) or names <= {LOCK, FLOW_RUN, LOGS}
    if not is_evaluation:
        raise ConfigError(f"folder {out} holds files of something else; give an empty one or a new name")


def _hash_code(uncommitted: Sequence[str] | None, *, progress: Progress) -> dict[str, str]:
    """Return the hash of each uncommitted file; a deleted file has that of an empty folder.

    If a file is unknown or unreadable, return a random hash, so that nothing is resumed.
    """
    reason = "Git does not list the uncommitted files"
    try:
        if uncommitted is not None:
            return {file: _hash_path(Path(file)) for file in uncommitted}
    except OSError as error:
        reason = f"{error.filename or 'an uncommitted file'} cannot be read ({error.strerror})"
    progress.on_note(f"{reason}, so this evaluation begins anew and cannot be resumed; check `git status`")
    return {_UNKNOWN: secrets.token_hex()}


def _hash_path(path: Path) -> str:
    """Return the hash of an uncommitted file; of a link, its target's path, and of a file of more than
    `MAX_HASHED_BYTES`, its size and time; of a repository within this one, the hash of its code.

    Raises `OSError`.
    """
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.name not in _NO_CODE]
        return text_md5(json.dumps({file.name: _hash_path(file) for file in files}))
    if path.is_file() and (status := path.stat()).st_size > MAX_HASHED_BYTES:
        return f"{status.st_size} bytes, {status.st_mtime_ns} ns"
    return path_md5(path)


def _hash_inputs(plan: EvaluationPlan, origins: Sequence[object]) -> str:
    """The MD5 of what decides the episodes, or the record: `plan`, and `origins`, such as the policy and the
    code."""
    inputs = [asdict(plan.spec), _items_md5(plan), plan.pipeline.model_dump(mode="json"), *origins]
    return text_md5(json.dumps(inputs, sort_keys=True))


def _partial_file(digest: str, out: Path) -> Path:
    """The file of the episodes that have ended of the inputs with this `digest`."""
    return out / _PARTIAL.replace("*", digest[:8])


def _delete_other_partials(file: Path) -> bool:
    """Delete the episodes of other inputs in the folder of `file`; returns whether there were any."""
    others = [other for other in file.parent.glob(_PARTIAL) if other != file]
    for other in others:
        other.unlink()
    return bool(others)


def _read_partial(file: Path, plan: EvaluationPlan) -> dict[tuple[int, int], Trajectory]:
    """The episodes in `file` that did not fail, by the index of their item and of their sample; what else it
    holds is removed from it."""
    if not file.exists():
        return {}
    drop_incomplete_line(file)
    trajectories = [trajectory for trajectory in read_trajectories(file) if not trajectory.has_failed]
    write_trajectories(file, trajectories)
    indices = {(item.env, item.item_id): index for index, item in enumerate(plan.items)}
    return {
        (indices[trajectory.item.env, trajectory.item.item_id], trajectory.sample_index): trajectory
        for trajectory in trajectories
    }


def _make_record(
    plan: EvaluationPlan,
    identity: dict[str, object],
    facts: dict[str, str],
    groups: Sequence[Sequence[Trajectory]],
    *,
    seconds: float,
) -> EvaluationRecord:
    """The record of the episodes `groups`, a group for each item of `plan`, with the policy of `identity` and
    the code of `facts`."""
    pipeline, spec = plan.pipeline, plan.spec
    outcomes = [
        outcome_of(group, max_turns=get_max_turns(item, pipeline, spec))
        for item, group in zip(plan.items, groups, strict=True)
    ]
    values = pipeline.model_dump(mode="json")
    rollout = pipeline.rollout
    return EvaluationRecord(
        policy=identity,
        split=plan.split,
        split_seed=pipeline.data.split_seed,
        seed=plan.seed,
        sampling=Sampling(
            samples=spec.num_samples,
            temperature=spec.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            max_tokens_per_turn=rollout.max_tokens_per_turn,
            context_length=rollout.context_length,
        ),
        pipeline=plan.source,
        settings={block: values[block] for block in ("data", "agent", "servers", "rollout")},
        items_md5=_items_md5(plan),
        provenance=facts,
        seconds=seconds,
        outcomes=outcomes,
        results=results_of(outcomes, samples=spec.num_samples, ks=plan.ks),
    )


def _items_md5(plan: EvaluationPlan) -> str:
    return text_md5("\n".join(map(item_to_json, plan.items)))


def default_folder(policy: SavedPolicy | Endpoint, request: EvaluationRequest) -> Path:
    """Where an evaluation is written unless `--out` says otherwise: one folder for one policy and request."""
    identity = [policy.url, policy.model] if isinstance(policy, Endpoint) else [policy.name, policy.step]
    values = {name: getattr(request, name) for name in EvaluationRequest.model_fields}
    text = json.dumps([identity, values], sort_keys=True, default=dict)
    digest = text_md5(text)[:8]
    label = policy.model if isinstance(policy, Endpoint) else policy.name
    name = "-".join(_slug(part) for part in (label, *request.envs))
    return RUNS / "evaluations" / f"{name[:80]}-{digest}"


def _slug(text: str) -> str:
    safe_text = "".join(character if character.isalnum() else "-" for character in text)
    return "-".join(filter(None, safe_text.split("-")))
