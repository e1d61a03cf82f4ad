"""The training data of the base model: an endless stream of sequences about invented recipe books.

An *episode* is played by the expert, turn by turn; in half of them it makes mistakes and corrects them. A
*drill* lists recipes once and asks for many of them, in the words of the expert's thought: the same look-up,
ten times as often per token. The loss covers everything after the opening except mistakes and the names that
a drill asks for, which cannot be predicted.

A change of these numbers, or of the order in which random numbers are taken, gives another model.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from agents.agent import FormatAgent
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.rollout.scripted import TextConversation, write_action
from agents.types import UNLIMITED, StopReason
from envs.builtin.textcraft.env import TextCraftEnv
from envs.builtin.textcraft.expert import (
    ARMFUL,
    Mistakes,
    Planner,
    RecipeLine,
    command,
    expansion,
    naming,
    parse,
    play,
)
from envs.builtin.textcraft.invented import (
    ALIKE_SHARE,
    GROUPED_SHARE,
    MAX_INPUTS,
    TWINS_SHARE,
    invent,
    invent_families,
    invent_groups,
    invent_twins,
    words,
)
from envs.builtin.textcraft.world import Problem
from envs.registry import ExpertStep
from envs.types import Item
from tasks.config.base_model import BaseCycle

MAX_TURNS = 30
MAX_TOKENS = 1200
_ITEM = Item(item_id="textcraft_0", env="textcraft")
_CONFIG = EpisodeConfig(agent=FormatAgent("action"), limits=UNLIMITED)

# Recipe books
_DEPTHS, _DEPTH_WEIGHTS = (1, 2, 3, 4), (14, 38, 36, 12)
_MIN_DISTRACTORS, _MORE_DISTRACTORS = 2, 13
"""The most distractors (recipes that the goal does not need) at the start, and how many more later."""
_DISTRACTOR_RAMP = 0.3
"""The share of training after which a recipe book can have the most distractors."""
_FEW_GROUPED_SHARE = 0.4
"""Share of the goals two and more crafts deep whose book has a group, if groups are not drilled."""

# Drills and episodes
_DRILL_SHARE, _DRILL_DECAY, _MIN_DRILL_SHARE = 0.7, 2.0, 0.15
"""Share of drills among the sequences: at the start, its fall over training, and the least."""
_MISTAKES_SHARE = 0.5
"""Share of the episodes in which the expert makes slips."""
_SLIP_RATE = 0.12
_USELESS_SHARE, _USELESS_RATE = 0.5, 0.1
"""Share of the episodes with slips that also have useless actions, and their rate per turn."""
_MISREAD_RATE = 0.25
"""Share of the recipes that are read wrong, in an episode where any is."""
_SPLICE_SHARE = 0.6
"""Share of the misread recipes that go on as another one: the mistake that a trained policy still makes."""
_INSIST_RATE = 0.4
"""How often a refused action, or a misreading, is tried once more: a policy that repeats itself must learn to
stop."""
_QUESTIONS = 14
"""The most names that a drill asks for."""
_GROUP_QUESTIONS = 8
"""The most recipes that a drill of groups asks for."""
_RETURN_SHARE = 0.4
"""Share of a drill's recipes of which it also asks how they go on after one of their ingredients."""
_NEEDS, _NEED_WEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 9), (38, 13, 13, 12, 3, 11, 2, 7, 3)
"""How many of an item a drill asks for."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One training sequence; `targets[i]` says whether `ids[i]` is to be predicted."""

    ids: list[int]  # [L]
    targets: list[bool]  # [L]


@dataclass(frozen=True, slots=True)
class Encoder:
    """Text and the chat template's special tokens as ids."""

    text: Callable[[str], list[int]]
    user: int
    assistant: int
    end: int


_MakeDrill = Callable[[Problem, Encoder, random.Random], TrainingSequence]


def sample_sequence(
    encoder: Encoder, rng: random.Random, *, progress: float, cycle: BaseCycle
) -> TrainingSequence:
    """Sample a sequence for the point `progress` (0..1) of training; drills and short books come first."""
    ramp = min(1.0, progress / _DISTRACTOR_RAMP)
    distractors = rng.randint(0, _MIN_DISTRACTORS + int(_MORE_DISTRACTORS * ramp))
    drills: tuple[tuple[float, Callable[[random.Random], Problem], _MakeDrill], ...] = (
        (cycle.groups, invent_groups, make_group_drill),
        (cycle.families, invent_families, make_drill),
        (cycle.twins, invent_twins, make_drill),
    )
    for share, invent_problem, make in drills:
        if share and rng.random() < share:
            drill = make(invent_problem(rng), encoder, rng)
            if len(drill.ids) <= MAX_TOKENS:
                return drill
    while True:
        depth = rng.choices(_DEPTHS, _DEPTH_WEIGHTS)[0]
        game = invent(
            rng,
            depth=depth,
            distractors=distractors,
            alike_share=ALIKE_SHARE if cycle.families else 0.0,
            grouped_share=GROUPED_SHARE if cycle.groups else _FEW_GROUPED_SHARE,
            twins_share=TWINS_SHARE if cycle.twins else 0.0,
        )
        if rng.random() < max(_MIN_DRILL_SHARE, _DRILL_SHARE - _DRILL_DECAY * progress):
            sequence: TrainingSequence | None = make_drill(game, encoder, rng)
        else:
            sequence = make_episode(game, encoder, rng, misreads=cycle.misreads)
        if sequence is not None and len(sequence.ids) <= MAX_TOKENS:
            return sequence


def make_episode(
    game: Problem, encoder: Encoder, rng: random.Random, *, misreads: float = 0.0
) -> TrainingSequence | None:
    """An episode of the expert, in half of the cases with slips; None if it is too long."""
    slip_rate = _SLIP_RATE if rng.random() < _MISTAKES_SHARE else 0.0
    useless_rate = _USELESS_RATE if slip_rate and rng.random() < _USELESS_SHARE else 0.0
    misread_rate = _MISREAD_RATE if misreads and rng.random() < misreads else 0.0
    turns = play(
        game,
        Mistakes(
            slips=lambda: rng.random() < slip_rate,
            misreads=lambda line: (
                _misread(line, game, rng) if misread_rate and rng.random() < misread_rate else None
            ),
            insists=lambda: rng.random() < _INSIST_RATE,
        ),
    )
    if len(turns) > MAX_TURNS:
        return None
    are_targets: list[bool] = []

    def write(step: ExpertStep, *, is_target: bool) -> str:
        are_targets.append(is_target)
        action = step.resolve("")  # crafting needs no observation
        return write_action(_CONFIG.agent, None, thought=step.thought, action=action)

    def write_turns() -> Iterator[str]:
        for turn in turns:
            if useless_rate and rng.random() < useless_rate:
                yield write(_useless_step(game, rng), is_target=False)
            yield write(turn.step, is_target=turn.is_correct)

    texts = write_turns()

    async def next_text(turn: int) -> str | None:
        return next(texts, None)

    conversation = TextConversation(next_text)
    trajectory = _runner().run(
        run_episode(_InventedEnv(game), _ITEM, sample_index=0, conversation=conversation, config=_CONFIG)
    )
    ids = [encoder.user, *encoder.text(game.opening), encoder.end, encoder.assistant]
    targets = [False] * len(ids)
    for turn, is_target in zip(trajectory.turns, are_targets, strict=True):
        text = [*encoder.text(turn.text), encoder.end]
        ids += text
        targets += [is_target] * len(text)
        if turn is not trajectory.turns[-1] or trajectory.stop_reason is not StopReason.TERMINATED:
            reply = [encoder.user, *encoder.text(turn.observation), encoder.end, encoder.assistant]
            ids += reply
            targets += [False, *[True] * (len(reply) - 2), False]
    return TrainingSequence(ids, targets)


@cache
def _runner() -> asyncio.Runner:
    """One event loop for all episodes of a process: a new one each time would cost as much as an episode."""
    return asyncio.Runner()


class _InventedEnv(TextCraftEnv):
    """Plays an invented recipe book, whatever the item."""

    def __init__(self, game: Problem) -> None:
        super().__init__()
        self._problem = game

    async def reset(self, item: Item) -> str:
        return self.start(self._problem)


def make_drill(game: Problem, encoder: Encoder, rng: random.Random) -> TrainingSequence:
    """Recipes, then many names, each with how it is crafted (`using … x 2`) or that one gets it (`get`)."""
    planner = Planner(game)
    drill = _Drill(game, encoder)
    names = list(planner.lines)
    raw = {i for lines in planner.lines.values() for line in lines for _, i in line.inputs} - set(names)
    names += rng.sample(sorted(raw), min(len(raw), len(names) // 2 + 1))
    rng.shuffle(names)
    for name in names[:_QUESTIONS]:
        if planner.resolve_group(name) != name:
            continue
        need = rng.choices(_NEEDS, _NEED_WEIGHTS)[0]
        if name not in planner.lines:
            drill.ask(f" {need} {name}", " get.")
            continue
        line = planner.choose(name, need)
        times = -(-need // line.count)
        text = expansion(line, need=need, times=times)
        drill.ask(f" {need} {name}", text.removeprefix(f"{need} {name}"))
        if rng.random() < _RETURN_SHARE:
            index = rng.randrange(len(line.inputs))
            drill.end_turn(is_target=False)
            after = line.inputs[index + 1 :]
            text = f", {times * after[0][0]} {after[0][1]}" if after else f" x {times}"
            drill.ask(f" {name} using {line.inputs[index][1]}", text)
            drill.end_turn(is_target=False)
    return drill.sequence


def make_group_drill(game: Problem, encoder: Encoder, rng: random.Random) -> TrainingSequence:
    """Recipes, then all that need a group: the recipe, the group's member, and the command that names it."""
    planner = Planner(game)
    drill = _Drill(game, encoder)
    lines = [
        (line, planner.resolve_groups(line))
        for line in (planner.choose(name, 1) for name in planner.lines)
        if planner.resolve_groups(line) != line
    ]
    rng.shuffle(lines)
    for line, resolved in lines[:_GROUP_QUESTIONS]:
        times = rng.choices(_NEEDS, _NEED_WEIGHTS)[0]
        need = times * line.count
        drill.ask(
            f" {need} {line.output}",
            expansion(line, need=need, times=times).removeprefix(f"{need} {line.output}"),
        )
        for (count, group), (_, member) in zip(line.inputs, resolved.inputs, strict=True):
            if group != member:
                text = naming(group, planner.choose(member, times * count), need=times * count)
                drill.ask(f" {times * count} {group}", text.removeprefix(f"{times * count} {group}"))
        drill.end_turn(is_target=False)
        drill.ask(f" {line.output} using {line.inputs[-1][1]}", f" x {times}\nAction: {command(resolved)}")
        drill.end_turn(is_target=True)
    return drill.sequence


class _Drill:
    """A sequence of questions, which are not to be predicted, and answers, which are."""

    def __init__(self, game: Problem, encoder: Encoder) -> None:
        self._encoder = encoder
        ids = [encoder.user, *encoder.text(game.opening), encoder.end]
        self.sequence = TrainingSequence(ids, [False] * len(ids))
        self._begin_turn()

    def ask(self, question: str, answer: str) -> None:
        self._add(self._encoder.text(question), is_target=False)
        self._add(self._encoder.text(answer), is_target=True)

    def end_turn(self, *, is_target: bool) -> None:
        self._add([self._encoder.end], is_target=is_target)
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._add([self._encoder.assistant, *self._encoder.text("Thought:")], is_target=False)

    def _add(self, ids: list[int], *, is_target: bool) -> None:
        self.sequence.ids.extend(ids)
        self.sequence.targets.extend([is_target] * len(ids))


def _misread(line: RecipeLine, game: Problem, rng: random.Random) -> RecipeLine | None:
    """`line` with another ingredient, another word, another count, or what follows in another recipe; None if
    that is a recipe as well."""
    lines = [parse(text) for text in game.recipes]
    if rng.random() < _SPLICE_SHARE:
        return _splice(line, lines, rng)
    names = sorted({name for recipe in lines for _, name in recipe.inputs})
    index = rng.randrange(len(line.inputs))
    count, name = line.inputs[index]
    kind = rng.random()
    if kind < 0.4:
        similar = [candidate for candidate in names if set(candidate.split()) & set(name.split())]
        name = rng.choice(similar if rng.random() < 0.7 else names)
    elif kind < 0.8:
        parts = name.split()
        parts[rng.randrange(len(parts))] = rng.choice(
            rng.choice(names).split() if rng.random() < 0.5 else words()
        )
        name = " ".join(parts)
    else:
        count = rng.randint(1, 9)
    misread = replace(line, inputs=(*line.inputs[:index], (count, name), *line.inputs[index + 1 :]))
    return None if misread in lines or misread == line else misread


def _splice(line: RecipeLine, lines: list[RecipeLine], rng: random.Random) -> RecipeLine | None:
    """`line` as another recipe goes on: from an ingredient on whose name has the same first word, or from the
    start if the products' names share a word; None if there is no such recipe."""
    spliced = {
        (*line.inputs[:index], *other.inputs[other_index:])
        for other in lines
        if other.output != line.output
        for index, (_, name) in enumerate(line.inputs)
        for other_index, (_, other_name) in enumerate(other.inputs)
        if name.split()[0] == other_name.split()[0]
    }
    words_of_line = set(line.output.split())
    spliced |= {other.inputs for other in lines if words_of_line & set(other.output.split())}
    right = {frozenset(name for _, name in other.inputs) for other in lines if other.output == line.output}
    choices = sorted(
        inputs
        for inputs in spliced
        if len({name for _, name in inputs}) == len(inputs) <= MAX_INPUTS
        and frozenset(name for _, name in inputs) not in right
        and line.output not in {name for _, name in inputs}
    )
    return replace(line, inputs=rng.choice(choices)) if choices else None


def _useless_step(game: Problem, rng: random.Random) -> ExpertStep:
    planner = Planner(game)
    name = rng.choice(list(planner.lines))
    kind = rng.random()
    if kind < 0.5:
        return ExpertStep(thought=f"1 {name} get", action=f"get {ARMFUL} {name}")
    if kind < 0.75:
        return ExpertStep(thought=f"{name} x 1", action="inventory")
    line = rng.choice(planner.lines[name])
    return ExpertStep(thought=f"{name} x 1", action=command(line).replace(line.output, line.inputs[0][1], 1))
