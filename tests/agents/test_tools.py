"""The decorator and the boundary: whatever a tool does, it ends in a result, within its time."""

import asyncio
import contextlib
import enum
import json
import math
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from agents.rewards import reward
from agents.tools.threads import run_in_thread
from agents.tools.tool import Tool, collect_tools, tool
from agents.tools.types import ToolError, ToolResult, ToolStatus
from envs.errors import ConfigError, EnvCrashed, WingspanError
from envs.types import Environment, Image, StepResult
from tests.support.toy import ToyEnv
from tests.support.waiting import wait_until_async


def call(target: Tool, arguments: Any = None, **keywords: Any) -> ToolResult:
    return asyncio.run(target.call({} if arguments is None else arguments, **keywords))


class Unit(enum.Enum):
    KM = "km"
    MILE = "mile"


@dataclass
class Packet:
    data: bytes


class Town(BaseModel):
    name: str
    population: int = 0


@tool
def ride(
    start: str,
    towns: list[Town],
    speed: Annotated[float, Field(gt=0)] = 20.0,
    unit: Unit = Unit.KM,
    mode: Literal["bike", "bus"] | None = None,
    _model: bool = False,
) -> dict[str, Any]:
    """Ride through towns.

    All of them, in order.

    Args:
        start: Where to begin,
            by name.
        speed (float): How fast. Defaults to 20.

    Returns:
        Whatever was seen.
    """
    return {"start": start, "speed": speed, "unit": unit.name, "mode": mode, "last": towns[-1].name}


def test_the_schema_is_the_signatures_with_the_docstrings_words() -> None:
    assert ride.schema == {
        "type": "function",
        "function": {
            "name": "ride",
            "description": "Ride through towns.\n\nAll of them, in order.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["start", "towns"],
                "properties": {
                    "start": {"type": "string", "description": "Where to begin, by name."},
                    "towns": {"type": "array", "items": {"$ref": "#/$defs/Town"}},
                    "speed": {
                        "type": "number",
                        "exclusiveMinimum": 0,
                        "default": 20.0,
                        "description": "How fast. Defaults to 20.",
                    },
                    "unit": {"$ref": "#/$defs/Unit", "default": "km"},
                    "mode": {"anyOf": [{"type": "string", "enum": ["bike", "bus"]}, {"type": "null"}]}
                    | {"default": None},
                    "_model": {"type": "boolean", "default": False},
                },
                "$defs": {
                    "Town": {
                        "type": "object",
                        "title": "Town",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "population": {"type": "integer", "default": 0},
                        },
                    },
                    "Unit": {"type": "string", "title": "Unit", "enum": ["km", "mile"]},
                },
            },
        },
    }
    json.dumps(ride.schema)


def test_arguments_become_values_of_the_declared_types() -> None:
    arguments = {"start": 7, "towns": [{"name": "x", "population": "3"}], "speed": "2.5", "unit": "mile"}
    result = call(ride, arguments)
    assert json.loads(result.observation) == {
        "start": "7",
        "speed": 2.5,
        "unit": "MILE",
        "mode": None,
        "last": "x",
    }
    assert result.status is ToolStatus.OK


@given(st.integers(-(10**12), 10**12), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
def test_what_a_model_quotes_is_what_it_would_be_unquoted(whole: int, flag: bool, real: float) -> None:
    @tool
    def same(whole: int, flag: bool, real: float) -> list[Any]:
        return [whole, flag, real]

    direct = call(same, {"whole": whole, "flag": flag, "real": real})
    from_text = call(same, {"whole": str(whole), "flag": json.dumps(flag), "real": repr(real)})
    assert direct.observation == from_text.observation
    assert json.loads(direct.observation) == [whole, flag, real]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, ["start is missing", "towns is missing", "It takes: start (string), towns (array), speed"]),
        ({}, ["unit ('km' or 'mile', optional)", "mode ('bike' or 'bus' or null, optional)"]),
        ({"start": "a", "towns": [], "stat": 1}, ["'stat' is no argument of it"]),
        ({"start": "a", "towns": [{"name": "x", "population": "many"}]}, ["towns.0.population", "'many'"]),
        ({"start": "a", "towns": [], "speed": -1}, ["speed", "greater than 0", "-1"]),
        ({"start": "a", "towns": [], "mode": "car"}, ["mode", "'bike' or 'bus'", "'car'"]),
        ([1, 2], ["must be an object, not [1, 2]"]),
        ("start", ["must be an object"]),
        ({"start": ["x" * 10_000], "towns": 3}, ["start: Input should be a valid string"]),
    ],
)
def test_wrong_arguments_are_reported_and_nothing_is_run(arguments: Any, message: list[str]) -> None:
    result = call(ride, arguments)
    assert (result.status, result.ends_episode) == (ToolStatus.BAD_ARGUMENTS, False)
    assert all(words in result.observation for words in message), result.observation
    assert len(result.observation) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["start", "towns", "speed", "unit", "mode"]) | st.text(), JSON))
def test_no_arguments_are_a_crash(arguments: dict[str, Any]) -> None:
    result = call(ride, arguments)
    assert result.status is not ToolStatus.TIMED_OUT
    result.observation.encode()


def test_halves_of_characters_do_not_reach_a_tool() -> None:
    @tool
    def echo(text: str) -> str:
        text.encode()
        return text

    assert call(echo, json.loads('{"text": "a\\ud800b"}')).observation == "a?b"


def test_what_a_tool_leaves_to_its_default_is_its_own_default() -> None:
    marker = object()

    @tool
    def probe(value: Any = marker) -> bool:
        return value is marker

    assert call(probe).observation == "true"


# what may be decorated


class Library:
    """A class whose methods are tools."""

    def __init__(self, books: list[str]) -> None:
        self.books = books

    @tool
    def count(self) -> int:
        """Count the books."""
        return len(self.books)

    @tool(name="find_book")
    async def find(self, title: str) -> bool:
        """Seek a book.

        Args:
            title: Of the book.
        """
        return title in self.books

    @staticmethod
    @tool
    def rules() -> str:
        return "be quiet"


@tool(timeout_s=5)
class BookSearch:
    """Search all books."""

    def __init__(self, book: str) -> None:
        self.book = book

    def __call__(self, query: str) -> str:
        return f"{query}: {self.book}"


def test_methods_are_tools_of_their_own_instance() -> None:
    small, large = Library(["a"]), Library(["a", "b"])
    assert [t.name for t in collect_tools(small)] == ["count", "find_book", "rules"]
    assert [call(t).observation for t in (small.count, large.count)] == ["1", "2"]
    assert call(large.find, {"title": "b"}).observation == "true"
    assert call(collect_tools(small)[2]).observation == "be quiet"
    assert list(small.find.schema["function"]["parameters"]["properties"]) == ["title"]
    assert small.count() == 1
    with pytest.raises(ConfigError, match="is a method"):
        call(Library.count)


def test_a_class_stays_a_class_and_its_instances_are_tools() -> None:
    search = BookSearch("Emma")
    assert search("q") == "q: Emma"
    [book] = collect_tools(search)
    assert (book.name, book.description, book.timeout_s) == ("book_search", "Search all books.", 5)
    assert call(book, {"query": "q"}).observation == "q: Emma"


def test_bound_methods_and_objects_are_decorated_like_functions() -> None:
    class Explorer:
        def look(self, where: str) -> str:
            return f"looked {where}"

        async def __call__(self, where: str) -> str:
            return f"went {where}"

    assert call(tool(Explorer().look), {"where": "up"}).observation == "looked up"
    assert call(tool(name="go")(Explorer()), {"where": "up"}).observation == "went up"


def test_a_subclass_may_take_a_tool_away_or_change_it() -> None:
    class Quiet(Library):
        rules = None  # type: ignore[assignment]

        @tool
        def count(self) -> str:
            return "many"

    assert [t.name for t in collect_tools(Quiet([]))] == ["count", "find_book"]
    assert call(collect_tools(Quiet([]))[0]).observation == "many"
    with pytest.raises(ConfigError, match="int has no tools"):
        collect_tools(3)
    with pytest.raises(ConfigError, match="class 'Quiet' is no tool; give an instance of it"):
        collect_tools(Quiet)
    with pytest.raises(ConfigError, match="function '_many' is no tool; decorate it with @tool"):
        collect_tools(_many)


def _without_type(x):  # type: ignore[no-untyped-def]  # what is refused
    return x


def _many(*texts: str) -> str:
    return ""


def _positional(x: int, /) -> int:
    return x


def _loop(x: int) -> Iterator[int]:
    yield x


def _socket(x: threading.Thread) -> str:
    return ""


def _stranger(x: int) -> int:
    """Do.

    Args:
        y: Not there.
    """
    return x


def _env_unsaid(env: Environment) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (_without_type, {}, "'x' has no type; annotate it"),
        (_many, {}, "texts: str cannot be passed by name"),
        (_positional, {}, "cannot be passed by name"),
        (_loop, {}, "is a generator"),
        (_socket, {}, "has no JSON schema"),
        (_stranger, {}, "describes y, which is no parameter"),
        (_env_unsaid, {}, "add stateful=True"),
        (_positional, {"stateful": True}, "0 parameters for the environment"),
        (_env_unsaid, {"stateful": True, "name": "my tool"}, "'my tool': a name has"),
        (_env_unsaid, {"stateful": True, "timeout_s": 0}, "timeout_s 0"),
        (_env_unsaid, {"stateful": True, "max_length": 10}, "max_length 10"),
        (_env_unsaid, {"stateful": True, "max_concurrency": 0}, "max_concurrency 0"),
    ],
)
def test_what_cannot_be_put_to_an_agent_is_refused_at_once(function: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match="tool '") as failure:
        tool(**options)(function)
    assert message in str(failure.value)


# faults of tools


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("x"), "probe failed: KeyError: 'x'"),
        (ToolError("no such book"), "no such book"),
        (TimeoutError("late"), "probe failed: TimeoutError: late"),
        (StopIteration(), "probe failed: "),
        (SystemExit(3), "probe failed: it tried to exit with status 3"),
        (Mute(), "probe failed: Mute: (it has no text)"),
        (ExceptionGroup("two", [ValueError(), KeyError()]), "probe failed: ExceptionGroup: two"),
    ],
)
def test_a_tool_that_raises_is_an_observation(error: BaseException, message: str, asynchronous: bool) -> None:
    def direct() -> str:
        raise error

    async def later() -> str:
        raise error

    result = call(tool(name="probe", finish=True)(later if asynchronous else direct))
    assert (result.status, result.ends_episode) == (ToolStatus.RAISED, False)
    assert result.observation.startswith(message)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "error", [EnvCrashed("gone"), ExceptionGroup("two", [ValueError(), EnvCrashed("gone")])]
)
def test_a_failure_of_the_infrastructure_is_no_play(error: Exception, asynchronous: bool) -> None:
    def direct() -> str:
        raise error

    async def later() -> str:
        raise error

    with pytest.raises(EnvCrashed, match="gone"):
        call(tool(later if asynchronous else direct))


def test_a_tool_that_hangs_is_an_observation() -> None:
    has_ended = threading.Event()

    @tool(timeout_s=0.1)
    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            has_ended.set()

    may_end = threading.Event()

    @tool(timeout_s=0.1)
    def blocks() -> None:
        may_end.wait(60)

    for hanging in (waits, blocks):
        result = call(hanging)
        assert result.status is ToolStatus.TIMED_OUT
        assert result.observation == f"{hanging.name} took longer than 0.1 s and was ended"
    may_end.set()
    assert has_ended.is_set()


@pytest.mark.parametrize("decorator", [tool, reward])
def test_an_unknown_option_is_named_with_the_nearest_one(decorator: Any) -> None:
    message = f"@{decorator.__name__} has no option 'timeout'; did you mean 'timeout_s'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        decorator(timeout=3)


@pytest.mark.usefixtures("brief_end")
def test_a_tool_that_will_not_be_ended_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for it: neither its caller nor the end of the event loop."""
    is_inside = False

    @tool(timeout_s=0.1)
    async def clings() -> None:
        nonlocal is_inside
        is_inside = True
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    assert call(clings).status is ToolStatus.TIMED_OUT
    assert is_inside
    (warning,) = caplog.messages
    assert warning.startswith("tool 'clings' runs on after it was cancelled")


async def test_too_many_hanging_threads_are_an_error_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr("agents.tools.threads.MAX_LEFT_BEHIND", 2)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_thread(lambda: may_end.wait(60), name="slow"), 0.05)
    with pytest.raises(WingspanError, match="2 threads hang"):
        await run_in_thread(lambda: 1, name="quick")
    may_end.set()
    await wait_until_async(lambda: all(thread.name != "slow" for thread in threading.enumerate()))
    assert await run_in_thread(lambda: 1, name="quick") == 1


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_being_cancelled_passes_through(asynchronous: bool) -> None:
    has_begun, has_ended, may_end = threading.Event(), threading.Event(), threading.Event()

    @tool(timeout_s=30)
    async def later() -> None:
        has_begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            has_ended.set()

    @tool(timeout_s=30)
    def direct() -> None:
        has_begun.set()
        may_end.wait(60)
        has_ended.set()

    task = asyncio.create_task((later if asynchronous else direct).call({}))
    await wait_until_async(has_begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert has_ended.is_set() == asynchronous
    may_end.set()

    @tool
    async def cancels() -> None:
        raise asyncio.CancelledError

    result = await cancels.call({})  # nobody cancelled the call
    assert (result.status, result.observation) == (ToolStatus.RAISED, "cancels failed: it was cancelled")


@given(st.integers(100, 300), st.text(max_size=500), st.integers(1, 200))
def test_a_flood_is_cut_and_it_says_so(most: int, text: str, times: int) -> None:
    whole = text.encode("utf-8", "replace").decode() * times
    result = call(tool(name="flood", max_length=most)(lambda: whole))
    if len(whole) <= most:
        assert result.observation == whole
        return
    assert len(result.observation) <= most
    before, notice, after = result.observation.partition(f"\n... {len(whole)} characters")
    assert notice
    assert whole.startswith(before)
    assert whole.endswith(after.partition("left out ...\n")[2])


def test_errors_are_cut_too() -> None:
    @tool(max_length=100)
    def loud() -> None:
        raise ValueError("x" * 10**6)

    assert len(call(loud).observation) == 100


# side by side


async def test_synchronous_tools_run_side_by_side() -> None:
    count = 64
    all_inside = threading.Barrier(count, timeout=30)

    @tool
    def waits_for_the_others() -> None:
        all_inside.wait()

    assert {
        result.status
        for result in (await asyncio.gather(*(waits_for_the_others.call({}) for _ in range(count))))
    } == {ToolStatus.OK}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_more_calls_at_once_than_were_allowed(asynchronous: bool) -> None:
    lock, running, most = threading.Lock(), 0, 0
    three_inside = threading.Barrier(3, timeout=30)

    def enter(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)

    @tool(max_concurrency=3)
    async def later() -> None:
        enter(1)
        await asyncio.to_thread(three_inside.wait)
        enter(-1)

    @tool(max_concurrency=3)
    def direct() -> None:
        enter(1)
        three_inside.wait()
        enter(-1)

    async def main() -> list[ToolResult]:
        return await asyncio.gather(*((later if asynchronous else direct).call({}) for _ in range(9)))

    for _ in range(2):  # and in another event loop again
        assert {result.status for result in asyncio.run(main())} == {ToolStatus.OK}
    assert most == 3


# what tools answer

PNG = b"\x89PNG\r\n\x1a\n..."


@pytest.mark.parametrize(
    ("value", "observation"),
    [
        ("text", "text"),
        (None, "(no output)"),
        (3, "3"),
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ({1}, "[1]"),
        (Town(name="ä"), '{"name":"ä","population":0}'),
        (float("nan"), "NaN"),
        ("a\ud800", "a?"),
        ({"a\ud800": ["\ud800", 1]}, '{"a?":["?",1]}'),
        (Town(name="\ud800"), '{"name":"?","population":0}'),
        (b"ok", '"ok"'),
        (b"a\xff", '"a\ufffd"'),
        ([b"a\xff", {1.5}, None], '["a\ufffd",[1.5],null]'),
        (np.float32(3.5), "3.5"),
        ({"a": np.arange(3), "b": np.int64(2)}, '{"a":[0,1,2],"b":2}'),
        (np.bool_(True), "true"),
        ({"a": b"\xff", "b": np.array([0.5])}, '{"a":"\ufffd","b":[0.5]}'),
        ({"a": Packet(b"ok"), "b": b"\xff"}, '{"a":{"data":"ok"},"b":"\ufffd"}'),
        (Packet(b"a\xff"), '{"data":"a\ufffd"}'),
        ({("a", 1): b"\xff"}, '{"a,1":"\ufffd"}'),
    ],
)
def test_values_are_observed_as_json(value: Any, observation: str) -> None:
    async def later() -> Any:
        return value

    for function in (later, lambda: value):
        assert call(tool(name="t")(function)).observation == observation


def test_a_mapping_may_carry_images_and_numbers() -> None:
    gif = Image(b"anything", "image/gif")

    @tool
    def look() -> dict[str, Any]:
        return {"observation": {"x": 1}, "image": PNG, "images": [gif], "zoom": np.float32(2), "sharp": True}

    result = call(look)
    assert result.observation == '{"x":1}'
    assert result.images == (Image(PNG, "image/png"), gif)
    assert result.metrics == {"zoom": 2.0, "sharp": 1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"observation": "x", "note": "y"},
            "the metric 'note' beside 'observation' is a str, 'y'; return a number",
        ),
        (
            {"observation": "x", "score": math.nan},
            "'score' beside 'observation' is nan; return a finite number",
        ),
        (
            {"observation": "x", "score": 10**400},
            "'score' beside 'observation' is inf; return a finite number",
        ),
        ({"observation": "x", "image": b"BM.."}, "no known format"),
        ({"observation": "x", "image": "file.png"}, "an image is str"),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_fault_of_the_tool(value: Any, message: str) -> None:
    result = call(tool(name="t")(lambda: value))
    assert result.status is ToolStatus.RAISED
    assert message in result.observation


def test_a_value_that_is_no_json_is_a_fault_of_the_tool() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert call(tool(name="t")(lambda: endless)).status is ToolStatus.RAISED


# the environment


def test_a_stateful_tool_is_given_the_environment_and_the_agent_does_not_see_it() -> None:
    @tool(stateful=True)
    async def add(number: int, env: Environment, times: int = 1) -> StepResult:
        """Add.

        Args:
            number: How many.
            env: Where.
        """
        return await env.step(f"add {number * times}")

    @tool(stateful=True)
    def name_env(env: Any) -> str:
        return type(env).__name__

    @tool(stateful=True)
    def maybe(world: ToyEnv | None = None) -> bool:
        return world is None

    assert list(add.schema["function"]["parameters"]["properties"]) == ["number", "times"]
    assert call(name_env, env=ToyEnv()).observation == "ToyEnv"
    assert call(maybe).observation == "true"
    assert call(add, {"number": 1, "env": "mine"}, env=ToyEnv()).status is ToolStatus.BAD_ARGUMENTS
    with pytest.raises(ConfigError, match="'add' is stateful and was called without"):
        call(add, {"number": 1})


def test_a_name_that_pydantic_keeps_for_itself_is_as_good_as_any() -> None:
    @tool
    def odd(schema: int, model_config: int, copy: int, env: str = "prod") -> list[Any]:
        return [schema, model_config, copy, env]

    arguments = {"schema": 1, "model_config": "2", "copy": 3}
    assert call(odd, arguments).observation == '[1,2,3,"prod"]'


def test_a_validator_that_breaks_is_a_fault_of_the_tool() -> None:
    def raise_fault(value: str) -> str:
        raise KeyError(value)

    @tool
    def picky(word: Annotated[str, AfterValidator(raise_fault)]) -> str:
        return word

    result = call(picky, {"word": "x"})
    assert (result.status, result.observation) == (ToolStatus.RAISED, "picky failed: KeyError: 'x'")
