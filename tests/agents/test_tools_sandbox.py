"""The tools that run code and work on files, in a real sandbox; without any, nothing can be said."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.tools.registry import TOOLS, get_tool
from agents.tools.sandbox import code_interpreter
from agents.tools.toolbox import Toolbox
from agents.tools.types import ToolResult, ToolStatus
from envs.errors import ConfigError, MissingDependency
from envs.sandbox.backend import SandboxLimits
from envs.sandbox.sandbox import SANDBOX
from envs.sandbox.workspace import WithWorkspace, Workspace
from tests.support.examples import examples
from tests.support.needs import needs
from tests.support.toy import ToyEnv, toy_item

needs_sandbox = needs(SANDBOX)
LIMITS = SandboxLimits(memory_mb=256, disk_mb=16, shm_mb=4)
NAMES = ["code_session", "shell", "read_file", "create_file", "edit_file", "undo_edit", "list_files", "grep"]
Call = tuple[str, Mapping[str, Any]]


def run_calls(*calls: Call, timeout_s: float = 30.0) -> list[ToolResult]:
    """All calls in one episode, whose sandbox is then closed."""

    async def main() -> list[ToolResult]:
        env = WithWorkspace(ToyEnv(), Workspace(limits=LIMITS, run_timeout_s=timeout_s))
        await env.reset(toy_item())
        box = Toolbox(map(get_tool, NAMES))
        try:
            return [await box.call(name, arguments, env=env) for name, arguments in calls]
        finally:
            await env.close()

    return asyncio.run(main())


def observations(*calls: Call) -> list[str]:
    return [result.observation for result in run_calls(*calls)]


def create(path: str, text: str, **more: Any) -> Call:
    return "create_file", {"path": path, "text": text, **more}


def edit(path: str, old: str, new: str) -> Call:
    return "edit_file", {"path": path, "old": old, "new": new}


def shell(command: str) -> Call:
    return "shell", {"command": command}


def code(text: str) -> Call:
    return "code_session", {"code": text}


@needs_sandbox
async def test_each_code_is_on_its_own() -> None:
    tool = code_interpreter(limits=LIMITS, run_timeout_s=5)
    codes = ["x = 6\nprint('hi')\nx * 7", "x", "import os; os._exit(0)", "print('a' * 10**6)"]
    [fine, fresh, dead, flood] = list(await asyncio.gather(*(tool.call({"code": code}) for code in codes)))
    assert (fine.status, fine.observation) == (ToolStatus.OK, "hi\n42\n")
    assert "NameError" in fresh.observation
    assert (dead.status, dead.observation) == (ToolStatus.RAISED, "[the code was ended: its process died]")
    assert len(flood.observation) <= 4096
    assert "left out" in flood.observation


@needs_sandbox
def test_files_shell_and_python_see_each_others_work() -> None:
    texts = observations(
        create("a/b.py", "print(6 * 7)\n"),
        shell("python3 a/b.py; pwd; echo err >&2; exit 3"),
        code("open('c.txt', 'w').write('from python'); y = 1"),
        shell("cat c.txt"),
        ("list_files", {}),
        code("y"),
        code("sorted(name for name in globals() if not name.startswith('__'))"),
    )
    assert texts[0] == "a/b.py is written, 13 characters"
    assert texts[1] == "42\n/work\nerr\n\n[exit status 3]\n"
    assert texts[3:] == ["from python", "a/\na/b.py  13 bytes\nc.txt  11 bytes", "1\n", "['y']\n"]


@needs_sandbox
def test_tools_work_without_the_built_in_names_that_code_has_deleted() -> None:
    assert observations(
        (
            "code_session",
            {"code": "import builtins\ndel builtins.len, builtins.isinstance, builtins.__import__"},
        ),
        create("a.txt", "one"),
        shell("cat a.txt"),
        ("code_session", {"code": "'len' in vars(builtins), 'sys' in globals()"}),
    )[2:] == ["one", "(False, False)\n"]


@needs_sandbox
def test_a_file_is_read_by_lines() -> None:
    results = run_calls(
        create("f", "one\r\ntwo\n\nfour"),
        ("read_file", {"path": "f"}),
        ("read_file", {"path": "f", "first_line": 2, "last_line": "3"}),
        ("read_file", {"path": "f", "first_line": 9}),
        ("read_file", {"path": "g"}),
        ("read_file", {"path": "."}),
        ("read_file", {"path": "f", "first_line": 0}),
        shell("head -c 100 /dev/urandom > random; seq 5000 > long; : > empty"),
        ("read_file", {"path": "random"}),
        ("read_file", {"path": "long"}),
        ("read_file", {"path": "empty"}),
        ("read_file", {"path": "a\0b"}),
    )
    texts = [result.observation for result in results]
    assert texts[1] == "     1\tone\n     2\ttwo\n     3\t\n     4\tfour"
    assert texts[2] == "     2\ttwo\n     3\t\n(1 more lines, from 4)"
    assert texts[3] == "f has 4 lines"
    assert texts[4] == "there is no file g; beside it are: f"
    assert texts[5] == ". is a folder; list it"
    assert results[6].status is ToolStatus.BAD_ARGUMENTS
    assert texts[8] == "random is no text in UTF-8"
    assert "more lines, from" in texts[9]
    assert len(texts[9]) <= 8192
    assert texts[10] == "empty is empty"
    assert texts[11].startswith("there is no file")
    assert {results[index].status for index in (3, 4, 5, 8, 11)} == {ToolStatus.RAISED}


@needs_sandbox
def test_an_edit_is_of_one_place_and_can_be_taken_back() -> None:
    texts = observations(
        create("f", "a = 1\nb = 1\n"),
        edit("f", "= 1", "= 2"),
        edit("f", "c", "d"),
        edit("f", "", "d"),
        edit("f", "b = 1", "b = 'ü'"),
        shell("chmod 750 f; cat f"),
        create("f", "new"),
        create("f", "new", overwrite=True),
        shell("cat f; stat -c %a f"),
        ("undo_edit", {"path": "f"}),
        ("undo_edit", {"path": "./f"}),
        shell("cat f"),
        ("undo_edit", {"path": "f"}),
        shell("ls -A"),
        ("undo_edit", {"path": "f"}),
    )
    assert texts[1] == "f holds this text at lines 1, 2; give more of what surrounds one of them"
    assert "does not hold this text" in texts[2]
    assert "is empty" in texts[3]
    assert texts[4] == "f is edited at line 2"
    assert texts[5] == "a = 1\nb = 'ü'\n"
    assert texts[6] == "f exists; edit it, or say overwrite"
    assert texts[8] == "new750\n"
    assert texts[11] == "a = 1\nb = 1\n"
    assert texts[12] == "the last change of f is undone; there is no such file now"
    assert texts[13] == "(no output)"
    assert texts[14] == "nothing was changed in f"


@needs_sandbox
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=3), st.text())
@pytest.mark.heavy
def test_an_edit_is_pythons_replacement(text: str, old: str, new: str) -> None:
    [_, edit_result, content] = run_calls(
        create("f", text), edit("f", old, new), code("open('f', newline='', encoding='utf-8').read()")
    )
    once = bool(old) and text.find(old) >= 0 and text.find(old) == text.rfind(old)
    assert (edit_result.status is ToolStatus.OK) == once
    assert content.observation.rstrip("\n") == repr(text.replace(old, new) if once else text)


@needs_sandbox
def test_lines_are_found_by_a_regular_expression() -> None:
    texts = observations(
        create("src/a.py", "def f():\n    return 1\n"),
        create("src/.hidden/b.py", "def g(): pass"),
        shell("printf '\\377def' > src/binary; yes 'def x' | head -500 > many"),
        ("grep", {"pattern": r"def \w\(", "path": "src"}),
        ("grep", {"pattern": "nowhere"}),
        ("grep", {"pattern": "("}),
        ("grep", {"pattern": "x", "path": "gone"}),
        ("grep", {"pattern": "def", "path": "many"}),
    )
    assert texts[3] == "src/a.py:1: def f():"
    assert texts[4] == "nothing is found"
    assert "is no regular expression" in texts[5]
    assert texts[6] == "there is no gone"
    assert texts[7].endswith("(there are more than 100)")


@pytest.mark.heavy
@needs_sandbox
def test_what_hangs_beside_python_takes_no_files_along() -> None:
    [_, slept, search, long_line, loop, missing_file] = run_calls(
        create("f", "a" * 100),
        shell("sleep 60"),
        ("grep", {"pattern": "(a+)+b"}),
        shell("cat f"),
        code("print('step 1')\nwhile True: pass"),
        shell("cat f"),
        timeout_s=2,
    )
    assert "[ended: it took longer than 2 s]" in slept.observation
    assert (search.status, long_line.observation) == (ToolStatus.RAISED, "a" * 100)
    assert "it took longer than 2 s" in search.observation
    assert (loop.status, loop.observation) == (
        ToolStatus.RAISED,
        "step 1\n[the sandbox was ended: it took longer than 2 s; its variables and files are gone]",
    )
    assert "No such file" in missing_file.observation


@needs_sandbox
def test_a_full_disk_and_a_flood_are_observations() -> None:
    [full, long_line, flood] = run_calls(
        shell("echo here > f; head -c 16500000 /dev/zero > big"),
        create("f", "x" * 900_000, overwrite=True),
        shell("cat f; yes | head -c 3000000"),
    )
    assert full.status is ToolStatus.OK
    assert (long_line.status, long_line.observation) == (ToolStatus.RAISED, "f: No space left on device")
    assert flood.observation.startswith("here\n")
    assert len(flood.observation) <= 8192


@needs_sandbox
def test_the_machines_own_files_are_out_of_reach(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    path = str(secret)
    results = run_calls(
        ("read_file", {"path": path}),
        shell(f"cat {path}"),
        ("grep", {"pattern": "SECRET", "path": str(tmp_path)}),
        create(path, "mine"),
        ("undo_edit", {"path": path}),
    )
    assert all("SECRET" not in result.observation for result in results)
    assert secret.read_text() == "SECRET"


@needs_sandbox
async def test_an_episode_begins_with_nothing_of_the_last() -> None:
    env = WithWorkspace(ToyEnv(), Workspace(limits=LIMITS))
    box, texts = Toolbox(map(get_tool, ["shell"])), []
    for _ in range(2):
        await env.reset(toy_item())
        texts.append((await box.call("shell", {"command": "ls; touch left"}, env=env)).observation)
    await env.close()
    assert (texts) == ["(no output)"] * 2


@needs_sandbox
async def test_an_environment_without_a_workspace_is_refused() -> None:
    box = Toolbox(map(get_tool, ["shell"]))
    with pytest.raises(ConfigError, match="ToyEnv has no workspace"):
        await box.call("shell", {"command": "ls"}, env=ToyEnv())


@pytest.mark.parametrize("name", ["code_interpreter", *NAMES])
def test_without_a_sandbox_no_tool_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WINGSPAN_SANDBOX", raising=False)
    with pytest.raises(MissingDependency, match="never runs without one"):
        Toolbox(map(get_tool, [name]))


def test_prebuilt_tools_are_chosen_by_name() -> None:
    assert list(Toolbox(map(get_tool, ["calculator", "act", "answer"])).tools) == [
        "calculator",
        "act",
        "answer",
    ]
    with pytest.raises(ConfigError, match="unknown tool 'calculater'; did you mean 'calculator'"):
        Toolbox(map(get_tool, ["calculater"]))
    with pytest.raises(ConfigError, match="two tools are called 'answer'"):
        Toolbox(map(get_tool, ["answer", "answer"]))


@needs_sandbox
@pytest.mark.parametrize("name", TOOLS)
def test_every_prebuilt_tool_is_described_in_full(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_WEB_SEARCH", "searxng+http://127.0.0.1:8888")
    tool = TOOLS[name]()
    assert tool.name == name
    assert tool.description
    assert all(
        about.get("description")
        for about in tool.schema["function"]["parameters"].get("properties", {}).values()
    )
