"""Credit for turns: advantages by hand, and exact expectations over a small game that show which are biased.

The game: in each of three turns the policy stops or goes on; the probabilities of going on are its
parameters. All groups of three episodes are enumerated, so an expected gradient has no sampling error.
"""

import itertools
from collections.abc import Callable, Sequence
from math import prod
from statistics import fmean

import pytest

from tests.support.algorithms import parse_online
from tests.support.turn_indices import turn_indices
from tests.tasks.test_algorithms import GROUPS, advantages, batch_of, conversation, conversations

torch = pytest.importorskip("torch")

Episode = tuple[float, ...]
"""The reward of each turn."""
Advantages = Callable[[Sequence[Episode]], list[list[float]]]
"""Of a group: an advantage for each turn of each episode."""

GO_ON = (0.6, 0.3, 0.5)
"""Probabilities of the policy."""
REWARD_OF_STOPPING = (0.3, 0.3, 0.3)
REWARD_OF_GOING_ON = (0.1, 0.2, 2.0)
"""Less than for stopping at first: it pays later."""
GROUP_SIZE = 3


def episodes() -> list[tuple[Episode, float]]:
    """All of the game, with their probabilities."""
    result = []
    for turns in range(3):
        rewards = (*REWARD_OF_GOING_ON[:turns], REWARD_OF_STOPPING[turns])
        result.append((rewards, prod(GO_ON[:turns]) * (1 - GO_ON[turns])))
    return [*result, (REWARD_OF_GOING_ON, prod(GO_ON))]


def goes_on(episode: Episode, turn: int) -> bool:
    return turn < len(episode) - 1 or episode == REWARD_OF_GOING_ON


def score(episode: Episode, turn: int) -> float:
    """The derivative of the log-probability of the turn's action by the turn's probability of going on."""
    return 1 / GO_ON[turn] if goes_on(episode, turn) else -1 / (1 - GO_ON[turn])


def expected_gradient(advantages_of: Advantages) -> list[float]:
    """By each probability, averaged over the episodes of a group."""
    gradient = [0.0, 0.0, 0.0]
    for group in itertools.product(episodes(), repeat=GROUP_SIZE):
        probability = prod(p for _, p in group)
        members = [episode for episode, _ in group]
        for episode, per_turn in zip(members, advantages_of(members), strict=True):
            for turn, advantage in enumerate(per_turn):
                gradient[turn] += probability * advantage * score(episode, turn) / GROUP_SIZE
    return gradient


def true_gradient() -> list[float]:
    """Of the expected reward, as the difference between what going on and stopping lead to."""
    worth = 0.0  # of the turns after
    gradient = []
    for turn in reversed(range(3)):
        difference = REWARD_OF_GOING_ON[turn] + worth - REWARD_OF_STOPPING[turn]
        gradient.append(prod(GO_ON[:turn]) * difference)
        worth = REWARD_OF_STOPPING[turn] + GO_ON[turn] * difference
    return gradient[::-1]


def advantages_of(name: str) -> Advantages:
    """The estimator that training uses, on turns of several tokens."""

    def of_group(group: Sequence[Episode]) -> list[list[float]]:
        members = [
            conversation([(2 + turn, reward) for turn, reward in enumerate(episode)], group=0, sample_index=i)
            for i, episode in enumerate(group)
        ]
        batch = batch_of(members)
        actual = parse_online(name).estimate(batch).advantages
        return [
            row[starts[: len(episode)]].tolist()
            for row, starts, episode in zip(actual, batch.turn_starts, group, strict=True)
        ]

    return of_group


def centred_by_turn(group: Sequence[Episode]) -> list[list[float]]:
    """The natural construction: each turn's reward less the mean of the episodes that have this turn, summed
    over the turns from each on (Wei et al. 2025, MT-GRPO, without the division)."""
    means = [fmean(e[turn] for e in group if len(e) > turn) for turn in range(max(map(len, group)))]
    return [[sum(e[i] - means[i] for i in range(turn, len(e))) for turn in range(len(e))] for e in group]


def centred_by_exact_means(group: Sequence[Episode]) -> list[list[float]]:
    """The same in a group without end."""
    means = exact_means()
    return [[sum(e[i] - means[i] for i in range(turn, len(e))) for turn in range(len(e))] for e in group]


def exact_means() -> list[float]:
    """Of a turn's reward, if there is the turn."""
    return [
        p * on + (1 - p) * stop
        for p, on, stop in zip(GO_ON, REWARD_OF_GOING_ON, REWARD_OF_STOPPING, strict=True)
    ]


@pytest.mark.parametrize("name", ["turn_rloo", "rloo"])
def test_the_expected_gradient_is_that_of_the_expected_reward(name: str) -> None:
    assert expected_gradient(advantages_of(name)) == pytest.approx(true_gradient(), abs=1e-5)


def test_centring_each_turn_by_itself_takes_the_mean_of_every_turn_that_follows() -> None:
    """verl issue 7244: going on is charged the means of the turns to come, which is all that they earn."""
    truth, natural = true_gradient(), expected_gradient(centred_by_exact_means)
    means = exact_means()
    for turn in range(3):
        following = sum(
            prod(GO_ON[turn + 1 : later]) * means[later] for later in range(turn + 1, 3)
        )  # what is expected after going on
        bias = natural[turn] - truth[turn]
        assert bias == pytest.approx(-prod(GO_ON[:turn]) * following, abs=1e-12)
    # In both turns in which going on pays later, the policy learns to stop.
    assert [g > 0 for g in truth] == [True, True, True]
    assert [g > 0 for g in natural] == [False, False, True]
    assert [g > 0 for g in expected_gradient(centred_by_turn)] == [False, False, True], "in a group of three"


def test_turn_rloo_by_hand() -> None:
    """GROUPS' first: returns from each turn on are (1, 1), (0), (.75, .5, .5)."""
    batch = conversations(GROUPS)
    actual = advantages("turn_rloo", batch)
    by_turn = [
        [1 - (0 + 0.75) / 2, 1 - 0.5],  # the second is one of two that have a second turn
        [0 - (1 + 0.75) / 2],
        [0.75 - (1 + 0) / 2, 0.5 - 1, 0.75 - (1 + 0) / 2],  # nobody else has a third: as a whole
    ]
    for row, per_turn in enumerate(by_turn):
        values = [per_turn[turn] for turn in turn_indices(batch)[row][batch.mask[row]].tolist()]
        assert actual[row][batch.mask[row]].tolist() == pytest.approx(values)
        assert not actual[row][~batch.mask[row]].any()


def test_turn_ppo_by_hand() -> None:
    """A turn is a step: neither its tokens nor the values within it count."""
    gamma, lam = 0.9, 0.7
    batch = conversations(GROUPS, with_values=True)
    estimate = parse_online({"name": "turn_ppo", "gamma": gamma, "lam": lam}).estimate(batch)
    assert batch.values is not None
    flat: list[float] = []
    rows = zip(batch.values.tolist(), (c for group in GROUPS for c in group), strict=True)
    for row, (values, turns) in enumerate(rows):
        lengths = [tokens for tokens, _ in turns]
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        worths = [*(values[start] for start in starts), 0.0]
        deltas = [r + gamma * worths[i + 1] - worths[i] for i, (_, r) in enumerate(turns)]
        by_turn = [
            sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(deltas)))
            for i in range(len(deltas))
        ]
        flat += [a for a, tokens in zip(by_turn, lengths, strict=True) for _ in range(tokens)]
        assert estimate.returns is not None
        assert estimate.return_weights is not None
        returns = [a + w for a, w in zip(by_turn, worths, strict=False)]
        assert estimate.returns[row][starts].tolist() == pytest.approx(returns, abs=1e-6)
        # each turn weighs the same, and the conversation as much as all its tokens
        weights = [0.0] * batch.mask.shape[1]
        for start in starts:
            weights[start] = sum(lengths) / len(lengths)
        assert estimate.return_weights[row].tolist() == pytest.approx(weights)
    advantage = torch.tensor(flat)
    z_scores = (advantage - advantage.mean()) / (advantage.var() + 1e-8).sqrt()
    torch.testing.assert_close(estimate.advantages[batch.mask], z_scores, atol=1e-5, rtol=1e-5)


def test_turn_ppo_is_ppo_where_every_turn_has_one_token() -> None:
    batch = conversations(((((1, 0.0), (1, 1.0)), ((1, 0.5),)),), with_values=True)
    options = {"gamma": 0.8, "lam": 0.6}
    by_turn = parse_online({"name": "turn_ppo", **options}).estimate(batch)
    by_token = parse_online({"name": "ppo", **options}).estimate(batch)
    torch.testing.assert_close(by_turn.advantages, by_token.advantages)
    torch.testing.assert_close(by_turn.returns, by_token.returns)
    assert by_turn.return_weights is not None
    assert by_turn.return_weights.tolist() == [[1.0, 1.0], [1.0, 0.0]]
