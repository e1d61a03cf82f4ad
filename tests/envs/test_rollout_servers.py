"""What `bench/rollout.py` does on servers before it measures."""

import re

import httpx

from bench.rollout import measure
from envs.registry import get_env
from tests.support.kills import Fleet


def test_every_server_has_made_all_openings_before_the_clock_starts() -> None:
    fleet = Fleet("textcraft", 2)
    try:
        measure(agent="action", episodes=8, turns=1, latency_s=0.001, urls=fleet.urls)
        texts = [httpx.get(f"{url}/metrics", trust_env=False).text for url in fleet.urls]
    finally:
        fleet.close()
    count = re.compile(r'^wingspan_environment_seconds_count\{call="reset",env="textcraft"\} (\S+)$', re.M)
    resets = [float(count.findall(text)[0]) for text in texts]
    items = len(get_env("textcraft").split(0).train)
    assert sum(resets) == 2 * items + 8
    assert min(resets) >= items
