"""Advantages of turns by the states in which they were taken: by hand, and beside plain formulas."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import pytest

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from tasks.verl.config import check_pipeline
from tests.support.algorithms import parse_online
from tests.support.turn_indices import turn_indices
from tests.support.verl_toy import register, toy_pipeline

torch = pytest.importorskip("torch")

from tasks.algorithms.conversations import Conversations, turn_scores_of  # noqa: E402
from tasks.verl.rows import trainable  # noqa: E402


@dataclass(frozen=True)
class Step:
    """One turn: the state in which it was taken, sampled tokens, reward."""

    state: str | None
    tokens: int = 1
    reward: float = 0.0


@dataclass(frozen=True)
class TurnChain:
    steps: Sequence[Step]
    final_state: str | None = None
    success: bool = False


SUCCESS = TurnChain([Step("A", 2), Step("B", 3, 1.0)], success=True)
TIMED_OUT = TurnChain([Step("A"), Step("A", 2), Step("C")], final_state="D")
DETOUR = TurnChain([Step("A"), Step("B"), Step("A"), Step("B", 2, 1.0)], success=True)
GROUP = (SUCCESS, TIMED_OUT, DETOUR)


def test_gigpo_by_hand() -> None:
    """With γ ½, the returns in A are ½, 0, 0, ⅛, ½, in B 1, ¼, 1; C was met once."""
    options = {"name": "gigpo", "gamma": 0.5, "step_weight": 2.0, "normalize_by_std": False}
    mean_a, mean_b = 0.225, 0.75
    winning_group, losing_chains = 1 / 3, -2 / 3
    values_by_hand = [
        [winning_group + 2 * (0.5 - mean_a), winning_group + 2 * (1 - mean_b)],
        [losing_chains - 2 * mean_a, losing_chains - 2 * mean_a, losing_chains],
        [
            winning_group + 2 * (x - mean)
            for x, mean in ((0.125, mean_a), (0.25, mean_b), (0.5, mean_a), (1, mean_b))
        ],
    ]
    assert_turns(options, [GROUP], [values_by_hand])


def test_graphgpo_by_hand() -> None:
    """B is one turn from the goal, A two, and from C and D no way is known: they count as three. With ω ½, a
    turn to the goal is worth 10, to B 5, to A 2.5, to C or D 1.25."""
    options = {"name": "graphgpo", "distance_discount": 0.5, "episode_weight": 0.0, "normalize_by_std": False}
    mean_a, mean_b = (5 + 2.5 + 1.25 + 5 + 5) / 5, (10 + 2.5 + 10) / 3
    values_by_hand = [
        [5 - mean_a, 10 - mean_b],
        [2.5 - mean_a, 1.25 - mean_a, 0.0],
        [5 - mean_a, 2.5 - mean_b, 5 - mean_a, 10 - mean_b],
    ]
    assert_turns(options, [GROUP], [values_by_hand])


def test_a_lost_episode_is_paid_for_the_turns_that_came_nearer() -> None:
    """It went from A to B, from where another won."""
    near_miss = TurnChain([Step("A"), Step("B"), Step("E")])
    group = (SUCCESS, near_miss, TurnChain([Step("A"), Step("A")], final_state="A"))
    values = turn_values({"name": "graphgpo", "episode_weight": 0.0}, [group])[0]
    assert values[1][0] == values[0][0] > 0 > values[2][0]
    assert values[1][1] < 0 < values[0][1]


def test_a_group_without_a_goal_has_no_graph_and_equal_returns_have_no_advantage() -> None:
    losing_chains = [TurnChain([Step("A"), Step("B")], final_state=state) for state in ("A", "C", "B")]
    for name in ("gigpo", "graphgpo"):
        assert not any(x for values in turn_values(name, [losing_chains])[0] for x in values)
    # 0.1 three times: their mean is not 0.1
    same = [TurnChain([Step("A", 1, 0.1)], final_state="B")] * 3
    for by_std in (False, True):
        values = turn_values({"name": "gigpo", "normalize_by_std": by_std}, [same])[0]
        assert values == [[0.0]] * 3


def test_equal_rewards_may_be_due_at_different_turns() -> None:
    """Both won: the shorter way is better, by the returns in A, and by the graph."""
    slow = TurnChain([Step("A"), Step("A"), Step("B", 1, 1.0)], success=True)
    for name in ("gigpo", "graphgpo"):
        fast, late = turn_values(name, [(SUCCESS, slow)])[0]
        assert fast[0] > 0 > late[0]


def test_groups_are_left_out_only_if_nothing_can_be_learnt() -> None:
    train = toy_pipeline(Path("m"), train__algorithm="gigpo").train
    graph = toy_pipeline(Path("m"), train__algorithm="graphgpo").train
    grpo = toy_pipeline(Path("m")).train
    winning_group = [trajectory_of(SUCCESS, group=0, sample_index=i) for i in range(2)]
    losing_chains = [trajectory_of(TIMED_OUT, group=0, sample_index=i) for i in range(2)]
    partly = [
        trajectory_of(TurnChain([Step("A", 1, 0.5)], final_state="B"), group=0, sample_index=i)
        for i in range(2)
    ]
    counts = {
        key: [
            len(trainable(group, settings, context_length=100))
            for group in (winning_group, losing_chains, partly)
        ]
        for key, settings in {"gigpo": train, "graphgpo": graph, "grpo": grpo}.items()
    }
    assert counts == {"gigpo": [2, 0, 2], "graphgpo": [2, 0, 0], "grpo": [0, 0, 0]}


def test_a_summary_is_compared_with_nothing_and_leads_to_where_it_was_made() -> None:
    short_chain = TurnChain([Step("A"), Step("B", 1, 1.0)], success=True)
    summing_up = TurnChain([Step("A"), Step(None, 3), Step("B", 1, 1.0)], success=True)
    group = (short_chain, summing_up, TIMED_OUT)
    values = turn_values({"name": "graphgpo", "episode_weight": 0.0}, [group])[0]
    assert values[1] == [values[0][0], 0.0, values[0][1]]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("normalize_by_std", [False, True])
@pytest.mark.parametrize("name", ["gigpo", "graphgpo"])
def test_estimators_agree_with_the_formulas_written_plainly(
    name: str, normalize_by_std: bool, seed: int
) -> None:
    """On groups of unequal size, episodes of unequal length, revisits, dead ends, and summaries."""
    rng = random.Random(seed)
    groups = [[wander(rng) for _ in range(rng.randint(2, 7))] for _ in range(5)]
    reference = {"gigpo": gigpo, "graphgpo": graphgpo}[name]
    values_by_hand = [reference(group, normalize_by_std=normalize_by_std) for group in groups]
    assert_turns({"name": name, "normalize_by_std": normalize_by_std}, groups, values_by_hand)


def test_a_turn_has_its_advantage_in_its_own_segment(verl: ModuleType) -> None:
    """Each turn after the first begins a new segment: a row for the trainer."""
    from tests.support.verl_update import step_data

    group = [trajectory_of(turn_chain, group=0, sample_index=i) for i, turn_chain in enumerate(GROUP)]
    cut = [
        replace(t, turns=(t.turns[0], *(replace(turn, prompt_ids=(1, 2, 3)) for turn in t.turns[1:])))
        for t in group
    ]
    pipeline = toy_pipeline(Path("m"), train__algorithm="gigpo")
    rows = step_data(pipeline, [cut])["advantages"].unbind()
    values_by_hand = [value for values in turn_values("gigpo", [GROUP])[0] for value in values]
    assert len(rows) == len(values_by_hand) == 9
    for row, value in zip(rows, values_by_hand, strict=True):
        assert row.tolist() == pytest.approx([value] * len(row), abs=1e-6)


def test_penalties_on_tokens_belong_to_their_turns() -> None:
    """As those of a KL in the reward."""
    batch = conversations([GROUP])
    noise = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0)) * batch.mask
    of_turn = turn_indices(batch)
    actual = parse_online("gigpo").estimate(replace(batch, kl_penalty=noise)).advantages
    with_penalty = [
        replace(
            turn_chain,
            steps=[
                replace(step, reward=step.reward - float(noise[row][of_turn[row] == i][: step.tokens].sum()))
                for i, step in enumerate(turn_chain.steps)
            ],
        )
        for row, turn_chain in enumerate(GROUP)
    ]
    values_by_hand = parse_online("gigpo").estimate(conversations([with_penalty])).advantages
    torch.testing.assert_close(actual, values_by_hand, atol=1e-5, rtol=1e-4)


def test_a_conversation_without_any_state_is_refused_when_it_comes_to_that() -> None:
    """A server of an earlier version sends none."""
    batch = conversations([(SUCCESS, TurnChain([Step(None), Step(None)]))])
    with pytest.raises(WingspanError, match="graphgpo: x_0, sample 1, has no states; give x a state_key"):
        parse_online("graphgpo").estimate(batch)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({}, "gigpo compares turns of the same state; parity has none"),
        ({"data": {"parts": {"textcraft": {}, "parity": {}}}}, "parity has none"),
        ({"agent": {"program": "a.b:c"}}, "those of agent.program a.b:c have none"),
        (
            {
                "data": {"parts": {"textcraft": {}}},
                "servers": {"textcraft": {"urls": ["http://h:1"], "protocol": "agentgym"}},
            },
            "servers.textcraft.protocol agentgym cannot carry any; use protocol: wingspan",
        ),
    ],
)
def test_environments_without_states_are_refused_before_anything_starts(
    overrides: dict[str, Any], message: str
) -> None:
    register()
    with pytest.raises(ConfigError) as error:
        check_pipeline(toy_pipeline(Path("m"), train__algorithm="gigpo", **overrides))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_environments_with_states_are_not() -> None:
    for servers in ({}, {"textcraft": {"urls": ["http://h:1"]}}):
        parts: dict[str, Any] = {"parts": {"textcraft": {}, "babyai": {}}}
        check_pipeline(toy_pipeline(Path("m"), train__algorithm="gigpo", data=parts, servers=servers))


def gigpo(group: Sequence[TurnChain], *, normalize_by_std: bool) -> list[list[float]]:
    """arXiv 2505.10978, equations 3 to 8, with γ 0.95 and ω 1."""
    returns: list[list[float]] = []
    for turn_chain in group:
        rewards = [step.reward for step in turn_chain.steps]
        returns.append(
            [sum(0.95**k * r for k, r in enumerate(rewards[position:])) for position in range(len(rewards))]
        )
    return joint(group, returns, normalize_by_std=normalize_by_std)


def graphgpo(group: Sequence[TurnChain], *, normalize_by_std: bool) -> list[list[float]]:
    """arXiv 2605.26684, with ω 0.1; distances by relaxing every edge as often as there are edges."""
    edges: list[tuple[str, str]] = []
    ends: list[list[str]] = []
    for number, turn_chain in enumerate(group):
        states = [step.state for step in turn_chain.steps]
        row = []
        for position, state in enumerate(states):
            later = [s for s in states[position + 1 :] if s is not None]
            last = "goal" if turn_chain.success else turn_chain.final_state or f"dead end {number}"
            row.append(later[0] if later else last)
            if state is not None:
                edges.append((state, row[-1]))
        ends.append(row)
    distance = {"goal": 0}
    for _ in edges:
        for source, target in edges:
            if target in distance:
                distance[source] = min(distance.get(source, distance[target] + 1), distance[target] + 1)
    known_distances = [distance[node] for edge in edges for node in edge if node in distance]
    unknown = max(known_distances, default=0) + 1
    worth = [[10 * 0.1 ** distance.get(end, unknown) for end in row] for row in ends]
    return joint(group, worth, normalize_by_std=normalize_by_std)


def joint(
    group: Sequence[TurnChain], values: Sequence[Sequence[float]], *, normalize_by_std: bool
) -> list[list[float]]:
    scores = [sum(step.reward for step in turn_chain.steps) for turn_chain in group]
    by_state: defaultdict[str, list[float]] = defaultdict(list)
    for turn_chain, row in zip(group, values, strict=True):
        for step, value in zip(turn_chain.steps, row, strict=True):
            if step.state is not None:
                by_state[step.state].append(value)

    def relative(value: float, group_values: Sequence[float]) -> float:
        if len(set(group_values)) < 2:
            return 0.0
        difference = value - fmean(group_values)
        return difference / (stdev(group_values) + 1e-6) if normalize_by_std else difference

    return [
        [
            relative(score, scores) + (0.0 if step.state is None else relative(value, by_state[step.state]))
            for step, value in zip(turn_chain.steps, row, strict=True)
        ]
        for turn_chain, row, score in zip(group, values, scores, strict=True)
    ]


def wander(rng: random.Random) -> TurnChain:
    """A walk over six states, some of them summaries."""
    steps = [
        Step(None if position and rng.random() < 0.1 else rng.choice("ABCDEF"), rng.randint(1, 4))
        for position in range(rng.randint(1, 9))
    ]
    if rng.random() < 0.4:
        steps[-1] = replace(steps[-1], reward=1.0)
        return TurnChain(steps, success=True)
    if rng.random() < 0.3:
        steps[0] = replace(steps[0], reward=0.25)
    return TurnChain(steps, final_state=rng.choice([None, *"ABCDEFG"]))


def assert_turns(algorithm: Any, groups: Sequence[Sequence[TurnChain]], values_by_hand: Any) -> None:
    """Every token of a turn has the turn's advantage; padding has none."""
    batch = conversations(groups)
    actual = parse_online(algorithm).estimate(batch).advantages
    rows = [row for group in values_by_hand for row in group]
    turn_chains = [turn_chain for group in groups for turn_chain in group]
    by_hand = torch.zeros(batch.mask.shape)
    for number, (turn_chain, row) in enumerate(zip(turn_chains, rows, strict=True)):
        tokens = [x for step, x in zip(turn_chain.steps, row, strict=True) for _ in range(step.tokens)]
        by_hand[number, : len(tokens)] = torch.tensor(tokens)
    torch.testing.assert_close(actual, by_hand, atol=1e-5, rtol=1e-4)


def turn_values(algorithm: Any, groups: Sequence[Sequence[TurnChain]]) -> list[list[list[float]]]:
    """By group, conversation and turn."""
    rows = iter(parse_online(algorithm).estimate(conversations(groups)).advantages.tolist())
    result = []
    for group in groups:
        values: list[Any] = []
        for turn_chain in group:
            row, position = next(rows), 0
            values.append([])
            for step in turn_chain.steps:
                values[-1].append(row[position])
                position += step.tokens
        result.append(values)
    return result


def conversations(groups: Sequence[Sequence[TurnChain]]) -> Conversations:
    trajectories = [
        trajectory_of(turn_chain, group=number, sample_index=i)
        for number, group in enumerate(groups)
        for i, turn_chain in enumerate(group)
    ]
    lengths = torch.tensor([sum(len(turn.completion.token_ids) for turn in t.turns) for t in trajectories])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    return Conversations(
        trajectories=trajectories,
        group=torch.tensor([t.item.index for t in trajectories]),
        mask=mask,
        turn_scores=turn_scores_of(trajectories),
        old_log_probs=torch.zeros(mask.shape),
        num_played=len(trajectories),
    )


def trajectory_of(turn_chain: TurnChain, *, group: int, sample_index: int) -> Trajectory:
    def turn(step: Step) -> Turn:
        completion = Completion(
            token_ids=(7,) * step.tokens,
            logprobs=(-1.0,) * step.tokens,
            finish_reason=FinishReason.STOP,
            policy_version=0,
        )
        return Turn(
            completion=completion, text="", action="", observation="", reward=step.reward, state=step.state
        )

    return Trajectory(
        item=Item(item_id=f"x_{group}", env="x"),
        sample_index=sample_index,
        prompt_ids=(1, 2),
        turns=tuple(map(turn, turn_chain.steps)),
        stop_reason=StopReason.TERMINATED if turn_chain.success else StopReason.MAX_TURNS,
        reward=sum(step.reward for step in turn_chain.steps),
        success=turn_chain.success,
        seconds=0.0,
        final_state=turn_chain.final_state,
    )
