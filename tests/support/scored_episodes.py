"""Episodes of random tokens in any number of segments, and a teacher that says the same of all of them."""

import random
from collections.abc import Sequence

from agents.samplers.scoring import ScoredTokens
from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item


class Constant:
    """A `Scorer` that says the same of every token."""

    def __init__(self, value: float, *, max_length: int | None = None) -> None:
        self._value = value
        self.max_length = max_length

    def score(self, continuations: Sequence[ScoredTokens], *, temperature: float) -> list[list[float]]:
        return [[self._value] * len(c.response_ids) for c in continuations]


def episode(index: int, *, shape: Sequence[Sequence[int]] = ((2, 1), (3,))) -> Trajectory:
    """Random tokens: for each segment the numbers of tokens of its turns."""
    rng = random.Random(index)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(10, 250) for _ in range(count)]

    prompt = tuple(tokens(4))
    turns = [
        make_turn(
            tokens(count),
            [rng.uniform(-6.0, -0.1) for _ in range(count)],
            tuple(tokens(2)),
            prompt_ids=tuple(tokens(5)) if segment and not place else None,
        )
        for segment, counts in enumerate(shape)
        for place, count in enumerate(counts)
    ]
    return episode_of(index, prompt, turns)


def make_turn(
    ids: list[int],
    values: list[float],
    observation_ids: tuple[int, ...],
    prompt_ids: tuple[int, ...] | None = None,
) -> Turn:
    completion = Completion(
        token_ids=tuple(ids), logprobs=tuple(values), finish_reason=FinishReason.STOP, policy_version=0
    )
    return Turn(
        completion=completion,
        text="",
        action="",
        observation="",
        reward=0.0,
        observation_ids=observation_ids,
        prompt_ids=prompt_ids,
    )


def episode_of(index: int, prompt: tuple[int, ...], turns: Sequence[Turn]) -> Trajectory:
    return Trajectory(
        item=Item(item_id=f"x_{index}", env="x"),
        sample_index=index,
        prompt_ids=prompt,
        turns=tuple(turns),
        stop_reason=StopReason.TERMINATED,
        reward=0.0,
        success=False,
        seconds=0.0,
    )
