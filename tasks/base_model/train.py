"""The stage that made the shipped base model: language modelling on invented TextCraft games.

Run once (an hour or more on one core) and shipped as `models/textcraft-base`; `dvc repro base`
makes it again. It never sees a TextCraft goal: every item and recipe is invented
(`envs/builtin/textcraft/invented.py`). Matrices are trained by Muon (Jordan et al. 2024), which learns this
circuit several times faster than AdamW; embeddings and norms by AdamW.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import cycle as endlessly
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.malloc import keep_freed_memory
from tasks.base_model.data import Encoder, Sequence, draw
from tasks.base_model.model import ASSISTANT, END, USER, make_model, make_tokenizer
from tasks.config.base_model import BaseSettings

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_WARMUP_STEPS = 30
_DECAY_SHARE = 0.45
"""Share of the tokens over which the learning rate falls to zero, linearly."""
_MICRO_BATCHES = 8
_REPORT_EVERY = 200


def base(settings: BaseSettings, folder: Path) -> None:
    """Train a base model and save it to `folder`, with `metrics.jsonl` (a line every 200 steps)."""
    from torch.multiprocessing.spawn import spawn

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as meeting:
        spawn(_train, (settings, folder, f"file://{meeting}/store"), nprocs=settings.processes)


def _train(rank: int, settings: BaseSettings, folder: Path, meeting: str) -> None:
    """The whole training, as one of `settings.processes` that each compute a share of every batch."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=settings.processes)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, layers=settings.layers, width=settings.width, seed=settings.seed)
    log = None
    if rank == 0:
        tokenizer.save_pretrained(folder)
        log = _Log(folder, make_encoder(tokenizer), seed=settings.seed)
    for number in range(len(settings.cycles)):
        train_cycle(model, settings, number=number, encoder=make_encoder(tokenizer), log=log)
    dist.destroy_process_group()


def train_cycle(
    model: "LlamaForCausalLM", settings: BaseSettings, *, number: int, encoder: Encoder, log: "_Log | None"
) -> None:
    """Train through `settings.cycles[number]` with fresh optimizers: the rate rises again
    (Loshchilov & Hutter 2017, "SGDR"). The curriculum belongs to the first cycle."""
    cycle, seen, step = settings.cycles[number], 0, 0
    optimizers = _optimizers(model, settings, rate=cycle.rate)
    # Every process draws the same batches, and then computes its share of them.
    rng = random.Random(f"{settings.seed}/{number}" if number else settings.seed)
    while seen < cycle.tokens:
        progress = seen / cycle.tokens
        draws = partial(
            draw,
            encoder,
            rng,
            progress=1.0 if number else progress,
            misreads=cycle.misreads,
            families=cycle.families,
        )
        batch = _batch(draws, tokens=settings.batch_tokens)
        _set_lr(optimizers, step=step, progress=progress)
        loss = _update(model, optimizers, batch)
        seen += sum(len(sequence.ids) for sequence in batch)
        step += 1
        if log is not None:
            log.losses.append(loss)
            if step % _REPORT_EVERY == 0 or seen >= cycle.tokens:
                log.write(model, cycle=number, step=step, tokens=seen)


class _Log:
    """What the first process leaves: `metrics.jsonl`, and the model as it stands."""

    def __init__(self, folder: Path, encoder: Encoder, *, seed: int) -> None:
        held_out = random.Random(f"held out/{seed}")
        self.losses: list[float] = []
        self._tests = [draw(encoder, held_out, progress=1.0) for _ in range(96)]
        self._end = encoder.end
        self._folder = folder
        self._started = time.monotonic()
        (folder / "metrics.jsonl").write_text("")

    def write(self, model: "LlamaForCausalLM", *, cycle: int, step: int, tokens: int) -> None:
        line = {
            "cycle": cycle,
            "step": step,
            "tokens": tokens,
            "seconds": round(time.monotonic() - self._started, 1),
            "loss": round(sum(self.losses) / len(self.losses), 4),
            **_accuracy(model, self._tests, end=self._end),
        }
        self.losses.clear()
        with (self._folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        model.save_pretrained(self._folder)


def make_encoder(tokenizer: "PreTrainedTokenizerFast") -> Encoder:
    """Text → ids, with a cache: the same observations and recipes come again and again."""
    backend = tokenizer.backend_tokenizer

    @lru_cache(maxsize=20_000)
    def encode(text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    user, assistant, end = tokenizer.convert_tokens_to_ids([USER, ASSISTANT, END])
    return Encoder(text=encode, user=user, assistant=assistant, end=end)


def _batch(draws: Callable[[], Sequence], *, tokens: int) -> list[Sequence]:
    batch: list[Sequence] = []
    while sum(len(sequence.ids) for sequence in batch) < tokens:
        batch.append(draws())
    return sorted(batch, key=lambda sequence: len(sequence.ids))


def _share(batch: list[Sequence], *, process: int, processes: int) -> list[list[Sequence]]:
    """The micro-batches of `batch` that are this process's to compute: neighbours in length together, so
    that little is padding, dealt to and fro, so that no process has all the longer ones."""
    size = -(-len(batch) // _MICRO_BATCHES)
    micro_batches = [batch[start : start + size] for start in range(0, len(batch), size)]
    dealt = endlessly([*range(processes), *reversed(range(processes))])
    return [micro for micro, owner in zip(micro_batches, dealt, strict=False) if owner == process]


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
    """One optimizer step on `batch`, all processes together; returns the mean loss of its targets."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    total = sum(sum(sequence.targets) for sequence in batch)
    loss_sum = torch.zeros(1)
    for micro in _share(batch, process=dist.get_rank(), processes=dist.get_world_size()):
        logits, targets = _target_logits(model, micro)
        loss = cross_entropy(logits, targets, reduction="sum") / total
        loss.backward()
        loss_sum += loss.detach()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    summed = torch.cat([loss_sum, *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(summed)
    loss_sum, *parts = summed.split([1, *(gradient.numel() for gradient in gradients)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return float(loss_sum)


def _optimizers(model: "LlamaForCausalLM", settings: BaseSettings, *, rate: float) -> list[Any]:
    import torch

    from tasks.base_model.muon import Muon

    def by_muon(name: str, parameter: torch.Tensor) -> bool:
        # Muon would turn the look-back heads' queries and keys, which start right, at full speed
        lookback = name.startswith("model.layers.0.self_attn.") and ("q_proj" in name or "k_proj" in name)
        return parameter.ndim == 2 and "embed" not in name and not lookback

    named = list(model.named_parameters())
    matrices = [p for name, p in named if by_muon(name, p)]
    others = [p for name, p in named if not by_muon(name, p)]
    optimizers: list[Any] = [
        Muon(matrices, lr=rate * settings.muon_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(
            others, lr=rate * settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        ),
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
