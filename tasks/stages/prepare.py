"""Stage `prepare`: the items of a pipeline, as data files that DVC can version."""

from pathlib import Path

from tasks.config.pipelines import Pipeline
from tasks.data.items import split, write_items
from tasks.runs.progress import SILENT, Progress


def prepare(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> None:
    """Write `data/train.jsonl` and `data/test.jsonl`, one `Item` per line."""
    items = split(pipeline.data)
    write_items(workspace / "data" / "train.jsonl", items.train)
    write_items(workspace / "data" / "test.jsonl", items.test)
