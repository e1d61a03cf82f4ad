"""Supervised training with verl's SFT engine, in a process of its own: `python -m tasks.verl.sft REQUEST`.

Owns nothing but the loop and that process, whose end frees verl's memory: verl's `TrainingWorker` (the same
FSDP2 engine as in RL, on a CPU or a GPU) with its `sft_loss`, over ids and masks that are given as they are.
Says one JSON line a step.
"""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import WingspanError
from tasks.config.lora import LoraSettings
from tasks.data.supervised import SupervisedRow
from tasks.errors import Diverged
from tasks.verl.cpu import CPU_MODEL_OPTIONS, fork_server
from tasks.verl.gpu.model import ADAMW_OPTIONS, gpu_model_options
from tasks.verl.local_worker import join_process_group
from tasks.verl.policies import copy_policy

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict
    from verl.workers.engine_workers import TrainingWorker

LR_WARMUP = 0.05
"""Share of the steps in which the learning rate rises; then it falls as a cosine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRequest:
    """All that a run is told; JSON on its way to the process."""

    model: str
    output: str
    """Folder of the trained policy, in Hugging Face format with its tokenizer."""
    device: str
    seed: int
    steps: int
    batch_size: int
    """Rows of a step."""
    lr: float
    lora: dict[str, object] | None
    """The block `train.lora`; None trains all weights."""
    micro_batch_tokens: int
    prompts: list[list[int]]
    responses: list[list[int]]
    masks: list[list[int]]
    """The masks of the responses: 1 where the loss falls."""

    def to_json(self) -> str:
        """The file that `python -m tasks.verl.sft` reads."""
        return json.dumps(asdict(self))


def columns_of(rows: Sequence[SupervisedRow]) -> dict[str, list[list[int]]]:
    """`rows` as a request has them."""
    return {
        "prompts": [row.prompt_ids for row in rows],
        "responses": [row.response_ids for row in rows],
        "masks": [row.mask for row in rows],
    }


def train_apart(
    request: SftRequest,
    *,
    environment: Mapping[str, str],
    on_step: Callable[[Mapping[str, float]], object],
    threads: int | None = None,
) -> list[str]:
    """Train as `request` says; returns the JSON lines of its steps, each of which `on_step` gets at once.

    `environment`: `tasks.verl.process.environment_of` the pipeline. `threads`: of torch on a CPU; by default
    all cores, or as many as `environment` allows. Raises `WingspanError` with the last line of the process
    if that fails.
    """
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(request.to_json())
        interpreter = fork_server.interpreter_command() if request.device == "cpu" else [sys.executable]
        with (Path(folder) / "log").open("w+") as log:
            with subprocess.Popen(
                [*interpreter, "-m", type(request).__module__, str(path)],
                env={**os.environ, **environment, **({"WINGSPAN_THREADS": str(threads)} if threads else {})},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only this process, which then kills it
            ) as process:
                assert process.stdout is not None
                try:
                    for line in process.stdout:
                        numbers = _read_numbers(line)
                        if numbers is not None:
                            lines.append(line.rstrip())
                            on_step(numbers)
                except BaseException:
                    process.kill()
                    raise
            if process.returncode != 0:
                log.seek(0)
                lines = [line for line in log.read().splitlines() if line.strip()]
                raise WingspanError(
                    f"the process of supervised training failed: {lines[-1] if lines else process.returncode}"
                )
    return lines


def _read_numbers(line: str) -> dict[str, float] | None:
    """The numbers of a step; None for what libraries print."""
    try:
        numbers = json.loads(line)
    except ValueError:
        return None
    return numbers if isinstance(numbers, dict) else None


def run(request: SftRequest) -> Iterator[dict[str, float]]:
    """Train; yields a step's numbers (`step`, `loss` per token, `grad_norm`, `lr`, `tokens`), then saves."""
    from verl.workers.utils.losses import sft_loss

    worker = start_worker(request, partial(sft_loss, config=None))
    for step, rows in enumerate(shuffled_batches(request, range(len(request.prompts))), start=1):
        metrics = train_batch(worker, batch_of(request, rows))
        yield {"step": step, **metrics, "tokens": sum(sum(request.masks[i]) for i in rows)}
    save_policy(worker, request)


def start_worker(request: SftRequest, loss: Callable[..., object]) -> "TrainingWorker":
    """verl's worker with the model and its optimizer, in this process, to train with `loss`."""
    import torch
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

    join_process_group()
    torch.manual_seed(request.seed)
    on_cpu = request.device == "cpu"
    adapters = {} if request.lora is None else LoraSettings.model_validate(request.lora).model_options
    precision = {"param_dtype": "fp32" if on_cpu else "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=request.model,
                **(CPU_MODEL_OPTIONS if on_cpu else gpu_model_options(request.model)),
                **adapters,
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                mixed_precision=precision,
                use_torch_compile=False,
                use_dynamic_bsz=True,
                max_token_len_per_gpu=request.micro_batch_tokens,
                infer_max_token_len_per_gpu=request.micro_batch_tokens,
                seed=request.seed,
            ),
            optimizer_config=FSDPOptimizerConfig(
                lr=request.lr,
                lr_scheduler_type="cosine",
                zero_indexed_step=False,  # else the first step would have no learning rate
                lr_warmup_steps_ratio=LR_WARMUP,
                min_lr_ratio=0.1,
                total_training_steps=request.steps,
                override_optimizer_config=None if on_cpu else ADAMW_OPTIONS,
            ),
            checkpoint_config=CheckpointConfig(save_contents=["hf_model"], load_contents=[]),
        )
    )
    worker.reset()
    worker.set_loss_fn(loss)
    return worker


def batch_of(request: SftRequest, rows: Sequence[int]) -> "TensorDict":
    """Rows of `request` as verl's worker takes them: [rows, tokens], nested."""
    from tensordict import TensorDict
    from tensordict.tensorclass import NonTensorData
    from verl.utils import tensordict_utils as tu

    prompts = [request.prompts[i] for i in rows]
    ids = [p + request.responses[i] for p, i in zip(prompts, rows, strict=True)]
    lengths = [len(sequence) for sequence in ids]
    data = TensorDict(
        {
            "input_ids": nest(ids),
            "position_ids": nest([list(range(n)) for n in lengths]),
            "prompts": nest(prompts),
            "loss_mask": nest([[0] * len(p) + request.masks[i] for p, i in zip(prompts, rows, strict=True)]),
        },
        batch_size=len(rows),
    )
    tu.assign_non_tensor(data, temperature=1.0, global_token_num=NonTensorData(lengths))
    return data


def nest(values: Sequence[Sequence[float]]) -> "torch.Tensor":
    """[rows, tokens], nested."""
    import torch

    return torch.nested.as_nested_tensor([torch.tensor(v) for v in values], layout=torch.jagged)


def train_batch(worker: "TrainingWorker", data: "TensorDict") -> dict[str, float]:
    """One optimizer step; returns `loss`, `grad_norm` and `lr`.

    Raises `Diverged` if one is not a number: verl would go on without the update.
    """
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(data, update_lr_scheduler=True)
    metrics = tu.get(worker.train_batch(data), "metrics")
    values = {name: float(metrics[name]) for name in ("loss", "grad_norm", "lr")}
    for name, value in values.items():
        if not math.isfinite(value):
            raise Diverged(f"supervised training diverged: {name} is {value}; lower its learning rate")
    return values


def shuffled_batches(request: SftRequest, examples: Sequence[int]) -> Iterator[list[int]]:
    """The examples of each step: seeded shuffles of all, one after the other."""
    rng = random.Random(f"sft/{request.seed}")
    batch: list[int] = []
    for _ in range(request.steps):
        while len(batch) < request.batch_size:
            batch += rng.sample(examples, len(examples))
        yield batch[: request.batch_size]
        batch = batch[request.batch_size :]


def save_policy(worker: "TrainingWorker", request: SftRequest) -> None:
    """Save the model with its tokenizer in `request.output`, replacing it at once."""
    with tempfile.TemporaryDirectory(dir=Path(request.output).parent) as folder:
        worker.save_checkpoint(folder, None, request.steps)
        copy_policy(Path(folder) / "huggingface", Path(request.output))


if __name__ == "__main__":
    for numbers in run(SftRequest(**json.loads(Path(sys.argv[1]).read_text()))):
        print(json.dumps(numbers), flush=True)
