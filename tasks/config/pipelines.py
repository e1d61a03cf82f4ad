"""`pipelines.yaml`: the parameters of a pipeline, and how the file is read and checked.

Every parameter is declared once, in the type of its block, and given once, under `pipelines.<name>`. A block
that code below `tasks` is given as it stands is declared there (`agents.horizon.Horizon`,
`agents.rollout.conversation.ContextPolicy`, `agents.settings.JudgeSettings`). An invalid value is refused in
one line with its place (`pipelines.textcraft-cpu.rollout.group_size`) and a remedy.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, SerializeAsAny, ValidationError, WrapValidator, model_validator

from agents.horizon import Horizon
from agents.settings import ModelName, Seed, Settings, describe_invalid
from envs.errors import ConfigError, describe, suggest, to_line
from envs.redaction import without_password
from tasks.config.agent import AgentSettings
from tasks.config.base_model import BaseSettings
from tasks.config.data import DataSettings
from tasks.config.offline import is_offline, read_train
from tasks.config.training import (
    BackendSettings,
    EvaluateSettings,
    RolloutSettings,
    TrainSettings,
    WarmupSettings,
)

PIPELINES_FILE = Path("pipelines.yaml")
NAMED_BLOCKS = ("algorithm", "loss")
"""Blocks for which a name may stand alone: `train.algorithm: grpo` is `train.algorithm: {name: grpo}`."""


class ServerSettings(Settings):
    """Where the instances of an environment live, if not on this machine (docs/serving.md)."""

    urls: Annotated[list[str], Field(min_length=1)]
    """The least busy one gets the next episode; one that is dead is left out."""
    protocol: Literal["wingspan", "agentgym"] = "wingspan"
    token_from: str | None = None
    """Name of the environment variable that holds the servers' token; no file holds the token itself."""

    @property
    def recorded_urls(self) -> list[str]:
        """`urls` as records have them: without users and passwords."""
        return [without_password(url) for url in self.urls]


class Pipeline(Settings):
    """One pipeline of `pipelines.yaml`, complete."""

    description: str = ""
    """One line for `wingspan pipelines` and for Prefect's deployments."""
    seed: Seed = 0
    model: ModelName
    """Folder of a model in Hugging Face format, or a name on a model hub."""
    data: DataSettings
    agent: AgentSettings
    warmup: WarmupSettings | None
    """None starts RL from `model` itself."""
    servers: dict[str, ServerSettings] = Field(default={})
    """The servers by environment; environments that are not named here run on this machine."""
    rollout: RolloutSettings
    train: Annotated[SerializeAsAny[TrainSettings], WrapValidator(read_train)]
    horizon: Horizon
    evaluate: EvaluateSettings
    backend: BackendSettings

    @model_validator(mode="before")
    @classmethod
    def _correct_rollouts_of_vllm(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        train, backend = values.get("train"), values.get("backend")
        by_vllm = isinstance(backend, dict) and backend.get("rollout") in ("vllm", "vllm-cpu")
        if isinstance(train, dict) and by_vllm and not is_offline(train):
            return values | {"train": {"rollout_correction": {}} | train}
        return values


def load_pipeline(
    name: str, *, overrides: Mapping[str, object] | None = None, file: Path = PIPELINES_FILE
) -> Pipeline:
    """The pipeline `name`, with `overrides` by dotted key (`{"train.lr": 1e-3}`) applied.

    Raises `ConfigError` for a missing or malformed file, an unknown name, key or value.
    """
    options = _blocks(file)
    if name not in options:
        raise ConfigError(
            f"unknown pipeline {name!r}; {suggest(name, options)}{file} has: {', '.join(options) or 'none'}"
        )
    values = options[name]
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: pipelines.{name} is {values!r:.60}; give a block of parameters")

    def parse(overrides: Mapping[str, object]) -> Pipeline:
        return parse_pipeline(deepcopy(values), overrides=overrides, location=f"pipelines.{name}")

    try:
        return parse(overrides or {})
    except ConfigError as error:
        place = str(file)
        if overrides:
            with suppress(ConfigError):  # the file is wrong as well
                parse({})
                place = "parameters set for this run"
        raise ConfigError(f"{place}: {error}") from None


def parse_pipeline(values: dict[str, object], *, overrides: Mapping[str, object], location: str) -> Pipeline:
    """The pipeline of the block `values` at `location`, with `overrides` by dotted key.

    Raises `ConfigError` for an unknown key or an invalid value.
    """
    for key, value in overrides.items():
        _set_dotted(values, key, deepcopy(value))  # a later key may be set within it
    try:
        return Pipeline.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe_invalid(error, Pipeline, location=location)) from None


def find_replaced(keys: Sequence[str]) -> tuple[str, str] | None:
    """A dotted key among the ordered `keys` of overrides, and the block after it whose value replaces it;
    None if no key is lost."""
    for place, block in enumerate(keys):
        for key in keys[:place]:
            if key.startswith(f"{block}."):
                return key, block
    return None


def load_base_settings() -> BaseSettings:
    """How the shipped base model is made: the block `base`. Raises `ConfigError`."""
    try:
        return BaseSettings.model_validate(_read(PIPELINES_FILE).get("base"))
    except ValidationError as error:
        reason = describe_invalid(error, BaseSettings, location="base")
        raise ConfigError(f"{PIPELINES_FILE}: {reason}") from None


def pipeline_names(file: Path = PIPELINES_FILE) -> list[str]:
    """The pipelines that `file` has."""
    return list(_blocks(file))


def read_yaml(file: Path) -> Any:
    """The document of `file`.

    Raises `ConfigError` for a file that is missing or not YAML in UTF-8, for a value that YAML takes for a
    date or a number that there is not, and for a key that a block has twice: YAML's reader would silently
    take the last.
    """
    return _parse_yaml(_read_text(file), file)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no {file} here; run from the project's folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({describe(error)}); save it as UTF-8") from None


def _parse_yaml(text: str, file: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        _check_node(node, loader, file=file)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {to_line(error)}") from None
    finally:
        loader.dispose()


_parse_once = lru_cache(maxsize=4)(_parse_yaml)
"""The parsed document, which nobody may change: listing the pipelines loads each of them."""


def _check_node(node: yaml.Node | None, loader: Any, *, file: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise ConfigError(
                    f"{file}, line {line}: {name!r} is in line {lines[name]} of this block already; remove "
                    "one"
                )
            lines[name] = line
            if key.tag != "tag:yaml.org,2002:merge":  # `<<` is no value
                _check_node(key, loader, file=file)
            _check_node(value, loader, file=file)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _check_node(value, loader, file=file)
    elif node is not None:
        try:
            loader.construct_object(node)
        except ValueError as error:  # 2026-02-30
            raise ConfigError(
                f"{file}, line {node.start_mark.line + 1}: {node.value[:60]!r} cannot be read ({error}); put "
                "it in quotes"
            ) from None


def _read(file: Path) -> dict[str, object]:
    """The parsed file; callers must not change it, because all get the same object."""
    document = _parse_once(_read_text(file), file)
    return document if isinstance(document, dict) else {}


def _blocks(file: Path) -> dict[str, object]:
    blocks = _read(file).get("pipelines") or {}
    if not isinstance(blocks, dict):
        raise ConfigError(f"{file}: pipelines is a {type(blocks).__name__}; give a block, NAME: {{…}}")
    for name in blocks:
        if not isinstance(name, str):  # 2048 and yes are none in YAML
            raise ConfigError(f"{file}: the name pipelines.{name} is no text in YAML; put it in quotes")
    return blocks


def _set_dotted(values: dict[str, object], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        if parent in NAMED_BLOCKS and isinstance(values.get(parent), str):
            values[parent] = {"name": values[parent]}
        block = values.setdefault(parent, {})
        if not isinstance(block, dict):
            raise ConfigError(f"cannot set {key!r}: {parent!r} is not a block of parameters")
        values = block
    values[last] = value
