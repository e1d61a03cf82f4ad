"""Where a pipeline's environments live: on this machine, or on servers that its settings name."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from agents.samplers.sampler import ScriptedSampler
from envs.builtin.textcraft.env import SPEC
from envs.errors import ConfigError, MissingDependency, WingspanError
from envs.registry import ENVIRONMENTS, ExpertStep, get_env, register_env
from envs.types import Item
from flows.cli.command_line import app
from tasks.config.environments import check_environments, environments, needed_here
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.rollout.runner import make_runner
from tasks.stages.prepare import prepare
from tasks.stages.provision import provision
from tests.support import own_env, verl_toy
from tests.support.serving import serve_env
from tests.support.toy import toy_tokenizer

PIPELINES = Path(__file__).parents[2] / "pipelines.yaml"


def on(**servers: dict[str, Any]) -> Pipeline:
    overrides = {"data": {"parts": {"textcraft": None}}, "servers": servers}
    return load_pipeline("textcraft-cpu", overrides=overrides, file=PIPELINES)


@pytest.mark.heavy
def test_the_experts_episodes_are_played_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    with serve_env("textcraft", "--token", "secret") as server:
        pipeline = on(textcraft={"urls": [server.url], "token_from": "A_TOKEN"})
        prepare(pipeline, tmp_path)
        provision(pipeline, tmp_path)
        here = json.loads((tmp_path / "provision.json").read_text())["envs"]["textcraft"]
        assert here["episodes"] == 64
        headers = {"Authorization": "Bearer secret"}
        metrics = httpx.get(f"{server.url}/metrics", headers=headers).raise_for_status().text
    steps = re.search(r'wingspan_environment_seconds_count\{[^}]*"step"[^}]*\} (\S+)', metrics)
    assert steps is not None, metrics
    assert float(steps.group(1)) == here["turns"]


def test_an_environment_of_the_users_own_needs_no_line_in_the_registry(tmp_path: Path) -> None:
    name = "tests.support.own_env:SPEC"
    pipeline = load_pipeline(
        "textcraft-cpu", overrides={"data.parts": {"say": {"env": name}}}, file=PIPELINES
    )
    prepare(pipeline, tmp_path)
    provision(pipeline, tmp_path)
    assert json.loads((tmp_path / "provision.json").read_text())["envs"][name]["solved"] > 0
    items = [json.loads(line) for line in (tmp_path / "data" / "test.jsonl").read_text().splitlines()]
    assert [(item["item_id"], item["env"]) for item in items] == [(f"{name}_6", name), (f"{name}_7", name)]
    result = CliRunner().invoke(app, ["play", name, "3"], input="3\n")
    assert result.stdout.splitlines()[-1] == "solved: reward 1 in 1 turn"


class Synchronous(own_env.SayEnv):
    def reset(self, item: Item) -> str:  # type: ignore[override]
        return "Say it."

    def close(self) -> None:  # type: ignore[override]
        pass


class WithArgument(own_env.SayEnv):
    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()


def fail(argument: object) -> Any:
    raise KeyError("words")


def give_up(observation: str) -> str:
    raise KeyError("no number")


PLACE = rf"\((.*/)?{re.escape(Path(__file__).name)}:{fail.__code__.co_firstlineno + 1}\)$"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"make": Synchronous}, "say_1: reset raised ValueError: .*; write `async def reset`"),
        ({"make": WithArgument}, r"making an environment raised TypeError: .* argument: 'words'"),
        ({"split": lambda: None}, r"environment 'say': split\(0\) raised TypeError"),
        ({"split": fail}, rf"environment 'say': split\(0\) raised KeyError: 'words' {PLACE}"),
        ({"make_item": fail}, rf"environment 'say': make_item\(1\) raised KeyError: 'words' {PLACE}"),
        ({"expert": fail}, rf"environment 'say': the expert's solution of say_1 raised KeyError: .* {PLACE}"),
        ({"expert": lambda item: map(fail, [item])}, rf"solution of say_1 raised KeyError: 'words' {PLACE}"),
        ({"expert": lambda item: [ExpertStep("", lambda text: chr(-1))]}, "action raised ValueError"),
    ],
)  # fmt: skip
def test_playing_an_unfinished_environment_is_one_error_that_names_its_fault(
    changes: dict[str, Any], message: str
) -> None:
    with ENVIRONMENTS.scope():
        register_env(replace(own_env.SPEC, **changes))
        error = CliRunner().invoke(app, ["play", "say", "1"], input="expert\n").exception
    assert isinstance(error, WingspanError)
    assert re.search(message, str(error)), error


def test_an_environment_that_cannot_be_closed_is_played(caplog: pytest.LogCaptureFixture) -> None:
    class WithoutClose:
        reset, step, __init__ = own_env.SayEnv.reset, own_env.SayEnv.step, own_env.SayEnv.__init__

    with ENVIRONMENTS.scope():
        register_env(replace(own_env.SPEC, make=WithoutClose))
        done = CliRunner().invoke(app, ["play", "say", "1"], input="1\n")
    assert done.stdout.splitlines()[-1] == "solved: reward 1 in 1 turn"
    assert "object has no attribute 'close'" in caplog.text


def test_an_action_that_finds_nothing_to_act_on_says_so() -> None:
    with pytest.raises(LookupError, match="no number"):
        ExpertStep("", give_up).resolve("")


def lack(observation: str) -> str:
    raise MissingDependency("install java")


def test_an_action_for_which_something_is_missing_says_what() -> None:
    with pytest.raises(MissingDependency, match=r"^install java$"):
        ExpertStep("", lack).resolve("")


def test_a_specification_without_a_function_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'say': expert is a NoneType, None; give .* or no_expert"):
        replace(own_env.SPEC, expert=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("tests.support.own_env:NO_SPEC", "is a int; name an EnvSpec"),
        ("tests.support.own_env:SPCE", "has no 'SPCE'; write MODULE:NAME"),
        ("tests.no_such_file:SPEC", "cannot be imported: ModuleNotFoundError"),
        ("no_such_module_at_all:SPEC", "unknown env 'no_such_module_at_all:SPEC'; envs/.*no module"),
        ("no_such_package.env:SPEC", "ModuleNotFoundError: No module named 'no_such_package'$"),
        ("gymnasum:Taxi-v4", "did you mean 'gymnasium:Taxi-v4'"),
    ],
)
def test_what_is_no_environment_is_named(env: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_env(env)


@dataclass(frozen=True)
class Absent:
    name: str = "a cauldron"

    def find_remedy(self) -> str | None:
        return "fetch one"


@pytest.mark.heavy
def test_what_is_played_on_servers_needs_nothing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the warm-up, whose demonstrations are played here."""
    with serve_env("textcraft") as server:
        monkeypatch.setattr("envs.builtin.textcraft.env.SPEC", replace(SPEC, requirements=(Absent(),)))
        pipeline = on(textcraft={"urls": [server.url.replace("://", "://any:pw@")]})
        with pytest.raises(MissingDependency, match="a cauldron; fetch one"):
            check_environments(pipeline)
        assert needed_here(pipeline) == {"textcraft", "a cauldron"}
        pipeline = pipeline.model_copy(update={"warmup": None})
        check_environments(pipeline)
        assert needed_here(pipeline) == {"textcraft"}
        prepare(pipeline, tmp_path)
        provision(pipeline, tmp_path)
        receipt = json.loads((tmp_path / "provision.json").read_text())
        assert receipt["solved"] == 0  # one action of each item is tried
        assert receipt["envs"]["textcraft"]["servers"] == [server.url]


def test_there_is_a_place_for_each_environment() -> None:
    pipeline_of_both = load_pipeline(
        "textcraft-babyai-cpu", overrides={"rollout.max_live_envs": 1}, file=PIPELINES
    )
    with pytest.raises(ConfigError, match=r"max_live_envs is 1, and 2 environments .*\(textcraft, babyai\)"):
        check_environments(pipeline_of_both)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ({"babyai": {"urls": ["http://a:1"]}}, r"servers\.babyai: this pipeline uses textcraft"),
        ({"textcraft": {"urls": ["a:1"]}}, "'a:1' is not like http://host:8000"),
        (
            {"textcraft": {"urls": ["http://a:1"], "token_from": "NO_SUCH_VARIABLE"}},
            r"servers\.textcraft\.token_from: the environment variable NO_SUCH_VARIABLE is not set",
        ),
    ],
)
def test_servers_that_cannot_be(servers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        environments(on(**servers))


async def test_what_takes_long_to_start_is_started_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_toy, "SPEC", replace(verl_toy.SPEC, isolation="process"))
    verl_toy.register()
    few = {"rollout__items_per_step": 1, "rollout__group_size": 3, "train__mini_batches": 1}
    pipeline = verl_toy.toy_pipeline(Path("none"), **few)
    runner = make_runner(
        pipeline, sampler=ScriptedSampler([], encode=lambda text: []), tokenizer=toy_tokenizer()
    )
    try:
        await runner.warm_up()
        await runner.warm_up()
        pool_metrics = runner.environments["parity"]
        assert (pool_metrics.idle, pool_metrics.created) == (3, 3)
    finally:
        await runner.close()
