"""One game in progress: its state, by TextWorld's rules, and what the player reads, in our words.

What a compiled game would print is not available without its interpreter. Names, goals and recipes are
TextWorld's; the sentences about rooms, exits and possessions are those of `describe`. A command is one of the
possible ones, word for word; TextWorld's interpreter would also understand others and answer impossible ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from envs.builtin.textworld.upstream import import_textworld

if TYPE_CHECKING:
    from textworld.generator.game import Game
    from textworld.logic import Action, Proposition, Variable

DIRECTIONS = ("north", "east", "south", "west")
CONDITIONS = ("raw", "fried", "roasted", "grilled", "burned", "chopped", "sliced", "diced")
"""The conditions of food that are shown; food that is not cut is shown without a condition."""
COOKBOOK = "cookbook"


class Play:
    """A game in progress."""

    def __init__(self, game: "Game", *, goal: str) -> None:
        """`game` is not changed."""
        import_textworld()
        from textworld.generator.game import GameProgression
        from textworld.generator.inform7 import Inform7Game

        self.goal = goal
        self._game = game
        self._inform7 = Inform7Game(game)
        self._progression = GameProgression(game)
        self.commands: Mapping[str, Action] = {}
        """The possible commands, in order, and TextWorld's action of each."""
        self._update_commands()

    @property
    def is_won(self) -> bool:
        """Whether the goal is reached."""
        return bool(self._progression.completed)

    @property
    def is_lost(self) -> bool:
        """Whether it can no longer be reached."""
        return bool(self._progression.failed)

    @property
    def score(self) -> float:
        """Share of the game's points that the player has, from 0 to 1."""
        return float(self._progression.score / self._game.max_score)

    @property
    def facts(self) -> list[str]:
        """The state of the world, sorted."""
        return sorted(map(str, self._progression.state.facts))

    @property
    def quests(self) -> list[tuple[bool, bool, bool]]:
        """Whether each quest is completed, failed, or out of reach, which facts alone do not tell."""
        quests = self._progression.quest_progressions
        return [(quest.completed, quest.failed, quest.unfinishable) for quest in quests]

    @property
    def listed_commands(self) -> list[str]:
        """The possible commands without those whose answer every observation has."""
        return [
            c for c in self.commands if not c.startswith(("look", "inventory", "examine ")) or COOKBOOK in c
        ]

    def act(self, command: str) -> str:
        """Carry out one of `commands`; returns its answer, one line or the text that is read."""
        self._progression.update(self.commands[command])
        self._update_commands()
        verb, _, thing = command.partition(" ")
        if verb == "examine":
            infos = (i for i in self._game.infos.values() if i.name == thing)
            text = next((i.desc for i in infos if i.name == COOKBOOK), "")
            return text.strip() if text else f"You see nothing special about the {thing}."
        return "" if verb in ("look", "inventory") else f"You {command}."

    def describe(self) -> str:
        """What the player sees and carries."""
        return describe(self._progression.state.facts, self._game)

    def _update_commands(self) -> None:
        actions = [a for a in self._progression.valid_actions if self._is_possible(a)]
        pairs = zip(self._inform7.gen_commands_from_actions(actions), actions, strict=True)
        self.commands = dict(sorted(pairs, key=lambda pair: (pair[0], str(pair[1]))))  # they come as a set

    def _is_possible(self, action: "Action") -> bool:
        """False for a meal that is not prepared as the recipe says.

        TextWorld's logic lets any first ingredients make the meal; its Inform 7 code (`meal.twl`, "Before
        preparing meal") checks all of them, and how each is cooked and cut.
        """
        if not action.name.startswith("make/recipe/"):
            return True
        facts = list(self._progression.state.facts)
        properties: dict[str, set[str]] = {}
        for fact in facts:
            properties.setdefault(fact.arguments[0].name, set()).add(fact.name)
        recipe = [f.arguments for f in facts if f.name == "base"]
        return action.name == f"make/recipe/{len(recipe)}" and all(
            _preparation(properties[food.name]) == _preparation(properties[ingredient.name])
            for food, ingredient in recipe
        )


def _preparation(properties: set[str]) -> tuple[str, str]:
    """How food is cooked and cut; `raw` and `uncut` are what is left without another word."""
    cooking = next((word for word in ("fried", "roasted", "grilled") if word in properties), "raw")
    return cooking, next((word for word in ("chopped", "sliced", "diced") if word in properties), "uncut")


def quest_commands(game: "Game") -> Sequence[str]:
    """The commands of the game's first quest, by which it was generated."""
    import_textworld()
    from textworld.generator.inform7 import Inform7Game

    commands: Sequence[str] = Inform7Game(game).gen_commands_from_actions(
        game.quests[0].win_events[0].actions
    )
    return commands


def describe(facts: "Iterable[Proposition]", game: "Game") -> str:
    """What the player sees and carries, in the state of `facts`."""
    scene = _Scene(facts, game)
    return "\n".join(
        [f"You are in the {scene.name(scene.room)}.", *scene.things(), scene.exits(), scene.load()]
    )


class _Scene:
    """The facts by what the player is near."""

    def __init__(self, facts: "Iterable[Proposition]", game: "Game") -> None:
        self._names = {key: info.name for key, info in game.infos.items()}
        self._types = game.kb.types
        self._properties: dict[str, set[str]] = {}
        self._contents: dict[str, list[Variable]] = {}
        self._ways: dict[str, Variable] = {}
        self._doors: dict[str, Variable] = {}
        facts = sorted(facts, key=str)
        self.room = next(f.arguments[1] for f in facts if f.name == "at" and f.arguments[0].type == "P")
        for fact in facts:
            first, *other_arguments = fact.arguments
            if not other_arguments:
                self._properties.setdefault(first.name, set()).add(fact.name)
            elif fact.name in ("at", "on", "in"):
                self._contents.setdefault(other_arguments[0].name, []).append(first)
            elif fact.name == "link" and first == self.room:
                self._doors[fact.arguments[2].name] = fact.arguments[1]
            elif fact.name.endswith("_of") and other_arguments[0] == self.room:
                self._ways[fact.name.removesuffix("_of")] = first

    def name(self, thing: "Variable") -> str:
        return str(self._names[thing.name])

    def things(self) -> list[str]:
        """A sentence for each piece of furniture, and one for what lies on the floor."""
        here = [thing for thing in self._contents.get(self.room.name, []) if thing.type != "P"]
        portable = [thing for thing in here if self._is_portable(thing)]
        sentences = [self._furniture(thing) for thing in here if thing not in portable]
        return sentences + ([f"On the floor: {self._list(portable)}."] if portable else [])

    def exits(self) -> str:
        ways = []
        for direction in DIRECTIONS:
            if direction in self._ways:
                door = self._doors.get(self._ways[direction].name)
                ways.append(
                    direction if door is None else f"{direction} ({self._state(door)} {self.name(door)})"
                )
        return f"Exits: {', '.join(ways) or 'none'}."

    def load(self) -> str:
        return f"You carry: {self._list(self._contents.get('I', [])) or 'nothing'}."

    def _furniture(self, thing: "Variable") -> str:
        name, contents = self.name(thing), self._list(self._contents.get(thing.name, []))
        state = self._state(thing)
        if state in ("closed", "locked"):
            return f"The {name} is {state}."
        if state == "open":
            return f"The {name} is open. In it: {contents or 'nothing'}."
        return f"On the {name}: {contents or 'nothing'}."

    def _list(self, things: Sequence["Variable"]) -> str:
        return ", ".join(sorted(map(self._portable_name, things)))

    def _portable_name(self, thing: "Variable") -> str:
        properties = self._properties.get(thing.name, ()) if thing.type == "f" else ()
        conditions = [condition for condition in CONDITIONS if condition in properties]
        return f"{self.name(thing)} ({', '.join(conditions)})" if conditions else self.name(thing)

    def _state(self, thing: "Variable") -> str:
        states = self._properties.get(thing.name, set())
        return next((state for state in ("open", "closed", "locked") if state in states), "")

    def _is_portable(self, thing: "Variable") -> bool:
        return thing.type == "o" or bool(self._types.is_descendant_of(thing.type, ["o"]))
