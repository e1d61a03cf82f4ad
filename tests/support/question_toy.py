"""A user's data of questions, and pipelines that ask them."""

import json
from pathlib import Path

from tasks.config.pipelines import Pipeline
from tests.support.verl_toy import toy_pipeline

TRAIN, TEST = "data/train.jsonl", "data/test.jsonl"


def write_rows(path: str, *rows: dict[str, str]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_questions() -> None:
    """Write both files, in the current folder."""
    Path("data").mkdir()
    write_rows(TRAIN, *({"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(5)))
    write_rows(TEST, {"question": "9 + 9?", "answer": "18"})


def pipeline_of(agent: dict[str, object], *, env: str = "question", **changes: object) -> Pipeline:
    part = {"env": env, "train": TRAIN, "test": TEST}
    rollout = {"rollout__max_tokens_per_turn": 200, "rollout__context_length": 2000}
    return toy_pipeline(Path("none"), data={"parts": {"math": part}}, agent=agent, **rollout, **changes)
