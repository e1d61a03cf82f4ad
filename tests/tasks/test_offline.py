"""Learning offline: what is selected, compared and refused, by hand, and small real runs."""

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.errors import ConfigError, WingspanError
from envs.files import write_json
from envs.types import Item
from tasks.algorithms.offline import OfflineAlgorithm
from tasks.algorithms.registry import parse_algorithm
from tasks.config.offline import OfflineSettings, check_offline
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.data.demonstrations import demonstrate
from tasks.data.items import write_items
from tasks.data.supervised import SupervisedRow, make_pairs, rows_of, select
from tasks.data.training_files import check_episodes, check_tokens, read_training_files
from tasks.data.trajectories import read_trajectories, summarise, write_trajectories
from tasks.runs.progress import Progress
from tasks.runs.rounds import RoundResult, TrainedRound, round_file
from tasks.stages.offline import OfflineSession
from tests.support.adapters import check_adapter
from tests.support.tiny_model import save_small_base, save_tiny_model
from tests.support.toy import toy_tokenizer
from tests.support.verl_toy import register, toy_items, toy_pipeline

WARMUP = {"demonstrations": 3, "noise": 0.0, "steps": 2, "batch_size": 2, "lr": 1e-3}
TWO_STAGES = {"type": "scaling_inter_stepwise", "max_turns": [2, 4], "steps_per_stage": 1}
CPU = {"device": "cpu", "rollout": "cpu"}
TEST_ITEMS = toy_items(4, first=100)


def turn(ids: Sequence[int], *, observation: Sequence[int] = (), prompt: Sequence[int] | None = None) -> Turn:
    return Turn(
        completion=Completion(
            token_ids=tuple(ids),
            logprobs=(-1.0,) * len(ids),
            finish_reason=FinishReason.STOP,
            policy_version=0,
        ),
        text=toy_tokenizer().decode(list(ids), skip_special_tokens=True),
        action="",
        observation="",
        reward=0.0,
        observation_ids=tuple(observation),
        prompt_ids=None if prompt is None else tuple(prompt),
    )


def episode(
    item: str, turns: Sequence[Turn], *, reward: float = 0.0, success: bool | None = None, sample: int = 0
) -> Trajectory:
    return Trajectory(
        item=Item(item_id=item, env="parity"),
        sample_index=sample,
        prompt_ids=(1, 2),
        turns=tuple(turns),
        stop_reason=StopReason.TERMINATED,
        reward=reward,
        success=reward == 1.0 if success is None else success,
        seconds=0.0,
    )


def segmented(last: int) -> list[Turn]:
    """Two segments: `1 2 | 20 21, 30, 22` and `1 2 5 | last`."""
    return [turn([20, 21], observation=[30]), turn([22]), turn([last], prompt=[1, 2, 5])]


def test_rows_are_the_segments_with_the_policys_tokens() -> None:
    assert rows_of(episode("a", segmented(40))) == [
        SupervisedRow(item_id="a", prompt_ids=[1, 2], response_ids=[20, 21, 30, 22], mask=[1, 1, 0, 1]),
        SupervisedRow(item_id="a", prompt_ids=[1, 2, 5], response_ids=[40], mask=[1]),
    ]


def test_successes_are_added_to_the_original_data_once_each() -> None:
    """A duplicate has the item and the tokens of another: for another item, the same tokens are new."""
    original = [
        SupervisedRow(item_id="a", prompt_ids=[1, 2], response_ids=[20, 9], mask=[0, 1]),
        SupervisedRow(item_id="a", prompt_ids=[1, 2], response_ids=[20, 9], mask=[0, 1]),
    ]
    samples = [
        episode("a", [turn([20, 9])], reward=1.0),  # as a demonstration
        episode("a", segmented(40), reward=1.0),  # new
        episode("a", segmented(41), reward=1.0),  # new: only its first segment is there already
        episode("a", segmented(40), reward=1.0),  # as the second
        episode("b", segmented(40), reward=1.0),  # new: of another item
        episode("b", [turn([50])], reward=0.5),  # no success
        replace(episode("b", [turn([51])], reward=1.0), stop_reason=StopReason.ERROR, error="X: y"),
        episode("b", [], reward=1.0),  # nothing of the policy's
    ]
    selection = select(samples, original=original, min_reward=None)
    assert selection.rows == [*original, *rows_of(samples[1]), *rows_of(samples[2]), *rows_of(samples[4])]
    assert (selection.chosen, selection.duplicates) == (5, 2)
    by_reward = select(samples, min_reward=0.5)
    assert (by_reward.chosen, by_reward.duplicates) == (6, 1)
    assert by_reward.rows[-1].response_ids == [50]


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        ([0.0, 1.0], {}, [(1, 0)]),
        ([1.0, 1.0], {}, []),
        ([0.69, 0.0], {}, []),
        ([0.7, 0.69], {}, [(0, 1)]),
        ([0.7, 0.695], {}, []),
        ([0.9, 0.85], {"min_gap": 0.1, "win_threshold": 0.9}, []),
        # the best with the worst; of equal ones the earlier
        ([0.2, 1.0, 0.0, 1.0, 0.0], {}, [(1, 2)]),
        ([0.2, 1.0, 0.0, 1.0, 0.0], {"pairs_per_item": 9}, [(1, 2), (3, 4)]),
        # no episode is in two pairs
        ([0.0, 1.0, 0.0], {"pairs_per_item": 9}, [(1, 0)]),
        ([1.0], {}, []),
    ],
)
def test_pairs_by_agentgyms_thresholds(
    rewards: list[float], options: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    group = [episode("a", [turn([20 + i])], reward=r, sample=i) for i, r in enumerate(rewards)]
    others = [episode("b", [turn([20])], reward=1.0), replace(group[0], stop_reason=StopReason.ERROR)]
    settings = {"win_threshold": 0.7, "min_gap": 0.01, "pairs_per_item": 1} | options
    pairs = make_pairs([*others, *group], **settings)
    assert [(pair.winner.sample_index, pair.loser.sample_index) for pair in pairs] == expected


def offline(algorithm: Any, *, warmup: Any = None, model: Path = Path("m"), **overrides: Any) -> Pipeline:
    train = {"algorithm": algorithm, "steps": 2, "lr": 1e-3, "micro_batch_tokens": 1024}
    train |= overrides.pop("train", {})
    overrides = {"rollout__final_temperature": None} | overrides
    return toy_pipeline(model, train=train, warmup=warmup, **overrides)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"mini_batches": 2}, "train: mini_batches: not used by an algorithm that learns offline"),
        ({"kl": {"coef": 0.1}, "epochs": 2}, "epochs, kl: not used by"),
        ({"steps_per_round": 1}, "steps_per_round 1: rft has one round"),
        ({"algorithm": "agentevol", "steps_per_round": 3}, "steps 4 are no multiple of steps_per_round 3"),
        ({"algorithm": "sft"}, "sft: data: this key is missing"),
        ({"algorithm": {"name": "sft", "data": []}}, "sft: data: "),
        ({"algorithm": {"name": "rft", "loss": "vanilla"}}, "rft: loss: not used by"),
        ({"algorithm": {"name": "dpo", "samples": False}}, "leaves no episodes to compare"),
        ({"algorithm": {"name": "dpo", "min_gap": 0.0}}, "dpo: min_gap: "),
    ],
)
def test_keys_that_an_offline_algorithm_does_not_use_are_refused(train: dict[str, Any], message: str) -> None:
    values = {"algorithm": "rft", "steps": 4, "lr": 1e-3, "micro_batch_tokens": 8192} | train
    with pytest.raises(ConfigError) as error:
        load_pipeline("textcraft-cpu", overrides={"train": values})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algorithm", ["dpo", {"name": "rft", "min_reward": 0.5}])
def test_a_refused_change_of_the_algorithm_names_the_block_that_works(algorithm: Any) -> None:
    """`--set train.algorithm=dpo` keeps the other keys of an online pipeline, and `--set` removes none."""
    with pytest.raises(ConfigError) as error:
        load_pipeline("textcraft-cpu", overrides={"train.algorithm": algorithm})
    (block,) = re.findall(r"--set 'train=(.*)'", str(error.value))
    train = load_pipeline("textcraft-cpu", overrides={"train": yaml.safe_load(block)}).train
    assert train.algorithm == parse_algorithm(algorithm)
    online = load_pipeline("textcraft-cpu").train
    for key in ("steps", "lr", "micro_batch_tokens"):
        assert getattr(train, key) == getattr(online, key)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (offline("agentevol"), "original data, of which there are none"),
        (offline("dpo", rollout__group_size=1), "group_size 1: dpo compares"),
        (offline({"name": "sft", "data": ["x"]}), "rollout.items_per_step 4: sft samples no episodes"),
        (offline("rft", rollout__final_temperature=0.5), "schedules of the horizon: rft samples once; leave"),
        (offline("dpo", horizon=TWO_STAGES), "schedules of the horizon: dpo samples once; leave"),
        (
            offline("agentevol", rollout__final_temperature=0.5, horizon=TWO_STAGES),
            "original data, of which there are none",  # each round has its own place in the schedules
        ),
        (offline("dpo", backend=CPU | {"workers": 2}), "workers 2 and backend.samplers 1: on a CPU, dpo tr"),
        (offline("dpo", backend=CPU | {"samplers": 2}), "backend.samplers 2: on a CPU, dpo trains in one"),
        (
            offline("rft", warmup={**WARMUP, "new_words": 5}, train={"lora": {"rank": 2}}),
            "warmup.new_words 5: rft trains from model, and train.lora trains no embeddings",
        ),
    ],
)
def test_settings_that_an_offline_algorithm_lacks_or_ignores_are_refused(
    settings: Pipeline, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_offline(settings)


def test_what_is_recorded_can_be_read_and_has_no_online_parameters() -> None:
    pipeline = offline({"name": "dpo", "beta": 0.1}, rollout__group_size=2)
    recorded = pipeline.model_dump(mode="json")
    assert Pipeline.model_validate(recorded) == pipeline
    assert isinstance(pipeline.train, OfflineSettings)
    assert recorded["train"].keys() == {
        *("algorithm", "steps", "steps_per_round", "lr", "micro_batch_tokens", "final_policy", "lora")
    }
    assert recorded["train"]["algorithm"].keys() == {
        *("name", "beta", "win_threshold", "min_gap", "pairs_per_item", "samples", "batch_size", "data")
    }


def test_training_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    ids = toy_tokenizer().encode("one<|im_end|>", add_special_tokens=False)
    good = episode("parity_1", [turn(ids)], reward=1.0)
    failed = replace(good, stop_reason=StopReason.ERROR)
    write_trajectories(file, [failed, good])

    def read(tokens: int = 100) -> list[Trajectory]:
        return read_training_files([file], test_items=TEST_ITEMS, micro_batch_tokens=tokens)

    assert read() == [good]
    check_tokens(read(), toy_tokenizer(), model="m")
    with pytest.raises(ConfigError, match=rf"jsonl:2: parity_1 has {2 + len(ids)} tokens"):
        read(tokens=1 + len(ids))
    other = replace(good.turns[0], text="two")
    for wrong in (other, replace(other, completion=replace(other.completion, token_ids=(10**6,)))):
        with pytest.raises(ConfigError, match="not those of m's tokenizer"):
            check_tokens([replace(good, turns=(wrong,))], toy_tokenizer(), model="m")
    write_trajectories(file, [good, episode("parity_101", [turn(ids)])])
    with pytest.raises(ConfigError, match="jsonl:2: parity_101 is a test item"):
        read()
    file.write_text("\n\n" + file.read_text())
    with pytest.raises(ConfigError, match="jsonl:4: parity_101 is a test item"):
        read()
    write_trajectories(file, [good])
    file.write_text(file.read_text().splitlines()[0] + '\n{"item": 1}\n')
    with pytest.raises(ConfigError, match="jsonl:2 is no trajectory"):
        read()
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read()


SFT: dict[str, Any] = {"name": "sft", "data": ["x"]}
DPO: dict[str, Any] = {"name": "dpo", "data": ["x"], "samples": False}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SFT, None),
        (SFT | {"min_reward": 0.5}, None),
        (SFT | {"min_reward": 1.1}, r"none of 3 episodes is imitated \(train.algorithm.min_reward 1.1"),
        (DPO, None),
        (DPO | {"min_gap": 0.7}, r"of 3 episodes, none has a reward of at least 0.7 \(win_threshold\)"),
        (DPO | {"win_threshold": 1.1}, r"none has a reward of at least 1.1"),
        (DPO | {"win_threshold": 1.1, "samples": True}, None),
        ({"name": "rft", "min_reward": 1.1, "data": ["x"]}, None),
    ],
)
def test_files_of_which_nothing_is_learned_are_refused_unless_episodes_are_sampled(
    settings: dict[str, Any], message: str | None
) -> None:
    """The item has episodes of reward 1 and 0.4: one to imitate, and a pair with a difference of 0.6."""
    algorithm = parse_algorithm(settings)
    assert isinstance(algorithm, OfflineAlgorithm)
    episodes = [episode("a", [turn([20])], reward=1.0), episode("a", [turn([21])], reward=0.4)]
    episodes.append(episode("b", [turn([22])]))
    if message is None:
        check_episodes(episodes, algorithm)
    else:
        with pytest.raises(ConfigError, match=message):
            check_episodes(episodes, algorithm)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    register()
    write_items(tmp_path / "data" / "train.jsonl", toy_items(12))
    write_items(tmp_path / "data" / "test.jsonl", TEST_ITEMS)
    return tmp_path


def test_a_round_of_agentevol_imitates_the_original_data_and_its_own_successes_from_the_base(
    workspace: Path,
) -> None:
    """Whatever the round: the base model, all demonstrations, `data`, and what this round has sampled."""
    model = save_tiny_model(workspace / "model")
    train = {"steps": 4, "steps_per_round": 2}
    pipeline = offline({"name": "agentevol", "data": ["x"]}, model=model, warmup=WARMUP, train=train)
    session = OfflineSession(pipeline, workspace)
    assert session.num_rounds == 2
    demonstrations = asyncio.run(demonstrate(toy_items(12), pipeline=pipeline, tokenizer=toy_tokenizer()))
    good = episode("parity_2", [turn([20])], reward=1.0)
    files = [good, good, good, episode("parity_2", [turn([21])])]
    for index, token in enumerate((30, 31)):
        steps = round_of(index)
        samples = [
            episode("parity_1", [turn([token])], reward=1.0),
            episode("parity_1", [turn([token])], reward=1.0),
            episode("parity_1", [turn([token + 10])]),
        ]
        facts, request = session.plan_imitation(steps, files=files, samples=samples, folder=workspace / "new")
        assert facts == {"rows": 5, "rows_original": 4, "chosen": 3 + 2, "duplicates": 2 + 1}
        assert request.model == str(model)
        assert request.steps == 2
        expected = [row.response_ids for row in demonstrations] + [[20], [token]]
        assert request.responses == expected


def test_renamed_demonstrations_and_sampled_episodes_have_one_weight(workspace: Path) -> None:
    """Seven steps of two demonstrations show each of three five times, and so whatever else is imitated."""
    model = save_small_base(workspace / "model")
    warmup = WARMUP | {"new_words": 20, "rename_words": True, "steps": 7}
    pipeline = offline({"name": "agentevol", "data": ["x"]}, model=model, warmup=warmup)
    samples = [episode(f"parity_{n}", [turn([30 + n])], reward=1.0) for n in range(4)]
    facts, request = OfflineSession(pipeline, workspace).plan_imitation(
        round_of(0),
        files=[episode("parity_2", [turn([20])], reward=1.0)],
        samples=[*samples, samples[0]],
        folder=workspace / "new",
    )
    counts = Counter(map(tuple, request.responses))
    assert [counts.pop((token,)) for token in (20, 30, 31, 32, 33)] == [5] * 5
    assert counts.total() == 3 * 5
    assert facts == {"rows": 40, "rows_original": 20, "chosen": 6, "duplicates": 1}


def test_the_episodes_of_files_are_counted_where_nothing_is_sampled(workspace: Path) -> None:
    """34 good episodes of 60, of which 9 are distinct."""
    model = save_tiny_model(workspace / "model")
    files = [episode("parity_1", [turn([20 + i % 9])], reward=float(i < 34)) for i in range(60)]
    steps = TrainedRound(index=0, first_step=1, last_step=2, seconds=0.0)
    pipeline = offline(
        {"name": "sft", "data": ["x"]},
        model=model,
        rollout__items_per_step=1,
        rollout__group_size=1,
        rollout__temperature=1.0,
    )
    session = OfflineSession(pipeline, workspace)
    facts, request = session.plan_imitation(steps, files=files, samples=[], folder=workspace)
    assert facts == {"rows": 9, "rows_original": 9, "chosen": 34, "duplicates": 25}
    assert len(request.responses) == 9


def test_nothing_to_learn_from_is_refused(workspace: Path) -> None:
    model = save_tiny_model(workspace / "model")
    steps = TrainedRound(index=0, first_step=1, last_step=2, seconds=0.0)
    lost = [episode("parity_1", [turn([20])]), episode("parity_1", [turn([21])])]
    with pytest.raises(WingspanError, match="none of 2 episodes was good enough"):
        OfflineSession(offline("rft", model=model), workspace).plan_imitation(
            steps, files=[], samples=lost, folder=workspace
        )
    with pytest.raises(WingspanError, match="there are no pairs: of 2 episodes"):
        OfflineSession(offline("dpo", model=model), workspace).plan_preferences(steps, lost)


def run(pipeline: Pipeline, workspace: Path) -> list[dict[str, float]]:
    """All rounds, as the flow runs them; returns the steps."""
    with OfflineSession(pipeline, workspace) as session:
        for index in range(session.num_rounds):
            session.evaluate_round(session.train_round(index))
        session.export()
    return [json.loads(line) for line in (workspace / "train" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_groups_sampled_before_a_change_of_their_size_stay_what_they_are(workspace: Path) -> None:
    """Two groups of four, of which one is informative; in threes, one of three would be."""
    model = save_tiny_model(workspace / "model")
    rewards = {"parity_1": (1.0, 1.0, 1.0, 1.0), "parity_2": (1.0, 0.0, 0.0, 0.0)}
    samples = [
        episode(item, [turn([20 + index])], reward=reward, sample=index)
        for item, group in rewards.items()
        for index, reward in enumerate(group)
    ]
    file = workspace / "train" / "trajectories" / "step_0001.jsonl"
    write_trajectories(file, samples)
    lines: list[dict[str, float]] = []
    pipeline = offline("rft", model=model, rollout__group_size=3, train={"steps": 1})
    progress = Progress(on_step=lambda line: lines.append(dict(line)))
    with OfflineSession(pipeline, workspace, progress) as session:
        session.train_round(0)
    assert lines[0]["informative_groups"] == 1 / 2


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_rft_is_sft_on_the_sampled_file_and_resumes_where_it_was(workspace: Path) -> None:
    import torch

    model = save_tiny_model(workspace / "model")
    rft = offline({"name": "rft", "batch_size": 4}, model=model, train={"steps": 3})
    sampled_file = workspace / "train" / "trajectories" / "step_0001.jsonl"
    policy = workspace / "train" / "policies" / "00"

    def fail_before_training(phase: str) -> None:
        if phase.startswith("training"):
            raise KeyboardInterrupt

    with (
        OfflineSession(rft, workspace, Progress(on_phase=fail_before_training)) as session,
        pytest.raises(KeyboardInterrupt),
    ):
        session.train_round(0)
    before = sampled_file.read_bytes()
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(b"broken off")  # as if it failed again, at the end
    steps = run(rft, workspace)
    assert sampled_file.read_bytes() == before, "the episodes are kept"

    sampled = read_trajectories(sampled_file)
    assert len(sampled) == 3 * 4 * 4, "as many as three steps would sample"
    successes = select(sampled, min_reward=None)
    assert 0 < successes.chosen < len(sampled)
    assert steps[0]["chosen"] == successes.chosen
    assert steps[0]["episodes"] == len(sampled)
    assert [step["step"] for step in steps] == [1, 2, 3]
    round_result = json.loads((workspace / "train" / "rounds" / "00.json").read_text())
    evaluated = read_trajectories(workspace / "train" / "trajectories" / "round_01.jsonl")
    assert summarise(evaluated) == round_result["evaluation"]
    assert {t.item.item_id for t in evaluated} <= {item.item_id for item in TEST_ITEMS}
    first = weights(workspace / "policy")
    assert any(not torch.equal(first[name], value) for name, value in weights(model).items())

    other = workspace / "other"
    write_items(other / "data" / "train.jsonl", toy_items(12))
    write_items(other / "data" / "test.jsonl", TEST_ITEMS)
    sft = offline(
        {"name": "sft", "batch_size": 4, "data": [str(sampled_file)]},
        model=model,
        train={"steps": 3},
        rollout={
            **rft.rollout.model_dump(),
            "items_per_step": 1,
            "group_size": 1,
            "temperature": 1.0,
            "final_temperature": None,
        },
    )
    run(sft, other)
    second = weights(other / "policy")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_round_of_agentevol_samples_with_the_policy_of_the_round_before(workspace: Path) -> None:
    model = save_tiny_model(workspace / "model")
    file = workspace / "original.jsonl"
    ids = toy_tokenizer().encode("Action: one<|im_end|>", add_special_tokens=False)
    write_trajectories(file, [episode("parity_1", [turn(ids)], reward=1.0)])
    algorithm = {"name": "agentevol", "data": [str(file)], "batch_size": 4}
    pipeline = offline(algorithm, model=model, train={"steps": 4, "steps_per_round": 2, "lr": 1e-2})
    with OfflineSession(pipeline, workspace) as session:
        session.evaluate_round(session.train_round(0))
        first = shutil.copytree(workspace / "train" / "policies" / "00", workspace / "first")
        session.evaluate_round(session.train_round(1))
        session.export()
    steps = [json.loads(line) for line in (workspace / "train" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    for number, sampler, other in ((1, model, first), (3, first, model)):
        sampled = read_trajectories(workspace / "train" / "trajectories" / f"step_{number:04d}.jsonl")
        temperature = steps[number - 1]["temperature"]
        own, others = (log_prob_gap(folder, sampled[:8], temperature) for folder in (sampler, other))
        assert own < 1e-3 < 1e-2 < others
    last = workspace / "train" / "policies" / "01"
    assert not (workspace / "train" / "policies" / "00").exists()
    assert (last / "model.safetensors").read_bytes() == (workspace / "policy/model.safetensors").read_bytes()


def test_a_run_killed_after_the_record_of_its_last_round_keeps_no_earlier_policies(workspace: Path) -> None:
    train = {"steps": 6, "steps_per_round": 2}
    pipeline = offline({"name": "agentevol", "data": ["x"]}, model=workspace / "model", train=train)
    policies = workspace / "train" / "policies"
    for index in range(3):
        result = RoundResult(**asdict(round_of(index)), evaluation={"success": 0.5}, temperature=1.0)
        write_json(round_file(workspace / "train", index), asdict(result))
        (policies / f"{index:02d}").mkdir(parents=True)
    with OfflineSession(pipeline, workspace) as session:
        assert session.evaluate_round(round_of(1)).index == 1
        assert sorted(path.name for path in policies.iterdir()) == ["01", "02"]
        assert session.evaluate_round(round_of(2)).index == 2
    assert [path.name for path in policies.iterdir()] == ["02"]


def round_of(index: int) -> TrainedRound:
    return TrainedRound(index=index, first_step=2 * index + 1, last_step=2 * index + 2, seconds=1.0)


def log_prob_gap(folder: Path, trajectories: Sequence[Trajectory], temperature: float) -> float:
    """The mean difference between the recorded log-probs of the first turns and those of the model."""
    import torch
    from transformers import AutoModelForCausalLM

    model, gaps = AutoModelForCausalLM.from_pretrained(folder), []
    for trajectory in trajectories:
        prompt, sampled = list(trajectory.prompt_ids), trajectory.turns[0].completion
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *sampled.token_ids]])).logits[0, len(prompt) - 1 : -1]
        log_probs = (logits / temperature).log_softmax(-1)[range(len(sampled.token_ids)), sampled.token_ids]
        gaps += (log_probs - torch.tensor(sampled.logprobs)).abs().tolist()
    return sum(gaps) / len(gaps)


@pytest.mark.slow
def test_dpo_puts_the_pairs_of_a_file_in_order(workspace: Path) -> None:
    model = save_tiny_model(workspace / "model")
    register()
    file = workspace / "pairs.jsonl"
    tokenizer = toy_tokenizer()

    def say(text: str) -> Turn:
        return turn(tokenizer.encode(text + "<|im_end|>", add_special_tokens=False))

    write_trajectories(
        file,
        [
            episode(item, [say(text)], reward=reward)
            for item in ("parity_1", "parity_2")
            for text, reward in (("yes", 1.0), ("no", 0.0))
        ],
    )
    dpo = offline(
        {"name": "dpo", "data": [str(file)], "samples": False, "batch_size": 2},
        model=model,
        train={"steps": 6, "lr": 1e-2, "lora": {"rank": 8}},
        rollout={
            **toy_pipeline(model).rollout.model_dump(),
            "items_per_step": 1,
            "group_size": 1,
            "temperature": 1.0,
            "final_temperature": None,
        },
    )
    steps = run(dpo, workspace)
    check_adapter(model, workspace / "policy")
    assert steps[0]["pairs"] == 2
    assert steps[0]["preference_loss"] == pytest.approx(0.6931, abs=1e-3)
    assert steps[-1]["preference_loss"] < 0.5
    assert steps[-1]["preference_accuracy"] == 1.0
    result = json.loads((workspace / "train" / "rounds" / "00.json").read_text())
    assert result["last_step"] == 6
    assert asdict(TrainedRound(index=0, first_step=1, last_step=6, seconds=0.0)).keys() <= result.keys()
