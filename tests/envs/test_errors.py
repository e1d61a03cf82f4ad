"""The boundary between foreign exceptions and this project's."""

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.errors import ConfigError, EnvCrashed, boundary, describe, suggest, to_line
from envs.runtime.time_limits import run_in_time


@pytest.mark.parametrize(
    "error", [KeyError("x\ny"), OSError(2, "no such file"), ValueError(), SystemExit(3)], ids=repr
)
def test_a_foreign_exception_becomes_ours_on_one_line_with_its_cause(error: BaseException) -> None:
    with pytest.raises(EnvCrashed) as error_info, boundary(EnvCrashed, "toy_1: step"):
        raise error
    assert str(error_info.value) == f"toy_1: step raised {describe(error)}"
    assert "\n" not in str(error_info.value)
    assert error_info.value.__cause__ is error


def read_level() -> None:
    json.loads("{")


async def leave() -> None:
    raise SystemExit(3)


async def test_the_innermost_line_of_a_users_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__)
    line = read_level.__code__.co_firstlineno + 1
    monkeypatch.chdir(file.parent)
    with (
        pytest.raises(EnvCrashed, match=rf"column 2 \(char 1\) \({file.name}:{line}\)$"),
        boundary(EnvCrashed, "toy_1: step"),
    ):
        read_level()
    monkeypatch.chdir("/")
    with (
        pytest.raises(ConfigError, match=rf"\({str(file)[1:]}:{line}\); correct it$"),
        boundary(ConfigError, "loading x", remedy="correct it"),
    ):
        read_level()
    monkeypatch.chdir("/usr")
    line = leave.__code__.co_firstlineno + 1
    with (
        pytest.raises(EnvCrashed, match=rf"SystemExit: 3 \({file}:{line}\)$"),
        boundary(EnvCrashed, "toy_1: step"),
    ):
        await run_in_time(leave(), timeout_s=None, name="leave")


def raise_itself() -> None:
    error = KeyError("x")
    raise error from error


def raise_each_others_causes() -> None:
    error, cause = KeyError("x"), ValueError()
    cause.__cause__ = error
    raise error from cause


@pytest.mark.parametrize("function", [raise_itself, raise_each_others_causes])
def test_an_exception_may_be_its_own_cause(function: Callable[[], None]) -> None:
    line = function.__code__.co_firstlineno + len(inspect.getsourcelines(function)[0]) - 1
    with (
        pytest.raises(EnvCrashed, match=rf"KeyError: 'x' \(.*{Path(__file__).name}:{line}\)$"),
        boundary(EnvCrashed, "toy_1: step"),
    ):
        function()


def test_causes_in_a_circle_without_a_line_of_a_users_code_end() -> None:
    error, cause = KeyError("x"), ValueError()
    error.__cause__, cause.__cause__ = cause, error
    with pytest.raises(EnvCrashed, match=r"raised KeyError: 'x'$"), boundary(EnvCrashed, "toy_1: step"):
        raise error


def test_a_deleted_working_directory_leaves_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    line = read_level.__code__.co_firstlineno + 1
    with (
        pytest.raises(EnvCrashed, match=rf"\({re.escape(__file__)}:{line}\)$"),
        boundary(EnvCrashed, "toy_1: step"),
    ):
        read_level()


def test_no_line_of_python_or_this_project_is_named() -> None:
    with (
        pytest.raises(EnvCrashed, match=r"FileNotFoundError: \[Errno 2\] .*'/no/such/file'$"),
        boundary(EnvCrashed, "toy_1: step"),
    ):
        Path("/no/such/file").read_text()


def test_a_remedy_ends_the_text_of_a_long_exception() -> None:
    with (
        pytest.raises(ConfigError) as error_info,
        boundary(ConfigError, "loading x", remedy="correct the name"),
    ):
        raise OSError("a\n" * 1000)
    assert str(error_info.value).startswith("loading x raised OSError: a a a ")
    assert str(error_info.value).endswith("; correct the name")
    assert len(str(error_info.value)) < 250


@pytest.mark.parametrize(
    "error", [ConfigError("wrong"), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr
)
def test_our_own_errors_and_cancellation_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as error_info, boundary(EnvCrashed, "toy_1: step"):
        raise error
    assert error_info.value is error


def test_a_line_is_cut_and_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "hunter2-hunter2")
    assert to_line("a\n  b\tc") == "a b c"
    assert to_line("a\ud800b") == "a?b"
    assert to_line("the token hunter2-hunter2 is refused", limit=20) == "the token [redacted]"


def test_the_nearest_name_is_suggested() -> None:
    assert suggest("textcarft", ["babyai", "textcraft"]) == "did you mean 'textcraft'? "
    assert suggest("zzz", iter(["babyai"])) == ""
    hint = suggest("Taxi", ["Taxi-v3", "Taxi-v4", "Ant-v5"], limit=2, prefix="gymnasium:")
    assert hint == "did you mean 'gymnasium:Taxi-v4', 'gymnasium:Taxi-v3'? "
