"""The stage that made the shipped base model: language modelling on invented TextCraft games.

Run once (an hour or more on one core) and shipped as `models/textcraft-base`; `dvc repro base`
makes it again. It never sees a TextCraft goal: every item and recipe is invented
(`envs/textcraft_invented.py`). Matrices are trained by Muon (Jordan et al. 2024), which learns this
circuit several times faster than AdamW; embeddings and norms by AdamW.
"""

import json
import random
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.heap import keep_freed_memory
from tasks.base_data import Encoder, Sequence, draw
from tasks.base_model import ASSISTANT, END, USER, make_model, make_tokenizer
from tasks.settings import BaseSettings

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_WARMUP_STEPS = 30
_DECAY_SHARE = 0.45
"""Share of the tokens over which the learning rate falls to zero, linearly."""
_MICRO_BATCHES = 8
_REPORT_EVERY = 50


def base(settings: BaseSettings, folder: Path) -> None:
    """Train a base model and save it to `folder`, with `metrics.jsonl` (one line per 50 steps)."""
    import torch

    torch.set_num_threads(1)
    keep_freed_memory()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, layers=settings.layers, width=settings.width, seed=settings.seed)
    encoder = make_encoder(tokenizer)
    held_out = random.Random(f"held out/{settings.seed}")
    tests = [draw(encoder, held_out, progress=1.0) for _ in range(96)]
    optimizers = _optimizers(model, settings)
    rng = random.Random(settings.seed)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    seen, step, started, losses = 0, 0, time.monotonic(), []
    with (folder / "metrics.jsonl").open("w") as log:
        while seen < settings.tokens:
            progress = seen / settings.tokens
            batch = _batch(encoder, rng, progress=progress, tokens=settings.batch_tokens)
            _set_lr(optimizers, step=step, progress=progress)
            losses.append(_update(model, optimizers, batch))
            seen += sum(len(sequence.ids) for sequence in batch)
            step += 1
            if step % _REPORT_EVERY == 0 or seen >= settings.tokens:
                line = {
                    "step": step,
                    "tokens": seen,
                    "seconds": round(time.monotonic() - started, 1),
                    "loss": round(sum(losses) / len(losses), 4),
                    **_accuracy(model, tests, end=encoder.end),
                }
                losses.clear()
                log.write(json.dumps(line) + "\n")
                log.flush()
                model.save_pretrained(folder)


def make_encoder(tokenizer: "PreTrainedTokenizerFast") -> Encoder:
    """Text → ids, with a cache: the same observations and recipes come again and again."""
    backend = tokenizer.backend_tokenizer

    @lru_cache(maxsize=20_000)
    def encode(text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    user, assistant, end = tokenizer.convert_tokens_to_ids([USER, ASSISTANT, END])
    return Encoder(text=encode, user=user, assistant=assistant, end=end)


def _batch(encoder: Encoder, rng: random.Random, *, progress: float, tokens: int) -> list[Sequence]:
    batch: list[Sequence] = []
    while sum(len(sequence.ids) for sequence in batch) < tokens:
        batch.append(draw(encoder, rng, progress=progress))
    return sorted(batch, key=lambda sequence: len(sequence.ids))


def _micro_batches(batch: list[Sequence]) -> Iterator[list[Sequence]]:
    """Neighbours in length together, so that little is padding."""
    size = -(-len(batch) // _MICRO_BATCHES)
    for start in range(0, len(batch), size):
        yield batch[start : start + size]


def _target_logits(model: "LlamaForCausalLM", batch: list[Sequence]) -> "tuple[torch.Tensor, torch.Tensor]":
    """Logits `[T, V]` at the places whose next token is a target, and those targets `[T]`."""
    import torch

    length = max(len(sequence.ids) for sequence in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    chosen = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, sequence in enumerate(batch):
        ids[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
        chosen[row, : len(sequence.ids)] = torch.tensor(sequence.targets)
    # Padding stands to the right of a causal model's tokens: it needs no attention mask.
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    return model.lm_head(hidden[chosen[:, 1:]]), ids[:, 1:][chosen[:, 1:]]


def _update(model: "LlamaForCausalLM", optimizers: list[Any], batch: list[Sequence]) -> float:
    import torch
    from torch.nn.functional import cross_entropy

    total = sum(sum(sequence.targets) for sequence in batch)
    loss_sum = 0.0
    for micro in _micro_batches(batch):
        logits, targets = _target_logits(model, micro)
        loss = cross_entropy(logits, targets, reduction="sum") / total
        loss.backward()
        loss_sum += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss_sum


def _optimizers(model: "LlamaForCausalLM", settings: BaseSettings) -> list[Any]:
    import torch

    from tasks.muon import Muon

    def by_muon(name: str, parameter: torch.Tensor) -> bool:
        # Muon would turn the look-back heads' queries and keys, which start right, at full speed
        lookback = name.startswith("model.layers.0.self_attn.") and ("q_proj" in name or "k_proj" in name)
        return parameter.ndim == 2 and "embed" not in name and not lookback

    named = list(model.named_parameters())
    matrices = [p for name, p in named if by_muon(name, p)]
    others = [p for name, p in named if not by_muon(name, p)]
    optimizers: list[Any] = [
        Muon(matrices, lr=settings.muon_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def _set_lr(optimizers: list[Any], *, step: int, progress: float) -> None:
    scale = min(1.0, (step + 1) / _WARMUP_STEPS) * min(1.0, (1 - progress) / _DECAY_SHARE + 0.01)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * scale


def _accuracy(model: "LlamaForCausalLM", tests: list[Sequence], *, end: int) -> dict[str, float]:
    """Share of held-out tokens foretold, of whole turns, and of whole sequences without a miss."""
    import torch

    tokens = right = turns = right_turns = whole = 0
    ordered = sorted(tests, key=lambda sequence: len(sequence.ids))
    with torch.inference_mode():
        for start in range(0, len(ordered), 16):
            batch = ordered[start : start + 16]
            logits, targets = _target_logits(model, batch)
            hits = (logits.argmax(-1) == targets).tolist()
            ends = (targets == end).tolist()
            place = 0
            for sequence in batch:
                count = sum(sequence.targets[1:])
                own, own_ends = hits[place : place + count], ends[place : place + count]
                place += count
                tokens, right, whole = tokens + count, right + sum(own), whole + all(own)
                clean = True
                for hit, closes in zip(own, own_ends, strict=True):
                    clean = clean and hit
                    if closes:
                        turns, right_turns, clean = turns + 1, right_turns + clean, True
    return {
        "token_accuracy": round(right / tokens, 4),
        "turn_accuracy": round(right_turns / max(1, turns), 4),
        "sequence_accuracy": round(whole / len(tests), 4),
    }
