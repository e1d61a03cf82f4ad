"""A project with a small file wherever a stage reads or writes one, and the keys of its stages."""

import shutil
from pathlib import Path

from flows.lineage.stages import declared_stages, stage_key
from tasks.config.pipelines import Pipeline, load_pipeline

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
AGENT_STAGES = {"provision", "warmup", "train", "evaluate"}


def write_stage_files(folder: Path) -> None:
    """Make the current `folder` a project whose stages find a small file wherever they read or write one."""
    for file in ("dvc.yaml", "pipelines.yaml", ".dvcignore"):
        shutil.copy(ROOT / file, folder / file)
    for stage in declared_stages(NAME, pipeline=load_pipeline(NAME), workspace=Path("runs") / NAME).values():
        for path in (*stage.deps, *stage.outs):
            if path.suffix:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{path}\n")
            else:
                (path / "nested").mkdir(parents=True, exist_ok=True)
                (path / "nested" / "b.bin").write_bytes(b"\r\n\x00" * 99)
                (path / "a.txt").write_text(f"{path}\n")


def keys(pipeline: Pipeline | None = None) -> dict[str, str]:
    pipeline = pipeline or load_pipeline(NAME)
    stages = declared_stages(NAME, pipeline=pipeline, workspace=Path("runs") / NAME)
    return {name: stage_key(stage) for name, stage in stages.items()}


def changed_keys(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}
