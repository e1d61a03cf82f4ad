"""From logits to tokens: temperature, top-k, top-p, and randomness that scheduling cannot change.

Owns the valid range of each sampling parameter. The uniform number behind a token is a function of
(key, position) alone, so the tokens of an episode do not depend on what else is in the batch.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from agents.types import SamplingParams
from envs.errors import ConfigError, SamplerFailed


def check_params(params: SamplingParams, *, vocab_size: int) -> None:
    """Raise `ConfigError` for a value out of range."""
    problems = {
        "max_tokens": (params.max_tokens < 1, "at least 1"),
        "temperature": (
            params.temperature != 0 and not 1e-3 <= params.temperature <= 1e3,
            "0 (greedy), or from 0.001 to 1000",
        ),
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


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """[N] float32 in [0, 1): splitmix64 of each key at each position."""
    from agents.samplers import kernels  # numba takes a while to import

    numbers: np.ndarray = kernels.uniforms(
        np.array(keys, dtype=np.uint64), np.array(positions, dtype=np.uint64)
    )
    return numbers


def sample_tokens(
    logits: np.ndarray, *, params: Sequence[SamplingParams], uniform: np.ndarray
) -> tuple[list[int], list[float]]:
    """Sample one token per row of `logits` [N, V], float32; returns the tokens and their log-probs.

    `uniform`: [N] in [0, 1), float32. The log-prob is that of the tempered, unfiltered distribution, which
    is what a trainer computes; for greedy rows, of the plain distribution. Raises `SamplerFailed` for logits
    that are not numbers.
    """
    from agents.samplers.kernels import draw_rows, exponentiate_rows  # numba takes a while to import

    logits = np.ascontiguousarray(logits, dtype=np.float32)
    temperatures = np.array([p.temperature or 1.0 for p in params], dtype=np.float32)
    masses = np.empty_like(logits)
    totals, log_sums = exponentiate_rows(logits, temperatures, masses)
    if not np.isfinite(totals).all():
        raise diverged_policy_error()
    filtered = [i for i, p in enumerate(params) if p.temperature and (p.top_p < 1 or p.top_k)]
    if filtered:
        masses[filtered] = _filter(masses[filtered], params=[params[i] for i in filtered])
        totals[filtered] = masses[filtered].sum(axis=1, dtype=np.float64)
    tokens = draw_rows(masses, totals, uniform)
    greedy = [i for i, p in enumerate(params) if p.temperature == 0]
    if greedy:
        tokens[greedy] = logits[greedy].argmax(axis=1)
    chosen = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    logprobs = chosen * (np.float32(1.0) / temperatures) - log_sums
    return tokens.tolist(), logprobs.tolist()


def diverged_policy_error() -> SamplerFailed:
    """The failure of a policy whose logits are infinite or NaN."""
    return SamplerFailed("the policy's logits are not numbers: its weights have diverged; lower train.lr")


def _filter(masses: np.ndarray, *, params: Sequence[SamplingParams]) -> np.ndarray:
    """`masses` [N, V] with 0 outside each row's top-k, and then its top-p of what is left."""
    vocab_size = masses.shape[1]
    order = np.argsort(-masses, axis=1, kind="stable")
    ranked = np.take_along_axis(masses, order, axis=1)
    keep = np.array([p.top_k or vocab_size for p in params])[:, None]
    ranked[np.arange(vocab_size) >= keep] = 0
    before = np.cumsum(ranked, axis=1) - ranked  # mass of the more probable tokens
    limit = np.array([p.top_p for p in params])[:, None] * ranked.sum(axis=1, keepdims=True)
    ranked[(before >= limit) & (before > 0)] = 0
    filtered = np.zeros_like(masses)
    np.put_along_axis(filtered, order, ranked, axis=1)
    return filtered
