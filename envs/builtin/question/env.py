"""Questions out of a user's data: one observation, the question; one action, the answer.

It brings no items (docs/data.md) and judges nothing: whether an answer is right is a reward's affair.
"""

from envs.errors import ConfigError
from envs.images import item_images
from envs.registry import EnvSpec, Split, no_expert
from envs.types import Item, Observation, StepResult

INSTRUCTIONS = "You are asked one question. Answer it."
SOURCE = "your data (docs/data.md)"


class QuestionEnv:
    """One question at a time."""

    def __init__(self) -> None:
        self._asked = False

    async def reset(self, item: Item) -> str | Observation:
        """The item's `question`, or the last of its `messages`, with its `image` or `images`.

        Raises `ConfigError` if it has neither question nor messages, or a picture that cannot be read.
        """
        question, images = _question_of(item), item_images(item)
        self._asked = True
        return Observation(question, images) if images else question

    async def step(self, action: str) -> StepResult:
        """Any action is the answer, and ends the episode."""
        if not self._asked:
            raise RuntimeError("step before reset, or after the end")
        self._asked = False
        return StepResult("", terminated=True)

    async def close(self) -> None:
        """Forget the question."""
        self._asked = False


def _question_of(item: Item) -> str:
    if "question" in item.fields:
        return str(item.fields["question"])
    if item.fields.get("messages"):
        return str(item.fields["messages"][-1]["content"])
    raise ConfigError(
        f"{item.item_id} asks nothing: its fields are {', '.join(item.fields) or 'none'}; give it a "
        "'question', or 'messages' of which the last is the question"
    )


def no_items(seed: int) -> Split:
    """See `EnvSpec.split`. Raises `ConfigError`."""
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
