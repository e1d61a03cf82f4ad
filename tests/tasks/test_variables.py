"""The secrets that a pipeline names are asked for where the training process reads them."""

from typing import Any

from tasks.config.pipelines import load_pipeline
from tasks.config.variables import trainer_variables

ENDPOINT = {"url": "http://127.0.0.1:1/v1", "model": "toy"}


def variables_of(**overrides: Any) -> dict[str, str]:
    agent = {"reward": "fair", "judges": {"fair": {**ENDPOINT, "key_from": "A_KEY"}}}
    servers = {
        "textcraft": {"urls": ["http://127.0.0.1:1"], "token_from": "A_TOKEN"},
        "babyai": {"urls": ["http://127.0.0.1:2"], "token_from": "OF_NO_PART"},
    }
    values = {
        "data.parts": {"textcraft": None},
        "agent": {"instructions": False, **agent},
        "servers": servers,
    }
    return trainer_variables(load_pipeline("textcraft-cpu", overrides=values | overrides))


def test_keys_and_tokens_of_judge_server_and_teacher() -> None:
    teacher = {**ENDPOINT, "key_from": "A_TEACHERS_KEY"}
    expected = {"A_KEY": "agent.judges.fair.key_from", "A_TOKEN": "servers.textcraft.token_from"}
    assert variables_of() == expected
    assert variables_of(**{"train.algorithm": {"name": "distill", "teacher": teacher}}) == expected | {
        "A_TEACHERS_KEY": "train.algorithm.teacher.key_from"
    }


def test_what_has_no_key_needs_no_variable() -> None:
    agent = {"instructions": False, "reward": "fair", "judges": {"fair": ENDPOINT}}
    assert variables_of(agent=agent, servers={}) == {}
