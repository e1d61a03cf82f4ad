"""What the terminal showed of a run, from the run's own files: as an image, or replayed.

    python -m bench.screen runs/textcraft-cpu --step 31 --out docs/terminal.svg
    python -m bench.screen runs/textcraft-cpu --speed 20

The image shows the moment at which `--step` had ended and an episode of the next one was played.
Without `--out`, training is played `--speed` times as fast as it was, in the terminal.
"""

import argparse
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from agents.huggingface.files import load_tokenizer
from envs.errors import ConfigError
from envs.files import read_json_lines
from envs.types import Message
from flows.display.display import Display
from flows.display.state import StageState
from tasks.config.parameters import read_pipeline_name
from tasks.config.pipelines import load_pipeline
from tasks.data.items import planned_turns
from tasks.data.trajectories import read_trajectories
from tasks.reporting.results import read_stage_seconds
from tasks.rollout.current_episode import EPISODE_FILE, EpisodeWriter
from tasks.rollout.spec import make_training_spec
from tasks.runs.parameters import recorded_parameters

WIDTH, HEIGHT = 84, 26
STAGES = ("prepare", "provision", "warmup", "train", "evaluate", "report")


class Replay:
    """A run that is played again, on its own clock."""

    def __init__(self, folder: Path, *, console: Console, episode_file: Path) -> None:
        name = read_pipeline_name(folder)
        if name is None:
            raise ConfigError(f"{folder} holds no run; give the workspace of one")
        self._folder = folder
        self._pipeline = load_pipeline(name, overrides=recorded_parameters(folder))
        self._seconds = read_stage_seconds(folder)
        self._steps = read_json_lines(folder / "train" / "metrics.jsonl")
        self._episode_file = episode_file
        self._tokenizer = load_tokenizer(folder / "policy")
        self._now_s = 0.0
        self.display = Display(
            f"{name} in {folder}",
            stages=[stage for stage in STAGES if stage in self._seconds],
            steps={"train": len(self._steps)},
            steps_per_round=self._pipeline.train.steps_per_round,
            horizon_at=planned_turns(self._pipeline),
            episode_file=episode_file,
            console=console,
            clock=lambda: self._now_s,
        )

    def play(self, *, last_step: int | None, wait: Callable[[float], object]) -> None:
        """Play the run up to the middle of the step after `last_step`; `wait` is given the run's seconds."""
        for stage in STAGES[: STAGES.index("train")]:
            if stage in self._seconds:
                self.display.stage(stage, StageState.RUNNING)
                self._pass(self._seconds[stage], wait)
                self.display.stage(stage, StageState.DONE)
        self.display.stage("train", StageState.RUNNING)
        # What is left of the stage's time is start-up and evaluations; here it comes before the first step.
        self._pass(self._seconds["train"] - sum(step["seconds"] for step in self._steps), wait)
        for step in self._steps:
            self._write_episode(int(step["step"]))
            self._pass(step["seconds"] / 2, wait)
            if last_step is not None and step["step"] > last_step:
                return
            self._pass(step["seconds"] / 2, wait)
            self.display.step("train", step)
        self.display.stage("train", StageState.DONE)

    def _pass(self, seconds: float, wait: Callable[[float], object]) -> None:
        self._now_s += seconds
        wait(seconds)

    def _write_episode(self, step: int) -> None:
        """The middle of the first recorded episode of the step."""
        trajectory = read_trajectories(self._folder / "train" / "trajectories" / f"step_{step:04}.jsonl")[0]
        callbacks = EpisodeWriter(self._episode_file, self._pipeline).callbacks(
            make_training_spec(self._pipeline, step=step, evidence={})
        )
        assert callbacks.on_opening is not None
        assert callbacks.on_turn is not None
        item, sample_index = trajectory.item, trajectory.sample_index
        task = self._tokenizer.decode(trajectory.prompt_ids, skip_special_tokens=True)
        callbacks.on_opening(item, sample_index, [Message("user", task)])
        callbacks.on_turn(item, sample_index, trajectory.turns[: len(trajectory.turns) // 2 + 1])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's workspace")
    parser.add_argument("--step", type=int, help="the last step that has ended")
    parser.add_argument("--out", type=Path, help="an SVG file")
    parser.add_argument("--speed", type=float, default=20.0)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        file = Path(folder) / EPISODE_FILE
        if arguments.out is None:
            replay = Replay(arguments.run, console=Console(), episode_file=file)
            with replay.display:
                replay.play(last_step=arguments.step, wait=lambda s: time.sleep(s / arguments.speed))
            return
        console = Console(
            file=nowhere, record=True, force_terminal=True, width=WIDTH, height=HEIGHT, _environ={}
        )
        replay = Replay(arguments.run, console=console, episode_file=file)
        replay.play(last_step=arguments.step, wait=lambda _: None)
        console.print(replay.display.draw())
        title = f"wingspan run {read_pipeline_name(arguments.run)}"
        svg = console.export_svg(title=title)
        # Without the fonts of a web site.
        arguments.out.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    main()
