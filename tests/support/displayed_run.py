"""A program that shows a run which is steered from outside: each line of its FIFO is one event.

python -m tests.support.displayed_run FIFO EPISODE_FILE
"""

import logging
import sys
from pathlib import Path

from flows.display.display import Display
from flows.display.state import StageState
from flows.endings.stopping import Stoppable

STEPS = 20


def main(fifo: Path, episode_file: Path) -> None:
    """`step N SUCCESS`, `evaluate EPISODES`, `note TEXT`, `log TEXT`, `misfit`, `end`."""
    logging.basicConfig()  # a handler on the terminal from before the display, as Prefect's
    with (
        Stoppable("stopped; this line says how to go on"),
        Display(
            "a run",
            stages=["prepare", "train", "evaluate"],
            steps={"train": STEPS},
            steps_per_round=10,
            horizon_at=lambda step: 6 if step <= 10 else 12,
            episode_file=episode_file,
        ) as display,
    ):
        display.stage("prepare", StageState.CACHED)
        display.stage("train", StageState.RUNNING)
        with fifo.open() as events:
            for event in events:
                kind, _, rest = event.strip().partition(" ")
                if kind == "step":
                    step, success = rest.split()
                    values = {"horizon": 6, "reward": 0.5, "entropy": 1 / int(step), "seconds": 10.0}
                    display.step("train", {"step": int(step), "success": float(success), **values})
                elif kind == "evaluate":
                    display.stage("train", StageState.DONE)
                    display.stage("evaluate", StageState.RUNNING)
                    display.count("evaluate", int(rest), 400)
                elif kind == "note":
                    display.note(rest)
                elif kind == "log":
                    logging.getLogger("tasks.toy").warning("%s", rest)
                elif kind == "misfit":
                    logging.getLogger("tasks.toy").warning("%d things", "two")
                else:
                    break
        display.stage("train", StageState.DONE)
    print("the report is here")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
