"""The viewer's index and queries: the same answers as from the files themselves, however these grow."""

import json
import os
import random
import shutil
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.formats.calls import ToolCall
from agents.formats.json_values import parse_calls
from agents.types import StopReason, Trajectory
from envs.errors import ConfigError
from envs.types import Item
from tasks.data.trajectories import trajectory_to_dict, write_trajectories
from tasks.data.updates import TrajectoryUpdate, TurnUpdate, update_file, write_updates
from tasks.runs.folders import find_runs
from tasks.viewer import index as index_module
from tasks.viewer.annotations import Annotation, append_annotation, read_annotations
from tasks.viewer.browse import (
    MAX_VALUES,
    TrajectoryRow,
    count_trajectories,
    facets,
    find_location,
    generation,
    item_history,
    list_groups,
    list_trajectories,
    neighbours,
    siblings,
    unreadable_lines,
)
from tasks.viewer.index import RunIndex
from tasks.viewer.overview import summarise_runs
from tasks.viewer.query import Condition, InvalidQuery, parse_query, quote
from tasks.viewer.reading import LineChanged, load_trajectory, load_update, read_tokens, read_trajectory
from tests.support.examples import examples
from tests.support.report_toy import make_failure, make_trajectory, write_workspace

WORDS = ("get", "craft", "oak", "planks", "stick", "nothing")


def random_trajectory(rng: random.Random) -> Trajectory:
    number = rng.randrange(5)
    item = Item(
        item_id=f"toy_{number}",
        env=("textcraft", "rooms")[number % 2],
        metadata={
            "depth": number % 3,
            "kind": ("wood", "red dye")[number % 2],
            "hard": number > 3,
            "path": ("../src", "3..8")[number % 2],
        },
    )
    success = rng.random() < 0.4
    trajectory = make_trajectory(item, success=success, turns=rng.randrange(1, 5), version=rng.randrange(4))
    turns = [
        replace(
            turn,
            text=" ".join(rng.choices(WORDS, k=4)).title(),
            observation=" ".join(rng.choices(WORDS, k=3)),
            is_malformed=rng.random() < 0.2,
        )
        for turn in trajectory.turns
    ]
    metrics = {"parse_failures": rng.randrange(3), "score": rng.choice([0.25, 0.5])}
    if rng.random() < 0.5:
        metrics["tool_calls/search"] = rng.randrange(3)
    trajectory = replace(
        trajectory,
        turns=tuple(turns),
        sample_index=rng.randrange(4),
        stop_reason=rng.choice([StopReason.TERMINATED, StopReason.MAX_TURNS]),
        metrics=metrics,
        labels={"policy": rng.choice(["before", "after"])} if rng.random() < 0.5 else {},
    )
    return make_failure(item, error="EnvCrashed: step raised") if rng.random() < 0.1 else trajectory


def write_run(
    folder: Path,
    *,
    seed: int,
    steps: Sequence[int] = (1, 2, 10),
    rounds: Sequence[int] = (),
    per_step: int = 12,
) -> Path:
    rng = random.Random(seed)
    for step in steps:
        trajectories = [random_trajectory(rng) for _ in range(per_step)]
        write_trajectories(folder / "train" / "trajectories" / f"step_{step:04d}.jsonl", trajectories)
    write_trajectories(
        folder / "evaluation_trajectories.jsonl", [random_trajectory(rng) for _ in range(per_step)]
    )
    for number in rounds:
        trajectories = [replace(random_trajectory(rng), labels={}) for _ in range(per_step)]
        write_trajectories(folder / "train" / "trajectories" / f"round_{number:02d}.jsonl", trajectories)
    return folder


def open_index(folder: Path, cache: Path) -> RunIndex:
    (run,) = find_runs([folder])
    index = RunIndex(run, cache=cache)
    index.update()
    return index


def addresses(index: RunIndex, query: str = "", **order: Any) -> list[str]:
    with index.connect() as connection:
        rows = list_trajectories(connection, query, limit=10_000, **order)
        assert count_trajectories(connection, query) == len(rows)
        return [row.address for row in rows]


Line = dict[str, Any]


def lines_by_address(folder: Path) -> dict[str, Line]:
    """Every trajectory of the files with its step, round and phase, in the order of a list."""
    lines: dict[str, Line] = {}
    for path in [
        *sorted((folder / "train" / "trajectories").glob("step_*.jsonl")),
        *sorted(
            (folder / "train" / "trajectories").glob("round_*.jsonl"), key=lambda path: int(path.stem[6:])
        ),
        folder / "evaluation_trajectories.jsonl",
    ]:
        kind, _, number_of_file = path.stem.partition("_")
        phase = {"step": "train", "round": "quick evaluation"}.get(kind, "evaluation")
        key = "evaluation" if phase == "evaluation" else path.stem
        for number, text in enumerate(path.read_text().splitlines(), start=1):
            facts = {
                "step": int(number_of_file) if kind == "step" else None,
                "round": int(number_of_file) if kind == "round" else None,
                "phase": phase,
            }
            lines[f"{key}:{number}"] = {**json.loads(text), **facts}
    return lines


def text_of(line: Line) -> str:
    return " | ".join(f"{turn['text']} | {turn['observation']}" for turn in line["turns"]).lower()


def versions(line: Line) -> list[int]:
    return [turn["completion"]["policy_version"] for turn in line["turns"]]


def by_hand(key: str) -> Callable[[Line], Any]:
    return {
        "success": lambda line: line["success"],
        "turns": lambda line: len(line["turns"]),
        "tokens": lambda line: sum(len(turn["completion"]["token_ids"]) for turn in line["turns"]),
        "unparsed": lambda line: sum(turn["is_malformed"] for turn in line["turns"]),
        "depth": lambda line: line["item"]["metadata"]["depth"],
    }.get(key, lambda line: line[key])


CASES: Mapping[str, Callable[[Line], bool]] = {
    "": lambda line: True,
    "step:2": lambda line: line["step"] == 2,
    "step:1..2 success:true": lambda line: line["step"] in (1, 2) and line["success"],
    "-step:1": lambda line: line["step"] != 1,
    "step>=2": lambda line: (line["step"] or 0) >= 2,
    "phase:evaluation": lambda line: line["phase"] == "evaluation",
    'phase:"quick evaluation"': lambda line: line["round"] is not None,
    "round:2": lambda line: line["round"] == 2,
    "round>1 -round:2": lambda line: line["round"] == 100,
    "file:step_0010": lambda line: line["step"] == 10,
    "item:toy_1,toy_2": lambda line: line["item"]["item_id"] in ("toy_1", "toy_2"),
    "env:rooms reward<0.5": lambda line: line["item"]["env"] == "rooms" and line["reward"] < 0.5,
    "depth:1": lambda line: line["item"]["metadata"]["depth"] == 1,
    "depth>0 -depth:2": lambda line: line["item"]["metadata"]["depth"] == 1,
    'kind:"red dye"': lambda line: line["item"]["metadata"]["kind"] == "red dye",
    "path:../src": lambda line: line["item"]["metadata"]["path"] == "../src",
    "path:3..8": lambda line: line["item"]["metadata"]["path"] == "3..8",
    "hard:true": lambda line: line["item"]["metadata"]["hard"],
    "policy:after": lambda line: line["labels"].get("policy") == "after",
    "-policy:after,before": lambda line: not line["labels"],
    "parse_failures:1..2": lambda line: 1 <= line["metrics"].get("parse_failures", -1) <= 2,
    "score:0.25": lambda line: line["metrics"].get("score") == 0.25,
    "tool:search": lambda line: line["metrics"].get("tool_calls/search", 0) > 0,
    "stop:max_turns": lambda line: line["stop_reason"] == "max_turns",
    "error:EnvCrashed": lambda line: line["error"] is not None,
    "turns:2..3": lambda line: 2 <= len(line["turns"]) <= 3,
    "turns>1 turns<=3": lambda line: 1 < len(line["turns"]) <= 3,
    "unparsed>0": lambda line: any(turn["is_malformed"] for turn in line["turns"]),
    "logprob<-0.5": lambda line: bool(line["turns"]),
    "version:2..": lambda line: max(versions(line), default=-1) >= 2,
    "version:1": lambda line: 1 in versions(line),
    "sample:0..1": lambda line: line["sample_index"] in (0, 1),
    "oak": lambda line: "oak" in text_of(line).split(),
    '"oak planks"': lambda line: "oak planks" in text_of(line),
    "OAK -nothing": lambda line: "oak" in text_of(line) and "nothing" not in text_of(line),
    "pla*": lambda line: "planks" in text_of(line),
    'response:"get oak" ': lambda line: "get oak" in " | ".join(t["text"] for t in line["turns"]).lower(),
    "-observation:stick": lambda line: not any("stick" in turn["observation"] for turn in line["turns"]),
    "toy_3": lambda line: line["item"]["item_id"] == "toy_3",
}


@pytest.fixture(scope="module")
def run_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunIndex]:
    folder = write_run(tmp_path_factory.mktemp("runs") / "a-run", seed=0, rounds=(2, 1, 100), per_step=40)
    return folder, open_index(folder, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("query", CASES)
def test_a_query_selects_what_a_reader_of_the_files_would(
    run_index: tuple[Path, RunIndex], query: str
) -> None:
    folder, index = run_index
    expected = [address for address, line in lines_by_address(folder).items() if CASES[query](line)]
    assert addresses(index, query) == expected
    assert 0 < len(expected) < 280 or query == ""


@settings(max_examples=examples(40))
@given(
    queries=st.lists(st.sampled_from(sorted(CASES)), max_size=4),
    key=st.sampled_from(["success", "turns", "tokens", "reward", "unparsed"]),
    is_descending=st.booleans(),
    offset=st.integers(0, 30),
)
def test_conditions_combine_sort_and_page_as_by_hand(
    run_index: tuple[Path, RunIndex], queries: list[str], key: str, is_descending: bool, offset: int
) -> None:
    folder, index = run_index
    query = " ".join(queries)
    matches = [
        (address, line)
        for address, line in lines_by_address(folder).items()
        if all(CASES[part](line) for part in queries)
    ]
    value = by_hand(key)
    matches.sort(key=lambda pair: -value(pair[1]) if is_descending else value(pair[1]))  # stable
    sort = f"-{key}" if is_descending else key
    expected = [address for address, _ in matches]
    assert addresses(index, query, sort=sort) == expected
    with index.connect() as connection:
        page = list_trajectories(connection, query, sort=sort, offset=offset, limit=7)
        assert [row.address for row in page] == expected[offset : offset + 7]
        counts = {
            (facet.key, value): (total, num_solved)
            for facet in facets(connection, query)
            for value, total, num_solved in facet.values
        }
        for depth in (0, 1, 2):
            lines = [line for _, line in matches if by_hand("depth")(line) == depth]
            if ("depth", str(depth)) in counts:
                assert counts["depth", str(depth)] == (len(lines), sum(line["success"] for line in lines))
        if expected:
            middle = len(expected) // 2
            found = neighbours(connection, query, sort=sort, address=expected[middle])
            around = [found["before"], found["after"]]
            padded = [None, *expected, None]
            assert (found["position"], around) == (middle + 1, [padded[middle], padded[middle + 2]])


def is_before_training(line: Line) -> bool:
    return (line["phase"], line["labels"].get("policy")) == ("evaluation", "before")


def test_groups_are_the_samples_of_an_item_in_a_file(run_index: tuple[Path, RunIndex]) -> None:
    folder, index = run_index
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for address, line in lines_by_address(folder).items():
        key = (address.partition(":")[0], line["item"]["item_id"], tuple(line["labels"].items()))
        groups.setdefault(key, []).append({**line, "address": address})
    with index.connect() as connection:
        total, rows = list_groups(connection, limit=1000)
        assert total == len(rows) == len(groups)
        by_first = {members[0]["address"]: members for members in groups.values()}
        for row in rows:
            members = by_first[row.first]
            valid = [line for line in members if line["error"] is None]  # the others are not trained on
            rewards = [line["reward"] for line in valid]
            assert (row.samples, row.failed) == (len(valid), len(members) - len(valid))
            assert row.successes == sum(line["success"] for line in valid)
            if valid:
                assert row.spread == max(rewards) - min(rewards)
                assert row.reward == pytest.approx(sum(rewards) / len(rewards))
                assert row.turns == pytest.approx(sum(len(line["turns"]) for line in valid) / len(valid))
            else:
                assert (row.spread, row.reward, row.turns) == (None, None, None)
        assert {row.failed for row in rows} >= {0, 1}
        members = by_first[rows[0].first]
        assert {row.address for row in siblings(connection, members[-1]["address"])} == {
            line["address"] for line in members
        }
        history = item_history(connection, "toy_2")
    found = {a: line for a, line in lines_by_address(folder).items() if line["item"]["item_id"] == "toy_2"}
    before = [a for a, line in found.items() if is_before_training(line)]
    assert [row.address for row in history] == before + [a for a in found if a not in before]
    assert len(before) > 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("depht:1", ["depht", "did you mean 'depth'"]),
        ("turns:many", ["turns:many", "needs a number"]),
        ("turns>1..2", ["needs a number"]),
        ("turns:3..x", ["turns:3..x needs a number"]),
        ("reward:abc..5", ["needs a number"]),
        ("turns:3..8..9", ["needs a number"]),
        ("reward:nan", ["reward:nan needs a number"]),
        ("reward:0..nan", ["needs a number"]),
        ("score>nan", ["needs a number"]),
        ("version:1..x", ["needs a number"]),
        ("score:0..x", ["needs a number"]),
        ("depth:3..x", ["depth:3..x needs a number"]),
        ("-metadata.depth:deep", ["needs a number"]),
        ("success:maybe", ["neither true nor false"]),
        ("stop>3", ["'stop' has no order"]),
        ("response>3", ["'response' has no order; write response:VALUE"]),
        ("-prompt<=oak", ["'prompt' has no order"]),
        ('"open', ["not closed"]),
        ("has:hope", ["has:hope", "has:note"]),
        ("->-", ["no letter"]),
        ("oak " * 51, ["at most 50"]),
    ],
)
def test_a_query_that_means_nothing_is_refused(
    run_index: tuple[Path, RunIndex], query: str, words: list[str]
) -> None:
    with run_index[1].connect() as connection, pytest.raises(InvalidQuery) as error:
        count_trajectories(connection, query)
    assert all(word in str(error.value) for word in words)


@settings(max_examples=examples(300))
@given(st.text(alphabet=st.sampled_from("ab1 \"-:*,.<>=()%'^é\x00\u202e"), max_size=30))
def test_every_text_is_a_query_or_refused(run_index: tuple[Path, RunIndex], text: str) -> None:
    with run_index[1].connect() as connection:
        try:
            parse_query(text)
            count_trajectories(connection, text)
        except InvalidQuery:
            pass


@given(key=st.text(min_size=1), values=st.lists(st.text(), min_size=1, max_size=3), is_negated=st.booleans())
def test_quotes_hold_any_key_and_any_values(key: str, values: list[str], is_negated: bool) -> None:
    query = f"{'-' * is_negated}{quote(key)}:{','.join(map(quote, values))} oak"
    assert parse_query(query) == [
        Condition(key=key, op=":", values=tuple(values), is_negated=is_negated),
        Condition(key="", op=":", values=("oak",)),
    ]


def test_filters_name_the_facts_of_which_they_show_the_values(tmp_path: Path) -> None:
    """Also where metadata have the name of a key of every run, or of a label."""
    trajectories = [
        replace(
            make_trajectory(Item(item_id=f"toy_{number}", env="textcraft", metadata=metadata), success=True),
            labels={"policy": policy},
        )
        for number, (metadata, policy) in enumerate(
            [
                ({"turns": 7, "policy": "fire", "size": 1.5}, "before"),
                ({"turns": 9, "policy": "theft", "size": "1.5"}, "after"),
                ({"turns": 9, "policy": "Fire", "size": 2}, "after"),
            ]
        )
    ]
    write_trajectories(tmp_path / "run" / "train" / "trajectories" / "step_0001.jsonl", trajectories)
    index = open_index(tmp_path / "run", tmp_path / "cache")
    with index.connect() as connection:
        found = {facet.key: facet.values for facet in facets(connection)}
    assert found.keys() == {"success", "stop", "metadata.turns", "policy", "label.policy", "size"}
    assert sorted(total for _, total, _ in found["size"]) == [1, 2]  # a click on 1.5 selects both
    for key, values in found.items():
        for value, total, _ in values:
            assert len(addresses(index, f"{key}:{value}")) == total


def test_a_click_on_a_filter_selects_as_many_as_it_counts_in_any_case(tmp_path: Path) -> None:
    """Of tools, errors, and a boolean beside its text."""
    trajectories = [
        replace(
            make_trajectory(
                Item(item_id=f"toy_{number}", env="toy", metadata={"is_hard": is_hard}), success=True
            ),
            metrics={f"tool_calls/{tool}": 1.0},
            error=error,
        )
        for number, (tool, is_hard, error) in enumerate(
            [
                ("Search", "True", "Lost: no answer"),
                ("search", True, "lost: no answer"),
                ("grep", "no", None),
                ("grep", False, "lost"),
            ]
        )
    ]
    write_trajectories(tmp_path / "one.jsonl", trajectories)
    index = open_index(tmp_path / "one.jsonl", tmp_path / "cache")
    with index.connect() as connection:
        found = {facet.key: facet.values for facet in facets(connection)}
    assert [total for _, total, _ in found["tool"]] == [2, 2]
    assert [total for _, total, _ in found["error"]] == [3]
    assert sorted(total for _, total, _ in found["is_hard"]) == [1, 1, 2]
    for key in ("tool", "error", "is_hard"):
        for value, total, _ in found[key]:
            assert len(addresses(index, f"{key}:{value}")) == total


def test_a_key_of_too_many_values_is_no_filter_even_if_some_are_alike(tmp_path: Path) -> None:
    for count in (MAX_VALUES, MAX_VALUES + 1):
        names = ["A", "a", *(f"b{number}" for number in range(1, count))]  # two are one
        file = tmp_path / f"{count}.jsonl"
        write_trajectories(
            file,
            [
                make_trajectory(Item(item_id=name, env="toy", metadata={"name": name}), success=True)
                for name in names
            ],
        )
        with open_index(file, tmp_path / str(count)).connect() as connection:
            found = {facet.key: facet.values for facet in facets(connection)}
        if count > MAX_VALUES:
            assert "name" not in found
        else:
            assert sum(total for _, total, _ in found["name"]) == len(names)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(st.integers(0, 400), min_size=1, max_size=6),
    seed=st.integers(0, 5),
    ending=st.sampled_from(["\n", "", "\r\n"]),
)
def test_a_file_that_grows_byte_by_byte_ends_as_if_read_at_once(
    tmp_path: Path, data: list[int], seed: int, ending: str
) -> None:
    """Cut anywhere, also within a line or before its end; blank and broken lines are between them."""
    for old in ("growing", "cache"):
        shutil.rmtree(tmp_path / old, ignore_errors=True)
    rng = random.Random(seed)
    texts = [json.dumps(trajectory_to_dict(random_trajectory(rng))) for _ in range(6)]
    texts[2:2] = ["", "{broken", "[1]"]
    content = ("\n".join(texts) + ending).encode()
    file = tmp_path / "growing" / "train" / "trajectories" / "step_0001.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    index = open_index(tmp_path / "growing", tmp_path / "cache")
    cuts = sorted({len(content) * cut // 400 for cut in data} | {len(content)})
    for cut in cuts:
        with file.open("ab") as stream:
            stream.write(content[file.stat().st_size : cut])
        index.update()
    fresh = open_index(tmp_path / "growing", tmp_path / "cache" / "fresh")
    assert rows(index) == rows(fresh)
    assert [row.address for row in rows(index)] == [f"step_0001:{line}" for line in (1, 2, 6, 7, 8, 9)]
    with index.connect() as connection:
        assert [line for line, _ in unreadable_lines(connection)[1]] == ["step_0001:4", "step_0001:5"]
        for row in rows(index):
            location = find_location(connection, row.address)
            assert location is not None
            assert load_trajectory(location) == json.loads(texts[int(row.address[10:]) - 1])


def rows(index: RunIndex) -> list[TrajectoryRow]:
    with index.connect() as connection:
        return list_trajectories(connection, limit=1000)


def test_files_that_are_replaced_shortened_or_removed_leave_nothing_behind(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=1)
    index = open_index(folder, tmp_path / "cache")
    assert not index.update()
    step = folder / "train" / "trajectories" / "step_0002.jsonl"
    lines = step.read_text().splitlines(keepends=True)
    changes: list[Callable[[], object]] = [
        lambda: step.write_text("".join(lines[:5])),  # shortened in place
        lambda: step.write_text("".join([*lines[5:], *lines])),  # rewritten and longer
        lambda: step.write_text("".join([lines[0], lines[2], lines[1], *lines[3:], lines[4]])),
        lambda: step.with_suffix(".new").write_text("".join(lines)) and step.with_suffix(".new").rename(step),
        step.unlink,
        lambda: (folder / "evaluation_trajectories.jsonl").unlink(),
    ]
    for change in changes:
        change()
        assert index.update()
        assert rows(index) == rows(open_index(folder, tmp_path / "other"))
        shutil.rmtree(tmp_path / "other")
    assert {row.step for row in rows(index)} == {1, 10}
    assert addresses(index, "oak") == addresses(open_index(folder, tmp_path / "other"), "oak")


def test_an_index_may_be_deleted_broken_or_of_another_version(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=2)
    index = open_index(folder, tmp_path / "cache")
    expected = rows(index)
    index.file.unlink()
    index.update()  # while it is open
    assert rows(index) == expected
    for content in (b"", b"no database at all" * 100):
        for old in index.file.parent.iterdir():
            old.unlink()
        index.file.write_bytes(content)
        assert rows(open_index(folder, tmp_path / "cache")) == expected


def test_two_viewers_share_an_index(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=3)
    first, second = (open_index(folder, tmp_path / "cache") for _ in range(2))
    assert first.file == second.file
    with first.connect() as connection:
        before = generation(connection)
        (folder / "train" / "trajectories" / "step_0001.jsonl").unlink()
        assert second.update()
        assert generation(connection) == before  # a reader sees one state
    assert not first.update()
    assert rows(first) == rows(second)


def test_viewers_that_index_the_same_run_at_once_add_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BATCH_S", 0.0)  # each line is a commit, after which another may go on
    folder = write_run(tmp_path / "run", seed=7)
    (run,) = find_runs([folder])
    indexes = [RunIndex(run, cache=tmp_path / "cache") for _ in range(3)]

    def update(index: RunIndex) -> None:
        while index.update():
            pass

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(update, indexes))
    assert rows(indexes[0]) == rows(open_index(folder, tmp_path / "other"))


def test_a_trajectory_is_read_where_it_was_indexed_or_not_at_all(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=4)
    index = open_index(folder, tmp_path / "cache")
    with index.connect() as connection:
        location = find_location(connection, "step_0001:3")
        assert find_location(connection, "step_0001:99") is find_location(connection, "no:1") is None
    assert location is not None
    load_trajectory(location)
    file = folder / "train" / "trajectories" / "step_0001.jsonl"
    file.write_text("x" + file.read_text())
    with pytest.raises(LineChanged, match="rewritten"):
        load_trajectory(location)
    file.unlink()
    with pytest.raises(LineChanged, match=r"step_0001\.jsonl"):
        load_trajectory(location)


def test_lines_that_no_strict_reader_takes_are_shown_or_named(tmp_path: Path) -> None:
    """As Python writes them: NaN, infinities, halves of surrogate pairs; and fields of a wrong type."""
    line = json.loads(json.dumps(trajectory_to_dict(random_trajectory(random.Random(0)))))
    line["turns"][0]["completion"]["logprobs"] = [float("-inf"), float("inf")]
    lines = [
        json.dumps({**line, "reward": float("nan")}),
        json.dumps({**line, "item": {**line["item"], "item_id": "half \ud800"}}),
        json.dumps(
            {"item": {"item_id": "old"}, "turns": [], "stop_reason": "x", "reward": 0, "success": False}
        ),
        json.dumps({**line, "reward": "one"}),
        json.dumps({**line, "sample_index": 10**30}),
        "[" * 100_000,
        json.dumps(
            {**line, "item": {**line["item"], "metadata": {"goal": {"a": [None]}, "x": float("inf")}}}
        ),
        json.dumps({**line, "item": {**line["item"], "metadata": {"x": 10**400}}}),
    ]
    file = tmp_path / "odd.jsonl"
    file.write_text("\n".join(lines) + "\n")
    index = open_index(file, tmp_path / "cache")
    assert [row.address for row in rows(index)] == ["odd:1", "odd:2", "odd:3", "odd:7", "odd:8"]
    assert (rows(index)[0].reward, rows(index)[0].logprob) == (None, None)
    assert rows(index)[3].metadata == {"goal": '{"a": [null]}', "x": "Infinity"}
    assert rows(index)[4].metadata == {"x": f"1{'0' * 400}"}
    with index.connect() as connection:
        total, examples = unreadable_lines(connection)
        assert (total, [address for address, _ in examples]) == (3, ["odd:4", "odd:5", "odd:6"])
        assert "reward" in examples[0][1]
        assert [facet.key for facet in facets(connection)]
        location = find_location(connection, "odd:2")
    assert location is not None
    assert load_trajectory(location)["item"]["item_id"] == "half ?"


def test_a_line_that_is_mended_in_its_place_is_indexed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=3, steps=(1,))
    file = folder / "train" / "trajectories" / "step_0001.jsonl"
    content = file.read_bytes()
    fifth = sum(map(len, content.splitlines(keepends=True)[:4]))
    file.write_bytes(content[:fifth] + b"[" + content[fifth + 1 :])
    index = open_index(folder, tmp_path / "cache")
    assert "step_0001:5" not in addresses(index)
    with file.open("r+b") as stream:
        stream.seek(fifth)
        stream.write(b"{")
    index.update()
    assert addresses(index) == list(lines_by_address(folder))
    with index.connect() as connection:
        assert unreadable_lines(connection) == (0, [])


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_letters_with_accents_are_found_in_either_form(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    text = unicodedata.normalize(form, "voilà: un résumé naïf")
    trajectory = make_trajectory(Item(item_id="toy_0", env="textcraft"), success=True)
    turn = replace(trajectory.turns[0], observation=text)
    write_trajectories(tmp_path / "one.jsonl", [replace(trajectory, turns=(turn,))])
    index = open_index(tmp_path / "one.jsonl", tmp_path / "cache")
    for other_form in ("NFC", "NFD"):
        for query in ("résumé", '"voilà un résumé"', "naï*"):
            assert addresses(index, unicodedata.normalize(other_form, query)) == ["one:1"]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_case_does_not_matter_in_any_alphabet(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    item = Item(item_id="Überblick_1", env="Räume", metadata={"вид": "Дуб"})
    write_trajectories(tmp_path / "one.jsonl", [make_trajectory(item, success=True)])
    index = open_index(tmp_path / "one.jsonl", tmp_path / "cache")
    with index.connect() as connection:
        location = find_location(connection, "one:1")
    assert location is not None
    annotation = Annotation(
        digest=location.digest,
        file="one",
        line=1,
        item=item.item_id,
        sample=0,
        label="Ärger",
        note="ÖFTER so",
        written_at="2026-01-01T00:00:00+00:00",
    )
    append_annotation(tmp_path / "annotations.jsonl", annotation)
    index.update()
    for query in ("überBLICK", "item:ÜBERBLICK_1", "env:RÄUME", "вид:ДУБ", "label:ärger", "öfter", "ÖFTER"):
        assert addresses(index, unicodedata.normalize(form, query)) == ["one:1"], query
    assert addresses(index, "label:arger") == []


def test_annotations_are_found_and_belong_to_a_content(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=5)
    index = open_index(folder, tmp_path / "cache")
    file = folder / "annotations.jsonl"

    def annotate(address: str, *, label: str = "", note: str = "") -> None:
        with index.connect() as connection:
            location = find_location(connection, address)
        assert location is not None
        facts: dict[str, Any] = {
            "file": "step_0001",
            "line": 1,
            "item": "toy_0",
            "sample": 0,
            "written_at": "2026-01-01T00:00:00+00:00",
        }
        append_annotation(file, Annotation(digest=location.digest, label=label, note=note, **facts))
        assert index.update()

    annotate("step_0001:1", label="loop", note="goes round in circles")
    file.write_bytes(file.read_bytes() + b'{"digest": "half')  # a writer died
    annotate("step_0001:2", label="loop")
    annotate("step_0001:3", note="fine")
    annotate("step_0001:3")
    assert [annotation.label for annotation in read_annotations(file)] == ["loop", "loop", "", ""]
    assert addresses(index, "label:LOOP") == ["step_0001:1", "step_0001:2"]
    assert addresses(index, "has:note") == addresses(index, '"round in"') == ["step_0001:1"]
    step = folder / "train" / "trajectories" / "step_0001.jsonl"
    lines = step.read_text().splitlines(keepends=True)
    step.write_text("".join(lines[1:]))
    index.update()
    assert addresses(index, "label:loop") == ["step_0001:1"]  # the second line of before; the first has gone


def test_annotations_of_other_writers_are_read(tmp_path: Path) -> None:
    """A lone surrogate, which no database takes, and a separator of lines within a note."""
    folder = write_run(tmp_path / "run", seed=5, steps=(1,), per_step=2)
    index = open_index(folder, tmp_path / "cache")
    with index.connect() as connection:
        locations = [find_location(connection, f"step_0001:{line}") for line in (1, 2)]
    facts = {"file": "step_0001", "line": 1, "item": "a", "sample": 0, "written_at": "", "label": ""}
    notes = ["half \ud800 pair", "two\u2028lines"]
    lines = [
        json.dumps({**facts, "digest": location and location.digest, "note": note}, ensure_ascii=False)
        for location, note in zip(locations, notes, strict=True)
    ]
    content = "\n".join(lines).replace("\ud800", "\\ud800")
    (folder / "annotations.jsonl").write_text(content)
    assert index.update()
    assert [row.note for row in rows(index)[:2]] == ["half ? pair", "two\u2028lines"]


def test_names_that_are_not_utf_8_are_shown_with_a_mark(tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff")
    write_run(tmp_path / "runs" / name, seed=1, steps=(1,), per_step=1)
    write_run(tmp_path / "runs" / "bad?", seed=2, steps=(1,), per_step=1)
    file = tmp_path / f"{name}.jsonl"
    write_trajectories(file, [make_trajectory(Item(item_id="a", env="a"), success=True)])
    assert {run.name for run in find_runs([tmp_path / "runs"])} == {"bad?", "runs/bad?"}
    json.dumps([asdict(run) for run in summarise_runs(find_runs([tmp_path]))], ensure_ascii=False).encode()
    assert addresses(open_index(file, tmp_path / "cache")) == ["bad?:1"]


def test_what_a_folder_holds(tmp_path: Path) -> None:
    write_workspace(tmp_path / "runs" / "toy")
    write_workspace(tmp_path / "runs" / "sweep" / "seed1")
    write_workspace(tmp_path / "more" / "toy")
    evaluation = tmp_path / "runs" / "evaluations" / "base"
    evaluation.mkdir(parents=True)
    (evaluation / "record.json").write_text("{}")
    write_trajectories(evaluation / "trajectories.jsonl", [])
    write_trajectories(tmp_path / "mine.jsonl", [])
    (tmp_path / "runs" / ".hidden" / "train" / "trajectories").mkdir(parents=True)
    run_folders = find_runs(
        [tmp_path / "runs", tmp_path / "more", tmp_path / "mine.jsonl", tmp_path / "runs" / "toy"]
    )
    assert [run.name for run in run_folders] == ["evaluations/base", "mine", "more/toy", "sweep/seed1", "toy"]
    assert [file.key for file in run_folders[0].files()] == ["evaluation"]
    (tmp_path / "notes.txt").touch()
    for path in ("nowhere", "notes.txt"):
        with pytest.raises(ConfigError, match=path):
            find_runs([tmp_path / path])


def test_steps_of_any_number_are_in_order(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=6, steps=(2, 10, 10000, 9999), per_step=1)
    index = open_index(folder, tmp_path / "cache")
    assert [row.step for row in rows(index)] == [2, 10, 9999, 10000, None]


def test_turns_are_read_as_recorded() -> None:
    trajectory = make_trajectory(Item(item_id="a_1", env="a"), success=True, action='add({"a": 1, "b": [2]})')
    first = replace(trajectory.turns[0], observation_ids=(9, 8, 7), observation_spans=((1, 2),))
    summarized_turn = replace(trajectory.turns[1], prompt_ids=(1, 5), observation_ids=())
    turns = (first, summarized_turn, replace(first, previous_turn=0))
    values = trajectory_to_dict(replace(trajectory, turns=turns))
    values["item"] |= {"seed": 2**63 + 1, "fields": {"answers": [2**53 + 1, -(2**60), 7]}}
    page = read_trajectory(values, decode=lambda ids: " ".join(map(str, ids)))
    assert page["prompt"] == {"tokens": 2, "text": "1 2"}
    assert [turn["prompt"] for turn in page["turns"]] == [None, {"tokens": 2, "text": "1 5"}, None]
    assert [turn["previous_turn"] for turn in page["turns"]] == [None, None, 0]
    assert page["turns"][0]["calls"] == [{"name": "add", "arguments": {"a": 1, "b": [2]}}]
    assert page["turns"][0]["logprob"] == pytest.approx(-1.75 / 3)
    [reason] = page["not_recorded"].values()
    assert "trajectories of its steps alone" in reason
    assert {page["turns"][0][name] for name in ("advantage", "log_ratio", "entropy")} == {None}
    # JavaScript would show 9007199254740992 for 9007199254740993.
    assert page["seed"] == "9223372036854775809"
    assert page["fields"] == {"answers": ["9007199254740993", "-1152921504606846976", 7]}
    assert read_tokens(values, split=lambda _: None)[0] == {
        "id": [5, 6, 7, 9, 8, 7],
        "text": None,
        "owner": ["policy"] * 3 + ["template", "environment", "template"],
        "logprob": [-0.5, -1.0, -0.25, None, None, None],
    }
    assert read_tokens(values, split=lambda _: None)[1]["owner"] == ["prompt"] * 2 + ["policy"] * 3
    del values["turns"][0]["observation_spans"]  # a file from before they were recorded
    assert read_tokens(values, split=lambda _: None)[0]["owner"][3:] == ["context"] * 3


def test_numbers_of_an_update_are_those_of_the_trajectorys_own_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seed=8, steps=(1,), per_step=1)
    item = Item(item_id="a_1", env="a")
    trajectories = [replace(make_trajectory(item, success=True), sample_index=number) for number in range(4)]
    write_trajectories(folder / "train" / "trajectories" / "step_0002.jsonl", trajectories)
    varied = TurnUpdate(advantages=[0.5, -1.0, 2.0], log_ratios=[0.0, 0.01, -0.02], entropies=[0.1, 0.2, 0.6])
    plain = TurnUpdate(advantages=-0.25, log_ratios=None, entropies=None)
    turns_of_lines = [[varied, varied], [plain, plain], None, [plain]]  # the last is of other episodes
    updates = [
        TrajectoryUpdate(item_id="a_1", sample_index=number, turns=turns)
        for number, turns in enumerate(turns_of_lines)
    ]
    write_updates(update_file(folder / "train" / "trajectories", 2), updates)
    index = open_index(folder, tmp_path / "cache")

    def read(address: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The page, and the tokens of its first turn."""
        with index.connect() as connection:
            location = find_location(connection, address)
        assert location is not None
        values = load_trajectory(location)
        update = load_update(location, values)
        page = read_trajectory(values, decode=lambda _: None, update=update)
        return page, read_tokens(values, split=lambda _: None, update=update)[0]

    page, tokens = read("step_0002:1")
    assert page["turns"][1]["advantage"] == pytest.approx(0.5)
    assert page["turns"][1]["entropy"] == pytest.approx(0.3)
    assert page["not_recorded"] == {}
    assert tokens["owner"] == ["policy"] * 3 + ["template"]
    assert tokens["advantage"] == [0.5, -1.0, 2.0, None]
    assert tokens["log_ratio"] == [0.0, 0.01, -0.02, None]
    assert tokens["entropy"] == [0.1, 0.2, 0.6, None]

    page, tokens = read("step_0002:2")
    assert [turn["advantage"] for turn in page["turns"]] == [-0.25] * 2
    assert [*page["not_recorded"]] == ["trainer − sampler, entropy"]
    assert tokens["advantage"] == [-0.25] * 3 + [None]
    assert not tokens.keys() & {"log_ratio", "entropy"}

    for address, reason in (
        ("step_0002:3", "did not learn from this trajectory"),
        ("step_0002:4", "its steps alone"),
        ("step_0001:1", "its steps alone"),
        ("evaluation:1", "its steps alone"),
    ):
        page, tokens = read(address)
        assert reason in page["not_recorded"]["advantage, trainer − sampler, entropy"]
        assert "advantage" not in tokens


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "[" * 100_000,
        '{"item_id": "a_1"}',
        '{"item_id": "a_1", "sample_index": 0, "turns": [1, 2]}',
        '{"item_id": "a_1", "sample_index": 0, "turns": [{"advantages": 1}, {"advantages": 1}]}',
        # One of the turns has three tokens, this has two values: it is about another episode.
        '{"item_id": "a_1", "sample_index": 0, "turns": [{"advantages": [1, 2], "log_ratios": null, '
        '"entropies": null}, {"advantages": 1, "log_ratios": null, "entropies": null}]}',
    ],
)
def test_an_update_that_cannot_be_read_leaves_its_trajectory_readable(tmp_path: Path, line: str) -> None:
    trajectory = make_trajectory(Item(item_id="a_1", env="a"), success=True)
    folder = tmp_path / "run" / "train" / "trajectories"
    write_trajectories(folder / "step_0001.jsonl", [trajectory])
    update_file(folder, 1).write_text(f"{line}\n")
    index = open_index(tmp_path / "run", tmp_path / "cache")
    with index.connect() as connection:
        location = find_location(connection, "step_0001:1")
    assert location is not None
    assert load_update(location, load_trajectory(location)) is None


def test_a_turn_without_tokens_has_no_mean(tmp_path: Path) -> None:
    trajectory = make_trajectory(Item(item_id="a_1", env="a"), success=True)
    first, second = trajectory.turns
    empty = replace(first, completion=replace(first.completion, token_ids=(), logprobs=()))
    folder = tmp_path / "run" / "train" / "trajectories"
    write_trajectories(folder / "step_0001.jsonl", [replace(trajectory, turns=(empty, second))])
    turns = [
        TurnUpdate(advantages=[], log_ratios=[], entropies=[]),
        TurnUpdate(advantages=0.5, log_ratios=[0.0, 0.3, 0.0], entropies=[0.2, 0.2, 0.5]),
    ]
    write_updates(update_file(folder, 1), [TrajectoryUpdate(item_id="a_1", sample_index=0, turns=turns)])
    index = open_index(tmp_path / "run", tmp_path / "cache")
    with index.connect() as connection:
        location = find_location(connection, "step_0001:1")
    assert location is not None
    values = load_trajectory(location)
    page = read_trajectory(values, decode=lambda _: None, update=load_update(location, values))
    assert [turn["advantage"] for turn in page["turns"]] == [None, 0.5]
    assert [turn["entropy"] for turn in page["turns"]] == [None, pytest.approx(0.3)]


@pytest.mark.parametrize(
    "action", ["go(north)", 'a({"x": 1}) b', "get 1 log", 'a({"x": 1})\ngo', "a([1])", ""]
)
def test_an_action_that_is_no_call_is_not_taken_for_one(action: str) -> None:
    assert parse_calls(action) == []


def test_several_calls_are_one_a_line() -> None:
    (call,) = parse_calls('answer({"text": "one\u2028two"})')
    assert call.arguments == {"text": "one\u2028two"}
    calls = parse_calls('search({"query": "a) {b"})\nanswer({"text": "x\\ny"})')
    assert calls == [ToolCall("search", {"query": "a) {b"}), ToolCall("answer", {"text": "x\ny"})]
