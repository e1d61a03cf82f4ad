"""Where a pipeline's environments live: on this machine, or on servers that its settings name."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from envs.errors import ConfigError
from tasks.environments import environments
from tasks.prepare import prepare
from tasks.provision import provision
from tasks.settings import Pipeline, load_pipeline
from tests.serving import served

PIPELINES = Path(__file__).parents[1] / "pipelines.yaml"


def on(**servers: dict[str, Any]) -> Pipeline:
    return load_pipeline("textcraft-cpu", overrides={"servers": servers}, file=PIPELINES)


def test_the_experts_episodes_are_played_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    with served("textcraft", "--token", "secret") as server:
        pipeline = on(textcraft={"urls": [server.url], "token_from": "A_TOKEN"})
        prepare(pipeline, tmp_path)
        provision(pipeline, tmp_path)
        here = json.loads((tmp_path / "provision.json").read_text())["envs"]["textcraft"]
        assert here["episodes"] == 64
        ask = Request(f"{server.url}/metrics", headers={"Authorization": "Bearer secret"})
        with urlopen(ask) as metrics:
            told = metrics.read().decode()
    stepped = re.search(r'wingspan_environment_seconds_count\{[^}]*"step"[^}]*\} (\S+)', told)
    assert stepped is not None, told
    assert float(stepped.group(1)) == here["turns"]


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ({"babyai": {"urls": ["http://a:1"]}}, r"servers\.babyai: this pipeline plays textcraft"),
        ({"textcraft": {"urls": ["a:1"]}}, "'a:1' is not like http://host:8000"),
        (
            {"textcraft": {"urls": ["http://a:1"], "token_from": "NO_SUCH_VARIABLE"}},
            r"servers\.textcraft\.token_from: the environment variable NO_SUCH_VARIABLE is not set",
        ),
    ],
)
def test_servers_that_cannot_be(servers: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        environments(on(**servers))
