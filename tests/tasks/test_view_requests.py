"""The requests of `bench/view.py`."""

import random
from pathlib import Path

import pytest

from bench.view import REQUESTS, requests, write_run
from envs.files import read_json_lines


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
