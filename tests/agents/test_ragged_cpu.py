"""Attention over ranges of any length: the kernel by hand, and episodes of very different lengths at once."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.samplers.cpu.attention import attend
from agents.types import SamplingParams
from tests.support.sampler_toy import (
    KINDS,
    complete,
    make_engine,
    make_model,
    random_tokens,
    reference_logprobs,
)


@settings(deadline=None, max_examples=40)
@given(
    columns=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    num_prefix=st.integers(0, 50),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    head_dim=st.sampled_from([8, 16, 40]),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
)
def test_the_kernel_is_softmax_attention(
    columns: list[int], num_prefix: int, heads: tuple[int, int], head_dim: int, spread: float
) -> None:
    """Beside the definition in float64: each token with its prefix, and with its slot up to itself."""
    num_heads, kv_heads = heads
    rng = np.random.default_rng(len(columns))

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    qkv = draw(len(columns), num_heads + 2 * kv_heads, head_dim)
    qkv[:, :num_heads] *= spread / head_dim**0.5
    prefix, slots = draw(2, kv_heads, head_dim, num_prefix), draw(2, 9, kv_heads, head_dim, 96)
    at_slot, at_column = rng.permutation(9)[: len(columns)], np.array(columns)
    output = np.full((len(columns), num_heads, head_dim), np.nan, dtype=np.float32)
    attend(qkv, prefix, slots, at_slot, at_column, output)
    for token, (slot, column) in enumerate(zip(at_slot, columns, strict=True)):
        keys_and_values = qkv[token, num_heads:].reshape(2, kv_heads, head_dim)
        np.testing.assert_array_equal(slots[:, slot, :, :, column], keys_and_values)
        for head in range(num_heads):
            kv_head = head // (num_heads // kv_heads)
            parts = (prefix[:, kv_head], slots[:, slot, kv_head, :, : column + 1])
            keys, values = np.concatenate(parts, axis=-1).astype(np.float64)
            scores = qkv[token, head].astype(np.float64) @ keys
            weights = np.exp(scores - scores.max())
            np.testing.assert_allclose(
                output[token, head], values @ weights / weights.sum(), atol=1e-5 * spread
            )


@pytest.mark.parametrize("kind", KINDS)
def test_long_and_short_episodes_sample_what_each_would_alone(kind: str) -> None:
    rng = random.Random(3)
    model = make_model(kind)
    engine = make_engine(model, max_sequences=12)
    openings = [random_tokens(rng, 9) for _ in range(3)]
    prompts = {f"{opening}-{sample}": list(openings[opening]) for opening in range(3) for sample in range(4)}
    for turn in range(5):
        params = SamplingParams(max_tokens=3 + turn)
        # some pause, some read much, some little: lengths drift apart
        playing = {name: prompt for name, prompt in prompts.items() if rng.random() < 0.7}
        for name, completion in complete(engine, playing, params=params).items():
            reference = reference_logprobs(model, prompts[name], completion.token_ids)
            assert completion.logprobs == pytest.approx(reference, abs=2e-4)
            prompts[name] += completion.token_ids + random_tokens(rng, rng.choice([1, 2, 25]))
