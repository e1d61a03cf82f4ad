"""The warm-up stage: the policy imitates the environment's scripted expert before it is trained by RL.

Demonstrations come from training items only (`tasks/data/demonstrations.py`); the training runs in a
process of its own (`tasks/verl/sft.py`), so that verl and its memory are gone when it ends.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, WingspanError
from envs.types import Item
from tasks.config.settings import Pipeline
from tasks.data.demonstrations import Demonstration, demonstrate
from tasks.data.items import read_items
from tasks.data.vocabulary import add_words, cut_less, spelt_words
from tasks.verl.actor import environment_of
from tasks.verl.sft import SftRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def warmup(
    pipeline: Pipeline, workspace: Path, *, on_step: Callable[[dict[str, float]], None] | None = None
) -> Path:
    """Train on `data/train.jsonl`'s items; returns `workspace/warmup`, the policy with its tokenizer.

    Beside it lie `metrics.jsonl` (a line per step, as `tasks/verl/sft.py` says them; `on_step` sees them
    as they come). Raises `ConfigError` for a pipeline without a warm-up or a model that cannot be
    loaded, `WingspanError` if the training process fails.
    """
    settings = pipeline.warmup
    if settings is None:
        raise ConfigError("this pipeline has no warm-up (warmup: null); RL starts from `model` itself")
    items = read_items(workspace / "data" / "train.jsonl", data=pipeline.data)
    target = workspace.resolve() / "warmup"
    with tempfile.TemporaryDirectory() as folder:
        model, games = _start(pipeline, items, folder=Path(folder))
        request = SftRequest(
            model=model,
            output=str(target),
            device=pipeline.backend.device,
            seed=pipeline.seed,
            steps=settings.steps,
            batch_size=settings.batch_size,
            lr=settings.lr,
            micro_batch_tokens=pipeline.train.micro_batch_tokens,
            prompts=[game.prompt_ids for game in games],
            responses=[game.response_ids for game in games],
            masks=[game.mask for game in games],
        )
        lines = _run(request, environment=environment_of(pipeline), on_step=on_step)
    (target / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return target


def _start(pipeline: Pipeline, items: Sequence[Item], *, folder: Path) -> tuple[str, list[Demonstration]]:
    """The model to begin with, in `folder` if it gets new words, and the demonstrations in its tokens."""

    def played(tokenizer: "PreTrainedTokenizerBase") -> list[Demonstration]:
        return asyncio.run(demonstrate(items, pipeline=pipeline, tokenizer=tokenizer))

    settings = pipeline.warmup
    assert settings is not None
    tokenizer = _tokenizer(pipeline.model)
    if settings.whole_words:
        tokenizer = cut_less(tokenizer, settings.whole_words, folder)
    games = played(tokenizer)
    if not settings.new_words:
        return pipeline.model, games
    conversations = (game.prompt_ids + game.response_ids for game in games)
    words = spelt_words(tokenizer, conversations, at_most=settings.new_words)
    add_words(pipeline.model, tokenizer, words, folder, seed=pipeline.seed)
    return str(folder), played(_tokenizer(str(folder)))


def _run(
    request: SftRequest,
    *,
    environment: dict[str, str],
    on_step: Callable[[dict[str, float]], None] | None,
) -> list[str]:
    """Run `tasks.verl.sft`; the JSON lines it said."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(request.to_json())
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tasks.verl.sft", str(path)],
                # One thread: training starts up beside it, and threads that spin stop each other.
                env={**os.environ, **environment, "WINGSPAN_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for us, who then end it
            )
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if not line.startswith("{"):
                        continue  # verl prints, too
                    lines.append(line.rstrip())
                    if on_step is not None:
                        on_step(json.loads(line))
            except BaseException:
                process.kill()
                raise
            if process.wait() != 0:
                log.seek(0)
                said = [line for line in log.read().splitlines() if line.strip()]
                raise WingspanError(f"the warm-up process failed: {said[-1] if said else process.returncode}")
    return lines


def _tokenizer(model: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r} cannot be loaded: {' '.join(str(error).split())[:200]}") from None
