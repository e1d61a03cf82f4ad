"""The run that `bench/view.py` writes, and its requests."""

import random
from pathlib import Path

import pytest

from bench.view import REQUESTS, requests, write_run
from envs.files import read_json_lines
from tasks.data.trajectories import read_trajectories, trajectory_to_dict


@pytest.mark.parametrize("trajectories", [1, 200])
def test_only_items_that_a_run_has_are_asked_for(trajectories: int, tmp_path: Path) -> None:
    steps = write_run(tmp_path, trajectories=trajectories)
    files = (tmp_path / "train" / "trajectories").iterdir()
    items = {line["item"]["item_id"] for file in files for line in read_json_lines(file)}
    make = dict(requests(random.Random(0), steps=steps))["an item over the training"]
    assert {make()[1]["item"] for _ in range(10 * REQUESTS)} == items


def test_requests_of_a_sorted_list_begin_at_other_places() -> None:
    make = dict(requests(random.Random(0), steps=1000))["list: all, sorted by reward"]
    assert len({make()[1]["offset"] for _ in range(REQUESTS)}) > REQUESTS // 2


def test_a_run_has_trajectories_as_training_writes_them(tmp_path: Path) -> None:
    write_run(tmp_path, trajectories=1)
    file = tmp_path / "train" / "trajectories" / "step_0001.jsonl"
    trajectories = read_trajectories(file)
    turns = [turn for line in read_json_lines(file) for turn in line["turns"]]
    written = [turn for trajectory in trajectories for turn in trajectory_to_dict(trajectory)["turns"]]
    assert [turn.keys() for turn in turns] == [turn.keys() for turn in written]
