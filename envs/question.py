"""One question of a user's data, one answer: an item's own `question`, or the last of its `messages`.

Whether the answer is right is a reward's to say.
"""

from collections.abc import Sequence

from envs.errors import ConfigError
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item, StepResult


class QuestionEnv:
    """See `Environment`."""

    def __init__(self) -> None:
        self._asked = False

    async def reset(self, item: Item) -> str:
        """Ask; raises `ConfigError` for an item without a question."""
        question = question_of(item)
        self._asked = True
        return question

    async def step(self, action: str) -> StepResult:
        """Take the answer; the episode ends with it."""
        if not self._asked:
            raise RuntimeError("step before reset, or after the end")
        self._asked = False
        return StepResult("", terminated=True)

    async def close(self) -> None:
        """Forget the question."""
        self._asked = False


def question_of(item: Item) -> str:
    """What `item` asks. Raises `ConfigError` if it asks nothing."""
    if "question" in item.fields:
        return str(item.fields["question"])
    if item.fields.get("messages"):
        return str(item.fields["messages"][-1]["content"])
    raise ConfigError(
        f"{item.item_id} asks nothing: its fields are {', '.join(item.fields) or 'none'}; give it a "
        "'question', or 'messages' of which the last is the question"
    )


def _no_items(seed: int) -> Split:
    return Split(train=[], test=[])


def _no_expert(item: Item) -> Sequence[ExpertStep]:
    return ()


SPEC = EnvSpec(
    name="question",
    make=QuestionEnv,
    split=_no_items,
    expert=_no_expert,
    instructions="",
    packages=(),
    source="a user's own data",
)
