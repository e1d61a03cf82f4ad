"""The algorithms by name, and `train.algorithm` as it is written in `pipelines.yaml`."""

import inspect
from collections.abc import Mapping
from importlib import import_module

from pydantic import ValidationError

from agents.settings import describe_invalid
from envs.errors import ConfigError
from envs.requirements.plugins import Registry, load_object
from tasks.algorithms.algorithm import Algorithm, OnlineAlgorithm
from tasks.algorithms.offline import OfflineAlgorithm

_BUILTIN = """
    agentevol cispo dapo distill dpo dr_grpo gdpo gigpo gpg graphgpo grpo grpo_passk gspo maxrl opo
    optimal_token_baseline ppo reinforce_plus_plus reinforce_plus_plus_baseline remax rft rloo sapo
    self_distill sft turn_ppo turn_rloo
    """


def _load(name: str) -> type[Algorithm]:
    module = import_module(f"tasks.algorithms.builtin.{name}")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    algorithm: type[Algorithm] = getattr(module, class_name)
    return algorithm


def _validate(name: str, value: object) -> type[Algorithm]:
    if not (isinstance(value, type) and issubclass(value, OnlineAlgorithm | OfflineAlgorithm)):
        raise ConfigError(
            f"algorithm {name!r} is {value!r:.60}; give a subclass of OnlineAlgorithm or OfflineAlgorithm"
        )
    if inspect.isabstract(value):
        raise ConfigError(f"algorithm {name!r} is {value!r:.60}, which has no `estimate`; implement it")
    loss = value.model_fields.get("loss")  # of an algorithm that learns online
    if loss is not None and inspect.isabstract(loss.annotation):
        raise ConfigError(
            f"algorithm {name!r}: the type of `loss` is {loss.annotation!r:.60}, which has no `per_token`; "
            "give the class of your loss, or AnyLoss"
        )
    return value


ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    {name: name for name in _BUILTIN.split()},
    group="wingspan.algorithms",
    origin="tasks/algorithms/registry.py",
    validate=_validate,
    load=_load,
)


def register_algorithm(name: str, algorithm: type[Algorithm]) -> None:
    """Make `algorithm` known as `train.algorithm: NAME` in this process; entry points of the group
    `wingspan.algorithms` are known in every process. Raises `ConfigError` if another has this name."""
    ALGORITHMS.register(name, algorithm)


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of the algorithm `name`, or `module:NAME`. Raises `ConfigError`."""
    if ":" in name:
        return _validate(name, load_object(name, key="train.algorithm"))
    return ALGORITHMS.find(name)


def parse_algorithm(value: object) -> Algorithm:
    """The algorithm that a pipeline names: `grpo`, or `{name: gigpo, normalize_by_std: false}`.

    Raises `ValueError` for an unknown name, and for a parameter that this algorithm does not have.
    """
    if isinstance(value, Algorithm):
        return value
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"{value!r:.60} names no algorithm; give a name, or {{name: NAME, …}}")
    name = value["name"]
    try:
        algorithm = find_algorithm(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    try:
        return algorithm.model_validate(dict(value))
    except ValidationError as error:
        raise ValueError(f"{name}: {describe_invalid(error, algorithm, others=ALGORITHMS)}") from None
