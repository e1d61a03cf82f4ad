"""Pipelines that name a program: what is refused, and how it is played by whichever sampler there is."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agents.clients.endpoint import ChatClient, Endpoint
from agents.rollout.group import Callbacks
from agents.samplers.sampler import Sampler
from agents.types import StopReason, Trajectory
from envs.errors import ConfigError
from flows.cli.command_line import app
from tasks.config.episodes import check_agent
from tasks.config.pipelines import Pipeline
from tasks.data.items import split
from tasks.data.trajectories import read_trajectories
from tasks.rollout.programs import ProgramRunner
from tasks.rollout.runner import AgentRunner, make_endpoint_runner, make_runner
from tasks.rollout.spec import RolloutSpec
from tasks.stages.prepare import prepare
from tasks.stages.provision import provision
from tests.support.gateway_toy import RandomSampler, find_trained
from tests.support.tiny_model import save_tiny_model
from tests.support.toy import toy_tokenizer
from tests.support.verl_toy import toy_pipeline
from tests.support.yaml_files import edit_yaml

TOY = "tests.support.program_toy"
PROGRAM = {"program": f"{TOY}:play"}
WITHOUT_JUDGEMENT = {"program": f"{TOY}:play_unjudged", "reward": f"{TOY}:even"}
WARMUP = {"demonstrations": 1, "noise": 0, "steps": 1, "batch_size": 1, "lr": 1e-3}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for side, numbers in (("train", range(4)), ("test", range(4, 6))):
        rows = [{"question": f"{n}?", "log": str(tmp_path / "log")} for n in numbers]
        Path(f"data/{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pipeline_of(agent: dict[str, Any], **changes: Any) -> Pipeline:
    part = {"env": "question", "train": "data/train.jsonl", "test": "data/test.jsonl"}
    return toy_pipeline(Path("none"), data={"parts": {"asked": part}}, agent=agent, **changes)


def play(pipeline: Pipeline, sampler: Sampler, *, turns: int = 2, **callbacks: Any) -> list[Trajectory]:
    async def main() -> Sequence[Sequence[Trajectory]]:
        runner = make_runner(pipeline, sampler=sampler, tokenizer=toy_tokenizer(), processor=None)
        items = split(pipeline.data).test
        runner.check(items)
        spec = RolloutSpec(name="p", max_turns={"asked": turns}, num_samples=3, temperature=1.0)
        try:
            return await runner.run(items, spec, Callbacks(**callbacks))
        finally:
            await runner.close()

    return [t for group in asyncio.run(asyncio.wait_for(main(), 300)) for t in group]


def test_a_pipeline_is_played_by_its_program_on_the_very_tokens_that_were_sampled() -> None:
    sampler = RandomSampler()
    trajectories = play(pipeline_of(PROGRAM), sampler)
    assert [(t.item.fields["question"], t.sample_index) for t in trajectories] == [
        (f"{n}?", sample_index) for n in (4, 5) for sample_index in range(3)
    ]
    talks = [json.loads(line) for line in Path("log").read_text().splitlines()]
    texts = [[turn.text for turn in t.turns] for t in trajectories]
    assert sorted(texts) == sorted([request["says"] for request in talk] for talk in talks)
    assert {request["fingerprint"] for talk in talks for request in talk} == {"policy_version=5"}
    # Every answer of the sampler's is trained on once, after just what it was sampled on.
    rows = [row for t in trajectories for row in find_trained(t)]
    assert sorted(rows) == sorted(sampler.samples)
    for trajectory in trajectories:
        assert {turn.completion.policy_version for turn in trajectory.turns} == {5}
        assert trajectory.reward == (len(trajectory.turns[-1].text) % 2 == 0)
        assert trajectory.metrics["other_sampling"] == 0


def test_without_a_sessions_key_the_gateway_answers_nobody() -> None:
    trajectories = play(pipeline_of({"program": f"{TOY}:intrude"}), RandomSampler())
    assert [(t.error, t.reward) for t in trajectories] == [(None, 3.0)] * 6


def test_turns_are_reported_when_their_episode_has_ended() -> None:
    calls: list[tuple[str, int, int]] = []
    trajectories = play(
        pipeline_of(PROGRAM),
        RandomSampler(),
        on_opening=lambda item, sample_index, messages: calls.append((item.item_id, sample_index, 0)),
        on_turn=lambda item, sample_index, turns: calls.append((item.item_id, sample_index, len(turns))),
    )
    assert sorted(calls) == sorted(
        (t.item.item_id, t.sample_index, count) for t in trajectories for count in range(len(t.turns) + 1)
    )


def test_the_horizon_ends_a_program_and_the_reward_judges_what_there_is() -> None:
    trajectories = play(pipeline_of(WITHOUT_JUDGEMENT), RandomSampler(), turns=1)
    for trajectory in trajectories:
        assert (len(trajectory.turns), trajectory.stop_reason) == (1, StopReason.MAX_TURNS)
        assert trajectory.success == (len(trajectory.turns[0].text) % 2 == 0) == bool(trajectory.reward)


@pytest.mark.parametrize(
    ("agent", "changes", "message"),
    [
        ({"format": "react"}, {}, r"agent\.program 'tests\.support\.program_toy:play' .*leave it out"),
        ({"tools": ["calculator"]}, {}, r"agent\.tools: "),
        ({"prompt": "data/x.md"}, {}, r"agent\.prompt: "),
        ({"instructions": True}, {}, r"agent\.instructions: "),
        ({"context": {"when_full": "summarize"}}, {}, r"agent\.context: "),
        ({"reward": "environment"}, {}, r"agent\.reward: 'environment' is an environment's reward"),
        ({"reward": {"environment_success": 1, "tool_use": 1}}, {}, r"'environment_success' is an env"),
        ({"reward": "string_equl"}, {}, "unknown reward"),
        ({"program": "play"}, {}, r"agent\.program: 'play' is not MODULE:NAME"),
        ({"program": "tests.nowhere:play"}, {}, r"agent\.program: 'tests.nowhere:play' cannot be imported"),
        ({"program": f"{TOY}:plya"}, {}, r"agent\.program: .*program_toy\.py has no 'plya'"),
        ({"program": f"{TOY}:TURNS"}, {}, r"agent\.program: 'tests.support.program_toy:TURNS' is a int"),
        ({"program": f"{TOY}:ToyProgram"}, {}, r"is a type; name a function"),
        ({"program": f"{TOY}:of_two"}, {}, r"too many positional.*must be \(base_url, api_key, item\)"),
        ({}, {"warmup": WARMUP}, r"warmup: .* set warmup: null"),
        ({}, {"servers": {"question": {"urls": ["http://host:9"]}}}, r"servers\.question: .*leave it out"),
    ],
)  # fmt: skip
def test_what_a_program_has_no_use_for_is_refused_before_anything_starts(
    agent: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        check_agent(pipeline_of(PROGRAM | agent, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("agent", [PROGRAM, WITHOUT_JUDGEMENT, {"program": f"{TOY}:blocking"}])
def test_a_program_that_can_be_is_not_refused(agent: dict[str, Any]) -> None:
    pipeline = pipeline_of(agent)
    check_agent(pipeline)
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline  # as verl's process gets it
    prepare(pipeline, Path("run"))
    provision(pipeline, Path("run"))
    assert json.loads(Path("run/provision.json").read_text())["episodes"] == 4


def test_a_reward_that_asks_for_the_environment_stops_a_programs_run() -> None:
    pipeline = pipeline_of({"program": f"{TOY}:play_unjudged", "reward": f"{TOY}:of_the_environment"})
    prepare(pipeline, Path("run"))
    with pytest.raises(ConfigError, match=r"takes 'env', which nothing fills"):
        provision(pipeline, Path("run"))


def test_who_plays_is_the_settings_choice() -> None:
    runners = [
        make_runner(pipeline_of(agent), sampler=RandomSampler(), tokenizer=toy_tokenizer(), processor=None)
        for agent in (PROGRAM, {"instructions": False, "reward": "string_equal"})
    ]
    assert [type(runner) for runner in runners] == [ProgramRunner, AgentRunner]
    with pytest.raises(ConfigError, match=r"give --policy FOLDER in place of --endpoint"):
        make_endpoint_runner(pipeline_of(PROGRAM), client=ChatClient(Endpoint("http://127.0.0.1:9/v1", "m")))


def test_a_program_is_played_from_the_command_line(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    part = {"env": "question", "train": "data/train.jsonl", "test": "data/test.jsonl"}
    shutil.copy(Path(__file__).parents[2] / "pipelines.yaml", ".")
    with edit_yaml(Path("pipelines.yaml")) as document:
        document["pipelines"]["asked"] = document["pipelines"]["textcraft-cpu"] | {
            "model": str(model),
            "warmup": None,
            "data": {"parts": {"asked": part}},
            "agent": {"program": f"{TOY}:play"},
        }
    options = ["--set", "rollout.context_length=256", "--set", "rollout.max_tokens_per_turn=8"]
    done = CliRunner().invoke(app, ["rollout", "asked", "--items", "1", "--out", "out.jsonl", *options])
    assert done.exit_code == 0, done.output
    (trajectory,) = read_trajectories(Path("out.jsonl"))
    assert len(trajectory.turns) == 2
    assert "asked-test_0 #0 turn 1 observation: Sure?" in done.output
    assert "asked-test_0 #0 begins task: " in done.output
