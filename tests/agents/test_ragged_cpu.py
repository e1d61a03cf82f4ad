"""Attention over ranges of any length: the kernel by hand, and episodes of very different lengths at once."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.samplers.cpu.forward import Sizes, attend, block_size
from agents.samplers.tiles import LANES, add_product, pack, round_up
from agents.types import SamplingParams
from tests.support.examples import examples
from tests.support.sampler_toy import (
    KINDS,
    complete,
    make_engine,
    make_model,
    random_tokens,
    reference_logprobs,
)


@pytest.mark.heavy
@settings(max_examples=examples(60))
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    own_tokens=st.integers(0, 70),
    num_prefix=st.integers(0, 50),
    sharing=st.integers(1, 8),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    head_dim=st.sampled_from([8, 16, 40, 64]),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
)
def test_the_kernel_is_softmax_attention(
    counts: list[int],
    own_tokens: int,
    num_prefix: int,
    sharing: int,
    heads: tuple[int, int],
    head_dim: int,
    spread: float,
) -> None:
    """Compared with the definition in float64: tokens read in two calls, the last of them `counts` at once.
    The first `sharing` sequences have a prefix, the others have none."""
    num_heads, kv_heads = heads
    sizes = Sizes(
        layers=2, width=0, heads=num_heads, kv_heads=kv_heads, head_dim=head_dim, inner=0, inner_padded=0
    )
    rng = np.random.default_rng(len(counts))
    columns = round_up(own_tokens + max(counts), LANES)
    blocks = [np.full(block_size(sizes, columns), np.nan, dtype=np.float32) for _ in counts]
    prefix = np.full(block_size(sizes, round_up(num_prefix, LANES)), np.nan, dtype=np.float32)
    history: dict[int, list[np.ndarray]] = {sequence: [] for sequence in range(-1, len(counts))}

    def read(tokens: dict[int, int]) -> tuple[list[int], np.ndarray, np.ndarray]:
        """Attention for so many new tokens of each sequence (-1: the prefix itself), with random inputs."""
        owners: list[int] = []
        positions: list[int] = []
        segments = []
        for sequence, count in tokens.items():
            has_prefix = 0 <= sequence < sharing and num_prefix > 0
            before = (
                (prefix.ctypes.data, round_up(num_prefix, LANES), num_prefix) if has_prefix else (0, 0, 0)
            )
            block = prefix if sequence < 0 else blocks[sequence]
            block_columns = round_up(num_prefix, LANES) if sequence < 0 else columns
            segments.append((len(owners), count, block.ctypes.data, block_columns, *before))
            first = before[2] + len(history[sequence])
            positions += range(first, first + count)
            owners += [sequence] * count
        qkv = rng.standard_normal((len(owners), (num_heads + 2 * kv_heads) * head_dim)).astype(np.float32)
        qkv[:, : num_heads * head_dim] *= spread / head_dim**0.5
        attended = np.full((len(owners), num_heads * head_dim), np.nan, dtype=np.float32)
        attend(qkv, np.array(positions), np.array(segments), 1, sizes, attended)
        return owners, qkv, attended

    for tokens in ({-1: num_prefix}, dict.fromkeys(range(len(counts)), own_tokens), dict(enumerate(counts))):
        if not all(tokens.values()):
            continue
        for owner, row, result in zip(*read(tokens), strict=True):
            history[owner].append(row[num_heads * head_dim :])
            read_so_far = (history[-1] if 0 <= owner < sharing else []) + history[owner]
            keys, values = (
                np.array(read_so_far, dtype=np.float64)
                .reshape(len(read_so_far), 2, kv_heads, head_dim)
                .swapaxes(0, 1)
            )
            for head in range(num_heads):
                kv_head, part = head // (num_heads // kv_heads), slice(head * head_dim, (head + 1) * head_dim)
                scores = keys[:, kv_head] @ row[part].astype(np.float64)
                weights = np.exp(scores - scores.max())
                reference = weights @ values[:, kv_head] / weights.sum()
                np.testing.assert_allclose(result[part], reference, atol=1e-5 * spread)


@pytest.mark.heavy
@settings(max_examples=examples(60))
@given(rows=st.integers(1, 20), length=st.integers(1, 70), outputs=st.integers(1, 70))
def test_a_product_of_a_packed_matrix_adds_to_what_is_there(rows: int, length: int, outputs: int) -> None:
    rng = np.random.default_rng(rows)
    a, matrix = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((rows, length), (outputs, length))
    )
    columns = round_up(outputs, LANES)
    result = rng.standard_normal((rows, columns)).astype(np.float32)
    before, packed = result.astype(np.float64), pack(matrix)
    add_product(rows, a.ctypes.data, length, packed.ctypes.data, length, columns, result.ctypes.data, columns)
    reference = before[:, :outputs] + a.astype(np.float64) @ matrix.T.astype(np.float64)
    np.testing.assert_allclose(result[:, :outputs], reference, atol=1e-4)
    np.testing.assert_array_equal(result[:, outputs:], before[:, outputs:])


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
            prompts[name] += [*completion.token_ids, *random_tokens(rng, rng.choice([1, 2, 25]))]
