"""Stage `warmup`: the policy imitates the environment's scripted expert before it is trained by RL.

Demonstrations come from training items only (`tasks/data/demonstrations.py`). Training runs in a separate
process (`tasks/verl/sft.py`), so that verl's memory is freed when it ends.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, WingspanError, to_line
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.data.demonstrations import Demonstration, demonstrate
from tasks.data.items import read_items
from tasks.data.vocabulary import add_whole_words, add_words, find_spelled_words
from tasks.progress import SILENT, Progress
from tasks.verl.actor import environment_of
from tasks.verl.sft import SftRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def warmup(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> Path:
    """Train on the items of `data/train.jsonl`; returns `workspace/warmup`, the policy with its tokenizer.

    The folder also holds `metrics.jsonl`, with one line per step as `tasks/verl/sft.py` prints it. Raises
    `ConfigError` for a pipeline without a warm-up or a model that cannot be loaded, `WingspanError` if the
    training process fails.
    """
    settings = pipeline.warmup
    if settings is None:
        raise ConfigError("this pipeline has no warm-up (warmup: null); RL starts from `model` itself")
    items = read_items(workspace / "data" / "train.jsonl", data=pipeline.data)
    target = workspace.resolve() / "warmup"
    with tempfile.TemporaryDirectory() as folder:
        model, demonstrations = _start(pipeline, items, folder=Path(folder))
        request = SftRequest(
            model=model,
            output=str(target),
            device=pipeline.backend.device,
            seed=pipeline.seed,
            steps=settings.steps,
            batch_size=settings.batch_size,
            lr=settings.lr,
            micro_batch_tokens=pipeline.train.micro_batch_tokens,
            prompts=[demonstration.prompt_ids for demonstration in demonstrations],
            responses=[demonstration.response_ids for demonstration in demonstrations],
            masks=[demonstration.mask for demonstration in demonstrations],
        )
        lines = _run(request, environment=environment_of(pipeline), progress=progress)
    (target / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return target


def _start(pipeline: Pipeline, items: Sequence[Item], *, folder: Path) -> tuple[str, list[Demonstration]]:
    """The model to start from (saved in `folder` if it gets new words), and demonstrations in its tokens."""

    def play_experts(tokenizer: "PreTrainedTokenizerBase") -> list[Demonstration]:
        return asyncio.run(demonstrate(items, pipeline=pipeline, tokenizer=tokenizer))

    settings = pipeline.warmup
    assert settings is not None
    tokenizer = _tokenizer(pipeline.model)
    if settings.whole_words:
        tokenizer = add_whole_words(tokenizer, settings.whole_words, folder)
    demonstrations = play_experts(tokenizer)
    if not settings.new_words:
        return pipeline.model, demonstrations
    conversations = (
        demonstration.prompt_ids + demonstration.response_ids for demonstration in demonstrations
    )
    words = find_spelled_words(tokenizer, conversations, at_most=settings.new_words)
    add_words(pipeline.model, tokenizer, words, folder, seed=pipeline.seed)
    return str(folder), play_experts(_tokenizer(str(folder)))


def _run(request: SftRequest, *, environment: dict[str, str], progress: Progress) -> list[str]:
    """Run `tasks.verl.sft`; returns the JSON lines that it printed."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(request.to_json())
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tasks.verl.sft", str(path)],
                # One thread: the trainer starts up meanwhile, and spinning threads slow each other down.
                env={**os.environ, **environment, "WINGSPAN_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only this process, which then kills it
            )
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if not line.startswith("{"):
                        continue  # other output of verl
                    lines.append(line.rstrip())
                    progress.on_step(json.loads(line))
            except BaseException:
                process.kill()
                raise
            if process.wait() != 0:
                log.seek(0)
                lines = [line for line in log.read().splitlines() if line.strip()]
                raise WingspanError(
                    f"the warm-up process failed: {lines[-1] if lines else process.returncode}"
                )
    return lines


def _tokenizer(model: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r} cannot be loaded: {to_line(error, limit=200)}") from None
