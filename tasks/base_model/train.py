"""The stage that trains the shipped base model: language modelling on invented TextCraft episodes.

It ran once (hours of two cores) and its result is shipped as `models/textcraft-base`; `dvc repro base` trains
a similar model (docs/base-model.md). The data contains no TextCraft goal: every item and recipe is invented
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

from agents.process_memory import keep_freed_memory
from tasks.base_model.data import Encoder, TrainingSequence, sample_sequence
from tasks.base_model.model import ASSISTANT, END, USER, make_model, make_tokenizer
from tasks.base_model.widening import widen
from tasks.config.base_model import BaseCycle, BaseSettings

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_WARMUP_STEPS = 30
_DECAY_SHARE = 0.45
"""Share of the tokens over which the learning rate falls to zero, linearly."""
_MICRO_BATCHES = 8
_REPORT_EVERY = 200
_PLAIN = BaseCycle(tokens=1)
"""The data of the held-out sequences: no drills of groups, families and twins, no misreading."""


def base(settings: BaseSettings, folder: Path) -> None:
    """Train a base model and save it to `folder`, with `metrics.jsonl` (a line every 200 steps)."""
    from torch.multiprocessing.spawn import spawn

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        spawn(_train, (settings, folder, f"file://{temporary}/store"), nprocs=settings.processes)


def _train(rank: int, settings: BaseSettings, folder: Path, rendezvous: str) -> None:
    """The whole training, as one of `settings.processes` that each compute a share of every batch."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=settings.processes)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, layers=settings.layers, width=settings.width, seed=settings.seed)
    encoder = make_encoder(tokenizer)
    log = None
    if rank == 0:
        tokenizer.save_pretrained(folder)
        log = _Log(folder, encoder, seed=settings.seed)
    for number, cycle in enumerate(settings.cycles):
        if cycle.widen:
            model = widen(model, encoder, seed=settings.seed)
        train_cycle(model, settings, number=number, encoder=encoder, log=log)
    dist.destroy_process_group()


def train_cycle(
    model: "LlamaForCausalLM", settings: BaseSettings, *, number: int, encoder: Encoder, log: "_Log | None"
) -> None:
    """Train through `settings.cycles[number]` with fresh optimizers: the rate rises again
    (Loshchilov & Hutter 2017, "SGDR"). The curriculum belongs to the first cycle."""
    cycle, tokens, step = settings.cycles[number], 0, 0
    optimizers = _optimizers(model, settings, rate=cycle.rate)
    # Every process samples the same batches and then computes its share of them.
    rng = random.Random(f"{settings.seed}/{number}" if number else settings.seed)
    while tokens < cycle.tokens:
        progress = tokens / cycle.tokens
        make_sequence = partial(
            sample_sequence, encoder, rng, progress=1.0 if number else progress, cycle=cycle
        )
        batch = _batch(make_sequence, tokens=settings.batch_tokens)
        _set_lr(optimizers, step=step, progress=progress)
        loss = _update(model, optimizers, batch)
        tokens += sum(len(sequence.ids) for sequence in batch)
        step += 1
        if log is not None:
            log.losses.append(loss)
            if step % _REPORT_EVERY == 0 or tokens >= cycle.tokens:
                log.write(model, cycle=number, step=step, tokens=tokens)


class _Log:
    """What the first process writes: `metrics.jsonl`, and the current model."""

    def __init__(self, folder: Path, encoder: Encoder, *, seed: int) -> None:
        held_out = random.Random(f"held out/{seed}")
        self.losses: list[float] = []
        self._tests = [sample_sequence(encoder, held_out, progress=1.0, cycle=_PLAIN) for _ in range(96)]
        self._end = encoder.end
        self._folder = folder
        self._start = time.monotonic()
        (folder / "metrics.jsonl").write_text("")

    def write(self, model: "LlamaForCausalLM", *, cycle: int, step: int, tokens: int) -> None:
        line = {
            "cycle": cycle,
            "step": step,
            "tokens": tokens,
            "seconds": round(time.monotonic() - self._start, 1),
            "loss": round(sum(self.losses) / len(self.losses), 4),
            **_accuracy(model, self._tests, end=self._end),
        }
        self.losses.clear()
        with (self._folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        model.save_pretrained(self._folder)


def make_encoder(tokenizer: "PreTrainedTokenizerFast") -> Encoder:
    """Text → ids, with a cache: the same observations and recipes recur all the time."""
    backend = tokenizer.backend_tokenizer

    @lru_cache(maxsize=20_000)
    def encode(text: str) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    user, assistant, end = tokenizer.convert_tokens_to_ids([USER, ASSISTANT, END])
    return Encoder(text=encode, user=user, assistant=assistant, end=end)


def _batch(make_sequence: Callable[[], TrainingSequence], *, tokens: int) -> list[TrainingSequence]:
    batch: list[TrainingSequence] = []
    while sum(len(sequence.ids) for sequence in batch) < tokens:
        batch.append(make_sequence())
    return sorted(batch, key=lambda sequence: len(sequence.ids))


def _share(batch: list[TrainingSequence], *, process: int, processes: int) -> list[list[TrainingSequence]]:
    """The micro-batches of `batch` that this process computes: sequences of similar length together, so that
    there is little padding, assigned back and forth, so that no process gets all the long ones."""
    size = -(-len(batch) // _MICRO_BATCHES)
    micro_batches = [batch[start : start + size] for start in range(0, len(batch), size)]
    owners = endlessly([*range(processes), *reversed(range(processes))])
    return [micro for micro, owner in zip(micro_batches, owners, strict=False) if owner == process]


def _target_logits(
    model: "LlamaForCausalLM", batch: list[TrainingSequence]
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Logits `[T, V]` at the positions whose next token is a target, and those targets `[T]`."""
    import torch

    length = max(len(sequence.ids) for sequence in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    is_target = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, sequence in enumerate(batch):
        ids[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
        is_target[row, : len(sequence.ids)] = torch.tensor(sequence.targets)
    # Padding is to the right of a causal model's tokens: it needs no attention mask.
    states = model.model(input_ids=ids).last_hidden_state[:, :-1]
    return model.lm_head(states[is_target[:, 1:]]), ids[:, 1:][is_target[:, 1:]]


def _update(model: "LlamaForCausalLM", optimizers: list[Any], batch: list[TrainingSequence]) -> float:
    """One optimizer step on `batch`, all processes together; returns the mean loss of its targets."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    total = sum(sum(sequence.targets) for sequence in batch)
    loss_sum = torch.zeros(1)
    micro_batches = _share(batch, process=dist.get_rank(), processes=dist.get_world_size())
    if not micro_batches:  # a small batch; every process adds to the sum of all gradients
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    for micro in micro_batches:
        logits, targets = _target_logits(model, micro)
        loss = cross_entropy(logits, targets, reduction="sum") / total
        loss.backward()
        loss_sum += loss.detach()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    sums = torch.cat([loss_sum, *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(sums)
    loss_sum, *parts = sums.split([1, *(gradient.numel() for gradient in gradients)])
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
        # Muon would change the look-back heads' queries and keys, which start right, at full speed
        lookback = name.startswith("model.layers.0.self_attn.") and ("q_proj" in name or "k_proj" in name)
        return parameter.ndim == 2 and "embed" not in name and not lookback

    parameters = list(model.named_parameters())
    matrices = [p for name, p in parameters if by_muon(name, p)]
    remainder = [p for name, p in parameters if not by_muon(name, p)]
    optimizers: list[Any] = [
        Muon(matrices, lr=rate * settings.muon_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(
            remainder, lr=rate * settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
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


def _accuracy(model: "LlamaForCausalLM", tests: list[TrainingSequence], *, end: int) -> dict[str, float]:
    """Shares of held-out tokens, whole turns and whole sequences that are predicted correctly."""
    import torch

    tokens = right = turns = right_turns = whole = 0
    tests = sorted(tests, key=lambda sequence: len(sequence.ids))
    with torch.inference_mode():
        for start in range(0, len(tests), 16):
            batch = tests[start : start + 16]
            logits, targets = _target_logits(model, batch)
            hits = (logits.argmax(-1) == targets).tolist()
            ends = (targets == end).tolist()
            offset = 0
            for sequence in batch:
                count = sum(sequence.targets[1:])
                sequence_hits = hits[offset : offset + count]
                sequence_ends = ends[offset : offset + count]
                offset += count
                tokens, right = tokens + count, right + sum(sequence_hits)
                whole += all(sequence_hits)
                clean = True
                for hit, closes in zip(sequence_hits, sequence_ends, strict=True):
                    clean = clean and hit
                    if closes:
                        turns, right_turns, clean = turns + 1, right_turns + clean, True
    return {
        "token_accuracy": round(right / tokens, 4),
        "turn_accuracy": round(right_turns / max(1, turns), 4),
        "sequence_accuracy": round(whole / len(tests), 4),
    }
