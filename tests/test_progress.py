"""What a user sees while a run goes on, with a terminal and without."""

import io

import pytest
from rich.console import Console

from flows.progress import Display, StageState

STEP = {"step": 13, "horizon": 12.0, "success": 0.415, "tokens_per_s": 5123.4}


def display_on(stream: io.StringIO, *, terminal: bool) -> Display:
    console = Console(file=stream, force_terminal=terminal, width=120, _environ={})
    return Display(
        "a run",
        stages=["prepare", "train", "report"],
        steps={"train": 36},
        steps_per_round=12,
        console=console,
    )


def test_without_a_terminal_each_event_is_a_plain_line() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=False) as display:
        display.stage("prepare", StageState.CACHED)
        display.stage("train", StageState.RUNNING)
        display.step("train", STEP)
    lines = stream.getvalue().splitlines()
    assert lines[:3] == [
        "prepare: cached",
        "train: running",
        "train: round 2/3  step 13/36  horizon 12  success 0.41  5,123 tokens/s",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_stage_that_is_left_by_an_error_has_failed() -> None:
    stream = io.StringIO()
    display = display_on(stream, terminal=False)

    def work() -> None:
        with display:
            display.stage("train", StageState.RUNNING)
            raise OSError("out of luck")

    with pytest.raises(OSError, match="out of luck"):
        work()
    assert stream.getvalue().splitlines()[-1].startswith("train: failed in ")


def test_time_left_is_told_from_the_second_step_on_of_a_resumed_run() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=False) as display:
        display.stage("train", StageState.RUNNING)
        display.step("train", STEP)
        display.step("train", {**STEP, "step": 14})
        display.step("train", {**STEP, "step": 36})
    first, second, last = [line for line in stream.getvalue().splitlines() if "step " in line]
    assert " left" not in first
    assert " left" in second
    assert last.endswith("0.0s left")


def test_a_terminal_shows_every_stage_and_where_training_stands() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=True) as display:
        display.stage("prepare", StageState.DONE)
        display.stage("train", StageState.RUNNING)
        display.step("train", STEP)
    shown = stream.getvalue()
    for part in ("a run", "✓", "prepare", "report", "round 2/3", "horizon 12", "5,123 tokens/s"):
        assert part in shown
