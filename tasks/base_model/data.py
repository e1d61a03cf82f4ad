"""What the base model is trained on: invented games, played and recited, without end.

An *episode* is an expert's game, turn by turn, in every second one with mistakes that it mends. A
*drill* lists recipes once and asks for many of them, in the words of the expert's thought: the same
look-up, ten times as often per token. Loss falls on all that follows the opening, but not on mistakes
and not on the names that a drill asks for, which nothing could foretell.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from envs.builtin.textcraft.env import TextCraftEnv
from envs.builtin.textcraft.expert import ARMFUL, Line, Mistakes, Planner, command, expansion, parse, play
from envs.builtin.textcraft.invented import invent, invent_families, words
from envs.builtin.textcraft.world import Game
from envs.registry import ExpertStep

MAX_TURNS = 24
MAX_TOKENS = 1000
_MISREAD = 0.25
"""Share of the recipes that are read wrong, in a game where any is."""
_INSISTENCE = 0.4
"""How often what is refused is tried once more: a policy that repeats itself must learn to stop."""
_ALIKE = 0.8
"""Share of the families whose recipes differ in one word alone, where families are drilled."""
_DEPTHS, _DEPTH_WEIGHTS = (1, 2, 3, 4), (20, 42, 30, 8)


@dataclass(frozen=True, slots=True)
class Sequence:
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


def draw(
    encoder: Encoder, rng: random.Random, *, progress: float, misreads: float = 0.0, families: float = 0.0
) -> Sequence:
    """A sequence for the point `progress` (0..1) of training: drills and short lists come first.

    `misreads` is the share of the games in which the expert reads recipes wrong, too; `families` that of the
    drills of nothing but families.
    """
    distractors = rng.randint(0, 2 + int(13 * min(1.0, progress / 0.3)))
    if families and rng.random() < families:
        family = drill(invent_families(rng), encoder, rng)
        if len(family.ids) <= MAX_TOKENS:
            return family
    while True:
        depth = rng.choices(_DEPTHS, _DEPTH_WEIGHTS)[0]
        game = invent(rng, depth=depth, distractors=distractors, alike=_ALIKE if families else 0.0)
        drilled = rng.random() < max(0.15, 0.7 - 2 * progress)
        if drilled:
            sequence: Sequence | None = drill(game, encoder, rng)
        else:
            sequence = episode(game, encoder, rng, misreads=misreads)
        if sequence is not None and len(sequence.ids) <= MAX_TOKENS:
            return sequence


def episode(game: Game, encoder: Encoder, rng: random.Random, *, misreads: float = 0.0) -> Sequence | None:
    """An expert's game, in every second one with slips; None if it is too long."""
    slip = 0.12 if rng.random() < 0.5 else 0.0
    noise = 0.1 if slip and rng.random() < 0.5 else 0.0
    misread = _MISREAD if misreads and rng.random() < misreads else 0.0
    turns = play(
        game,
        Mistakes(
            slips=lambda: rng.random() < slip,
            misreads=lambda line: _misread(line, game, rng) if misread and rng.random() < misread else None,
            insists=lambda: rng.random() < _INSISTENCE,
        ),
    )
    if len(turns) > MAX_TURNS:
        return None
    env = TextCraftEnv()
    ids = [encoder.user, *encoder.text(env.start(game)), encoder.end, encoder.assistant]
    targets = [False] * len(ids)

    def turn(step: ExpertStep, *, right: bool) -> bool:
        action = step.resolve("")  # crafting needs no look
        words = [*encoder.text(f"Thought: {step.thought}\nAction: {action}"), encoder.end]
        result = env.act(action)
        ids.extend(words)
        targets.extend([right] * len(words))
        if not result.terminated:
            answer = [encoder.user, *encoder.text(result.observation), encoder.end, encoder.assistant]
            ids.extend(answer)
            targets.extend([False, *[True] * (len(answer) - 2), False])
        return result.terminated

    for played in turns:
        if noise and rng.random() < noise:
            turn(_useless(game, rng), right=False)
        if turn(played.step, right=played.right):
            break
    return Sequence(ids, targets)


def drill(game: Game, encoder: Encoder, rng: random.Random) -> Sequence:
    """Recipes, then for many names how each is made (`using … x 2`) or that it is taken (`get`)."""
    planner = Planner(game)
    ids = [
        encoder.user,
        *encoder.text(game.opening),
        encoder.end,
        encoder.assistant,
        *encoder.text("Thought:"),
    ]
    targets = [False] * len(ids)
    asked = list(planner.lines)
    raw = {i for lines in planner.lines.values() for line in lines for _, i in line.inputs} - set(asked)
    asked += rng.sample(sorted(raw), min(len(raw), len(asked) // 2 + 1))
    rng.shuffle(asked)
    for name in asked[:14]:
        if planner.concrete(name) != name:
            continue
        need = rng.choices((1, 2, 3, 4, 5, 6, 7, 8, 9), (38, 13, 13, 12, 3, 11, 2, 7, 3))[0]
        question = encoder.text(f" {need} {name}")
        if name in planner.lines:
            _, line = planner.choose(name, need, ())
            text = expansion(line, need=need, times=-(-need // line.count))
        else:
            text = f"{need} {name} get."
        answer = encoder.text(text.removeprefix(f"{need} {name}"))
        ids += question + answer
        targets += [False] * len(question) + [True] * len(answer)
    return Sequence(ids, targets)


def _misread(line: Line, game: Game, rng: random.Random) -> Line | None:
    """`line` with another ingredient, another word in one, or another count; None if that makes a recipe."""
    lines = [parse(text) for text in game.recipes]
    names = sorted({name for other in lines for _, name in other.inputs})
    place = rng.randrange(len(line.inputs))
    count, name = line.inputs[place]
    kind = rng.random()
    if kind < 0.4:
        kin = [other for other in names if set(other.split()) & set(name.split())]
        name = rng.choice(kin if rng.random() < 0.7 else names)
    elif kind < 0.8:
        parts = name.split()
        parts[rng.randrange(len(parts))] = rng.choice(
            rng.choice(names).split() if rng.random() < 0.5 else words()
        )
        name = " ".join(parts)
    else:
        count = rng.randint(1, 9)
    wrong = replace(line, inputs=(*line.inputs[:place], (count, name), *line.inputs[place + 1 :]))
    return None if wrong in lines or wrong == line else wrong


def _useless(game: Game, rng: random.Random) -> ExpertStep:
    planner = Planner(game)
    name = rng.choice(list(planner.lines))
    kind = rng.random()
    if kind < 0.5:
        return ExpertStep(thought=f"1 {name} get", action=f"get {ARMFUL} {name}")
    if kind < 0.75:
        return ExpertStep(thought="x 1", action="inventory")
    line = rng.choice(planner.lines[name])
    return ExpertStep(thought="x 1", action=command(line).replace(line.output, line.inputs[0][1], 1))
