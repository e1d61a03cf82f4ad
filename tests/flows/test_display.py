"""What a user sees while a run goes on, with a terminal and without."""

import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from flows.display.display import Display
from flows.display.state import StageState
from tasks.data.collapse import Alert
from tasks.rollout.current_episode import EpisodeView
from tests.support.terminal import Terminal, open_terminal
from tests.support.waiting import wait_until

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


def test_time_left_is_shown_from_the_second_step_of_a_resumed_run() -> None:
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
    assert "informative groups" in last_frame


def test_what_goes_on_before_the_first_episode_is_named_until_one_ends() -> None:
    stream = io.StringIO()
    with display_on(stream, terminal=True) as display:
        display.stage("evaluate", StageState.RUNNING)
        display.phase("evaluate", "starting the samplers")
    assert "starting the samplers" in stream.getvalue()
    stream.truncate(0)
    with display_on(stream, terminal=True) as display:
        display.stage("evaluate", StageState.RUNNING)
        display.phase("evaluate", "starting the samplers")
        display.count("evaluate", 1, 40)
    last_frame = stream.getvalue().rpartition("a run")[2]
    assert "starting the samplers" not in last_frame
    assert "1/40" in last_frame


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
    output = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    for part in ("a run", "✓", "prepare", "report", "round 2/3", "success 0.41", "└12 turns", "5,123"):
        assert part in output


def test_a_terminal_that_cannot_be_drawn_on_gets_plain_lines() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, _environ={"TERM": "dumb"})
    with Display(
        "a run", stages=["train"], steps={"train": 2}, steps_per_round=1, console=console
    ) as display:
        assert not display.is_live
        display.stage("train", StageState.RUNNING)
        display.step("train", {"step": 1, "success": 0.5})
    assert stream.getvalue().splitlines()[:2] == [
        "train: running",
        "train: round 1/2  step 1/2  success 0.50",
    ]


class ShownRun:
    """`tests/support/displayed_run.py` in a terminal."""

    def __init__(self, terminal: Terminal, events: TextIO, episode_file: Path) -> None:
        self.terminal = terminal
        self._events = events
        self.episode_file = episode_file

    def tell(self, *events: str) -> None:
        for event in events:
            self._events.write(f"{event}\n")
        self._events.flush()


@contextmanager
def show_run(tmp_path: Path, *, columns: int = 80, lines: int = 24, **variables: str) -> Iterator[ShownRun]:
    fifo, episode_file = tmp_path / "events", tmp_path / "episode.json"
    os.mkfifo(fifo)
    program = ["-m", "tests.support.displayed_run", str(fifo), str(episode_file)]
    with (
        open_terminal(
            program, folder=tmp_path, columns=columns, lines=lines, variables=variables
        ) as terminal,
        fifo.open("w") as events,
    ):
        yield ShownRun(terminal, events, episode_file)


@pytest.mark.heavy
def test_a_run_in_a_terminal_through_changes_of_size_to_its_end(tmp_path: Path) -> None:
    with show_run(tmp_path) as run:
        run.tell(*(f"step {step} {step / 20}" for step in range(1, 11)), "note a sign of a collapse")
        screen = run.terminal.wait_for("step 10/20", "round 1/2", "left")
        assert screen[0].startswith("a sign of a collapse")
        plot = [line for line in screen if line.startswith((" 50%", "  0%"))]
        # Success rises to a half: the bar of the last step is as high as the axis, that of the first is not,
        # and the second half of the axis, which is still to come, is empty.
        top, bottom = (line[5:].ljust(75) for line in plot)
        assert top.rstrip()[-1] in "▆▇█"
        assert top[0] == " "
        assert bottom[0] != " "
        assert bottom[38:].strip() == ""
        axis = next(line for line in screen if "└6 turns" in line)
        assert axis.index("└12") == pytest.approx(5 + 75 / 2, abs=1)
        assert any("entropy" in line and "█" in line and "0.10" in line for line in screen)
        for columns, lines in ((40, 20), (100, 30), (80, 24)):
            run.terminal.resize(columns=columns, lines=lines)
            run.tell("step 11 0.5")
            wait_until(partial(shows_one_frame, run.terminal, columns=columns))
        run.tell("end")
        screen = run.terminal.wait_for("the report is here", "status 0")
        assert is_whole(screen, columns=80)
        assert "✓ train" in "\n".join(screen)
        assert run.terminal.ask("cursor_flag") == "1"


def shows_one_frame(terminal: Terminal, *, columns: int) -> bool:
    return is_whole(terminal.screen(), columns=columns)


def is_whole(screen: Sequence[str], *, columns: int) -> bool:
    """Whether it shows one frame, once, that was drawn for this width."""
    titles = [line for line in screen if line.startswith("a run")]
    return (
        len(titles) == 1
        and len(titles[0]) == columns
        and len([line for line in screen if " train " in line]) == 1
        and len([line for line in screen if "└6 turns" in line]) <= 1
    )


@pytest.mark.heavy
def test_what_is_logged_is_a_line_above_the_frame(tmp_path: Path) -> None:
    with show_run(tmp_path) as run:
        run.tell("step 1 0.5")
        run.terminal.wait_for("step 1/20")
        run.tell("log MLflow: the disk is full", "step 2 0.5")
        screen = run.terminal.wait_for("step 2/20")
        assert screen[0] == "warning: MLflow: the disk is full"
        assert is_whole(screen, columns=80)
        run.tell("misfit", "step 3 0.5")  # its arguments do not fit, which ends nothing
        run.terminal.wait_for("step 3/20")
        run.tell("end")
        run.terminal.wait_for("status 0")


@pytest.mark.heavy
def test_the_episode_that_is_played_is_shown_and_what_it_says_does_nothing(tmp_path: Path) -> None:
    episode = EpisodeView(
        item="toy_7",
        sample=0,
        turn=3,
        max_turns=6,
        task="\x1b]0;owned\x07Reach 3 \u202eesrever",
        action="go\x1b[2J\x1b[H\rnorth\x9b31m",
        is_malformed=False,
        observation="a wall\x1b[?25h\x1b[?1049h\x00\x08\x08 with [bold]markup[/bold] and " + "end " * 100,
    )
    with show_run(tmp_path, NO_COLOR="1") as run:
        run.tell("step 1 0.5")
        run.terminal.wait_for("step 1/20")
        run.episode_file.write_text(json.dumps(asdict(episode)))
        screen = run.terminal.wait_for("toy_7  sample 1  turn 3 of 6")
        assert is_whole(screen, columns=80)
        assert "     �]0;ownedReach 3 �esrever" in screen
        assert "   > go�[2J�[H north�31m" in screen
        assert any(line.startswith("     a wall�[?25h�[?1049h� with [bold]markup[/bold]") for line in screen)
        assert run.terminal.ask("cursor_flag") == "0"
        assert run.terminal.ask("alternate_on") == "0"
        assert "owned" not in run.terminal.ask("pane_title")
        colours = {code for line in run.terminal.screen(with_styles=True) for code in COLOUR.findall(line)}
        assert not colours
        run.tell("evaluate 40")
        screen = run.terminal.wait_for("episode 40/400")
        assert not any("toy_7" in line for line in screen)  # the stage before has played it
        run.episode_file.write_text(json.dumps(asdict(replace(episode, item="toy_8"))))
        run.terminal.wait_for("toy_8  sample 1  turn 3 of 6")


COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?([34][0-8]|9[0-7])[;m]")


@pytest.mark.heavy
def test_after_ctrl_c_the_terminal_is_clean_and_the_last_line_says_how_to_go_on(tmp_path: Path) -> None:
    with show_run(tmp_path) as run:
        run.tell("step 1 0.5")
        run.terminal.wait_for("step 1/20")
        run.terminal.press("C-c")
        screen = run.terminal.wait_for("status 130")
        assert screen[-2:] == ["stopped; this line says how to go on", "status 130"]
        assert is_whole(screen, columns=80)
        assert "■ train" in "\n".join(screen)
        assert run.terminal.ask("cursor_flag") == "1"
        assert not run.episode_file.exists()
