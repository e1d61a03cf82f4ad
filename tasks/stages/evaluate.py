"""Stage `evaluate`: the policy before and after training, on the test split.

Each policy runs `samples_per_item` episodes of every test item at `evaluate.temperature` and a greedy one,
under the same limits. On a CPU each has a sampler in its own process, a fork of the fork server, and both are
evaluated at once unless environments are outside of the run; on GPUs verl's generation servers load one
policy after the other.
"""

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.types import Trajectory
from envs.errors import ConfigError, WingspanError, describe
from envs.files import write_json
from envs.types import Item
from tasks.cluster.session import LOGS
from tasks.config.environments import outside_envs
from tasks.config.pipelines import Pipeline
from tasks.data.items import evaluation_turns, read_items
from tasks.data.trajectories import write_trajectories
from tasks.evaluation.outcomes import EVALUATION, OUTCOMES, episodes_to_keep, successes_of, summarise_groups
from tasks.evaluation.pass_at_k import pass_rates
from tasks.evaluation.policy import open_policy
from tasks.rollout.spec import RolloutSpec
from tasks.runs.folders import EVALUATION_TRAJECTORIES
from tasks.runs.progress import SILENT, Progress, call_every
from tasks.runs.rounds import start_policy
from tasks.verl.cpu import fork_server
from tasks.verl.process import environment_of

if TYPE_CHECKING:
    from tasks.verl.servers import PolicyServers

POLL_S = 0.5
"""Time between two sums of the counts."""
_WAIT_S = 0.05
"""The time between two checks of the processes."""


def evaluate(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> None:
    """Write `evaluation.json`, `evaluation_outcomes.json` and `evaluation_trajectories.jsonl`.

    The first holds `{"before" | "after": {"sampled" | "greedy": <summarise_groups, pass_rates>}}`,
    with pass@k and pass^k of the sampled episodes as `pass_at_<k>` and `pass_hat_<k>`; the second, instead
    of a summary, `{<item>: [<success of each sample>]}`. The third holds, of every item, policy and mode, the
    trajectories of `episodes_to_keep`; their `labels` name policy and mode. Policy versions are training
    steps: 0 before, those of the whole training after, although `train.final_policy: best` may be older. A
    terminal shows episodes of the trained policy. Raises `ConfigError` for a missing policy.
    """
    items = read_items(workspace / "data" / "test.jsonl", data=pipeline.data)
    policies = (
        _Policy(index=0, name="before", model=start_policy(pipeline, workspace), version=0),
        _Policy(index=1, name="after", model=workspace / "policy", version=pipeline.train.steps),
    )
    for policy in policies:
        if isinstance(policy.model, Path) and not (policy.model / "config.json").exists():
            raise ConfigError(
                f"no model in {policy.model}; run the stage that writes it, warmup or train, first"
            )
    total = len(policies) * len(items) * (pipeline.evaluate.samples_per_item + 1)
    with tempfile.TemporaryDirectory() as folder:
        counts_file = Path(folder) / "counts"
        counts = np.memmap(counts_file, dtype=np.int64, mode="w+", shape=(len(policies),))
        logs = workspace / LOGS
        work = partial(_evaluate_policy, pipeline, items, logs, progress.episode_file, counts_file)
        with _report_episodes(counts, total, progress):
            if pipeline.backend.device == "cpu":
                progress.on_phase("starting the samplers and the environments")
                # Each process may have `rollout.max_live_envs`, which servers outside of the run serve once.
                batches = [[policy] for policy in policies] if outside_envs(pipeline) else [policies]
                results = [
                    result
                    for batch in batches
                    for result in _in_parallel(work, batch, folder=Path(folder), pipeline=pipeline)
                ]
            else:
                from tasks.verl.servers import open_servers

                progress.on_phase("starting the servers")
                with open_servers(pipeline, logs=logs) as servers:
                    results = [work(policy, servers) for policy in policies]
    named_results = {policy.name: result for policy, result in zip(policies, results, strict=True)}
    write_trajectories(
        workspace / EVALUATION_TRAJECTORIES, [t for result in results for t in result.examples]
    )
    outcomes = {name: result.successes for name, result in named_results.items()}
    write_json(workspace / OUTCOMES, outcomes, indent=None)
    write_json(workspace / EVALUATION, {name: result.summaries for name, result in named_results.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    index: int
    name: str
    model: Path | str
    version: int


@contextmanager
def _report_episodes(counts: "np.memmap[Any, Any]", total: int, progress: Progress) -> Iterator[None]:
    """While the context is open, report the sum of `counts` whenever it has grown."""
    before = 0

    def report() -> None:
        nonlocal before
        if (done := int(counts.sum())) > before:
            progress.on_episodes(done, total)
            before = done

    try:
        with call_every(report, interval_s=POLL_S, name="episodes"):
            yield
    finally:
        report()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """Results of one policy, by mode, and the trajectories to write."""

    summaries: dict[str, dict[str, float]]
    successes: dict[str, dict[str, list[bool]]]
    examples: list[Trajectory]


def _in_parallel(
    work: Callable[[_Policy], _Evaluation], policies: Sequence[_Policy], *, folder: Path, pipeline: Pipeline
) -> list[_Evaluation]:
    """Call `work` for every policy in its own process, one core each; no process outlives the call. What they
    are told and what they answer is in files in `folder`."""
    command = [*fork_server.interpreter_command(), "-m", __name__]
    files = [folder / policy.name for policy in policies]
    processes: dict[Path, subprocess.Popen[bytes]] = {}
    evaluations: dict[Path, _Evaluation] = {}
    try:
        for file, policy in zip(files, policies, strict=True):
            file.write_bytes(pickle.dumps((work, policy)))
            processes[file] = subprocess.Popen(
                [*command, str(file)],
                env=os.environ | environment_of(pipeline),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only this process, which then kills them
            )
        while len(evaluations) < len(policies):
            time.sleep(_WAIT_S)
            for file in processes.keys() - evaluations.keys():
                if processes[file].poll() is not None:
                    evaluations[file] = _read_answer(file)
        return [evaluations[file] for file in files]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        fork_server.close()


def answer(file: Path) -> None:
    """Do what `file` says, and write the result or the exception beside it."""
    work, policy = pickle.loads(file.read_bytes())
    try:
        result: _Evaluation | Exception = work(policy)
    except Exception as error:
        result = _portable(error)
        result.add_note(traceback.format_exc())  # pickling drops the traceback
    _answer_file(file).write_bytes(pickle.dumps(result))


def _portable(error: Exception) -> Exception:
    """The error, or its text if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WingspanError(f"evaluation: {describe(error)}")
    return error


def _read_answer(file: Path) -> _Evaluation:
    try:
        result: _Evaluation | Exception = pickle.loads(_answer_file(file).read_bytes())
    except (FileNotFoundError, EOFError, pickle.UnpicklingError):
        raise WingspanError("evaluation: a process died; it may have run out of memory") from None
    if isinstance(result, Exception):
        raise result
    return result


def _answer_file(file: Path) -> Path:
    return file.with_suffix(".answer")


def _evaluate_policy(
    pipeline: Pipeline,
    items: Sequence[Item],
    logs: Path,
    episode_file: Path | None,
    counts_file: Path,
    policy: _Policy,
    servers: "PolicyServers | None" = None,
) -> _Evaluation:
    """`counts_file`: finished episodes by policy index, in memory that the processes share."""
    counts = np.memmap(counts_file, dtype=np.int64, mode="r+")
    settings, turns = pipeline.evaluate, evaluation_turns(pipeline)
    results = _Evaluation(summaries={}, successes={}, examples=[])

    def count(_: Trajectory) -> None:
        counts[policy.index] += 1

    with open_policy(
        pipeline,
        model=str(policy.model),
        logs=logs,
        on_trajectory=count,
        episode_file=episode_file if policy.name == "after" else None,
        servers=servers,
    ) as run:
        for mode, temperature in {"sampled": settings.temperature, "greedy": 0.0}.items():
            num_samples = settings.samples_per_item if mode == "sampled" else 1
            spec = RolloutSpec(name=mode, max_turns=turns, num_samples=num_samples, temperature=temperature)
            groups = run(items, spec)
            results.summaries[mode] = summarise_groups(groups) | pass_rates(groups)
            results.successes[mode] = successes_of(groups)
            results.examples.extend(
                _label(trajectory, policy=policy.name, mode=mode, version=policy.version)
                for group in groups
                for trajectory in episodes_to_keep(group)
            )
    return results


def _label(trajectory: Trajectory, *, policy: str, mode: str, version: int) -> Trajectory:
    # A sampler that was started from a policy's files counts its versions from 0.
    turns = tuple(
        replace(turn, completion=replace(turn.completion, policy_version=version))
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=turns, labels={"policy": policy, "mode": mode})


def _leave() -> None:
    """End this process and leave its memory to the kernel: a fork that takes its interpreter down copies what
    it shares with the fork server, for seconds."""
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    from tasks.stages import evaluate as this_module  # what it pickles is found by this name

    atexit.register(_leave)  # runs after the handlers that the work registers; earlier ones never run
    try:
        this_module.answer(Path(sys.argv[1]))
    except BaseException:
        atexit.unregister(_leave)  # its status is that of success
        raise
