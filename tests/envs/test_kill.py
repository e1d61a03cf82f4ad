"""Environment processes are killed while episodes are played: no trajectory is lost, doubled or made up."""

import shutil

import pytest

from envs.registry import get_env
from envs.types import Item
from tests.support.kills import measure


@pytest.mark.heavy
def test_killed_processes_cost_attempts_and_nothing_else() -> None:
    outcome = measure("textcraft", get_env("textcraft").split(0).train[:4], kills=6)
    assert outcome.kills == 6
    assert (outcome.episodes, outcome.successes) == (32, 16)
    assert outcome.is_same
    assert outcome.retries >= 1


@pytest.mark.skipif(shutil.which("java") is None, reason="apt-get install default-jre-headless")
def test_killed_jvms_cost_attempts_and_nothing_else() -> None:
    items = [Item(item_id="sciworld_4240", env="sciworld")]
    outcome = measure("sciworld", items, kills=1, num_samples=2, capacity=2)
    assert outcome.kills == 1
    assert (outcome.episodes, outcome.successes) == (2, 1)
    assert outcome.is_same
    assert outcome.retries == 1
