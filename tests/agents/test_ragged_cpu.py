"""Episodes of very different lengths at once: their slots are put in order, and nothing else changes."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.samplers.cpu import engine as engine_module
from agents.samplers.cpu import kv_cache, scheduler
from agents.samplers.cpu.kv_cache import runs
from agents.types import Completion, SamplingParams
from tests.support.sampler_toy import (
    KINDS,
    complete,
    make_engine,
    make_model,
    random_tokens,
    reference_logprobs,
)


@given(st.lists(st.integers(0, 1500), max_size=60).filter(lambda columns: not columns or columns[-1] > 0))
def test_runs_cover_every_slot_as_far_as_it_goes(columns: list[int]) -> None:
    result = runs(columns)
    assert [slot for first, end, _ in result for slot in range(first, end)] == list(range(len(columns)))
    for first, end, width in result:
        assert width == max(columns[first:])
        assert max(columns[first:end]) <= width


@given(st.lists(st.integers(1, 1500), min_size=1, max_size=60))
def test_in_falling_order_a_slot_is_read_hardly_further_than_it_goes(columns: list[int]) -> None:
    falling = sorted(columns, reverse=True)
    for first, end, width in runs(falling):
        assert width - min(falling[first:end]) < kv_cache.RUN_COLUMNS


@pytest.mark.parametrize("kind", KINDS)
def test_long_and_short_episodes_sample_what_each_would_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With short runs and no patience, slots are put in order at almost every step."""
    for module in (kv_cache, scheduler):
        monkeypatch.setattr(module, "RUN_COLUMNS", 4)
    monkeypatch.setattr(scheduler, "WASTE", 1.0)
    moves: list[int] = []
    move = kv_cache.Slots.move

    def count_and_move(
        slots: kv_cache.Slots, sources: list[int], targets: list[int], *, columns: int
    ) -> None:
        assert sorted(sources) == sorted(targets), "a slot's content would be lost"
        moves.append(len(sources))
        move(slots, sources, targets, columns=columns)

    monkeypatch.setattr(kv_cache.Slots, "move", count_and_move)
    rng = random.Random(3)
    model = make_model(kind)
    engine = make_engine(model, max_sequences=12)
    openings = [random_tokens(rng, 9) for _ in range(3)]
    prompts = {f"{opening}-{sample}": list(openings[opening]) for opening in range(3) for sample in range(4)}
    for turn in range(5):
        params = SamplingParams(max_tokens=3 + turn)
        # some pause, some read much, some little: lengths drift apart and change their order
        playing = {name: prompt for name, prompt in prompts.items() if rng.random() < 0.7}
        for name, completion in complete(engine, playing, params=params).items():
            expected = reference_logprobs(model, prompts[name], completion.token_ids)
            assert completion.logprobs == pytest.approx(expected, abs=2e-4)
            prompts[name] += completion.token_ids + random_tokens(rng, rng.choice([1, 2, 25]))
    assert len(moves) > 5


def test_batches_are_laid_out_alike_wherever_prefixes_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order differ in their last bits, so the order must not depend on addresses."""
    model = make_model("mha-tied")

    def sample_all(*, falling_addresses: bool) -> tuple[list[list[int]], dict[str, Completion]]:
        rng = random.Random(5)
        memory = [kv_cache.Prefix.__new__(kv_cache.Prefix) for _ in range(6)]
        memory.sort(key=id, reverse=not falling_addresses)  # taken from the end

        def prefix(*values: Any, **options: Any) -> kv_cache.Prefix:
            reused = memory.pop()
            reused.__init__(*values, **options)  # type: ignore[misc]
            return reused

        layouts: list[list[int]] = []

        class RecordingAttention(kv_cache.SlotAttention):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                layouts.append(self.tokens.tolist())

        monkeypatch.setattr(scheduler, "Prefix", prefix)
        monkeypatch.setattr(engine_module, "SlotAttention", RecordingAttention)
        prompts = {
            f"{i}-{sample}": tokens for i in range(6) for tokens in [random_tokens(rng, 9)] for sample in "ab"
        }
        return layouts, complete(make_engine(model), prompts, params=SamplingParams(max_tokens=4))

    layouts, completions = sample_all(falling_addresses=True)
    assert len(layouts) == 4
    assert (layouts, completions) == sample_all(falling_addresses=False)
