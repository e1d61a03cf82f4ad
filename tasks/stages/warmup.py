"""Stage `warmup`: the policy imitates the environment's scripted expert before it is trained by RL.

Demonstrations come from training items only (`tasks/data/demonstrations.py`). Training runs in a separate
process (`tasks/verl/sft.py`), so that verl's memory is freed when it ends.
"""

import tempfile
from pathlib import Path

from envs.errors import ConfigError
from envs.files import write_atomically
from tasks.config.pipelines import Pipeline
from tasks.data.demonstrations import prepare_cloning
from tasks.data.items import read_split
from tasks.runs.progress import SILENT, Progress
from tasks.verl.process import environment_of
from tasks.verl.sft import SftRequest, columns_of, train_apart

SHORT = 100
"""Steps up to which a warm-up on a CPU has one thread: the trainer starts up meanwhile, and threads that
compete for cores slow each other down. A longer one goes on after that, and has all cores."""


def warmup(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> Path:
    """Train on the items of `data/train.jsonl`; returns `workspace/warmup`, the policy with its tokenizer.

    The folder also holds `metrics.jsonl`, with one line per step as `tasks/verl/sft.py` prints it. Raises
    `ConfigError` for a pipeline without a warm-up or a model that cannot be loaded, `WingspanError` if the
    training process fails.
    """
    settings = pipeline.warmup
    if settings is None:
        raise ConfigError("this pipeline has no warm-up (warmup: null); RL starts from `model` itself")
    items = read_split(workspace, data=pipeline.data)
    target = workspace.resolve() / "warmup"
    with tempfile.TemporaryDirectory() as folder:
        cloning = prepare_cloning(pipeline, items, folder=Path(folder))
        request = SftRequest(
            model=cloning.model,
            output=str(target),
            device=pipeline.backend.device,
            seed=pipeline.seed,
            steps=settings.steps,
            batch_size=settings.batch_size,
            lr=settings.lr,
            lora=None,  # new words have embeddings to learn
            micro_batch_tokens=pipeline.train.micro_batch_tokens,
            **columns_of(cloning.demonstrations),
        )
        lines = train_apart(
            request,
            environment=environment_of(pipeline),
            on_step=progress.on_step,
            threads=1 if settings.steps <= SHORT else None,
        )
    write_atomically(target / "metrics.jsonl", "".join(line + "\n" for line in lines))
    return target
