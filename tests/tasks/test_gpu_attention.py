"""torch's kernels for packed rows on a GPU, against attention by its definition."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from envs.errors import ConfigError

LENGTHS = [1, 37, 300, 2, 128]
MODULE: Any = SimpleNamespace(config=SimpleNamespace(model_type="toy"))


def positions(device: str) -> torch.Tensor:
    return torch.cat([torch.arange(length) for length in LENGTHS])[None].to(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(4, 4, 32), (14, 2, 64), (16, 2, 128)])
@pytest.mark.parametrize("window", [None, 20])
def test_output_and_gradients_are_those_of_separate_sequences(
    heads: int, key_heads: int, width: int, window: int | None
) -> None:
    from tasks.verl.gpu.attention import packed_attention
    from tests.support.varlen_on_cpu import reference_attention

    generator = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    shapes = [(heads, total, width), (key_heads, total, width), (key_heads, total, width)]
    values = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    weights = torch.randn((total, heads, width), generator=generator).bfloat16()
    exact = [x.double().transpose(0, 1).requires_grad_() for x in values]  # [T, heads, D]
    expected = reference_attention(
        exact[0], exact[1], exact[2], LENGTHS, scale=0.1, window=-1 if window is None else window - 1
    )
    (expected * weights).sum().backward()
    found = [x.cuda()[None].requires_grad_() for x in values]
    output, _ = packed_attention(
        MODULE,
        found[0],
        found[1],
        found[2],
        None,
        position_ids=positions("cuda"),
        scaling=0.1,
        sliding_window=window,
    )
    (output[0] * weights.cuda()).sum().backward()
    assert relative_error(output[0], expected) < 0.01
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert relative_error(ours.grad[0].transpose(0, 1), theirs.grad) < 0.01


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double().cpu() - expected).norm() / expected.norm())


@pytest.mark.heavy
@pytest.mark.parametrize("setting", [{"dropout": 0.1}, {"softcap": 30.0}, {"s_aux": torch.ones(2)}])
def test_what_the_kernels_do_not_compute_is_refused(setting: dict[str, Any]) -> None:
    from tasks.verl.gpu.attention import packed_attention

    states = torch.zeros(1, 2, sum(LENGTHS), 8)
    with pytest.raises(ConfigError, match=r"toy has .*, which torch's kernels on GPUs do not compute"):
        packed_attention(
            MODULE, states, states, states, None, position_ids=positions("cpu"), scaling=1.0, **setting
        )
