"""Reading JSON: what is missing is empty, what is damaged is named."""

from pathlib import Path

import pytest

from envs.errors import ConfigError
from envs.files import append_line, drop_incomplete_line, read_json, read_json_lines, read_path


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert read_json(tmp_path / "a.json") == {}
    assert read_json_lines(tmp_path / "a.jsonl") == []
    drop_incomplete_line(tmp_path / "a.jsonl")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"{", b"", b'{"name": "\xff"}', b'"text"'])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_json(file)
    assert str(error.value).startswith(f"{file} is damaged (")
    assert str(error.value).endswith("); restore it, or delete it and run its pipeline again")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "line"), [(b'{"a": 1}\n{"a": 2', 2), (b'{"a": 1}\n\n{"a": 2}\n', 2), (b"\xff\n", 1)]
)
def test_a_damaged_line_is_named_with_the_remedy(tmp_path: Path, content: bytes, line: int) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_json_lines(file)
    assert str(error.value).startswith(f"line {line} of {file} is damaged (")
    assert str(error.value).endswith("); restore the file, or delete the line")


@pytest.mark.parametrize("rest", ["", '{"a"', '{"a": 3}'])
def test_an_incomplete_last_line_is_dropped(tmp_path: Path, rest: str) -> None:
    file = tmp_path / "a.jsonl"
    append_line(file, '{"a": 1}')
    append_line(file, '{"a": "\N{SNOWMAN}\N{LINE SEPARATOR}"}')
    complete = file.read_text()
    file.write_text(complete + rest)
    drop_incomplete_line(file)
    assert file.read_text() == complete
    assert read_json_lines(file) == [{"a": 1}, {"a": "\N{SNOWMAN}\N{LINE SEPARATOR}"}]
    file.write_text(rest)
    drop_incomplete_line(file)
    assert file.read_text() == ""


def test_a_path_of_a_user_may_begin_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_path("~/runs/x") == tmp_path / "runs" / "x"
    assert read_path("runs/~x") == Path("runs/~x")
    with pytest.raises(ConfigError, match=r"no-such-user-here/x: .*; give the whole path"):
        read_path("~no-such-user-here/x")


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_name_is_refused_where_the_file_system_refuses_it(tmp_path: Path, letter: str) -> None:
    """The longest name that it takes is taken."""
    longest = letter * (255 // len(letter.encode()))
    (tmp_path / longest).mkdir()
    assert read_path(tmp_path / longest) == tmp_path / longest
    with pytest.raises(OSError, match="too long"):
        (tmp_path / (longest + letter)).mkdir()
    with pytest.raises(ConfigError, match="is a name of 256 bytes"):
        read_path(tmp_path / "none" / (longest + letter))
    with pytest.raises(ConfigError, match="is a path of more than"):
        read_path(Path(*["x" * 200] * 20))
