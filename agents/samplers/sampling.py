"""From logits to tokens: temperature, top-k, top-p, and randomness that scheduling cannot change.

Owns the valid range of each sampling parameter. The uniform number behind a token is a function of
(key, position) alone, so the tokens of an episode do not depend on what else is in the batch.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch

from agents.types import SamplingParams
from envs.errors import ConfigError, SamplerFailed


def check_params(params: SamplingParams, *, vocab_size: int) -> None:
    """Raise `ConfigError` for a value out of range."""
    problems = {
        "max_tokens": (params.max_tokens < 1, "at least 1"),
        "temperature": (not 0 <= params.temperature < math.inf, "0 (greedy) or more"),
        "top_p": (not 0 < params.top_p <= 1, "above 0 and at most 1 (1 keeps all)"),
        "top_k": (params.top_k < 0, "0 (keeps all) or more"),
        "stop_token_ids": (
            any(not 0 <= token < vocab_size for token in params.stop_token_ids),
            f"ids of the vocabulary, 0 to {vocab_size - 1}",
        ),
    }
    for name, (is_invalid, requirement) in problems.items():
        if is_invalid:
            raise ConfigError(
                f"sampling parameter {name} is {getattr(params, name)!r}; it must be {requirement}"
            )


def random_key(*parts: str | int) -> int:
    """A 64-bit key for `uniforms`, the same in every process."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """[N] float32 in [0, 1): splitmix64 of each key at each position."""
    x = np.array(keys, dtype=np.uint64) + np.array(positions, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return torch.from_numpy(((x >> np.uint64(40)) * 2.0**-24).astype(np.float32))


def sample_tokens(
    logits: torch.Tensor, *, params: Sequence[SamplingParams], uniform: torch.Tensor
) -> tuple[list[int], list[float]]:
    """Sample one token per row of `logits` [N, V]; returns the tokens and their log-probs.

    `uniform`: [N] in [0, 1). The log-prob is that of the tempered, unfiltered distribution, which
    is what a trainer computes; for greedy rows, of the plain distribution. Raises `SamplerFailed` for logits
    that are not numbers.
    """
    scales = [p.temperature or 1.0 for p in params]
    if any(scale != 1.0 for scale in scales):
        logits = logits / torch.tensor(scales)[:, None]
    probs = torch.softmax(logits, dim=-1)
    rows = [i for i, p in enumerate(params) if p.temperature and (p.top_p < 1 or p.top_k)]
    candidates = probs
    if rows:
        candidates = probs.clone()
        candidates[rows] = _filter(probs[rows], params=[params[i] for i in rows])
    mass = torch.cumsum(candidates, dim=-1)
    total = mass[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise SamplerFailed("the policy's logits are not numbers: its weights have diverged; lower train.lr")
    # the first token whose cumulative mass exceeds the target; rounding must not reach the total
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros(())))
    tokens = torch.searchsorted(mass, target, right=True)
    greedy = [i for i, p in enumerate(params) if p.temperature == 0]
    if greedy:
        tokens[greedy] = logits[greedy].argmax(dim=-1, keepdim=True)
    # not torch's logarithm: what it gives depends on where in the batch a number lies
    return tokens[:, 0].tolist(), [math.log(p) for p in probs.gather(1, tokens)[:, 0].tolist()]


def _filter(probs: torch.Tensor, *, params: Sequence[SamplingParams]) -> torch.Tensor:
    """`probs` [N, V] with 0 outside each row's top-k, and then its top-p of what is left."""
    vocab_size = probs.shape[1]
    sorted_probs, order = probs.sort(dim=-1, descending=True, stable=True)
    keep = torch.tensor([p.top_k or vocab_size for p in params])[:, None]
    sorted_probs = sorted_probs.masked_fill(torch.arange(vocab_size) >= keep, 0.0)
    before = torch.cumsum(sorted_probs, dim=-1) - sorted_probs  # mass of the more probable tokens
    limit = torch.tensor([p.top_p for p in params])[:, None] * sorted_probs.sum(dim=-1, keepdim=True)
    sorted_probs = sorted_probs.masked_fill((before >= limit) & (before > 0), 0.0)
    return torch.zeros_like(probs).scatter_(1, order, sorted_probs)
