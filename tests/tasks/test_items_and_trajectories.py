"""Files of items and trajectories give back what was written; summaries against sums by hand."""

import json
from pathlib import Path

import pytest

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.errors import ConfigError
from envs.types import Item
from tasks.config.data import DataSettings
from tasks.data.items import read_items, write_items
from tasks.data.trajectories import read_trajectories, success_rates, summarise, write_trajectories

ITEMS = [
    Item(item_id="textcraft_3", env="textcraft", seed=2, metadata={"depth": 1}),
    Item(item_id="textcraft_40", env="textcraft", metadata={"depth": 2}),
]


def make(item: Item, *, reward: float, turns: int = 1, error: str | None = None) -> Trajectory:
    completion = Completion(
        token_ids=(5, 6, 7), logprobs=(-0.5, -1.0, -0.25), finish_reason=FinishReason.STOP, policy_version=4
    )
    turn = Turn(
        completion=completion,
        text="x",
        action="x",
        observation="ü",
        reward=reward,
        observation_ids=(1, 2, 3),
        observation_spans=((1, 2), (2, 3)),
        state="9dfbb5e25101c06e",
    )
    return Trajectory(
        item=item,
        sample_index=0,
        prompt_ids=(1, 2),
        turns=() if error else (turn,) * turns,
        stop_reason=StopReason.ERROR if error else StopReason.TERMINATED,
        reward=reward,
        success=reward > 0,
        seconds=0.5,
        error=error,
        final_state=None if error else "e9cd2855ab80fbd5",
        metrics={"parse_failures": turns},
    )


DATA = DataSettings.model_validate({"parts": {"textcraft": {}}})


def test_items_come_back_and_the_same_items_are_the_same_bytes(tmp_path: Path) -> None:
    write_items(tmp_path / "data" / "a.jsonl", ITEMS)
    assert read_items(tmp_path / "data" / "a.jsonl", data=DATA) == ITEMS
    write_items(tmp_path / "b.jsonl", read_items(tmp_path / "data" / "a.jsonl"))
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "data" / "a.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no items"),
        ('{"item_id": "x"}\n', ":1: not an item: env"),
        ('{"item_id": "x", "env": "webshop"}\n', "of environment 'webshop'"),
        ('{"item_id": "x", "env": "textcraft", "depth": 2}\n', "depth"),
        ("{\n", "not an item"),
    ],
)
def test_a_bad_item_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_items(path, data=DATA)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_item_file_names_the_stage_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prepare"):
        read_items(tmp_path / "none.jsonl")


def test_trajectories_come_back(tmp_path: Path) -> None:
    originals = [make(ITEMS[0], reward=1.0, turns=2), make(ITEMS[1], reward=0.0, error="EnvCrashed: x: y")]
    write_trajectories(tmp_path / "t.jsonl", originals)
    assert read_trajectories(tmp_path / "t.jsonl") == originals
    json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])


def test_summary_by_hand() -> None:
    episodes = [
        make(ITEMS[0], reward=1.0, turns=2),
        make(ITEMS[0], reward=0.0, turns=4),
        make(ITEMS[1], reward=0.0, turns=3),
        make(ITEMS[1], reward=0.0, error="EnvCrashed: step raised"),
        make(ITEMS[1], reward=0.0, error="EpisodeTimeout: too long"),
        make(ITEMS[1], reward=0.0, error="EnvCrashed: again"),
    ]
    assert summarise(episodes) == pytest.approx(
        {
            "episodes": 3,
            "dropped": 3,
            "dropped_EnvCrashed": 2,
            "dropped_EpisodeTimeout": 1,
            "stop_terminated": 3,
            "stop_truncated": 0,
            "stop_max_turns": 0,
            "stop_max_context": 0,
            "reward": 1 / 3,
            "success": 1 / 3,
            "reward_gap": 0.0,
            "success_depth_1": 1 / 2,
            "success_depth_2": 0.0,
            "turns": 3.0,
            "tokens": 27,
            "tokens_per_turn": 3.0,
            "parse_failures": 3.0,
        }
    )


def test_rates_by_metadata_are_of_all_items_with_the_value() -> None:
    """10, 10.0 and "10" have the same name, and so one rate."""
    kinds: list[object] = [10, 10.0, "10", 9, [10], None]
    successes = [1.0, 0.5, 0.0, 1.0, 0.0, 0.0]
    items = [Item(f"toy_{number}", env="toy", metadata={"kind": kind}) for number, kind in enumerate(kinds)]
    rates = success_rates(list(zip(items, successes, strict=True)))
    assert list(rates.items()) == [("success", 2.5 / 6), ("success_kind_9", 1.0), ("success_kind_10", 0.5)]


def test_a_summary_of_failures_has_counts_and_no_means() -> None:
    summary = summarise([make(ITEMS[0], reward=0.0, error="EnvCrashed: x")])
    assert summary["dropped_EnvCrashed"] == 1
    assert "success" not in summary
