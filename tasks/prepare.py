"""Stage `prepare`: the items of an environment, as data files that DVC can version."""

from pathlib import Path

from envs.registry import get_env
from tasks.items import write_items
from tasks.settings import Pipeline


def prepare(pipeline: Pipeline, workspace: Path) -> None:
    """Write `data/train.jsonl` and `data/test.jsonl`, one `Item` a line."""
    split = get_env(pipeline.data.env).split(pipeline.data.split_seed)
    write_items(workspace / "data" / "train.jsonl", split.train)
    write_items(workspace / "data" / "test.jsonl", split.test)
