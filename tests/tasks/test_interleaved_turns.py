"""Conversations of one episode that take turns with each other, as a program's and its sub-agent's: what is
credited is what came before in time, whatever segment it is in. All numbers are by hand."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType
from typing import Any

import pytest

from agents.samplers.scoring import ScoredTokens
from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item
from tasks.rollout.teacher import Teacher
from tasks.verl.rows import TrainingRow, fields_of, rows_of
from tests.support.gateway_toy import ITEM, QUESTION, ask, client_of, make_gateway, make_sampler, to_history
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import rows_of_all, trajectories_of

torch = pytest.importorskip("torch")

VALUES = {11: 0.1, 12: 0.2, 13: 0.3, 14: 0.4, 15: 0.5, 16: 0.6}
"""Of the critic, by sampled token; 0 for any other."""


def a_turn(ids: Sequence[int], reward: float, **fields: Any) -> Turn:
    completion = Completion(
        token_ids=tuple(ids), logprobs=(-1.0,) * len(ids), finish_reason=FinishReason.STOP, policy_version=0
    )
    return Turn(completion=completion, text="", action="", observation="", reward=reward, **fields)


def an_episode(sample_index: int, turns: Sequence[Turn]) -> Trajectory:
    return Trajectory(
        item=Item(item_id="x_0", env="x"),
        sample_index=sample_index,
        prompt_ids=(1, 2),
        turns=tuple(turns),
        stop_reason=StopReason.TERMINATED,
        reward=sum(turn.reward for turn in turns),
        success=False,
        seconds=0.0,
    )


INTERLEAVED = an_episode(
    0,
    [
        a_turn([11, 12], 0.0, observation_ids=(90, 91)),
        a_turn([13], 1.0, prompt_ids=(3,)),  # the sub-agent
        a_turn([14, 15, 16], 0.25, previous_turn=0),
    ],
)
PLAIN = an_episode(1, [a_turn([21], 0.5, observation_ids=(92,)), a_turn([22, 23], 0.0)])
ORDER = (1, 2, 0)
"""Of the rows in the batch, to show that theirs does not matter."""


def rows_of_the_step() -> list[TrainingRow]:
    rows = rows_of_all([[INTERLEAVED, PLAIN]])
    assert [row.packed.response_ids for row in rows] == [
        (11, 12, 90, 91, 14, 15, 16),
        (13,),
        (21, 92, 22, 23),
    ]
    return [rows[place] for place in ORDER]


def nest(rows: Sequence[Sequence[float]]) -> Any:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def estimate(algorithm: Any) -> tuple[Any, Any]:
    """The rows joined, and the estimate."""
    from tasks.verl.advantages import JoinedRows, estimate_advantages

    rows, trajectories = rows_of_the_step(), trajectories_of([[INTERLEAVED, PLAIN]])
    data = fields_of(rows)
    data["old_log_probs"] = data["rollout_log_probs"]
    data["values"] = nest([[VALUES.get(token, 0.0) for token in row.packed.response_ids] for row in rows])
    joined = JoinedRows([row.key for row in rows], data, trajectories)
    pipeline = toy_pipeline(Path("none"), train__algorithm=algorithm)
    return joined, estimate_advantages(
        pipeline.train,
        joined,
        trajectories=trajectories,
        greedy_rewards={},
        teacher_scores=None,
        num_played=2,
        context_length=64,
    )


def by_row(field: Any) -> list[list[float]]:
    """Of the rows in their own order: the two segments of the first episode, and the second episode."""
    rows = [row.tolist() for row in field.unbind()]
    return [rows[ORDER.index(place)] for place in range(3)]


def whitened(values: Sequence[float]) -> list[float]:
    """[11 to 16, 21 to 23] → of these tokens."""
    return [(value - mean(values)) / (stdev(values) ** 2 + 1e-8) ** 0.5 for value in values]


def to_rows(values: Sequence[float]) -> list[list[float]]:
    """Values of the tokens 11 to 16 and 21 to 23 in the rows, 0 on observations."""
    a, b, c, d, e, f, x, y, z = values
    return [[a, b, 0, 0, d, e, f], [c], [x, 0, y, z]]


def approx(rows: Sequence[Sequence[float]]) -> list[Any]:
    return [pytest.approx(row, abs=1e-5) for row in rows]


def test_tokens_are_joined_in_the_order_of_the_turns_and_split_again(verl: ModuleType) -> None:
    joined, _ = estimate("grpo")
    values = joined.join("values")
    assert values[0].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert by_row(joined.split(values)) == approx([[0.1, 0.2, 0, 0, 0.4, 0.5, 0.6], [0.3], [0.0] * 4])


def test_grpo(verl: ModuleType) -> None:
    """Rewards 1.25 and 0.5, of mean 0.875 and standard deviation 0.75/√2."""
    _, result = estimate("grpo")
    advantage = 0.375 / (0.75 / 2**0.5 + 1e-6)
    assert by_row(result.fields["advantages"]) == approx(to_rows([advantage] * 6 + [-advantage] * 3))


def test_turn_rloo(verl: ModuleType) -> None:
    """Rewards to come are 1.25, 1.25, 0.25 and 0.5, 0; only the first episode has a third turn, so that there
    its advantage is that of the whole: 1.25 − 0.5."""
    _, result = estimate("turn_rloo")
    first, second, third = 1.25 - 0.5, 1.25 - 0.0, 1.25 - 0.5
    expected = to_rows([first, first, second, third, third, third, 0.5 - 1.25, 0.0 - 1.25, 0.0 - 1.25])
    assert by_row(result.fields["advantages"]) == approx(expected)


RETURNS_OF_TOKENS = {
    1.0: [0.2578125, 0.515625, 1.03125, 0.0625, 0.125, 0.25, 0.5, 0.0, 0.0],
    0.0: [0.5 * 0.2, 0.5 * 0.3, 1 + 0.5 * 0.4, 0.5 * 0.5, 0.5 * 0.6, 0.25, 0.5, 0.0, 0.0],
}
"""By λ, with γ = 0.5: rewards to come, halved by each token; the reward and half of the next value."""
RETURNS_OF_TURNS = {1.0: [0.5625, 1.125, 0.25, 0.5, 0.0], 0.0: [0.5 * 0.3, 1 + 0.5 * 0.4, 0.25, 0.5, 0.0]}
"""The same, halved by each turn."""


@pytest.mark.parametrize("lam", [1.0, 0.0])
def test_ppo(verl: ModuleType, lam: float) -> None:
    _, result = estimate({"name": "ppo", "gamma": 0.5, "lam": lam})
    returns = RETURNS_OF_TOKENS[lam]
    assert by_row(result.fields["returns"]) == approx(to_rows(returns))
    values = [*VALUES.values(), 0.0, 0.0, 0.0]
    advantages = whitened([r - v for r, v in zip(returns, values, strict=True)])
    assert by_row(result.fields["advantages"]) == approx(to_rows(advantages))


@pytest.mark.parametrize("lam", [1.0, 0.0])
def test_turn_ppo(verl: ModuleType, lam: float) -> None:
    _, result = estimate({"name": "turn_ppo", "gamma": 0.5, "lam": lam})
    a, b, c, x, y = RETURNS_OF_TURNS[lam]
    assert by_row(result.fields["returns"]) == approx(to_rows([a, 0, b, c, 0, 0, x, y, 0]))
    a, b, c = a - 0.1, b - 0.3, c - 0.4  # less the value of each turn's first token
    expected = to_rows(whitened([a, a, b, c, c, c, x, y, y]))
    assert by_row(result.fields["advantages"]) == approx(expected)


def test_the_record_of_the_update_has_the_turns_in_order(verl: ModuleType) -> None:
    from tasks.verl.step_update import StepUpdate

    joined, result = estimate("turn_rloo")
    trained = trajectories_of([[INTERLEAVED, PLAIN]])
    update = StepUpdate.collect(joined, result, trained=trained, has_trainers_log_probs=False)
    advantages = [turn.advantages for turn in update.of_turns(INTERLEAVED, place=0)]
    assert advantages == [0.75, 1.25, 0.75]


class ByToken:
    """A `Scorer` that says of each token its negative number."""

    max_length = None

    def score(self, continuations: Sequence[ScoredTokens], *, temperature: float) -> list[list[float]]:
        return [[-float(token) for token in c.response_ids] for c in continuations]


def test_a_teachers_scores_are_in_the_order_of_the_turns() -> None:
    scores = Teacher(ByToken()).score({"a": INTERLEAVED, "b": PLAIN}, temperature=1.0)
    assert scores == {"a": [-11, -12, -13, -14, -15, -16], "b": [-21, -22, -23]}


async def play(*, sample_index: int, reward_of_sub_agent: float) -> Trajectory:
    """The main agent asks, then a sub-agent, then the main agent again."""
    gateway = make_gateway(make_sampler(lambda name, turn: f"{name[-1]} {turn}"))
    async with gateway.listening(), gateway.session(ITEM, sample_index=sample_index) as session:
        async with client_of(session.base_url) as client:
            answer = to_history(await ask(client, [QUESTION]))
            await ask(client, [{"role": "user", "content": "You find things out."}])
            await ask(client, [QUESTION, answer, {"role": "user", "content": "Go on."}])
        return session.trajectory(turn_rewards=[0.0, reward_of_sub_agent, 0.0])


async def test_what_the_gateway_records_is_credited_in_the_order_of_the_answers(verl: ModuleType) -> None:
    from tasks.verl.advantages import JoinedRows, estimate_advantages
    from tasks.verl.step_update import StepUpdate

    group = [await play(sample_index=index, reward_of_sub_agent=1.0 - index) for index in range(2)]
    rows, trained = rows_of("a", group), {f"a_{t.sample_index}": t for t in group}
    data = fields_of(rows)
    data["old_log_probs"] = data["rollout_log_probs"]
    joined = JoinedRows([row.key for row in rows], data, trained)
    result = estimate_advantages(
        toy_pipeline(Path("none"), train__algorithm="turn_rloo").train,
        joined,
        trajectories=trained,
        greedy_rewards={},
        teacher_scores=None,
        num_played=2,
        context_length=2000,
    )
    update = StepUpdate.collect(joined, result, trained=trained, has_trainers_log_probs=False)
    by_turn = [[t.advantages for t in update.of_turns(x, place=place)] for place, x in enumerate(group)]
    assert by_turn == [[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]
