"""Tests of programs in the sandbox: what passes, what does not, and what tries to look as if it did."""

import asyncio

import pytest

from agents.rewards import REWARDS, RewardResult
from agents.rewards import code as rewards_code
from agents.rewards.code import InputOutput, extract_code, read_tests
from envs.errors import MissingDependency, RewardFailed
from envs.sandbox.sandbox import CHOICE_VARIABLE, SANDBOX
from tests.support.needs import needs
from tests.support.reward_toy import make_reward_input

in_sandbox = needs(SANDBOX)


def value_of(code: str, **fields: object) -> RewardResult:
    return asyncio.run(
        REWARDS["code_tests"].score(make_reward_input(f"So:\n```python\n{code}\n```\n", fields=fields))
    )


@in_sandbox
def test_assertions() -> None:
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'", "assert double(1) == 3"]
    result = value_of("def double(x):\n    return 2 * x", tests=tests)
    assert (result.reward, result.success) == (0.0, False)
    assert result.metrics == {"passed": pytest.approx(2 / 3), "code": 1.0}
    assert value_of("def double(x):\n    return 2 * x", tests=tests[:2]).reward == 1.0
    check = "def check(candidate):\n    assert candidate(2) == 4"
    assert value_of("def double(x): return x + x", tests=check, entry_point="double").reward == 1.0
    assert value_of("def double(x): return x", tests=check, entry_point="double").reward == 0.0


@in_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "import sys\ndef f(): sys.exit(0)",
        "def f(: pass",
        "def f(): return 1 / 0",
        "def f(): print('passed')",
        "",
    ],
)
def test_what_does_not_pass(code: str) -> None:
    assert value_of(code, tests="assert f() == 1").reward == 0.0


@in_sandbox
def test_a_program_longer_than_an_argument_of_a_process() -> None:
    padding = f"# {'é' * 100_000}\n"  # 200,000 bytes
    tests = {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"]}
    assert value_of(f"{padding}print(2 * int(input()))", tests=tests).reward == 1.0
    assert value_of(f"{padding}print(4)", tests=tests).metrics["passed"] == 0.5


@in_sandbox
def test_a_program_is_the_main_module_and_has_no_open_files() -> None:
    code = """
from __future__ import annotations
import os, pickle, sys
class A: pass
pickle.loads(pickle.dumps(A()))
print(__name__, sys.argv, sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')), sep="|")
"""
    output = "__main__|['-c']|['0', '1', '2']|4"  # the fourth is the folder that is listed
    assert value_of(code, tests=[{"input": "", "output": output}]).reward == 1.0


@in_sandbox
def test_input_and_output() -> None:
    tests = {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10"]}
    assert value_of("print(2 * int(input()))   ", tests=tests).reward == 1.0
    assert value_of("if __name__ == '__main__':\n    print(2 * int(input()), ' ')", tests=tests).reward == 1.0
    assert value_of("print(4)", tests=tests).metrics["passed"] == 0.5
    assert value_of("print(2 * int(input())); raise SystemExit(1)", tests=tests).reward == 0.0
    assert value_of("print('x' * 10**6)", tests=tests).reward == 0.0
    for text in ("é" * 150_000, "1\n" * 90_000):  # a character counts once, however it is sent
        code = f"print({text[:2]!r} * {len(text) // 2})"
        assert value_of(code, tests={"inputs": [""], "outputs": [text]}).reward == 1.0


@pytest.mark.heavy
@in_sandbox
def test_a_program_that_hangs_is_wrong_and_tried_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards_code, "TEST_CPU_S", 1.0)
    monkeypatch.setattr(rewards_code, "TEST_TIMEOUT_S", 5.0)
    result = value_of(
        "n = int(input())\nwhile n == 1: pass\nprint(n)",
        tests={"inputs": ["0", "1", "2"], "outputs": ["0", "1", "2"]},
    )
    assert result.reward == 0.0
    assert result.metrics["passed"] == pytest.approx(1 / 3)
    assert value_of("while True: pass", tests=["assert True"]).reward == 0.0
    waits = "import time\ntime.sleep(2)\nprint(input())"  # which takes no CPU time
    assert value_of(waits, tests={"inputs": ["1"], "outputs": ["1"]}).reward == 1.0
    assert value_of(waits.replace("2", "60"), tests={"inputs": ["1"], "outputs": ["1"]}).reward == 0.0


async def test_a_response_without_code_is_wrong() -> None:
    result = await REWARDS["code_tests"].score(make_reward_input("print(4)", fields={"tests": "assert True"}))
    assert (result.reward, result.metrics["code"]) == (0.0, 0.0)


def test_the_last_code_block() -> None:
    assert extract_code("```python\na\n```\nthen\n```py\nb\nc\n```") == "b\nc"
    assert extract_code("```\na\n```") == "a"
    assert extract_code("```python\n```") == ""
    assert extract_code("`a`") is None
    assert extract_code("```bash\nls\n```\nNow:\n```python\nc\n```\nDone.") == "c"
    assert extract_code("```bash\nls\n```") is None
    assert extract_code("so ```ls``` and\n1. this:\n   ```py\n   d = 1\n   ```\n") == "d = 1"
    assert extract_code("1. this:\n\n   ```py\n\n   if d:\n\n       e\n   ```") == "\nif d:\n\n    e"
    assert extract_code("```\ntext = '''\n  \n'''\n```") == "text = '''\n  \n'''"
    assert extract_code("Run: ```python\r\ne\r\n```") == "e"
    assert extract_code("```python\nf```") == "f"
    assert extract_code("````python\ng = 'a'\n```\nh\n`````\n") == "g = 'a'\n```\nh"
    assert extract_code("````text\n```python\nno\n```\n````") is None
    assert extract_code("````text\n```python\ni\n```") == "i"


def test_tests_as_data_sets_have_them() -> None:
    assert read_tests("assert 1") == ["assert 1"]
    assert read_tests(["a", {"input": "1", "output": "2"}]) == ["a", InputOutput("1", "2")]
    assert read_tests({"inputs": ["1"], "outputs": ["2"]}) == [InputOutput("1", "2")]
    assert read_tests('{"inputs": ["1\\n"], "outputs": ["2"]}') == [InputOutput("1\n", "2")]
    assert read_tests('["assert 1", "assert 2"]') == ["assert 1", "assert 2"]
    assert read_tests(['{"input": "1", "output": "2"}']) == [InputOutput("1", "2")]
    assert read_tests("[f(x) for x in 'ab']") == ["[f(x) for x in 'ab']"]
    lists: tuple[object, ...] = ([], [3], [{"input": 1, "output": "2"}], "[]")
    for bad in (*lists, 3, {"inputs": ["1"], "outputs": []}, {"input": "1"}, '{"input": "1"}'):
        with pytest.raises(ValueError, match="tests"):
            read_tests(bad)
    programs = {"fn_name": None, "inputs": ["1"], "outputs": ["2"]}
    assert read_tests(programs) == read_tests([{"input": "1", "output": "2", "testtype": "stdin"}])
    for calls in (programs | {"fn_name": "add"}, [{"input": "1", "output": "2", "testtype": "functional"}]):
        with pytest.raises(ValueError, match="arguments of a function"):
            read_tests(calls)
    with pytest.raises(RewardFailed, match="`tests` is 3"):
        value_of("x", tests=3)


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE_VARIABLE, "podman")
    monkeypatch.setenv("PATH", "/nowhere")
    rewards_code.sandbox_backend.cache_clear()
    try:
        with pytest.raises(MissingDependency, match="never runs without one"):
            value_of("x = 1", tests="assert x == 1")
        with pytest.raises(MissingDependency, match="'code_tests' needs a sandbox"):
            REWARDS["code_tests"].check({"tests"})
    finally:
        rewards_code.sandbox_backend.cache_clear()
