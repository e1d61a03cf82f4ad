"""Questions from a user's data: one observation, the question; one action, the answer.

The environment has no items of its own (docs/data.md), and rewards judge the answers.
"""

from envs.errors import ConfigError
from envs.registry import EnvSpec, Split, no_expert
from envs.types import Image, Item, Observation, StepResult

INSTRUCTIONS = "You are asked one question. Answer it."
SOURCE = "your data (docs/data.md)"


class QuestionEnv:
    """One question at a time."""

    has_actions = False

    def __init__(self) -> None:
        self._is_waiting = False

    async def reset(self, item: Item) -> str | Observation:
        """The item's `question`, or the last of its `messages`, with its `image` or `images`.

        Raises `ConfigError` if it has neither question nor messages, or an image that cannot be read.
        """
        question, images = _read_question(item), _read_images(item)
        self._is_waiting = True
        return Observation(question, images) if images else question

    async def step(self, action: str) -> StepResult:
        """Any action is the answer, and ends the episode."""
        if not self._is_waiting:
            raise RuntimeError("step before reset, or after the end")
        self._is_waiting = False
        return StepResult("", terminated=True)

    async def close(self) -> None:
        """Forget the question."""
        self._is_waiting = False


def _read_question(item: Item) -> str:
    if "question" in item.fields:
        return str(item.fields["question"])
    if item.fields.get("messages"):
        return str(item.fields["messages"][-1]["content"])
    raise ConfigError(
        f"{item.item_id} has no question: its fields are {', '.join(item.fields) or 'none'}; give it a "
        "'question', or 'messages' that end with the question"
    )


def _read_images(item: Item) -> tuple[Image, ...]:
    try:
        return tuple(Image.read(source) for source in item.image_sources)
    except ValueError as error:
        raise ConfigError(f"{item.item_id}: image {error}; put the file back") from None


def no_items(seed: int) -> Split:
    """Raises `ConfigError`: the items are a user's data."""
    raise ConfigError(
        "this environment has no items of its own; give a part of a pipeline's data `train` and `test` "
        "(docs/data.md)"
    )


SPEC = EnvSpec(
    name="question",
    make=QuestionEnv,
    split=no_items,
    expert=no_expert,
    instructions=INSTRUCTIONS,
    action_hint="your answer",
    packages=(),
    source=SOURCE,
    has_items=False,
    has_rewards=False,
)
