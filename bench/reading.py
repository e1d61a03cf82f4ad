"""How well a base model reads invented recipes: the look-ups that single words depend on.

    python -m bench.reading models/textcraft-base

For each number of siblings, of recipes that begin alike, or of members, the mean probability over `--prompts`
prompts of

- `family`: the word that tells a recipe from its siblings (`8 red glass using 8 glass, 1` → ` red`)
- `twin`: the word in which a recipe differs from those that begin alike (`oak sign using 6 oak planks` → `,`)
- `group`: that a group is noticed (`3 planks` → ` using`)
- `line`: the first word in which the members' lines differ, of any member (`3 planks using 1` → ` oak`)
- `member`: the first word of that line's member (`planks are` → ` oak`)
- `command`: the same word in the command (`craft bowl using 3` → ` oak`)

Prompts are drills of the base model's data (`tasks/base_model/data.py`) with a seed of their own.
"""

import argparse
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from statistics import fmean

import torch

from agents.huggingface.files import load_tokenizer
from agents.huggingface.models import AutoModelForCausalLM
from envs.builtin.textcraft.expert import Planner, RecipeLine, command, expansion, naming
from envs.builtin.textcraft.invented import invent_families, invent_groups, invent_twins
from envs.builtin.textcraft.world import Problem
from tasks.base_model.data import Encoder
from tasks.base_model.train import make_encoder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=300, help="for families, for twins and for groups")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    encoder = make_encoder(load_tokenizer(arguments.model))
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    print(f"{'look-up':<12}{'number':>8}{'prompts':>9}{'probability':>13}")
    for name, table in measure(model, encoder, prompts=arguments.prompts).items():
        for number, values in sorted(table.items()):
            print(f"{name:<12}{number:>8}{len(values):>9}{fmean(values):>13.3f}")


Tables = dict[str, dict[int, list[float]]]
"""Look-up → number of siblings, twins or members → probabilities."""


def measure(model: torch.nn.Module, encoder: Encoder, *, prompts: int) -> Tables:
    """The probabilities of the right words."""
    rng = random.Random("reading")
    tables: Tables = {
        name: defaultdict(list) for name in ("family", "twin", "group", "line", "member", "command")
    }
    for _ in range(prompts):
        measure_family(tables, _Reader(model, encoder, invent_families(rng)))
    for _ in range(prompts):
        measure_group(tables, _Reader(model, encoder, invent_groups(rng)))
    for _ in range(prompts):
        measure_twins(tables, _Reader(model, encoder, invent_twins(rng)))
    return tables


def measure_family(tables: Tables, reader: "_Reader") -> None:
    """Add the probability for the first recipe of a problem with families."""
    line = next(iter(reader.planner.lines.values()))[0]
    first, *kind = line.output.split()
    position = next((i for i, (_, name) in enumerate(line.inputs) if name.startswith(first + " ")), None)
    if position is None:
        return
    siblings = sum(output.split()[1:] == kind for output in reader.planner.lines) - 1
    text = f"Thought: {expansion(line, need=1, times=1)}"
    tables["family"][siblings].append(
        reader.probability(cut_before_ingredient(text, line, position), [f" {first}"])
    )


def measure_twins(tables: Tables, reader: "_Reader") -> None:
    """Add the probability of the first word in which the first recipe differs from those that begin alike."""
    line, *others = (line for lines in reader.planner.lines.values() for line in lines)
    start, pieces = _quote(line)
    shared = [_length_of_shared_prefix(pieces, _quote(other)[1]) for other in others]
    length = max(shared)
    if not 1 < length < len(pieces):  # a count alone, or all ingredients
        return
    ask = f"Thought: {start} using" + "".join(pieces[:length])
    tables["twin"][shared.count(length)].append(reader.probability(ask, [pieces[length]]))


def _quote(line: RecipeLine) -> tuple[str, list[str]]:
    """A thought's quotation of the line: what precedes ` using`, and the words and commas that follow it."""
    start, _, ingredients = expansion(line, need=line.count, times=1).partition(" using")
    return start, re.findall(r",| [^ ,]+", ingredients)


def _length_of_shared_prefix(first: list[str], second: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def measure_group(tables: Tables, reader: "_Reader") -> None:
    """Add the probabilities for the first recipe that needs a group."""
    planner = reader.planner
    choices = (planner.choose(name, 1) for name in planner.lines)
    line = next((line for line in choices if planner.resolve_groups(line) != line), None)
    if line is None:  # another recipe of the item, without a group, is cheaper
        return
    resolution = planner.resolve_groups(line)
    pairs = zip(line.inputs, resolution.inputs, strict=True)
    position = next(i for i, (quoted, named) in enumerate(pairs) if quoted != named)
    need, group = line.inputs[position]
    name = resolution.inputs[position][1]
    members = [output for output in planner.lines if output.endswith(f" {group}")]
    recipes = [planner.choose(member, need) for member in members]
    quotation = f"Thought: {expansion(line, need=line.count, times=1)}"
    text = f"{quotation} {naming(group, planner.choose(name, need), need=need)}"
    ask = f"{quotation} {need} {group}"
    tables["group"][len(members)].append(reader.probability(ask, [" using"]))
    ask += f" using {recipes[0].inputs[0][0]}"
    tables["line"][len(members)].append(
        reader.probability(ask, [f" {recipe.inputs[0][1].split()[0]}" for recipe in recipes])
    )
    first = name.split()[0]
    ask = text[: text.index(f" {name}.")]
    tables["member"][len(members)].append(reader.probability(ask, [f" {first}"]))
    ask = cut_before_ingredient(
        f"{line.output} using {line.inputs[-1][1]} x 1\nAction: {command(resolution)}", resolution, position
    )
    tables["command"][len(members)].append(reader.probability(text, [f" {first}"], then=f"Thought: {ask}"))


def cut_before_ingredient(text: str, line: RecipeLine, position: int) -> str:
    """`text`, which lists the ingredients of `line`, up to the count of ingredient `position`."""
    before = ", ".join(f"{count} {name}" for count, name in line.inputs[:position])
    start = text.rindex(" using ") + len(" using ")
    return text[:start] + (f"{before}, " if before else "") + str(line.inputs[position][0])


class _Reader:
    """What a model thinks of the first turns about a problem."""

    def __init__(self, model: torch.nn.Module, encoder: Encoder, problem: Problem) -> None:
        self._model, self._encoder = model, encoder
        self._opening = [encoder.user, *encoder.text(problem.opening), encoder.end]
        self.planner = Planner(problem)

    def probability(self, text: str, words: Iterable[str], then: str | None = None) -> float:
        """That one of `words`, a token each, follows `text`, or `then` in a turn after that of `text`."""
        encoder = self._encoder
        ids = [*self._opening, encoder.assistant, *encoder.text(text)]
        if then is not None:
            ids += [encoder.end, encoder.assistant, *encoder.text(then)]
        with torch.inference_mode():
            probabilities = self._model(torch.tensor([ids])).logits[0, -1].softmax(-1)
        return float(sum(probabilities[token] for token in {encoder.text(word)[0] for word in words}))


if __name__ == "__main__":
    main()
