"""Generates the files of `webshop-mini`: a shop in upstream's formats, the same bytes on every machine.

Products come in families of four: two that differ in one respect (an attribute, the material, or the values
of an option), and a copy of each that costs more than the instruction for the cheap one allows. All four have
different brands. Each product has one instruction by a "human" and one by upstream's scheme. To suit a small
model, there are few words (`words.py`) and prices, a title ends with the brand, which is unique in the
family, and an asin has four characters.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envs.builtin.webshop.catalogue import PATH_SIGN
from envs.builtin.webshop.mini.words import BRANDS, COLOURS, DEPARTMENTS, SIZES, Department

SEED = "webshop-mini/2"
FAMILIES = 250
PRICES = (15, 25, 35, 45, 55)
"""Dollars."""
SURCHARGE = 40
"""Dollars; raises the price above the highest limit that can be drawn for the cheaper product."""

_LEADS = ("i am looking for", "i need", "find me", "i want to buy", "please get me", "we want")
_COLOUR_WORDS = (" in {}", ", color {}", ", the {} one")
_SIZE_WORDS = (", size {}", " in size {}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A product without its asin."""

    department: Department
    brand: str
    noun: str
    material: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: int


def write(folder: Path) -> None:
    """Write the three files into `folder`."""
    rng = random.Random(SEED)
    drafts = [draft for _ in range(FAMILIES) for draft in _family(rng)]
    numbers = rng.sample(range(len(drafts)), len(drafts))
    numbered_drafts = [(f"B{number:03d}", draft) for number, draft in zip(numbers, drafts, strict=True)]
    rng.shuffle(numbered_drafts)
    files: dict[str, object] = {
        "items_shuffle_1000.json": [_item(asin, draft) for asin, draft in numbered_drafts],
        "items_ins_v2_1000.json": {asin: _attributes(draft) for asin, draft in numbered_drafts},
        "items_human_ins.json": {asin: [_human(asin, draft, rng)] for asin, draft in numbered_drafts},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _family(rng: random.Random) -> list[Draft]:
    department = rng.choice(DEPARTMENTS)
    brands = rng.sample(BRANDS, 4)
    first = Draft(
        department=department,
        brand=brands[0],
        noun=rng.choice(department.nouns),
        material=rng.choice(department.materials),
        attributes=tuple(rng.sample(department.attributes, 2)),
        options={
            name: SIZES if name == "size" else tuple(rng.sample(COLOURS, 3)) for name in department.options
        },
        price=rng.choice(PRICES),
    )
    kept_attribute, changed_attribute = first.attributes
    new_attribute = _draw_except(department.attributes, (kept_attribute, changed_attribute), rng)
    variants = [
        replace(first, attributes=(kept_attribute, new_attribute)),
        replace(first, material=_draw_except(department.materials, (first.material,), rng)),
    ]
    if first.options:
        name = rng.choice(list(first.options))
        missing = rng.choice(first.options[name])
        fewer = tuple(value for value in first.options[name] if value != missing)
        variants.append(replace(first, options=first.options | {name: fewer}))
    cheap = [first, rng.choice(variants)]
    family = [*cheap, *(replace(draft, price=draft.price + SURCHARGE) for draft in cheap)]
    return [replace(draft, brand=brand) for draft, brand in zip(family, brands, strict=True)]


def _draw_except(words: Sequence[str], exceptions: Iterable[str], rng: random.Random) -> str:
    return rng.choice([word for word in words if word not in exceptions])


def _item(asin: str, draft: Draft) -> dict[str, object]:
    """An entry of upstream's `items_shuffle*.json`, with all its keys."""
    about = f"{draft.noun} {draft.department.made_of} {draft.material} by {draft.brand}"
    return {
        "name": " ".join([*draft.attributes, draft.material, draft.noun, "by", draft.brand]),
        "product_information": {},
        "brand": draft.brand,
        "brand_url": "",
        "full_description": f"{about}, {' and '.join(draft.attributes)}.",
        "pricing": f"${draft.price}.00",
        "list_price": "",
        "availability_quantity": None,
        "availability_status": "In Stock.",
        "images": [f"https://example.org/{asin}.jpg"],
        "product_category": f"{draft.department.path} {PATH_SIGN} {draft.noun.title()}",
        "average_rating": "",
        "small_description": [*draft.attributes, f"{draft.department.made_of} {draft.material}"],
        "total_reviews": "",
        "total_answered_questions": "",
        "model": asin,
        "customization_options": {
            name.title(): [
                {
                    "is_selected": False,
                    "is_available": True,
                    "value": value,
                    "price_string": "",
                    "image": None,
                }
                for value in values
            ]
            for name, values in draft.options.items()
        },
        "seller_id": "",
        "seller_name": draft.brand,
        "fulfilled_by_amazon": False,
        "fast_track_message": "",
        "aplus_present": "",
        "asin": asin,
        "category": draft.department.name,
        "query": draft.noun,
        "page": 1,
        "small_description_old": about,
    }


def _attributes(draft: Draft) -> dict[str, object]:
    """An entry of upstream's `items_ins_v2*.json`."""
    attributes = [*draft.attributes, draft.material]
    description = f"{', '.join(draft.attributes)} {draft.noun} {draft.department.made_of} {draft.material}"
    return {
        "attributes": attributes,
        "instruction": f"Find me {description}",
        "instruction_attributes": attributes,
    }


def _human(asin: str, draft: Draft, rng: random.Random) -> dict[str, object]:
    """An element of upstream's `items_human_ins.json`."""
    attributes = list(draft.attributes[: rng.choice((1, 2))])
    options = {name: rng.choice(values) for name, values in draft.options.items() if rng.random() < 0.8}
    description = rng.choice(
        (
            f"{' '.join(attributes)} {draft.material} {draft.noun}",
            f"{draft.material} {draft.noun}, {' and '.join(attributes)}",
            f"{draft.noun} {draft.department.made_of} {draft.material}, {' and '.join(attributes)}",
        )
    )
    for name, value in options.items():
        description += rng.choice(_SIZE_WORDS if name == "size" else _COLOUR_WORDS).format(value)
    return {
        "asin": asin,
        "instruction": f"{rng.choice(_LEADS)} {description}.",
        "attributes": [*draft.attributes, draft.material],
        "options": [f"{name}: {value}" for name, value in options.items()],
        "instruction_attributes": [*attributes, draft.material],
        "instruction_options": list(options.values()),
        "assignment_id": f"made-{asin}",
        "worker_id": "made",
    }
