"""Rewards for programs: the data's tests, run in the sandbox against the answer's code or the episode's
files.

There are two kinds of tests of code. *Assertions* run in the interpreter of the code, which can cheat (with
an object that equals everything). *Input and output* prevent that: each test is a separate process, and the
reference output is compared outside and never enters the sandbox.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from textwrap import dedent

from agents.clients.rate_limit import ConcurrencyLimiter
from agents.formats.fences import ClosingFences
from agents.rewards.function import reward
from agents.rewards.text import verdict
from envs.cores import count_cores
from envs.errors import EnvCrashed
from envs.sandbox.backend import Backend, SandboxLimits
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.sandbox import SANDBOX, choose_backend
from envs.sandbox.workspace import get_workspace, read_files
from envs.types import Environment

TEST_CPU_S = 10.0
"""CPU seconds of one test, which do not depend on what else the machine does."""
TEST_TIMEOUT_S = 30.0
"""Seconds of one test, which a program that waits for something exceeds."""
TOTAL_TIMEOUT_S = 180.0
"""Seconds of all tests of one answer; tests that have not run by then have failed."""
OUTPUT_CHARS = 200_000
"""The most characters of one test; a program that prints more fails it."""

_OPENING = re.compile(
    r"(?P<line>^[ \t]*+)?(?<!`)(?P<fence>`{3,}+)[ \t]*+"
    r"(?(line)(?P<language>[^\s`]*+)[^\n`]*+|(?:python3?|py)[ \t]*+\r?)\n",
    re.IGNORECASE | re.MULTILINE,
)
"""A block of any language that opens a line, or of Python anywhere."""
_CLOSING = re.compile(r"(?:^[ \t]*+)?(?P<fence>`{3,}+)", re.MULTILINE)
"""Anywhere: models also write it behind the last line of the code."""
_PYTHON = ("", "py", "python", "python3")
_LIMITER = ConcurrencyLimiter(count_cores())
_CALLS_REMEDY = (
    "its inputs are arguments of a function, not standard input; write code that calls the function: "
    "assert name(arguments) == result"
)

_FEED = """
import os, subprocess, sys
_file = os.memfd_create("code")
with open(_file, "wb", closefd=False) as _code:
    _code.write({code!r}.encode())
os.lseek(_file, 0, os.SEEK_SET)
_read = 'exec(compile(open(%d, encoding="utf-8").read(), "<string>", "exec"))' % _file
try:
    _done = subprocess.run([sys.executable, "-I", "-c", _read], pass_fds=[_file], input={stdin!r},
                           capture_output=True, text=True, errors="replace", timeout={timeout_s!r})
    print(_done.returncode, _done.stdout, sep="\\n")
except subprocess.TimeoutExpired:
    print("timeout")
finally:
    os.close(_file)
"""
"""Prints the exit status of the program, or `timeout`, on a line before its output. The program is in a file,
since an argument has at most 128 KiB."""


@dataclass(frozen=True, slots=True)
class InputOutput:
    """A test of a whole program."""

    stdin: str
    """The standard input of the program."""
    stdout: str
    """The expected standard output; white space at the ends of lines and of the whole does not count."""


Test = str | InputOutput
"""A string is code that raises if the test fails."""


def extract_code(response: str) -> str | None:
    """The last Python code block of `response`, without the indentation of a list's entry; None if there is
    none."""
    closing_fences = ClosingFences(_CLOSING, response)
    block: str | None = None
    position = 0
    while opening := _OPENING.search(response, position):
        closing = closing_fences.after(opening)
        position = (closing or opening).end()
        if closing and (opening["language"] or "").lower() in _PYTHON:
            block = response[opening.end() : closing.start()]
    if block is None:
        return None
    code = block.removesuffix("\n").removesuffix("\r")
    return dedent(code) if code.lstrip("\r\n").startswith((" ", "\t")) else code


def read_tests(tests: object, *, entry_point: str | None = None) -> list[Test]:
    """The tests in a data set's field.

    Code, or a list of it (MBPP's `test_list`); with an `entry_point`, code that defines `check(candidate)`
    (HumanEval's `test`); a list of `{"input", "output"}`; or `{"inputs": […], "outputs": […]}` (APPS,
    TACO). Lists and objects may be written as JSON, as in APPS and TACO: as code, they would pass. Raises
    `ValueError` for anything else, for an empty list, and for inputs that are a function's arguments: a
    `fn_name` (APPS, TACO) or the `testtype` `functional` (LiveCodeBench).
    """
    tests = _decode_json(tests)
    if isinstance(tests, str):
        tests = [tests if entry_point is None else f"{tests}\ncheck({entry_point})"]
    if isinstance(tests, dict) and {"inputs", "outputs"} <= tests.keys():
        if tests.get("fn_name") is not None:
            raise ValueError(f"`tests` has the fn_name {repr(tests['fn_name'])[:80]}; {_CALLS_REMEDY}")
        inputs, outputs = tests["inputs"], tests["outputs"]
        if len(inputs) != len(outputs):
            raise ValueError(
                f"`tests` has {len(inputs)} inputs and {len(outputs)} outputs; give one for each"
            )
        tests = [{"input": stdin, "output": stdout} for stdin, stdout in zip(inputs, outputs, strict=True)]
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"`tests` is {repr(tests)[:80]}; give code, a list of it, or inputs and outputs")
    return [_read_test(test) for test in tests]


def _decode_json(tests: object) -> object:
    """Return the list or object that a JSON text holds, and anything else unchanged."""
    if isinstance(tests, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(tests)
            return value if isinstance(value, dict | list) else tests
    return tests


def _read_test(test: object) -> Test:
    test = _decode_json(test)
    if isinstance(test, str):
        return test
    if isinstance(test, dict) and isinstance(test.get("input"), str) and isinstance(test.get("output"), str):
        if test.get("testtype") == "functional":
            raise ValueError(f"one of `tests` has the testtype 'functional'; {_CALLS_REMEDY}")
        return InputOutput(test["input"], test["output"])
    raise ValueError(f"one of `tests` is {repr(test)[:80]}; give code, or texts as `input` and `output`")


async def count_passed(code: str, tests: Sequence[Test], *, backend: Backend) -> int:
    """How many of `tests` the program passes; a test that ends the interpreter is the last.

    Raises `MissingDependency` if the backend does not work, `EnvCrashed` if no interpreter starts.
    """
    interpreter = Interpreter(
        backend,
        limits=SandboxLimits(cpu_s=TEST_CPU_S),
        run_timeout_s=TEST_TIMEOUT_S + 1.0,
        output_chars=OUTPUT_CHARS,
    )
    deadline = time.monotonic() + TOTAL_TIMEOUT_S
    count = 0
    try:
        if (
            any(isinstance(test, str) for test in tests)
            and (await interpreter.run(code)).end_reason is not None
        ):
            return 0
        for test in tests:
            if time.monotonic() > deadline:
                break
            outcome = await _passes(interpreter, code, test)
            if outcome is None:
                break
            count += outcome
    finally:
        await interpreter.close()
    return count


async def _passes(interpreter: Interpreter, code: str, test: Test) -> bool | None:
    """None if the interpreter ended."""
    if isinstance(test, str):
        word = secrets.token_hex(16)  # the code, which has run, cannot have printed it
        run = await interpreter.run(f"{test}\nprint({word!r})")
        return None if run.end_reason is not None else run.output.rstrip().endswith(word)
    run = await interpreter.run(_FEED.format(code=code, stdin=test.stdin, timeout_s=TEST_TIMEOUT_S))
    if run.end_reason is not None:
        return None
    status, _, output = run.output.partition("\n")  # a traceback if no process starts within the limits
    if status == "timeout":
        return None
    return status == "0" and _lines(output) == _lines(test.stdout)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@cache
def sandbox_backend() -> Backend:
    return choose_backend()


@reward(needs=(SANDBOX,), timeout_s=None)
async def code_tests(
    final_response: str, tests: object, entry_point: str | None = None
) -> dict[str, float | bool]:
    """1 if the code in the response passes all tests, else 0; metrics `passed`, in [0, 1], and `code`.

    The code is the last code block; `read_tests` reads `tests` and `entry_point`. Each answer has
    `TOTAL_TIMEOUT_S`; as many run concurrently as there are cores.
    """
    required_tests = read_tests(tests, entry_point=entry_point)
    code = extract_code(final_response)
    if code is None:
        return verdict(False, passed=0.0, code=0.0)
    async with _LIMITER:
        backend = await asyncio.to_thread(sandbox_backend)
        count = await count_passed(code, required_tests, backend=backend)
    return verdict(count == len(required_tests), passed=count / len(required_tests), code=1.0)


@reward(needs=(SANDBOX,), timeout_s=None, check_env=get_workspace)
async def workspace_tests(
    env: Environment, test_command: str, test_files: Mapping[str, object] | None = None
) -> dict[str, float | bool]:
    """1 if `test_command` succeeds in the workspace, else 0.

    `test_files` (path in `/work` → text) are written first and replace what is there: the agent has never
    seen them and cannot have changed them. It may have changed everything else, including the programs that
    run them. Raises `ConfigError` for an environment without a workspace, `EnvCrashed` if its sandbox ended
    before the tests.
    """
    workspace = get_workspace(env)
    reply = await workspace.put(read_files({"test_files": test_files}, name="test_files"))
    if reply.has_ended:
        raise EnvCrashed(f"the files of the tests could not be written: {reply.text}")
    return verdict(not reply.is_error and await workspace.succeeds(test_command))
