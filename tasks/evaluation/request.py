"""What `wingspan evaluate` is asked, and the pipeline that it becomes.

Episodes are run by a pipeline's runner. An evaluation has a pipeline of its own: with the agent, the rollout
settings and the servers of another one, or with defaults, and with parts for the environments in question. It
is never trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, model_validator

from agents.clients.endpoint import Endpoint
from agents.formats import FORMATS
from agents.settings import Positive, Settings
from agents.types import EpisodeLimits
from envs.errors import ConfigError
from envs.files import read_path
from envs.registry import Split, get_env
from envs.types import Item
from tasks.config.data import PartSettings
from tasks.config.parameters import read_changes, read_pipeline_name
from tasks.config.pipelines import Pipeline, load_pipeline, parse_pipeline
from tasks.data.items import check_split, evaluation_turns, split, spread
from tasks.evaluation.models import NamedPolicy, SavedPolicy
from tasks.evaluation.pass_at_k import default_ks
from tasks.rollout.spec import RolloutSpec
from tasks.runs.parameters import recorded_parameters

MAX_TURNS = 20
"""The limit without a pipeline."""
_LIMITS = EpisodeLimits()
_BLOCKS = ("agent", "rollout", "evaluate", "servers")
"""What is taken from the pipeline of a run, besides `data`."""


class EvaluationRequest(Settings):
    """Which episodes to run, and with which settings; None leaves a value to the pipeline or the default."""

    envs: tuple[str, ...]
    where: Mapping[str, Sequence[str | int | float]] = {}
    """Metadata key → the values to select."""
    split: str = "test"
    items: Positive | None = None
    """How many items, evenly over their order; None takes all."""
    samples: Positive = 1
    ks: tuple[int, ...] | None = None
    """The k of pass@k and pass^k; None takes powers of two up to `samples`."""
    temperature: float | None = None
    max_turns: Positive | None = None
    seed: int | None = None
    format: str | None = None
    pipeline: str | None = None
    overrides: Mapping[str, object] = {}
    """Parameters of the pipeline, by dotted key."""

    @model_validator(mode="after")
    def _can_be_met(self) -> "EvaluationRequest":
        """Raises `ConfigError`."""
        if not self.envs:
            raise ConfigError("no environment; name at least one, e.g. textcraft")
        for env in self.envs:
            if self.envs.count(env) > 1:
                raise ConfigError(f"{env} is given twice; name each environment once")
        check_split(self.split)
        for k in self.ks or ():
            if not 1 <= k <= self.samples:
                raise ConfigError(
                    f"--k {k}: pass@k needs k samples of each item, 1 to --samples {self.samples}; give "
                    "another k, or more samples"
                )
        return self

    @property
    def shown_ks(self) -> list[int]:
        """The values of k above 1; pass@1 is the mean success."""
        return [k for k in self.ks or default_ks(self.samples) if k > 1]


class PolicyEvaluation(EvaluationRequest, NamedPolicy):
    """What the command `wingspan evaluate` is given, and the flow `evaluate-policy` as its parameters."""

    out: Annotated[Path, AfterValidator(read_path)] | None = None
    """The folder to write to; None is one of its own below `runs/evaluations`."""
    track: bool = False
    """Whether MLflow records it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """A checked request."""

    pipeline: Pipeline
    split: str
    source: str | None
    """The pipeline whose settings were taken."""
    items: list[Item]
    spec: RolloutSpec
    seed: int | None
    ks: list[int]


def make_evaluation(request: EvaluationRequest, policy: SavedPolicy | Endpoint) -> EvaluationPlan:
    """The pipeline, the items and the rollout of `request`.

    Raises `ConfigError` as `make_pipeline`, and for no items.
    """
    source, pipeline = make_pipeline(request, policy)
    turns = evaluation_turns(pipeline)
    return EvaluationPlan(
        pipeline=pipeline,
        split=request.split,
        source=source,
        items=_choose_items(request, split(pipeline.data)),
        spec=RolloutSpec(
            name="evaluate",
            max_turns={part: request.max_turns or count for part, count in turns.items()},
            num_samples=request.samples,
            temperature=pipeline.evaluate.temperature if request.temperature is None else request.temperature,
        ),
        seed=None if isinstance(policy, Endpoint) else pipeline.seed,
        ks=request.shown_ks,
    )


def make_pipeline(
    request: EvaluationRequest, policy: SavedPolicy | Endpoint | None
) -> tuple[str | None, Pipeline]:
    """The pipeline that runs episodes of `request`, and the name of the one whose settings were taken.

    These are `request.pipeline`, else that of the run that trained the policy, else defaults, with the
    request's own settings on top. `policy` is None if a person acts. Raises `ConfigError` for contradictions.
    """
    if isinstance(policy, Endpoint) and request.seed is not None:
        raise ConfigError(f"--seed {request.seed}: an endpoint samples with seeds of its own; leave it out")
    if isinstance(policy, SavedPolicy) and request.temperature == 0 and request.samples > 1:
        raise ConfigError(
            f"--samples {request.samples}: at temperature 0 they are all alike; give --samples 1, or a "
            "higher --temperature"
        )
    for env in request.envs:
        get_env(env)
    source, base = _base_pipeline(request, policy)
    parts = {name: part for name, part in base.data.parts.items() if part.env in request.envs}
    covered_envs = {part.env for part in parts.values()}
    parts |= {env: PartSettings(env=env) for env in request.envs if env not in covered_envs}
    agent = base.agent
    if request.format is not None:
        agent = agent.model_copy(update={"format": request.format})
    pipeline = base.model_copy(
        update={
            # not validated: all of its parts may be for training alone
            "data": base.data.model_copy(update={"parts": parts}),
            "agent": agent,
            "servers": {env: block for env, block in base.servers.items() if env in request.envs},
            "seed": base.seed if request.seed is None else request.seed,
            "warmup": None,
        }
    )
    return source, pipeline


def recorded_settings(workspace: Path) -> tuple[str | None, dict[str, object]]:
    """The pipeline of the run in `workspace`, the data on which it trained, and what it changed of the other
    blocks that episodes depend on; None and nothing if that is not recorded."""
    changes = {
        key: value
        for key, (_, value) in read_changes(workspace).items()
        if key.partition(".")[0] in _BLOCKS or key == "data.split_seed"
    }
    parameters = recorded_parameters(workspace)
    data = {key: value for key, value in parameters.items() if key == "data"}
    return read_pipeline_name(workspace), data | _restore_blocks(changes, parameters)


def _restore_blocks(changes: Mapping[str, object], parameters: Mapping[str, object]) -> dict[str, object]:
    """The `changes` of a run as overrides.

    `changes` has None for a key that the run removed, which is not always a valid value. The whole block
    without that key, from the run's `parameters`, takes its place.
    """
    overrides: dict[str, object] = {}
    for key, value in changes.items():
        block, block_value = _find_rest(key, parameters) if value is None else (key, value)
        overrides[block] = block_value
    return {
        key: value
        for key, value in overrides.items()
        if not any(key.startswith(f"{block}.") for block in overrides)
    }


def _find_rest(key: str, parameters: Mapping[str, object]) -> tuple[str, object]:
    """The block of `parameters` in which the way to `key` ends, and its value; `key` and None if it is there,
    or nothing of it is."""
    parts = key.split(".")
    value: object = parameters
    for depth, part in enumerate(parts):
        if not isinstance(value, Mapping) or part not in value:
            return (".".join(parts[:depth]), value) if depth else (key, None)
        value = value[part]
    return key, None


def _base_pipeline(
    request: EvaluationRequest, policy: SavedPolicy | Endpoint | None
) -> tuple[str | None, Pipeline]:
    overrides = dict(request.overrides)
    if request.pipeline is not None:
        return request.pipeline, load_pipeline(request.pipeline, overrides=overrides)
    workspace = policy.workspace if isinstance(policy, SavedPolicy) else None
    name, changes = (None, {}) if workspace is None else recorded_settings(workspace)
    if name is not None:
        return name, load_pipeline(name, overrides=changes | overrides)
    return None, parse_pipeline(_defaults(request, policy), overrides=overrides, location="evaluation")


def _defaults(request: EvaluationRequest, policy: SavedPolicy | Endpoint | None) -> dict[str, object]:
    """A pipeline for any model on any environment; of `train` and `horizon` nothing is used."""
    context_length, model = _LIMITS.context_length, "none"
    if isinstance(policy, SavedPolicy):
        context_length, model = min(context_length, policy.read_context_length()), str(policy.folder)
    elif policy is not None:
        model = policy.model
    return {
        "model": model,
        "data": {"parts": {env: {"env": env} for env in request.envs}},
        # An agent of the user's writes its own prompts.
        "agent": {"instructions": request.format is None or request.format in FORMATS},
        "warmup": None,
        "rollout": {
            "items_per_step": 1,
            "group_size": request.samples,
            "max_tokens_per_turn": _LIMITS.max_tokens_per_turn,
            "context_length": context_length,
            "episode_timeout_s": _LIMITS.episode_timeout_s,
            "step_timeout_s": _LIMITS.step_timeout_s,
            "max_live_envs": max(64, len(request.envs)),
        },
        "train": {
            "algorithm": {"name": "grpo"},
            "steps": 1,
            "steps_per_round": 1,
            "save_every": 1,
            "lr": 1e-6,
            "mini_batches": 1,
            "micro_batch_tokens": context_length,
        },
        "horizon": {"type": "fixed", "max_turns": [MAX_TURNS]},
        "evaluate": {"max_turns": MAX_TURNS, "samples_per_item": 1, "quick_items": 1},
        "backend": {"device": "cpu", "rollout": "cpu"},
    }


def _choose_items(request: EvaluationRequest, items: Split) -> list[Item]:
    candidates = items.test if request.split == "test" else items.train
    chosen_items = [
        item
        for item in candidates
        if all(item.metadata.get(key) in values for key, values in request.where.items())
    ]
    if not candidates:
        raise ConfigError(
            f"the pipeline has no {request.split} items of {', '.join(request.envs)}; name another --split, "
            "or another --pipeline"
        )
    if not chosen_items:
        raise ConfigError(
            f"--where {dict(request.where)} leaves none of the {len(candidates)} {request.split} items of "
            f"{', '.join(request.envs)}; their metadata is like {dict(candidates[0].metadata)}"
        )
    return chosen_items if request.items is None else spread(chosen_items, request.items)
