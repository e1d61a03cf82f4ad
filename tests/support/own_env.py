"""A user's own environment in a module of theirs: say the number of the item."""

from collections.abc import Sequence

from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item, StepResult


class SayEnv:
    def __init__(self) -> None:
        self._number = -1

    async def reset(self, item: Item) -> str:
        self._number = item.index
        return f"Say {item.index}."

    async def step(self, action: str) -> StepResult:
        right = action == str(self._number)
        return StepResult("Yes." if right else "No.", reward=float(right), terminated=True, success=right)

    async def close(self) -> None:
        pass


def split(seed: int) -> Split:
    items = [Item(item_id=f"say_{number}", env="say") for number in range(8)]
    return Split(train=items[:6], test=items[6:])


def expert(item: Item) -> Sequence[ExpertStep]:
    return [ExpertStep("", str(item.index))]


SPEC = EnvSpec(name="say", make=SayEnv, split=split, expert=expert, instructions="", packages=())
NO_SPEC = 3
