"""From logits to tokens: temperature, top-k, top-p, and randomness that scheduling cannot change.

Owns what a sampling parameter may be. The uniform number behind a token is a function of
(key, position) alone, so the tokens of an episode do not depend on what else is in the batch.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agents.types import SamplingParams
from envs.errors import ConfigError, SamplerFailed

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "min_p": (0, None),
    "min_tokens": (0, None),
    "repetition_penalty": (1, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "stop": (None, (), []),
    "seed": (None,),
    "ignore_eos": (False,),
    "logprobs": (True, False, None, 0, 1),
}
"""Parameters of other samplers that are accepted where their value asks for nothing."""


def check_params(params: SamplingParams, *, vocab_size: int) -> None:
    """Raises `ConfigError` for a value out of range."""
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
    for name, (wrong, allowed) in problems.items():
        if wrong:
            raise ConfigError(f"sampling parameter {name} is {getattr(params, name)!r}; it must be {allowed}")


def params_from_mapping(
    values: Mapping[str, Any], *, max_tokens: int, stop_token_ids: Sequence[int] = ()
) -> SamplingParams:
    """Parameters given by vLLM's names, as verl gives them; the keywords are defaults.

    `top_k=-1` keeps all, as in vLLM. Raises `ConfigError` for what this sampler does not do.
    """
    own = {"max_tokens", "temperature", "top_p", "top_k", "stop_token_ids"}
    for name, value in values.items():
        if name not in own and (name not in _NEUTRAL or value not in _NEUTRAL[name]):
            raise ConfigError(
                f"the CPU sampler has no sampling parameter {name}={value!r}; "
                f"remove it (known: {', '.join(sorted(own))}) or use rollout: vllm"
            )
    top_k = int(values.get("top_k", 0))
    return SamplingParams(
        max_tokens=int(values.get("max_tokens", max_tokens)),
        temperature=float(values.get("temperature", 1.0)),
        top_p=float(values.get("top_p", 1.0)),
        top_k=0 if top_k == -1 else top_k,
        stop_token_ids=tuple(values.get("stop_token_ids", stop_token_ids)),
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


def draw(
    logits: torch.Tensor, *, params: Sequence[SamplingParams], uniform: torch.Tensor
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` [N, V], and its log-prob.

    `uniform`: [N] in [0, 1). The log-prob is that of the tempered, unfiltered distribution, which
    is what a trainer computes; for greedy rows, of the plain distribution. Raises `SamplerFailed` for logits
    that are not numbers.
    """
    scales = [p.temperature or 1.0 for p in params]
    if any(scale != 1.0 for scale in scales):
        logits = logits / torch.tensor(scales)[:, None]
    probs = torch.softmax(logits, dim=-1)
    filtered = [i for i, p in enumerate(params) if p.temperature and (p.top_p < 1 or p.top_k)]
    allowed = probs
    if filtered:
        allowed = probs.clone()
        allowed[filtered] = _filter(probs[filtered], params=[params[i] for i in filtered])
    mass = torch.cumsum(allowed, dim=-1)
    total = mass[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise SamplerFailed("the policy's logits are not numbers: its weights have diverged; lower train.lr")
    # the first token whose cumulated mass exceeds the target; rounding must not reach the total
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros(())))
    chosen = torch.searchsorted(mass, target, right=True)
    greedy = [i for i, p in enumerate(params) if p.temperature == 0]
    if greedy:
        chosen[greedy] = logits[greedy].argmax(dim=-1, keepdim=True)
    return chosen[:, 0].tolist(), probs.gather(1, chosen)[:, 0].log().tolist()


def _filter(probs: torch.Tensor, *, params: Sequence[SamplingParams]) -> torch.Tensor:
    """`probs` [N, V] with 0 outside each row's top-k, and then its top-p of what is left."""
    vocab_size = probs.shape[1]
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    keep = torch.tensor([p.top_k or vocab_size for p in params])[:, None]
    ranked = ranked.masked_fill(torch.arange(vocab_size) >= keep, 0.0)
    before = torch.cumsum(ranked, dim=-1) - ranked  # mass of the more probable ones
    limit = torch.tensor([p.top_p for p in params])[:, None] * ranked.sum(dim=-1, keepdim=True)
    ranked = ranked.masked_fill((before >= limit) & (before > 0), 0.0)
    return torch.zeros_like(probs).scatter_(1, order, ranked)
