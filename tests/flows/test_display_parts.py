"""What the display of a run is made of: plots, the forecast of the time left, the episode that is played."""

import io
import json
import re
import unicodedata
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from rich.console import Console

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item, Message
from flows.commands.turns import TurnPrinter
from flows.display.forecast import forecast_steps
from flows.display.frame import draw_episode
from flows.display.plots import draw_rate, draw_sparkline
from flows.display.tables import print_plain, print_table
from tasks.config.pipelines import load_pipeline
from tasks.data.items import planned_turns
from tasks.rollout import current_episode
from tasks.rollout.current_episode import EpisodeReader, EpisodeView, EpisodeWriter
from tasks.rollout.spec import make_training_spec
from tests.support.report_toy import make_trajectory


def test_a_sparkline_goes_from_the_least_value_to_the_largest() -> None:
    assert draw_sparkline([0, 7, 3], width=10) == "▁█▄"
    assert draw_sparkline([1, 3, 5, 7, 9, 11], width=3) == "▁▅█"  # the means 2, 6, 10
    assert draw_sparkline([2, 2], width=4) == "▄▄"
    assert draw_sparkline([], width=4) == ""


def test_a_value_that_is_no_number_leaves_a_gap_in_the_sparkline() -> None:
    assert draw_sparkline([0, nan, 7, inf, 3], width=10) == "▁ █ ▄"
    assert draw_sparkline([1, 3, inf, -inf, 9, 11], width=3) == "▁ █"
    assert draw_sparkline([nan, nan], width=4) == "  "


def test_a_rate_is_drawn_by_step_to_an_axis_that_says_where_the_horizon_changes() -> None:
    rates = {1: 0.0, 2: 0.25, 3: 0.5}
    lines = draw_rate(rates, horizons=lambda step: 6 if step < 3 else 9, steps=4, width=5 + 24, height=2)
    assert [line.plain for line in lines] == [
        " 50% " + " " * 12 + "█" * 6 + " " * 6,
        "  0% " + "▁" * 6 + "█" * 12 + " " * 6,
        "     " + "└6 turns────└9──────────",
    ]


def test_many_steps_share_a_column_and_stages_that_are_too_narrow_have_no_label() -> None:
    rates = {step: float(step > 50) for step in range(1, 101)}
    *bars, axis = draw_rate(rates, horizons=lambda step: step, steps=100, width=25, height=1)
    assert [bar.plain for bar in bars] == ["  0% " + "▁" * 10 + "█" * 10]
    assert axis.plain.split("└")[1].startswith("1 turns")
    assert len(axis.plain) == 25


def test_longer_horizons_take_longer_by_the_episodes_that_the_horizon_ended() -> None:
    # 5 turns an episode; half of the episodes are ended by the horizon of 10 turns. Under 20 turns, these end
    # 5 turns later on average, which adds 2.5 turns to 5.
    step = {"horizon": 10, "seconds": 4.0, "turns": 5.0, "episodes": 8, "stop_max_turns": 4}
    steps = [{**step, "step": number, "seconds": 100.0 if number == 1 else 4.0} for number in range(1, 12)]
    horizon = {12: 10, 13: 10, 14: 20}.__getitem__
    assert forecast_steps(steps, total=14, horizon_at=horizon) == pytest.approx(4 + 4 + 4 * 1.5)
    assert forecast_steps(steps, total=14) == pytest.approx(4 * 3)
    assert forecast_steps(steps, total=11) == 0


def test_planned_turns_are_those_of_the_schedule() -> None:
    pipeline = load_pipeline("textcraft-cpu")
    turns = planned_turns(pipeline)
    assert turns is not None
    horizon = pipeline.horizon
    assert [turns(1), turns(pipeline.train.steps)] == [horizon.max_turns[0], horizon.max_turns[-1]]
    adaptive = horizon.model_validate({"type": "adaptive", "max_turns": [4, 8]})
    assert planned_turns(pipeline.model_copy(update={"horizon": adaptive})) is None


def test_plain_text_is_printed_as_it_is() -> None:
    """Rich would replace the names of its emoji, also where markup is off."""
    text = "[bold]ratio 1:100:5, runs/a:key:b :smile:"
    file = io.StringIO()
    print_plain(text, console=Console(file=file, width=20))
    assert file.getvalue() == text + "\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_environments_and_policies_write_gives_a_terminal_no_orders(is_terminal: bool) -> None:
    """It could clear the screen, set the window's title, or turn the rest of a line around."""
    hostile = "a\x1b[2Jb\x1b]0;title\x07c\x9b31md\u202ee\tf"
    item = Item(item_id=f"toy{hostile}", env="toy")
    trajectory = make_trajectory(item, success=True, turns=1)
    turn = replace(trajectory.turns[0], thought=hostile, action=hostile, observation=f"{hostile}\n{hostile}")
    output = io.StringIO()
    console = Console(file=output, force_terminal=is_terminal, no_color=True, width=200)
    printer = TurnPrinter(console)
    printer.opening(item, 0, [Message(role="user", content=hostile)])
    printer.turn(item, 0, [turn])
    printer.trajectory(trajectory)
    printer.note(hostile)
    print_table(["a"], [[hostile]], console=console)
    episode = EpisodeView(
        item=hostile,
        sample=0,
        turn=1,
        max_turns=4,
        task=hostile,
        action=hostile,
        is_malformed=False,
        observation=f"{hostile}\n\n{hostile}",
    )
    frame = draw_episode(episode, width=200)
    assert not any("\n" in line.plain for line in frame)
    console.print(*frame, sep="\n")
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.getvalue())  # Rich's own styles
    assert text.count("]0;title") == 17
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]


def test_an_episode_is_as_wide_as_the_terminal_and_markup_is_text() -> None:
    episode = EpisodeView(
        item="toy_1",
        sample=0,
        turn=1,
        max_turns=4,
        task="t" * 100,
        action="[red]go[/red]",
        is_malformed=False,
        observation="漢" * 100,
    )
    lines = draw_episode(episode, width=30)
    assert [line.cell_len <= 30 for line in lines] == [True] * 4
    assert lines[2].plain == "   > [red]go[/red]"


def make_turn(action: str, *, is_malformed: bool = False) -> Turn:
    completion = Completion(
        token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.STOP, policy_version=0
    )
    return Turn(
        completion=completion,
        text=f"Action: {action}",
        action="" if is_malformed else action,
        observation=f"after {action}",
        reward=0.0,
        is_malformed=is_malformed,
    )


def test_one_episode_is_followed_to_its_end_and_then_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_episode, "EVERY_S", 0.0)
    pipeline = load_pipeline("textcraft-cpu")
    spec = make_training_spec(pipeline, step=1, evidence={})
    path = tmp_path / "episode.json"
    callbacks, reader = EpisodeWriter(path, pipeline).callbacks(spec), EpisodeReader(path)
    assert callbacks.on_opening
    assert callbacks.on_turn
    assert callbacks.on_trajectory
    first, second = (Item(f"textcraft_{index}", "textcraft", metadata={"depth": 1}) for index in (1, 2))
    assert reader.read() is None
    for item in (first, second):
        callbacks.on_opening(item, 0, [Message("user", f"Commands:\n…\n\nGoal: {item.item_id}\n")])
    callbacks.on_turn(first, 0, [make_turn("get 1 log")])
    callbacks.on_turn(second, 0, [make_turn("get 2 log")])
    shown = reader.read()
    assert shown == EpisodeView(
        item="textcraft_1",
        sample=0,
        turn=1,
        max_turns=pipeline.horizon.max_turns[0],
        task="Goal: textcraft_1",
        action="get 1 log",
        is_malformed=False,
        observation="after get 1 log",
    )
    ended = Trajectory(
        item=first,
        sample_index=0,
        prompt_ids=(),
        turns=(),
        stop_reason=StopReason.TERMINATED,
        reward=0.0,
        success=False,
        seconds=0.0,
    )
    callbacks.on_trajectory(ended)
    callbacks.on_turn(second, 0, [make_turn("get 2 log"), make_turn("huh", is_malformed=True)])
    shown = reader.read()
    assert shown is not None
    assert (shown.item, shown.turn, shown.action, shown.is_malformed) == (
        "textcraft_2",
        2,
        "Action: huh",
        True,
    )
    path.write_text(json.dumps({"item": "of another version"}))
    assert reader.read() is None
