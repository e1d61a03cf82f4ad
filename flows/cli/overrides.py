"""Parses parameters of the command line: `--set train.lr=1e-3`."""

import json
from typing import Any

import yaml

from envs.errors import ConfigError


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """`["train.lr=1e-3"]` → `{"train.lr": 0.001}`; values are YAML. Raises `ConfigError`."""
    overrides = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {text!r} is not KEY=VALUE, e.g. --set train.lr=1e-3")
        overrides[key] = _parse_value(value, option=f"--set {text!r}")
    return overrides


def _parse_value(text: str, *, option: str) -> Any:
    try:
        return json.loads(text)  # differs only for numbers like 1e-3, which are text in YAML 1.1
    except json.JSONDecodeError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{option}: the value is not YAML; quote it") from None
