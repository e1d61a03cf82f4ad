"""The products of a shop, out of upstream's files: `items_shuffle*.json` and `items_ins_v2*.json`.

What is kept of a product, and how options, prices and missing attributes are read, is upstream's
(`web_agent_site/engine/engine.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from sys import intern
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from envs.builtin.webshop.reading import Entry, elements, members
from envs.errors import ConfigError

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Upstream's, for a product without an entry among the attributes."""
DEFAULT_PRICE = 100.0
"""Dollars, for a product without a price."""
LONGEST_ASIN = 10
PATH_SIGN = "\u203a"
"""A single angle quotation mark that points to the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product, as it is shown, searched and scored."""

    asin: str
    title: str
    category: str
    """Of the whole shop's few, e.g. `fashion`."""
    query: str
    """What the crawl searched for when it found this, e.g. `women's boots`."""
    product_category: str
    """A path of categories, with `PATH_SIGN` between them."""
    description: str
    features: tuple[str, ...]
    prices: tuple[float, ...]
    """One price in dollars, or a range of two."""
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """Name → values, all in lower case."""
    attributes: tuple[str, ...]
    image: str


@dataclass(frozen=True, slots=True)
class Synthetic:
    """An instruction that was put together from a product's attributes."""

    instruction: str
    attributes: tuple[str, ...]


class _Option(BaseModel):
    value: str
    """As the product page has it."""


class _Raw(BaseModel):
    """What is read of an entry of `items_shuffle*.json`; all else in it is left."""

    asin: str
    name: str
    category: str
    query: str
    product_category: str
    full_description: str
    small_description: list[str | None] | str
    pricing: str | None = None
    customization_options: dict[str, list[_Option] | None] | Literal[""] | None
    images: list[str | None] = Field(min_length=1)


class _Attributes(BaseModel):
    """An entry of `items_ins_v2*.json`."""

    attributes: list[str] = list(NO_ATTRIBUTES)
    instruction: str | None = None
    instruction_attributes: list[str] | None = None


Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], entry: Entry, value: Any, *, remedy: str) -> Model:
    """`value` as `model`; raises `ConfigError` with the entry's place and what was expected."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the entry"
        raise ConfigError(
            f"{entry.location}: {where}: expected: {first['msg']}, found {str(first['input'])[:60]!r}; "
            f"{remedy}"
        ) from None


def load_attributes(
    path: Path, *, remedy: str
) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Synthetic]]:
    """(attributes by asin, synthetic instructions by asin) of `items_ins_v2*.json`."""
    attributes: dict[str, tuple[str, ...]] = {}
    synthetic: dict[str, Synthetic] = {}
    for entry in members(path, remedy=remedy):
        told = validate(_Attributes, entry, entry.value, remedy=remedy)
        attributes[entry.key] = tuple(map(intern, told.attributes))
        if told.instruction is not None:
            if not told.instruction_attributes:
                raise ConfigError(
                    f"{entry.location}: expected instruction_attributes beside its instruction; {remedy}"
                )
            synthetic[entry.key] = Synthetic(
                told.instruction, tuple(map(intern, told.instruction_attributes))
            )
    return attributes, synthetic


def load_products(
    path: Path, attributes: Mapping[str, tuple[str, ...]], *, remedy: str
) -> Mapping[str, Product]:
    """Products by asin, in the file's order, without those that upstream leaves out."""
    products: dict[str, Product] = {}
    for entry in elements(path, remedy=remedy):
        raw = validate(_Raw, entry, entry.value, remedy=remedy)
        if raw.asin == "nan" or len(raw.asin) > LONGEST_ASIN or raw.asin in products:
            continue
        prices = _prices(raw.pricing, entry, remedy=remedy)
        told = raw.small_description
        products[raw.asin] = Product(
            asin=raw.asin,
            title=raw.name,
            category=intern(raw.category),
            query=intern(raw.query.lower().strip()),
            product_category=intern(raw.product_category),
            description=raw.full_description,
            features=(told,) if isinstance(told, str) else tuple(bullet or "" for bullet in told),
            prices=prices,
            price_tag=" to ".join(f"${price}" for price in prices),
            options=_options(raw.customization_options or {}),
            attributes=attributes.get(raw.asin, NO_ATTRIBUTES),
            image=raw.images[0] or "",
        )
    if not products:
        raise ConfigError(f"{path}: expected products, found none; {remedy}")
    return products


def _prices(pricing: str | None, entry: Entry, *, remedy: str) -> tuple[float, ...]:
    """`$12.99$19.99` → (12.99, 19.99); upstream shows and draws from the first two."""
    if not pricing:
        return (DEFAULT_PRICE,)
    try:
        prices = tuple(float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:])
    except InvalidOperation:
        prices = ()
    if not prices:
        raise ConfigError(
            f"{entry.location}: pricing: expected dollars such as '$9.99', found {pricing!r}; {remedy}"
        )
    return prices[:2]


def _options(raw: Mapping[str, Sequence[_Option] | None]) -> dict[str, tuple[str, ...]]:
    return {
        intern(name.lower()): tuple(
            intern(option.value.strip().replace("/", " | ").lower()) for option in contents
        )
        for name, contents in raw.items()
        if contents is not None
    }
