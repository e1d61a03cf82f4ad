"""The block `train` of an algorithm that learns offline (docs/offline.md)."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import yaml
from pydantic import (
    BeforeValidator,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from agents.horizon import Horizon
from agents.settings import Positive
from envs.errors import ConfigError
from tasks.algorithms.offline import Imitation, OfflineAlgorithm
from tasks.algorithms.registry import find_algorithm, parse_algorithm
from tasks.config.training import TrainSettings

if TYPE_CHECKING:
    from tasks.config.pipelines import Pipeline

_FIRST_KEYS = ("algorithm", "steps", "lr", "micro_batch_tokens")
_KEYS = frozenset({*_FIRST_KEYS, "steps_per_round", "lora", "final_policy"})


class OfflineSettings(TrainSettings):
    """The keys of `train` that supervised training uses; all others are refused."""

    algorithm: Annotated[SerializeAsAny[OfflineAlgorithm], BeforeValidator(parse_algorithm)]
    save_every: Positive = 1
    mini_batches: Positive = 1

    @model_validator(mode="before")
    @classmethod
    def _has_no_updates(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        keys = {field.alias or name for name, field in cls.model_fields.items()}
        unused_keys = sorted(keys & set(values) - _KEYS)
        if unused_keys:
            block = {key: values[key] for key in _FIRST_KEYS if key in values}
            text = yaml.safe_dump(block, default_flow_style=True, sort_keys=False, width=math.inf).strip()
            raise ValueError(
                f"{', '.join(unused_keys)}: not used by an algorithm that learns offline; leave it out, with "
                f"--set by giving the whole block: --set 'train={text}' (docs/offline.md)"
            )
        return {"steps_per_round": values["steps"]} | values if "steps" in values else values

    @model_validator(mode="after")
    def _has_whole_rounds(self) -> "OfflineSettings":
        if not self.algorithm.repeats and self.steps_per_round != self.steps:
            raise ValueError(
                f"steps_per_round {self.steps_per_round}: {self.algorithm.name} has one round; leave it out"
            )
        if self.steps % self.steps_per_round:
            raise ValueError(
                f"steps {self.steps} are no multiple of steps_per_round {self.steps_per_round}: the last "
                "round would train less than the others; change one of them"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_updates(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, object] = serialize(self)
        return {name: value for name, value in values.items() if name in _KEYS}


def is_offline(train: object) -> bool:
    """Whether a block `train`, as it is written or already parsed, is of an algorithm that learns offline."""
    if not isinstance(train, Mapping):
        return isinstance(train, OfflineSettings)
    algorithm = train.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    try:
        return isinstance(name, str) and issubclass(find_algorithm(name), OfflineAlgorithm)
    except ConfigError:
        return False


def read_train(value: object, read_online: Callable[[object], TrainSettings]) -> TrainSettings:
    """The block `train`, as the settings of its kind of algorithm."""
    return OfflineSettings.model_validate(value) if is_offline(value) else read_online(value)


def check_offline(pipeline: "Pipeline") -> None:
    """Raise `ConfigError` for settings that an algorithm which learns offline cannot use, or lacks."""
    train, rollout = pipeline.train, pipeline.rollout
    if not isinstance(train, OfflineSettings):
        return
    algorithm = train.algorithm
    if rollout.curriculum is not None or any(h.type == "adaptive" for h in _horizons(pipeline)):
        raise ConfigError(
            f"rollout.curriculum and adaptive horizons go by the episodes of each step, and {algorithm.name} "
            "samples a round at once; leave out the one, and choose another horizon.type"
        )
    if not algorithm.is_sampling:
        for key in ("items_per_step", "group_size", "temperature"):
            if getattr(rollout, key) != 1:
                raise ConfigError(
                    f"rollout.{key} {getattr(rollout, key)}: {algorithm.name} samples no episodes for "
                    "training here; set it to 1"
                )
    elif algorithm.needs_groups and rollout.group_size < 2 and not algorithm.data:
        raise ConfigError(
            f"rollout.group_size {rollout.group_size}: {algorithm.name} compares episodes of one item; give "
            "2 or more"
        )
    has_schedule = any(horizon.type != "fixed" for horizon in _horizons(pipeline))
    if (rollout.final_temperature is not None or has_schedule) and not algorithm.repeats:
        samples = "samples once" if algorithm.is_sampling else "samples no episodes for training here"
        raise ConfigError(
            f"rollout.final_temperature and schedules of the horizon: {algorithm.name} {samples}; leave out "
            "the one, and set horizon.type: fixed"
        )
    is_from_model = isinstance(algorithm, Imitation) and algorithm.adds_to_original
    new_words = 0 if pipeline.warmup is None else pipeline.warmup.new_words
    if train.lora is not None and is_from_model and new_words:
        raise ConfigError(
            f"warmup.new_words {new_words}: {algorithm.name} trains from model, and train.lora trains no "
            "embeddings, which new words need; leave out one of them"
        )
    if algorithm.needs_original and pipeline.warmup is None and not algorithm.data:
        raise ConfigError(
            f"{algorithm.name} adds what it samples to the original data, of which there are none; give a "
            "warmup with demonstrations, or train.algorithm.data"
        )
    backend = pipeline.backend
    if backend.device == "cpu" and (backend.workers, backend.samplers) != (1, 1):
        raise ConfigError(
            f"backend.workers {backend.workers} and backend.samplers {backend.samplers}: on a CPU, "
            f"{algorithm.name} trains in one process and samples in one; leave them out"
        )


def _horizons(pipeline: "Pipeline") -> list[Horizon]:
    return [pipeline.horizon, *(part.horizon for part in pipeline.data.parts.values() if part.horizon)]
