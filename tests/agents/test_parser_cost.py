"""What `bench/parsers.py` measures."""

from agents.formats import FORMATS
from bench.parsers import measure


def test_every_format_that_calls_tools_is_measured() -> None:
    cost = measure(turns=1)
    assert cost.ms_per_turn.keys() == cost.ms_per_hostile_turn.keys() == FORMATS.keys() - {"action", "raw"}
    assert 3800 < cost.characters < 4100  # 1,000 tokens of four characters
