"""The interface of every environment, and the data exchanged with it: text, images and numbers; no tokens, no
model.

The interface is asynchronous because some environments live in other processes or behind HTTP; one in this
process never suspends, which costs microseconds. What an environment returns is checked where it is made:
`Observation` and `StepResult` raise `ValueError` for a value of another type and for a number that is not
finite.
"""

import base64
import binascii
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from inspect import isawaitable
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from envs.errors import ConfigError, show

T = TypeVar("T")
Role = Literal["system", "user", "assistant", "tool"]
IMAGE_FIELDS = ("image", "images")
"""Fields of an item that hold one source of an image (`Image.read`), or a list of them."""
_URI = "data:"
_MARK = ";base64,"
_MAX_CHARS = 60  # of a source in an error message; a source may be a whole image
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a pair of UTF-16: JSON can spell it alone, UTF-8 cannot."""
_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of an environment: everything `Environment.reset` needs to recreate it."""

    item_id: str
    """`<env>_<index>` with AgentGym's numbering, e.g. `textcraft_12`; `<part>_<row>` for a user's row."""
    env: str
    """Name in `envs/registry.py`."""
    seed: int = 0
    """The item's randomness: the same item and seed give the same first observation."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Facts by which success rates are grouped, e.g. `{"depth": 2}`: numbers or text with few distinct
    values, never shown to the policy."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The free columns of a row of data, e.g. `{"answer": "42"}`: JSON values of any size, for rewards; the
    environment decides what the policy sees of them."""
    part: str = ""
    """The part of the pipeline's data that a user's row belongs to."""

    @property
    def index(self) -> int:
        """The number in `item_id`. Raises `ConfigError` if there is none."""
        try:
            return int(self.item_id.rpartition("_")[2])
        except ValueError:
            raise ConfigError(
                f"environment {self.env!r}: item {self.item_id!r} has no number; call it {self.env}_0, or so"
            ) from None

    @property
    def image_sources(self) -> list[str]:
        """The sources of its images, for `Image.read`."""
        if not self.fields:  # as in most items, of which an environment may have 20,000
            return []
        image, images = (self.fields.get(field) for field in IMAGE_FIELDS)
        return [*([] if image is None else [image]), *(images or [])]


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the bytes of a file; no pixels are decoded."""

    data: bytes
    media_type: str
    """E.g. `image/png`."""

    @classmethod
    def recognize(cls, data: bytes) -> "Image":
        """Recognize PNG, JPEG, GIF or WebP by the first bytes; raise `ValueError` for anything else."""
        for magic, media_type in _MAGIC.items():
            if data.startswith(magic):
                return cls(data, media_type)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return cls(data, "image/webp")
        raise ValueError(f"begins with {data[:8]!r}, which is no known format")

    @classmethod
    def read(cls, source: str, *, folder: Path = Path()) -> "Image":
        """Read the image of a data URI, or of a file whose path is relative to `folder`.

        Raises `ValueError`, which describes what is wrong with the source.
        """
        if source.startswith(_URI):
            head, mark, payload = source.partition(_MARK)
            try:
                data = base64.b64decode(payload, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{source[:_MAX_CHARS]!r} is no base64: {error}") from None
            if not mark or not data:
                raise ValueError(f"{source[:_MAX_CHARS]!r} is not data:MEDIA_TYPE{_MARK}… with an image")
            return cls(data, head.removeprefix(_URI))
        try:
            data = (folder / source).read_bytes()
        except (OSError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) else error
            raise ValueError(
                f"{source[:_MAX_CHARS]!r} is no file that can be read ({cause}) "
                f"and no data:MEDIA_TYPE{_MARK}…"
            ) from None
        try:
            return cls.recognize(data)
        except ValueError as error:
            raise ValueError(f"{source!r} {error}; give PNG, JPEG, GIF or WebP") from None

    @property
    def data_uri(self) -> str:
        """`data:image/png;base64,…`, from which `read` restores the image."""
        return f"{_URI}{self.media_type}{_MARK}{base64.b64encode(self.data).decode()}"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as chat templates take it."""

    role: Role
    content: str
    images: tuple[Image, ...] = ()
    """Placed before the content."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An environment's first observation, if it is more than text."""

    text: str
    """A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _read_text(self.text, "an observation's text"))
        object.__setattr__(self, "images", _read_images(self.images))

    @classmethod
    def wrap(cls, observation: object) -> "Observation":
        """Convert the result of `Environment.reset`; raise `ValueError` if it is no observation."""
        if isinstance(observation, str):
            return cls(observation)
        if isinstance(observation, Observation):
            return observation
        raise ValueError(f"reset returned {show(observation)}; return text or an Observation")


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one action."""

    observation: str
    """A lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    reward: float = 0.0
    """Reward of this step alone; finite."""
    terminated: bool = False
    """The problem has ended (solved or lost)."""
    truncated: bool = False
    """The environment stopped for a reason outside the problem (its own step limit)."""
    success: bool = False
    """The problem is solved; separate from the reward, which may be partial."""
    images: tuple[Image, ...] = ()
    """Shown with the observation."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The environment's metrics of the episode so far, e.g. `{"f1": 0.5}`; the last step's are kept."""

    def __post_init__(self) -> None:
        observation = _read_text(self.observation, "a step's observation")
        object.__setattr__(self, "observation", observation)
        object.__setattr__(self, "reward", read_number(self.reward, "a step's reward"))
        for name in ("terminated", "truncated", "success"):
            object.__setattr__(self, name, read_flag(getattr(self, name), f"a step's {name}"))
        object.__setattr__(self, "images", _read_images(self.images))
        object.__setattr__(self, "metrics", _read_metrics(self.metrics))

    @classmethod
    def check(cls, result: object) -> "StepResult":
        """The result of `Environment.step`; raise `ValueError` if it is no `StepResult`."""
        if isinstance(result, StepResult):
            return result
        raise ValueError(f"step returned {show(result)}; return a StepResult")


async def await_result(call: Awaitable[T], *, name: str) -> T:
    """The result of `call`, which the method `name` returned; raise `ValueError` if it cannot be awaited."""
    if not isawaitable(call):
        raise ValueError(f"{name} returned {show(call)}, which cannot be awaited; write `async def {name}`")
    return await call


class Environment(Protocol):
    """One live instance, which runs one episode at a time; `reset` starts the next.

    A malformed action results in an observation. An exception from `reset` or `step`, or a result of another
    type, means that the instance is broken: it is closed and replaced, and the episode is retried.
    """

    async def reset(self, item: Item) -> str | Observation:
        """Start `item`; return the first observation, as plain text if it has no images."""

    async def step(self, action: str) -> StepResult:
        """Apply one action, any text that UTF-8 can encode, to the current episode.

        Raises `RuntimeError` before a reset and after the end.
        """

    async def close(self) -> None:
        """Free all resources. Idempotent."""


EnvCheck = Callable[[Environment | None], object]
"""Raises `ConfigError` if something cannot work on a new environment; None stands for one that lives in
another process or on a server."""


async def reset_env(env: Environment, item: Item) -> Observation:
    """Start `item` in `env`; raise `ValueError` if `reset` is not asynchronous or returns anything else."""
    return Observation.wrap(await await_result(env.reset(item), name="reset"))


async def step_env(env: Environment, action: str) -> StepResult:
    """Apply `action` in `env`; raise `ValueError` if `step` is not asynchronous or returns anything else."""
    return StepResult.check(await await_result(env.step(action), name="step"))


@runtime_checkable
class HasProcess(Protocol):
    """The additional interface of an environment whose instance is its own process."""

    @property
    def is_alive(self) -> bool:
        """False as soon as the process has died; determined without a call to the process."""

    async def prepare(self) -> None:
        """Start the process before the first `reset`, which would otherwise do it."""


@runtime_checkable
class HasSession(Protocol):
    """The additional interface of an environment that runs in a session elsewhere. There may be fewer
    sessions than instances."""

    async def acquire(self) -> None:
        """Wait for a session, unless it has one. Called before each episode, outside its time limits."""

    def release(self) -> None:
        """Let an instance that waits have the session. Called after each episode."""


class HasState(Protocol):
    """The additional interface of an environment that recognises a state in which it has been before."""

    def state_key(self) -> str | None:
        """A short text for the current moment of the episode; None before a reset and after the end.

        Two moments of episodes of one item have the same key exactly if the environment is in the same state
        at both: the same actions then have the same effects, rewards and ends. The number of steps so far and
        the order in which an observation lists things are not part of the state. It is asked for after every
        turn: hash what is at hand (`hash_state`), and never wait.
        """


@runtime_checkable
class Inspectable(Protocol):
    """The additional interface of an environment that answers queries about the current episode."""

    async def inspect(self, name: str) -> Any:
        """Return a fact of the current episode as a JSON value, e.g. `available_actions`; changes nothing.

        Raises `ConfigError` for an unknown name.
        """


def has_actions(env: Environment) -> bool:
    """Whether a step acts; false if it is the answer, which ends the episode (`env.has_actions`)."""
    return bool(getattr(env, "has_actions", True))


def hash_state(*parts: object) -> str:
    """16 hexadecimal digits for a `state_key`, the same in every process for parts with the same `repr`.

    Give texts, numbers, and tuples or lists of them; sort what has no order, such as a set.
    """
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_state_key(env: Environment) -> str | None:
    """The key of the state that `env` is in; None if it has no states, or no episode.

    Raises `ValueError` for a key that is no text.
    """
    # A tenth of the time of isinstance.
    state_key: Callable[[], object] | None = getattr(env, "state_key", None)
    key = None if state_key is None else state_key()
    if key is None or isinstance(key, str):
        return key
    raise ValueError(f"state_key is {show(key)}; return a text, such as envs.types.hash_state(…)")


def read_number(value: object, name: str) -> float:
    """`value` as a finite float; numbers of other libraries, such as NumPy's, are numbers."""
    try:
        number = float(value) if isinstance(value, Real) else None
    except OverflowError:
        number = math.inf
    if number is None:
        raise ValueError(f"{name} is {show(value)}; return a number")
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; return a finite number")
    return number


def read_flag(value: object, name: str) -> bool:
    """`value` as a bool; a NumPy bool is one, too."""
    if not is_flag(value):
        raise ValueError(f"{name} is {show(value)}; return True or False")
    return bool(value)


def is_flag(value: object) -> bool:
    """Whether `value` is a bool, of Python or of NumPy."""
    # NumPy is not imported for this; its bool is called `bool_` before NumPy 2.
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def replace_surrogates(text: str, *, by: str = "\ufffd") -> str:
    """`text` with `by` for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub(by, text)


def replace_surrogates_within(value: object, *, by: str = "\ufffd") -> object:
    """A JSON value with `by` for each lone surrogate in its texts and keys."""
    if isinstance(value, str):
        return replace_surrogates(value, by=by)
    if isinstance(value, list):
        return [replace_surrogates_within(element, by=by) for element in value]
    if isinstance(value, dict):
        return {
            replace_surrogates(key, by=by): replace_surrogates_within(element, by=by)
            for key, element in value.items()
        }
    return value


def _read_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {show(value)}; return a str")
    return replace_surrogates(value, by="?")


def _read_images(value: object) -> tuple[Image, ...]:
    if isinstance(value, tuple | list) and all(isinstance(image, Image) for image in value):
        return tuple(value)
    raise ValueError(f"images is {show(value)}; return a tuple of Image")


def _read_metrics(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"a step's metrics are {show(value)}; return a mapping of numbers")
    return {str(name): read_number(number, f"a step's metric {name!r}") for name, number in value.items()}
