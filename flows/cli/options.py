"""Arguments and options that several commands share, and the parameters that `--set` gives."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from envs.errors import ConfigError
from envs.network.tokens import TOKEN_VARIABLE

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
        "it, which deletes its checkpoints, or resume it all the same."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a parameter, e.g. --set train.lr=1e-3; can be repeated."
    ),
]
Workspace = Annotated[
    Path | None, typer.Option(help="Folder that the run writes to.", show_default="runs/PIPELINE")
]
ItemSplit = Annotated[str, typer.Option(help="Split that the items are taken from: test or train.")]
MaxTurns = Annotated[
    int | None, typer.Option(min=1, help="Turns that an episode may have.", show_default="evaluate.max_turns")
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.", show_default="evaluate.temperature"),
]
SamplingSeed = Annotated[
    int | None, typer.Option(help="Seed of sampling on this machine.", show_default="the pipeline's")
]
EndpointModel = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the endpoint's model.")]
EndpointKey = Annotated[
    str | None, typer.Option(metavar="ENVVAR", help="Environment variable that holds the endpoint's key.")
]
Host = Annotated[
    str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all addresses of this machine.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
TOKEN_DEFAULT = f"that in {TOKEN_VARIABLE}"
Token = Annotated[str | None, typer.Option(help="Require this token.", show_default=TOKEN_DEFAULT)]
MaxSessions = Annotated[int, typer.Option(min=1, help="How many sessions may be live at once.")]
MaxBodyBytes = Annotated[int, typer.Option(min=1024, help="Bytes that the body of a request may have.")]


def parse_settings(settings: list[str]) -> dict[str, object]:
    """`["train.lr=1e-3"]` → `{"train.lr": 0.001}`, in the order in which they apply; values are YAML.

    A key that is given again has its last value. Raises `ConfigError` for what is not YAML, and for a key
    whose block is given after it, which would replace it.
    """
    from tasks.config.pipelines import find_replaced

    overrides: dict[str, object] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set {text!r} is not KEY=VALUE, e.g. --set train.lr=1e-3")
        overrides.pop(key, None)  # it applies in its last place
        overrides[key] = _parse_value(value, option=f"--set {text!r}")
    if replaced := find_replaced(list(overrides)):
        key, block = replaced
        raise ConfigError(
            f"--set {key}: --set {block} after it replaces the whole block; give it after that, or within "
            f"the value of {block}"
        )
    return overrides


def parse_secrets(secrets: list[str]) -> dict[str, str]:
    """`["API_KEY=api-key"]` → `{"API_KEY": "api-key"}`, block by variable. Raises `ConfigError`."""
    blocks = {}
    for text in secrets:
        variable, _, block = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable) or not re.fullmatch(r"[a-z0-9-]+", block):
            # The text may be a secret itself, given by mistake.
            raise ConfigError(
                "--secret takes VARIABLE=BLOCK, the name of a variable and that of a Secret block of Prefect "
                "(lower-case letters, digits and dashes), e.g. JUDGE_API_KEY=judge-api-key"
            )
        blocks[variable] = block
    return blocks


def parse_seeds(text: str) -> list[int]:
    """`"0,1,2"` → `[0, 1, 2]`. Raises `ConfigError`."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: give whole numbers, separated by commas, e.g. 0,1,2") from None


def parse_axes(axes: list[str]) -> dict[str, list[object]]:
    """`["train.lr=1e-3,1e-4"]` → `{"train.lr": [0.001, 0.0001]}`; values are YAML; a comma within brackets,
    braces or quotes is part of one. Raises `ConfigError`."""
    parsed: dict[str, list[object]] = {}
    for text in axes:
        key, equals, values = text.partition("=")
        if not key or not equals or not values.strip():
            raise ConfigError(f"--vary {text!r} is not KEY=A,B…, e.g. --vary train.lr=1e-3,1e-4")
        if key in parsed:
            raise ConfigError(f"--vary {key} is given twice; name all its values in one: {key}=A,B")
        parsed[key] = [_parse_value(value, option=f"--vary {text!r}") for value in _split_values(values)]
    return parsed


def _split_values(text: str) -> list[str]:
    """Split at the commas that are in no bracket, brace or quote."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


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


def _parse_value(text: str, *, option: str) -> object:
    try:
        return json.loads(text)  # differs only for numbers like 1e-3, which are text in YAML 1.1
    except ValueError:  # no JSON, or a number of thousands of digits
        pass
    import yaml

    try:
        value: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # 2026-02-30 is no date
        raise ConfigError(f"{option}: the value is not YAML; quote it") from None
    try:
        json.dumps(value)
    except TypeError:
        raise ConfigError(f"{option}: JSON has no such value, e.g. it is a date in YAML; quote it") from None
    return value
