"""A user's own data: every form that it may have, and every fault."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from envs.errors import ConfigError
from envs.registry import Split, get_env
from envs.types import Item
from tasks.config.data import DataSettings, check_source
from tasks.data.items import item_from_json, item_to_json, split, training_order

SUMS = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(5)]
MORE_ROWS = [{"question": "9 + 9?", "answer": "18"}]
MESSAGES = [{"role": "user", "content": "2 + 2?"}]


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "math").mkdir(parents=True)


def write(name: str, rows: object) -> str:
    """A file of `data/math`; what is text already is written as it is."""
    path = Path("data", "math", name)
    if path.suffix == ".parquet":
        table = pyarrow.table(rows) if isinstance(rows, dict) else pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, path)
    elif isinstance(rows, str):
        path.write_text(rows)
    elif path.suffix == ".jsonl":
        assert isinstance(rows, Sequence)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return str(path)


def data(**parts: Any) -> DataSettings:
    return DataSettings.model_validate({"parts": parts})


def load_split(
    train: object, test: object = MORE_ROWS, *, env: str = "question", name: str = "train.jsonl"
) -> Split:
    part = {"env": env, "train": write(name, train), "test": write("test.json", test)}
    return split(data(math=part))


@pytest.mark.parametrize("name", ["train.json", "train.jsonl", "train.parquet"])
def test_questions_come_from_each_kind_of_file(name: str) -> None:
    found_split = load_split(SUMS, name=name)
    assert found_split.train[3] == Item(
        item_id="math_3", env="question", part="math", fields={"question": "3 + 3?", "answer": "6"}
    )
    assert [item.item_id for item in found_split.train] == [f"math_{n}" for n in range(5)]
    assert [item.item_id for item in found_split.test] == ["math-test_0"]
    assert item_from_json(item_to_json(found_split.train[3]), location="here") == found_split.train[3]


def test_parquet_keeps_whole_numbers_lists_objects_and_gaps() -> None:
    rows: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": "a"}],
            "level": 1,
            "tags": ["x", "y"],
            "metadata": {"k": 1},
        },
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}], "level": None},
    ]
    first, second = load_split(rows, name="train.parquet").train
    assert first.fields == {"messages": rows[0]["messages"], "level": 1, "tags": ["x", "y"]}
    assert type(first.fields["level"]) is int
    assert second.fields == {"messages": rows[1]["messages"], "level": None, "tags": None}
    assert (first.metadata, second.metadata) == ({"k": 1}, {})
    json.loads(item_to_json(first))


def test_jsonl_may_have_blank_lines_a_mark_at_its_head_and_any_line_end_in_a_text() -> None:
    found_split = load_split('\ufeff{"question": "a\u2028b"}\n\n{"question": "c", "messages": null}\n')
    assert [item.fields for item in found_split.train] == [{"question": "a\u2028b"}, {"question": "c"}]


def test_metadata_tells_items_apart_and_where_takes_some() -> None:
    rows = [row | {"metadata": {"level": n % 2}} for n, row in enumerate(SUMS)]
    test = [MORE_ROWS[0] | {"metadata": {"level": 1}}]
    part = {"env": "question", "train": write("a.jsonl", rows), "test": write("b.jsonl", test)}
    found_split = split(data(math=part | {"where": {"level": [1]}}))
    assert [item.item_id for item in found_split.train] == ["math_1", "math_3"]
    assert found_split.train[0].metadata == {"level": 1}
    assert "metadata" not in found_split.train[0].fields


def test_lists_of_agentgym_name_items_of_an_environment() -> None:
    env_split = get_env("textcraft").split(0)
    train, test = env_split.train[5].item_id, env_split.test[2].item_id
    found_split = load_split(
        [{"item_id": train, "note": "n"}], [{"item_id": test}], env="textcraft", name="train.json"
    )
    assert found_split.train[0].item_id == train
    assert found_split.train[0].metadata == env_split.train[5].metadata
    assert (found_split.train[0].part, found_split.train[0].fields) == ("math", {"note": "n"})
    assert found_split.test[0].fields == {}


def test_items_of_several_parts_of_one_environment_know_theirs() -> None:
    settings = data(
        easy={"env": "question", "train": write("a.jsonl", SUMS[:2]), "test": write("b.jsonl", MORE_ROWS)},
        hard={
            "env": "question",
            "train": write("c.jsonl", SUMS[2:]),
            "test": write("d.jsonl", [{"question": "?"}]),
        },
        textcraft={},
    )
    found_split = split(settings)
    for item in (*found_split.train, *found_split.test):
        part = item.item_id.rpartition("_")[0].removesuffix("-test")
        assert settings.part_of(item) == part
    order = training_order(found_split.train, settings, seed=0)
    assert [found_split.train[next(order)].part for _ in range(6)].count("hard") == 2
    assert settings.part_of(Item(item_id="math_0", env="question", part="math")) is None
    assert settings.part_of(Item(item_id="easy_0", env="question")) is None


BAD_ROWS: list[tuple[object, str]] = [
    ('{"question": "a"}\n{"question": \n', r"train\.jsonl, line 2: malformed JSON"),
    ('{"question": "a", "x": NaN}', r"line 1 on, contains NaN"),
    ('{"question": "a", "x": 1e999}', r"row 0 \(line 1\): column 'x' holds the number inf"),
    ('\n["a"]', r"row 0 \(line 2\) is a list.*give an object"),
    ("\n", r"train\.jsonl has no rows"),
    ([SUMS[0], {"answer": "4"}], r"row 1 \(line 2\): a row has exactly one of question.*columns are answer"),
    ([{}], r"its columns are none"),
    ([{"question": "a", "messages": MESSAGES}], r"it has question, messages"),
    ([{"question": 7}], r"row 0 .*question is a int, 7; give text"),
    ([{"question": "  "}], r"question is a str"),
    ([{"question": "a", "x": "\ud800"}], r"'x' holds text with half a surrogate"),
    ([{"messages": "a"}], r"messages is a str.*give a list"),
    ([{"messages": []}], r"messages is a list"),
    ([{"messages": ["a"]}], r"messages\[0\] is a str.*role and content"),
    ([{"messages": [{"role": "bot", "content": "a"}]}], r"messages\[0\]\.role is 'bot'; give one of"),
    ([{"messages": [{"role": "user"}]}], r"messages\[0\]\.content is not there"),
    ([{"messages": [{"role": "user", "content": [1]}]}], r"messages\[0\]\.content is a list"),
    ([{"messages": [{"role": "user", "content": "a", "name": "x"}]}], r"messages\[0\] has name"),
    ([{"messages": [*MESSAGES, {"role": "assistant", "content": "4"}]}], r"ends with one of role 'assist"),
    ([{"question": "a", "metadata": "x"}], r"metadata is a str"),
    ([{"question": "a", "metadata": {"k": [1]}}], r"metadata\.k is a list"),
    ([{"item_id": "textcraft_0"}], r"item_id, but environment 'question' has no items of its own"),
    ([SUMS[0], MORE_ROWS[0]], r"test\.json, row 0 and data/math/train\.jsonl, row 1 \(line 2\) are the same"),
    ([{"messages": [{"role": "user", "content": " 9 + 9? "}]}], r"test\.json, row 0 and .* are the same"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS)
def test_a_row_that_is_no_data_is_named(rows: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_split(rows)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([b"x"], "row 0: column 'extra' holds a bytes"),
        ([datetime.datetime(2026, 1, 1)], "column 'extra' holds a Timestamp"),
        ([[datetime.date(2026, 1, 1)]], "column 'extra' holds a date"),
        ([{"deep": b"x"}], "column 'extra' holds a bytes"),
    ],
)
def test_a_column_that_json_has_no_form_for_is_named(column: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.parquet, {message}|{message}"):
        load_split({"question": ["a"], "extra": column}, name="train.parquet")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([{"item_id": "textcrft_9"}], r"row 0: item_id 'textcrft_9' is none of textcraft; write textcraft_N"),
        ([{"item_id": "textcraft_0"}, {"item_id": "textcraft_0"}], r"row 1 and .*row 0 are both textcraft_0"),
        ([{"question": "a"}], r"question, but environment 'textcraft' has items of its own; give item_id"),
    ],
)  # fmt: skip
def test_lists_that_cannot_be(train: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_split(train, [{"item_id": "textcraft_1"}], env="textcraft", name="train.json")


def test_an_item_is_in_one_part_only() -> None:
    env_split = get_env("textcraft").split(0)
    train, test = ([{"item_id": half[0].item_id}] for half in (env_split.train, env_split.test))
    part_settings = {"env": "textcraft", "train": write("a.json", train), "test": write("b.json", test)}
    with pytest.raises(ConfigError, match=r"is in data\.parts\.mine and in data\.parts\.textcraft"):
        split(data(mine=part_settings, textcraft={}))


def test_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.parts\.math\.train: there is no file data/math/none\.json"):
        split(
            data(math={"env": "question", "train": "data/math/none.json", "test": write("b.json", MORE_ROWS)})
        )
    with pytest.raises(ConfigError, match=r"train\.json holds a dict; give a list"):
        load_split({"question": "a"}, name="train.json")
    Path("data/math/train.parquet").write_bytes(b"no parquet")
    part = {"env": "question", "train": "data/math/train.parquet", "test": write("b.json", MORE_ROWS)}
    with pytest.raises(ConfigError, match=r"reading .*train\.parquet as Parquet raised .*; save it again"):
        split(data(math=part))
    Path("data/math/train.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"train\.jsonl cannot be read as UTF-8"):
        split(data(math=part | {"train": "data/math/train.jsonl"}))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("elsewhere/a.json", "not below data/"),
        ("/data/a.json", "not below data/"),
        ("data/../a.json", "not below data/"),
        ("data/a.tsv", r"ends with '\.tsv'; give one of \.json, \.jsonl, \.parquet, \.csv"),
        ("data/a", "ends with 'nothing'"),
        ("hf://openai/gsm8k", r"hf://NAME#SPLIT"),
        ("hf://openai/gsm8k@#test", r"hf://NAME#SPLIT"),
    ],
)
def test_sources_that_cannot_be(source: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        data(math={"env": "question", "train": source, "test": "data/b.json"})


def test_train_and_test_come_together_and_where_they_must() -> None:
    with pytest.raises(ValidationError, match="test is missing; give train and test, or neither"):
        data(math={"env": "question", "train": "data/a.json"})
    with pytest.raises(
        ConfigError, match=r"data\.parts\.question: .*'question' has no items of its own; give train"
    ):
        split(data(question={}))  # fmt: skip
    assert check_source("data//x/../a.json") == "data/a.json"


def test_datasets_of_hugging_face_are_had_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for half, rows in (("train", SUMS), ("test", MORE_ROWS)):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "sums" / f"{half}.parquet")
    found_split = split(
        data(math={"env": "question", "train": "hf://sums#train[:2]", "test": "hf://sums@default#test"})
    )
    assert [item.fields for item in found_split.train] == SUMS[:2]
    assert found_split.test[0].item_id == "math-test_0"
    for source, message in {
        "hf://sums#no": "Unknown split",
        "hf://sums@no#train": "'no' not found",
        "hf://nobody/no-such#train": "correct the name",
    }.items():
        with pytest.raises(ConfigError, match=rf"loading {source} raised .*{message}"):
            split(data(math={"env": "question", "train": source, "test": "hf://sums#test"}))


def test_a_table_of_texts_is_read_with_its_quoted_cells() -> None:
    rows = 'question,answer,note\r\n"How many, in all?\nCount.",007,\r\n\r\n3 + 3?,6,"a ""b"""\r\n'
    found_split = load_split("\N{ZERO WIDTH NO-BREAK SPACE}" + rows, name="train.csv").train
    assert [item.fields for item in found_split] == [
        {"question": "How many, in all?\nCount.", "answer": "007", "note": ""},
        {"question": "3 + 3?", "answer": "6", "note": 'a "b"'},
    ]
    assert [item.item_id for item in found_split] == ["math_0", "math_1"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "train.csv has no rows"),
        ("question,answer\n", "train.csv has no rows"),
        ("question,\na,b\n", r"line 1: the columns are \['question', ''\]"),
        ("question,question\na,b\n", "line 1: the columns are"),
        ('question,answer\n"a\nb",c\n1, 2,3\n', r"row 1 \(line 4\) has 3 cells, and line 1 names 2 columns"),
        ("question,answer\na,b\nc\n", r"row 1 \(line 3\) has 1 cells"),
        ('question,answer\n"a"x,b\n', r"line 2: malformed CSV: "),
        ('question,answer\n"a,b\n', r"line 2: malformed CSV: "),
        ("question,answer\n ,b\n", r"row 0 \(line 2\): question is a str"),
    ],
)
def test_what_is_no_table_is_named_with_its_line(rows: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_split(rows, name="train.csv")


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv"])
def test_columns_of_other_names_are_called_as_the_settings_say(name: str) -> None:
    rows: Any = [{"problem": "3 + 3?", "solution": "6", "answer": "no"}]
    if name.endswith("csv"):
        rows = "problem,solution,answer\n3 + 3?,6,no\n"
    part = {
        "env": "question",
        "train": write(name, rows),
        "test": write("test.json", [{"problem": "1?", "solution": "2", "answer": "3"}]),
        "columns": {"question": "problem", "answer": "solution", "wrong": "answer"},
    }
    (item,) = split(data(math=part)).train
    assert item.fields == {"question": "3 + 3?", "answer": "6", "wrong": "no"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"question": "problme"},
            r"row 0 .*columns.question is 'problme'; did you mean 'problem'\? its columns",
        ),
        ({"question": "answer"}, "columns.question is 'answer', but a column 'question' is there"),
    ],
)
def test_columns_that_are_not_there_or_are_there_twice_are_refused(
    columns: dict[str, str], message: str
) -> None:
    rows = [{"question": "1?", "problem": "2?", "answer": "3"}]
    part = {"env": "question", "train": write("train.jsonl", rows), "test": write("test.json", MORE_ROWS)}
    with pytest.raises(ConfigError, match=message):
        split(data(math=part | {"columns": columns}))


def test_columns_need_rows() -> None:
    with pytest.raises(ValidationError, match="are those of train and test; give these, too"):
        data(textcraft={"columns": {"question": "problem"}})
