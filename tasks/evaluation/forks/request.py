"""Checks the request for a fork, and finds the settings of its episodes: those of the trajectory's run."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import model_validator

from agents.clients.endpoint import Endpoint
from agents.huggingface.files import decoder
from agents.rollout.replay import Past
from agents.settings import Positive, Settings
from envs.errors import ConfigError
from tasks.cluster.memory import check_sampling
from tasks.config.environments import check_environments
from tasks.config.episodes import check_agent, reward_of
from tasks.config.pipelines import Pipeline
from tasks.data.items import evaluation_turns
from tasks.evaluation.forks.parents import Parent
from tasks.evaluation.forks.records import MAX_OBSERVATION, PERSON
from tasks.evaluation.models import NamedPolicy, SavedPolicy, find_policy
from tasks.evaluation.record import EvaluationRecord, is_record, read_record
from tasks.evaluation.request import EvaluationRequest, make_pipeline, recorded_settings
from tasks.runs.parameters import find_run_tokenizer
from tasks.runs.timestamps import now

_OF_POLICIES = ("policy", "step", "model", "api_key_from", "samples", "temperature", "seed")


class ForkRequest(Settings):
    """Who goes on from a turn, and how; None leaves a value to the run."""

    policy: str | None = None
    """The policy, as in `NamedPolicy`; None is the policy of the run."""
    step: int | None = None
    model: str | None = None
    api_key_from: str | None = None
    is_person: bool = False
    """Whether a person goes on, and no policy."""
    samples: Positive = 1
    temperature: float | None = None
    seed: int | None = None
    observation: str | None = None
    """Shown in place of that of the turn, which is then repeated as well."""
    max_turns: Positive | None = None
    """The limit of the whole episode."""
    pipeline: str | None = None
    overrides: Mapping[str, object] = {}

    @model_validator(mode="after")
    def _can_be_met(self) -> "ForkRequest":
        """Raises `ConfigError`."""
        for name in _OF_POLICIES:
            value = getattr(self, name)
            if self.is_person and value != ForkRequest.model_fields[name].default:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {value} is for policies, but a person goes on; leave it out"
                )
        if self.observation is not None and len(self.observation) > MAX_OBSERVATION:
            raise ConfigError(
                f"the observation has {len(self.observation)} characters; give at most {MAX_OBSERVATION}"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPlan:
    """A checked request."""

    parent: Parent
    past: Past
    pipeline: Pipeline
    policy: SavedPolicy | Endpoint | None
    """None is a person."""
    samples: int
    temperature: float
    max_turns: int
    labels: Mapping[str, str | float | bool]
    """The labels of the trajectories: their parent, and the policy that went on."""


def plan_fork(parent: Parent, turn: int, request: ForkRequest) -> ForkPlan:
    """Check a fork at `turn`, the first, from 1, that is not repeated, or the last that is if its observation
    is replaced.

    Agent, rollout settings and servers are those of the run, or of `request.pipeline`; temperature and turns
    of an evaluation's trajectory are those of its record. Raises `ConfigError` and `MissingDependency` before
    anything is started.
    """
    trajectory = parent.trajectory
    policy = None if request.is_person else _find_policy(parent, request)
    name, overrides = _settings(parent, request)
    given_temperature, given_turns = _find_given_values(parent, request)
    evaluation = EvaluationRequest(
        envs=(trajectory.item.env,),
        samples=request.samples,
        temperature=given_temperature,
        max_turns=given_turns,
        seed=request.seed,
        pipeline=name,
        overrides={**overrides, **request.overrides},
    )
    _, pipeline = make_pipeline(evaluation, policy)
    temperature = pipeline.evaluate.temperature if given_temperature is None else given_temperature
    if pipeline.agent.program is not None:
        raise ConfigError(
            f"agent.program {pipeline.agent.program!r} has no environment in which its episodes could be "
            "repeated"
        )
    part = pipeline.data.part_of(trajectory.item)
    if part is None:
        raise ConfigError(
            f"{parent.name}: {trajectory.item.item_id} belongs to no part of the pipeline's data; name the "
            "pipeline that it is of (--pipeline)"
        )
    check_environments(pipeline)
    check_agent(pipeline)
    if isinstance(policy, SavedPolicy):
        check_sampling(pipeline, policy.folder, episodes=request.samples, on_gpus=False)
    num_turns = turn - (request.observation is None)
    max_turns = given_turns or evaluation_turns(pipeline)[part]
    num_steps = sum(bool(past.action) or past.is_malformed for past in trajectory.turns[:num_turns])
    if num_steps >= max_turns:
        raise ConfigError(
            f"{parent.name}: an episode may have {max_turns} turns, and {num_steps} would be repeated; allow "
            "it more (--max-turns), or name an earlier turn"
        )
    past = Past(
        trajectory=trajectory,
        num_turns=num_turns,
        where=parent.name,
        observation=request.observation,
        has_tokens=_has_tokens(parent, policy),
        has_env_rewards=reward_of(pipeline.agent) is None,
        prompt=_recorded_prompt(parent),
    )
    past.check()
    return ForkPlan(
        parent=parent,
        past=past,
        pipeline=pipeline,
        policy=policy,
        samples=request.samples,
        temperature=temperature,
        max_turns=max_turns,
        labels=_labels(parent, turn, request, policy, temperature=temperature),
    )


def _find_policy(parent: Parent, request: ForkRequest) -> SavedPolicy | Endpoint:
    name = _policy_of_run(parent) if request.policy is None else request.policy
    options = request.model_dump(include={"step", "model", "api_key_from"})
    return find_policy(NamedPolicy(policy=name, **options))


def _policy_of_run(parent: Parent) -> str:
    run, remedy = parent.run, "name the policy that goes on (--policy)"
    if run.file is not None:
        raise ConfigError(f"{run.file} does not say which policy sampled it; {remedy}")
    record = _read_record(parent)
    if record is None:
        return str(run.folder)
    folder = record.policy.get("folder")
    if folder is None:
        raise ConfigError(f"{run.folder} is of an endpoint; {remedy}")
    return str(folder)


def _settings(parent: Parent, request: ForkRequest) -> tuple[str | None, Mapping[str, object]]:
    if request.pipeline is not None or parent.run.file is not None:
        return request.pipeline, {}
    if record := _read_record(parent):
        data = record.settings["data"]
        # No items are chosen here, and a pipeline whose parts are all for training alone would be refused.
        parts = {name: part | {"evaluate": True} for name, part in data["parts"].items()}
        return record.pipeline, record.settings | {"data": data | {"parts": parts}}
    return recorded_settings(parent.run.folder)


def _find_given_values(parent: Parent, request: ForkRequest) -> tuple[float | None, int | None]:
    """Temperature and turns that `request` gives, or else the record of the evaluation; None leaves them to
    the pipeline."""
    temperature, max_turns = request.temperature, request.max_turns
    record = None if request.pipeline is not None else _read_record(parent)
    if record is not None:
        item = parent.trajectory.item
        if temperature is None and not _overrides(request, "temperature") and not request.is_person:
            temperature = record.sampling.temperature
        if max_turns is None and not _overrides(request, "max_turns"):
            turns = {(outcome.env, outcome.item): outcome.max_turns for outcome in record.outcomes}
            max_turns = turns.get((item.env, item.item_id))
    return temperature, max_turns


def _overrides(request: ForkRequest, name: str) -> bool:
    """Whether `request` changes the pipeline's `evaluate.<name>`."""
    return not {"evaluate", f"evaluate.{name}"}.isdisjoint(request.overrides)


def _read_record(parent: Parent) -> EvaluationRecord | None:
    """The record of the evaluation that the trajectory is of; None of a run, and of a file by itself."""
    run = parent.run
    return read_record(run.folder) if run.file is None and is_record(run.folder) else None


def _labels(
    parent: Parent,
    turn: int,
    request: ForkRequest,
    policy: SavedPolicy | Endpoint | None,
    *,
    temperature: float,
) -> dict[str, str | float | bool]:
    labels: dict[str, str | float | bool] = {"parent": parent.address, "turn": turn}
    if policy is None:
        labels["policy"] = PERSON
    else:
        name = policy.model if isinstance(policy, Endpoint) else policy.name
        name = parent.run.name if request.policy is None else name
        step = policy.step if isinstance(policy, SavedPolicy) else None
        labels["policy"] = name if step is None else f"{name}, step {step}"
        labels["temperature"] = temperature
    if request.observation is not None:
        labels["observation"] = "replaced"
    # Each request is a group of its own: the same one again gives the same samples, which count once.
    return {**labels, "parent_digest": parent.digest, "forked_at": now()}


def _has_tokens(parent: Parent, policy: SavedPolicy | Endpoint | None) -> bool | None:
    if not isinstance(policy, SavedPolicy) or not parent.trajectory.prompt_ids:
        return False
    run_tokenizer, policy_tokenizer = find_run_tokenizer(parent.run), policy.folder / "tokenizer.json"
    is_same = (
        run_tokenizer is not None
        and policy_tokenizer.exists()
        and policy_tokenizer.read_bytes() == run_tokenizer.read_bytes()
    )
    return True if is_same else None


def _recorded_prompt(parent: Parent) -> str | None:
    tokenizer = find_run_tokenizer(parent.run)
    if tokenizer is None or not parent.trajectory.prompt_ids:
        return None
    return decoder(tokenizer.parent)(parent.trajectory.prompt_ids)
