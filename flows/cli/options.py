"""Arguments and options that several commands share, and the parameters that `--set` gives."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

from envs.errors import ConfigError

PipelineName = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="Name of a pipeline; `wingspan pipelines` lists them.")
]
EnvironmentName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an environment; `wingspan envs` lists them.")
]
IfChanged = Annotated[
    Literal["refuse", "restart", "resume"],
    typer.Option(
        help="Handle an interrupted training whose parameters or data have changed: refuse to run, restart "
        "it, which deletes its checkpoints, or resume it all the same.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a parameter, e.g. --set train.lr=1e-3; can be repeated.",
    ),
]
Workspace = Annotated[
    Path | None, typer.Option(help="Folder that the run writes to.", show_default="runs/PIPELINE")
]
Host = Annotated[
    str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all addresses of this machine.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
MaxSessions = Annotated[int, typer.Option(min=1, help="How many sessions may be live at once.")]
MaxBodyBytes = Annotated[int, typer.Option(min=1024, help="Bytes that the body of a request may have.")]


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """`["train.lr=1e-3"]` → `{"train.lr": 0.001}`; values are YAML. Raises `ConfigError`."""
    overrides = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {text!r} is not KEY=VALUE, e.g. --set train.lr=1e-3")
        overrides[key] = _parse_value(value, option=f"--set {text!r}")
    return overrides


def parse_where(conditions: list[str]) -> dict[str, list[Any]]:
    """`["depth=1,2"]` → `{"depth": [1, 2]}`; values are YAML. Raises `ConfigError`."""
    where: dict[str, list[Any]] = {}
    for text in conditions:
        key, equals, values = text.partition("=")
        if not key or not equals or not values:
            raise ConfigError(f"--where {text!r} is not KEY=VALUES, e.g. --where depth=1,2")
        parsed = [_parse_value(value.strip(), option=f"--where {text!r}") for value in values.split(",")]
        if any(not isinstance(value, str | int | float) for value in parsed):
            raise ConfigError(f"--where {text!r}: give texts or numbers, separated by commas")
        where.setdefault(key, []).extend(parsed)
    return where


def _parse_value(text: str, *, option: str) -> Any:
    try:
        return json.loads(text)  # differs only for numbers like 1e-3, which are text in YAML 1.1
    except json.JSONDecodeError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{option}: the value is not YAML; quote it") from None
