"""What a user sees while a run goes on, with a terminal and without."""

import io

import pytest
from rich.console import Console

from flows.display.display import Display
from flows.display.state import StageState
from tasks.data.collapse import Alert

STEP = {
    "step": 13,
    "loss": -0.0001,
    "horizon": 12.0,
    "success": 0.415,
    "reward": 0.5,
    "informative_groups": 0.75,
    "entropy": 0.3291,
    "kl": 0.00048,
    "tokens_per_s": 5123.4,
}


def display_on(stream: io.StringIO, *, terminal: bool) -> Display:
    console = Console(file=stream, force_terminal=terminal, width=120, _environ={})
    return Display(
        "a run",
        stages=["prepare", "train", "evaluate", "report"],
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
        alert = Alert(monitor="kl", step=13, value=0.3, limit=0.1, text="the KL is 0.3")
        display.progress("train").on_alert(alert)
    lines = stream.getvalue().splitlines()
    assert lines[:4] == [
        "prepare: cached",
        "train: running",
        "train: round 2/3  step 13/36  horizon 12  success 0.41  reward 0.50  informative groups 75%  "
        "entropy 0.33  kl 0.0005  5,123 tokens/s",
        "train: step 13: sign of a collapse: the KL is 0.3",
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
    assert " left" not in last


def test_a_finished_stage_has_no_time_left() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=True) as display:
        display.stage("train", StageState.RUNNING)
        for step in (13, 14):
            display.step("train", {**STEP, "step": step})
        display.stage("train", StageState.DONE)
    last_frame = stream.getvalue().rpartition("a run")[2]
    assert "step 14/36" in last_frame
    assert " left" not in last_frame


def test_what_goes_on_before_the_first_step_is_named_until_a_step_ends() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=True) as display:
        display.stage("train", StageState.RUNNING)
        display.phase("train", "starting the trainer")
    assert "starting the trainer" in stream.getvalue()
    stream.truncate(0)
    with display_on(stream, terminal=True) as display:
        display.stage("train", StageState.RUNNING)
        display.phase("train", "starting the trainer")
        display.step("train", STEP)
    last_frame = stream.getvalue().rpartition("a run")[2]  # as it was left
    assert "starting the trainer" not in last_frame
    assert "informative groups 75%" in last_frame


def test_episodes_are_counted_in_ten_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=False) as display:
        display.stage("evaluate", StageState.RUNNING)
        for done in range(1, 401):
            display.count("evaluate", done, total=400)
    lines = [line for line in stream.getvalue().splitlines() if "episode" in line]
    assert [line.split("  ")[0] for line in lines] == [
        f"evaluate: episode {done}/400" for done in range(40, 401, 40)
    ]


def test_a_terminal_shows_every_stage_and_where_training_stands() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=True) as display:
        display.stage("prepare", StageState.DONE)
        display.stage("train", StageState.RUNNING)
        display.step("train", STEP)
    output = stream.getvalue()
    for part in ("a run", "✓", "prepare", "report", "round 2/3", "horizon 12", "5,123 tokens/s"):
        assert part in output
