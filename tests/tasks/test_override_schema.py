"""The JSON schema of overrides, by Prefect's validator, against what `pipelines.yaml` and the docs give."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError
from flows.cli.options import parse_settings
from tasks.config.override_schema import override_schemas
from tasks.config.parameters import parameters_of
from tasks.config.pipelines import Pipeline, load_pipeline, pipeline_names

ROOT = Path(__file__).parents[2]
NAMES = pipeline_names(ROOT / "pipelines.yaml")


def load(name: str, **overrides: Any) -> Pipeline:
    return load_pipeline(name, overrides=overrides, file=ROOT / "pipelines.yaml")


def is_accepted(overrides: dict[str, Any], *names: str) -> bool:
    return is_valid(override_schemas([load(name) for name in names]), overrides)


def is_valid(content: dict[str, Any], overrides: dict[str, Any]) -> bool:
    from prefect.utilities.schema_tools import validation

    schema = {"type": "object", "properties": content, "additionalProperties": False}
    return validation.is_valid(
        {"overrides": overrides}, {"type": "object", "properties": {"overrides": {"allOf": [schema]}}}
    )


@pytest.mark.parametrize("name", NAMES)
def test_all_parameters_of_a_pipeline_are_accepted(name: str) -> None:
    assert is_accepted(parameters_of(load(name)), name)
    assert "$ref" not in json.dumps(override_schemas([load(name)]))


def test_parameters_of_an_algorithm_that_is_the_users_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clipped_of_mine.py").write_text(
        "from tasks.algorithms.builtin.grpo import Grpo\n\n\nclass Clipped(Grpo):\n    limit: float = 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = load("textcraft-cpu", **{"train.algorithm": "clipped_of_mine:Clipped"})
    overrides = {"train.algorithm.limit": 0.5}
    load("textcraft-cpu", **parameters_of(own) | overrides)
    assert is_valid(override_schemas([own]), parameters_of(own) | overrides)
    assert not is_valid(override_schemas([load("textcraft-cpu")]), overrides)


@pytest.mark.parametrize(
    "setting",
    [
        "train.lr=1e-4",
        "train.lr=abc",
        "train.lr=2",
        "train.lrr=1",
        "train.async={}",
        "train.async_={}",
        "train.kl.coef=0.1",
        "train.kl=null",
        "train.lr=null",
        "train.algorithm=gspo",
        "train.algorithm=gspoo",
        "train.algorithm.loss=cispo",
        "train.algorithm.loss=cispoo",
        "train.algorithm.loss.clip_high=0.28",
        "train.algorithm={name: dapo, loss: {clip_high: 0.3}}",
        "warmup=null",
        "warmup=1",
        "data.parts.two-step.evaluate=false",
        "data.parts.two-step.evaluate=2.5",
        "data.parts.two-step.wieght=1",
        "data.parts.two-step.where.depth=[2]",
        "data.parts={textcraft: {where: {depth: [1]}}}",
        "servers={textcraft: {urls: ['http://127.0.0.1:8000']}}",
        "agent.tools=[calculator]",
        "agent.tools=calculator",
        "agent.context.when_full=fold",
        "agent.context.when_full=folded",
        "seed=-1",
        "horizon={type: fixed, max_turns: [3]}",
        "backend.rollout=vllm-cpu",
    ],
)
def test_the_schema_agrees_with_the_check_of_the_pipeline(setting: str) -> None:
    overrides = parse_settings([setting])
    try:
        load("textcraft-cpu", **overrides)
    except ConfigError:
        assert not is_accepted(overrides, "textcraft-cpu")
    else:
        assert is_accepted(overrides, "textcraft-cpu")


def test_overrides_of_several_pipelines_may_name_the_parts_of_each() -> None:
    overrides = {"data.parts.two-step.weight": 2.0, "data.parts.babyai.weight": 1}
    assert is_accepted(overrides, "textcraft-cpu", "babyai-cpu")
    assert not is_accepted(overrides, "textcraft-cpu")
