"""`bench/screen.py` shows a run with the parameters of that run."""

import random
from pathlib import Path

from rich.console import Console

from bench.screen import Replay
from bench.view import write_step
from envs.files import write_json
from tasks.config.pipelines import load_pipeline


def test_the_screen_of_a_run_has_the_horizon_that_the_run_was_given(tmp_path: Path) -> None:
    changes = {"horizon.max_turns": [33]}
    pipeline = load_pipeline("textcraft-cpu", overrides=changes)
    write_json(tmp_path / "parameters.json", {"pipeline": "textcraft-cpu", "changed": {}})
    (tmp_path / "report").mkdir()
    write_json(tmp_path / "report" / "parameters.json", pipeline.model_dump(mode="json"))
    write_json(tmp_path / "timing.json", {"stages": {"train": 3.0}})
    (tmp_path / "train" / "trajectories").mkdir(parents=True)
    (tmp_path / "train" / "metrics.jsonl").write_text('{"step": 1, "seconds": 2.0}\n')
    write_step(tmp_path, 1, rng=random.Random(0))
    (tmp_path / "policy").symlink_to(Path("models/textcraft-base").resolve())
    console = Console(record=True, force_terminal=True, width=84, height=26)
    replay = Replay(tmp_path, console=console, episode_file=tmp_path / "episode.json")
    replay.play(last_step=0, wait=lambda _: None)
    console.print(replay.display.draw())
    assert " of 33" in console.export_text()
