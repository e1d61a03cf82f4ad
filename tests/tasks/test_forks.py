"""Forks of recorded trajectories in real environments: by policies, by people, and what they leave."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agents.agent import FormatAgent
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks
from agents.rollout.replay import ReplayDiffers
from agents.rollout.scripted import expert_script, run_script
from agents.types import UNLIMITED, StopReason, Trajectory, Turn
from envs.errors import ConfigError, EnvCrashed, EpisodeFault
from envs.registry import get_env, get_item
from envs.types import StepResult
from tasks.config.parameters import write_changes
from tasks.config.pipelines import load_pipeline
from tasks.data.trajectories import read_trajectories, trajectory_to_dict, write_trajectories
from tasks.evaluation.evaluate import evaluate_policy, plan_evaluation
from tasks.evaluation.forks.fork import run_person, sample_fork
from tasks.evaluation.forks.parents import Parent, find_parent
from tasks.evaluation.forks.records import append_fork, value_of
from tasks.evaluation.forks.request import ForkRequest, plan_fork
from tasks.evaluation.models import NamedPolicy, SavedPolicy, find_policy
from tasks.evaluation.request import EvaluationRequest
from tests.support.report_toy import ITEMS, make_failure, make_trajectory
from tests.support.tiny_model import claim_parameters

BASE = Path("models/textcraft-base")


@pytest.fixture(scope="module")
def evaluated_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation: one item, three samples, at other limits than the pipeline's."""
    folder = tmp_path_factory.mktemp("runs") / "evaluation"
    request = EvaluationRequest(
        envs=("textcraft",),
        where={"depth": [3]},
        items=1,
        samples=3,
        pipeline="textcraft-cpu",
        max_turns=6,
        temperature=1.2,
    )
    policy = find_policy(NamedPolicy(policy=str(BASE)))
    assert isinstance(policy, SavedPolicy)
    evaluate_policy(plan_evaluation(request, policy, out=folder), policy, out=folder)
    return folder


def comparable(trajectory: Trajectory) -> Trajectory:
    """Without log-probs: their last bits depend on what was computed together."""
    turns = [replace(turn, completion=replace(turn.completion, logprobs=())) for turn in trajectory.turns]
    return replace(trajectory, seconds=0.0, labels={}, turns=tuple(turns))


def logprobs_of(trajectory: Trajectory) -> list[float]:
    return [logprob for turn in trajectory.turns for logprob in turn.completion.logprobs]


@pytest.mark.heavy
def test_with_the_same_random_numbers_the_rest_comes_again_token_by_token(evaluated_run: Path) -> None:
    originals = read_trajectories(evaluated_run / "trajectories.jsonl")
    by_sample = {trajectory.sample_index: trajectory for trajectory in originals}
    assert len(by_sample[0].turns) > 3
    num_forks = 0
    for line, original in enumerate(originals, start=1):
        for turn in (1, 2, len(original.turns))[: 3 if line == 1 else 2]:
            parent, number = find_parent(f"{evaluated_run}/evaluation:{line}@{turn}")
            plan = plan_fork(parent, number, ForkRequest(samples=3))
            again = asyncio.run(sample_fork(plan, name="evaluate"))[original.sample_index]
            assert comparable(again) == comparable(original)
            assert logprobs_of(again) == pytest.approx(logprobs_of(original), abs=1e-4)
            num_forks += 1
    assert num_forks == 7


@pytest.mark.heavy
def test_a_request_and_its_settings_come_before_the_record_of_the_evaluation(evaluated_run: Path) -> None:
    parent, turn = find_parent(f"{evaluated_run}/evaluation:1@2")
    evaluate = load_pipeline("textcraft-cpu").evaluate
    for options, temperature, max_turns in (
        ({}, 1.2, 6),
        ({"temperature": 0.5, "max_turns": 8}, 0.5, 8),
        ({"overrides": {"evaluate.temperature": 0.25, "evaluate.max_turns": 7}}, 0.25, 7),
        ({"pipeline": "textcraft-cpu"}, evaluate.temperature, evaluate.max_turns),
    ):
        plan = plan_fork(parent, turn, ForkRequest(**options))
        assert (plan.temperature, plan.max_turns) == (temperature, max_turns)
    person = plan_fork(parent, turn, ForkRequest(is_person=True))
    assert (person.max_turns, "temperature" in person.labels) == (6, False)


@pytest.mark.heavy
def test_an_evaluation_of_training_items_alone_can_be_forked(tmp_path: Path) -> None:
    parts = {"lessons": {"env": "textcraft", "evaluate": False}, "exam": {"env": "babyai"}}
    request = EvaluationRequest(
        envs=("textcraft",),
        split="train",
        items=1,
        pipeline="textcraft-cpu",
        max_turns=1,
        overrides={"data.parts": parts},
    )
    policy = find_policy(NamedPolicy(policy=str(BASE)))
    assert isinstance(policy, SavedPolicy)
    evaluate_policy(plan_evaluation(request, policy, out=tmp_path), policy, out=tmp_path)
    plan = plan_fork(*find_parent(f"{tmp_path}/evaluation:1@1"), ForkRequest())
    assert list(plan.pipeline.data.parts) == ["lessons"]


@pytest.mark.heavy
def test_the_same_request_gives_the_same_samples_and_another_seed_others(evaluated_run: Path) -> None:
    parent, turn = find_parent(f"{evaluated_run}/evaluation:1@2")
    plans = [plan_fork(parent, turn, ForkRequest(samples=4, seed=seed)) for seed in (1, 1, 2)]
    runs = [[comparable(t) for t in asyncio.run(sample_fork(plan))] for plan in plans]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    repeated_turn = comparable(parent.trajectory).turns[0]
    assert all(t.turns[0] == repeated_turn for run in runs for t in run)


@pytest.fixture
def record(tmp_path: Path) -> Callable[[str, int], Parent]:
    """Makes a file with an expert's trajectory of an environment's item."""

    def make(name: str, number: int) -> Parent:
        spec = get_env(name)
        item = get_item(spec, number)
        config = EpisodeConfig(agent=FormatAgent("action"), limits=UNLIMITED)

        async def play() -> Trajectory:
            env = spec.make()
            try:
                script = expert_script(spec.solve(item), config=config)
                return await run_script(env, item, script, config=config)
            finally:
                await env.close()

        write_trajectories(tmp_path / "expert.jsonl", [asyncio.run(play())])
        return find_parent(f"{tmp_path}/expert.jsonl:1@1")[0]

    return make


def lines_of(actions: Sequence[str]) -> Callable[[], Any]:
    lines: Iterator[str] = iter(actions)

    async def read() -> str | None:
        return next(lines, None)

    return read


def without_thought(turn: Turn) -> Turn:
    return replace(turn, text="", thought="")


PERSON: dict[str, Any] = {"is_person": True, "max_turns": 100, "overrides": {"agent.format": "action"}}


@pytest.mark.parametrize(("name", "number"), [("textcraft", 12), ("babyai", 5)])
def test_a_person_goes_on_in_the_environment_as_it_was(
    name: str, number: int, record: Callable[[str, int], Parent]
) -> None:
    parent = record(name, number)
    original = parent.trajectory
    actions = [turn.action for turn in original.turns]
    assert original.success
    assert len(actions) > 1
    for turn in {1, 2, len(actions)}:
        plan = plan_fork(parent, turn, ForkRequest(**PERSON))
        fork = asyncio.run(run_person(plan, lines_of(actions[turn - 1 :])))
        assert fork is not None
        assert list(map(without_thought, fork.turns)) == list(map(without_thought, original.turns))
        assert (fork.success, fork.reward, fork.stop_reason) == (
            True, original.reward, StopReason.TERMINATED
        )  # fmt: skip
        assert {"parent": "expert:1", "turn": turn, "policy": "person"}.items() <= fork.labels.items()
        assert asyncio.run(run_person(plan, lines_of([]))) is None  # they left
    changed_turn = replace(original.turns[0], observation="You are in a maze of twisty little passages.")
    turns = (changed_turn, *original.turns[1:])
    plan = plan_fork(replace(parent, trajectory=replace(original, turns=turns)), 2, ForkRequest(**PERSON))
    with pytest.raises(ReplayDiffers, match=r"expert/expert:1: the observation, turn 1, .*twisty"):
        asyncio.run(run_person(plan, lines_of(actions)))


def test_a_failed_fork_is_recorded_with_its_labels(
    record: Callable[[str, int], Parent], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_fork(record("textcraft", 12), 1, ForkRequest(**PERSON))

    async def crash(self: object, action: str) -> StepResult:
        raise EnvCrashed("it broke")

    monkeypatch.setattr(type(get_env("textcraft").make()), "step", crash)
    trajectories: list[Trajectory] = []
    callbacks = Callbacks(on_trajectory=trajectories.append)
    with pytest.raises(EpisodeFault, match="it broke"):
        asyncio.run(run_person(plan, lines_of(["look"]), callbacks))
    (trajectory,) = trajectories
    assert trajectory.has_failed
    assert {"parent": "expert:1", "turn": 1, "policy": "person"}.items() <= trajectory.labels.items()


def test_a_trajectory_is_named_as_the_viewer_names_it(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    trajectories = [make_trajectory(item, success=True) for item in ITEMS]
    write_trajectories(runs / "toy" / "train" / "trajectories" / "step_0003.jsonl", trajectories)
    write_trajectories(tmp_path / "a b.jsonl", trajectories[:1])
    for name, item, turn in (
        ("toy/step_0003:2@4", "toy_1", 4),
        (f"{runs}/toy/step_0003:4@1", "toy_3", 1),
        (f"{tmp_path}/a b.jsonl:1@2", "toy_0", 2),
        ("http://127.0.0.1:8003/#/run/toy/at/step_0003:3?q=step:3+turns%3E2&turn=2&show=owner", "toy_2", 2),
        ("#/run/toy/at/step_0003:1?turn=1", "toy_0", 1),
        ("http://127.0.0.1:8003/#/run/toy/fork/step_0003:2?turn=3", "toy_1", 3),
    ):
        parent, number = find_parent(name, paths=[runs])
        assert (parent.trajectory.item.item_id, number) == (item, turn), name
    for name, text in (
        ("toy/step_0003:2", "names no turn"),
        ("toy/step_0003:2@0", "names no turn"),
        ("toy/step_0003:9@1", "no line 9"),
        ("toy/step_0004:1@1", "did you mean 'step_0003'"),
        ("toy/step_0003:x@1", "no line x"),
        ("tay/step_0003:1@1", "in .*/runs: toy; did you mean 'toy'. give its folder .*, or --runs"),
        ("#/run/toy/at/step_0003:1", "names no turn"),
        ("#/run/toy/fork/step_0003:1", "names no turn"),
        ("#/run/toy/group/step_0003:1?turn=1", "names no turn"),
    ):
        with pytest.raises(ConfigError, match=text):
            find_parent(name, paths=[runs])


@pytest.fixture
def run_folder(tmp_path: Path, record: Callable[[str, int], Parent]) -> Path:
    """A run of the CPU pipeline with one trajectory."""
    folder = tmp_path / "run"
    parent = record("textcraft", 12)
    write_trajectories(folder / "train" / "trajectories" / "step_0001.jsonl", [parent.trajectory])
    write_changes(folder, name="textcraft-cpu", changes={"evaluate.max_turns": (12, 5)})
    shutil.copytree(BASE, folder / "policy")
    return folder


def test_the_run_says_which_policy_and_settings_go_on(run_folder: Path) -> None:
    parent, turn = find_parent(f"{run_folder}/step_0001:1@2")
    plan = plan_fork(parent, turn, ForkRequest(overrides={"evaluate.temperature": 0.25}))
    assert isinstance(plan.policy, SavedPolicy)
    assert (plan.policy.folder, plan.max_turns, plan.temperature) == (run_folder / "policy", 5, 0.25)
    part = {"env": "textcraft", "evaluate": False}
    overrides = {"data.parts": {"more": part, "questions": {"env": "searchqa-mini"}}}
    plan = plan_fork(parent, turn, ForkRequest(overrides=overrides))  # of a part for training alone
    assert list(plan.pipeline.data.parts) == ["more"]


def test_what_cannot_be_asked_is_refused_before_anything_starts(run_folder: Path) -> None:
    parent, turn = find_parent(f"{run_folder}/step_0001:1@2")
    for options, text in (
        ({"temperature": 0.0, "samples": 2}, "at temperature 0 they are all alike"),
        ({"max_turns": 1}, "may have 1 turns, and 1 would be repeated"),
        ({"policy": "runs/no"}, "no policy 'runs/no'"),
        ({"policy": "http://127.0.0.1:9"}, "which of its models"),
        ({"overrides": {"agent.tools": ["calculator"]}}, "calls no tools"),
    ):
        with pytest.raises(ConfigError, match=text):
            plan_fork(parent, turn, ForkRequest(**options))
    for options, text in (
        ({"is_person": True, "temperature": 0.5}, "--temperature 0.5 is for policies"),
        ({"is_person": True, "samples": 4}, "--samples 4 is for policies"),
    ):
        with pytest.raises(ConfigError, match=text):
            ForkRequest(**options)
    with pytest.raises(ValidationError, match="samples"):
        ForkRequest(samples=0)


def test_a_policy_that_does_not_fit_the_memory_is_refused(run_folder: Path) -> None:
    parent, turn = find_parent(f"{run_folder}/step_0001:1@2")
    claim_parameters(run_folder / "policy", 10**12)
    with pytest.raises(
        ConfigError, match=r"policy needs about 40\d\d\.\d GB to sample, and this machine has"
    ):
        plan_fork(parent, turn, ForkRequest())
    plan_fork(parent, turn, ForkRequest(is_person=True))


def test_the_value_of_a_turn_is_the_mean_outcome_with_its_interval() -> None:
    episodes = [make_trajectory(ITEMS[0], success=number < 3) for number in range(8)]
    value = value_of([*episodes, make_failure(ITEMS[0], error="EnvCrashed: x")])
    assert (value.samples, value.failed) == (8, 1)
    assert value.success is not None
    assert value.success == value.reward  # every success is a reward of 1
    # Wilson's interval of 3 of 8, from Newcombe's formula by hand.
    assert (value.success.mean, value.success.low, value.success.high) == pytest.approx(
        (0.375, 0.1368, 0.6943), abs=1e-4
    )
    assert value_of([]).success is None


def test_forks_are_written_beside_the_runs_own_files(run_folder: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}

    before = files()
    parent, _ = find_parent(f"{run_folder}/step_0001:1@2")
    fork = replace(parent.trajectory, labels={"parent": parent.address, "turn": 2})
    for _ in range(2):
        append_fork(parent.run, fork)
    after = files()
    assert {path: after[path] for path in before} == before
    assert after.keys() - before.keys() == {run_folder / "forks.jsonl"}
    assert [json.loads(line) for line in (run_folder / "forks.jsonl").read_text().splitlines()] == [
        json.loads(json.dumps(trajectory_to_dict(fork)))
    ] * 2
    again, turn = find_parent(f"{run_folder}/forks:2@3")  # a fork can be forked
    assert (again.trajectory.labels, turn) == (fork.labels, 3)
