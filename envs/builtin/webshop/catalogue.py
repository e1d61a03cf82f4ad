"""Loads the products of a shop from upstream's files, `items_shuffle*.json` and `items_ins_v2*.json`.

Which fields of a product are kept, and how options, prices and missing attributes are read, follows upstream
(`web_agent_site/engine/engine.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from sys import intern
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from envs.builtin.webshop.reading import Entry, read_entries
from envs.errors import ConfigError

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Upstream's attributes of a product that has no entry in `items_ins_v2*.json`."""
DEFAULT_PRICE = 100.0
"""Dollars, for a product without a price."""
MAX_ASIN_LENGTH = 10
PATH_SIGN = "\u203a"
"""A single right-pointing angle quotation mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product: what is shown, searched and scored."""

    asin: str
    title: str
    category: str
    """One of the shop's few departments, e.g. `fashion`."""
    query: str
    """The search by which upstream's crawl found it, e.g. `women's boots`."""
    product_category: str
    """A path of categories, separated by `PATH_SIGN`."""
    description: str
    features: tuple[str, ...]
    prices: tuple[float, ...]
    """One price in dollars, or a range of two."""
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """Name → values, all in lower case."""
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """An instruction composed from a product's attributes."""

    instruction: str
    attributes: tuple[str, ...]


class _Option(BaseModel):
    value: str


class _Raw(BaseModel):
    """The fields that are read of an entry of `items_shuffle*.json`."""

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


def validate(model: type[Model], entry: Entry) -> Model:
    """The entry as `model`; raises `ConfigError` with its location and what was expected."""
    try:
        return model.model_validate(entry.value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the entry"
        raise ConfigError(
            f"{entry.location}: {where}: expected: {first['msg']}, found {str(first['input'])[:60]!r}"
        ) from None


def load_attributes(path: Path) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Synthetic]]:
    """(attributes by asin, synthetic instructions by asin) of `items_ins_v2*.json`."""
    attributes: dict[str, tuple[str, ...]] = {}
    synthetic: dict[str, Synthetic] = {}
    for entry in read_entries(path, "{"):
        raw = validate(_Attributes, entry)
        attributes[entry.key] = tuple(map(intern, raw.attributes))
        if raw.instruction is not None:
            if not raw.instruction_attributes:
                raise ConfigError(f"{entry.location}: expected instruction_attributes with its instruction")
            synthetic[entry.key] = Synthetic(raw.instruction, tuple(map(intern, raw.instruction_attributes)))
    return attributes, synthetic


def load_products(path: Path, attributes: Mapping[str, tuple[str, ...]]) -> Mapping[str, Product]:
    """Products by asin, in the file's order, without those that upstream omits."""
    products: dict[str, Product] = {}
    for entry in read_entries(path, "["):
        raw = validate(_Raw, entry)
        if raw.asin == "nan" or len(raw.asin) > MAX_ASIN_LENGTH or raw.asin in products:
            continue
        prices = _prices(raw.pricing, entry)
        bullets = raw.small_description
        products[raw.asin] = Product(
            asin=raw.asin,
            title=raw.name,
            category=intern(raw.category),
            query=intern(raw.query.lower().strip()),
            product_category=intern(raw.product_category),
            description=raw.full_description,
            features=(bullets,) if isinstance(bullets, str) else tuple(bullet or "" for bullet in bullets),
            prices=prices,
            price_tag=" to ".join(f"${price}" for price in prices),
            options=_options(raw.customization_options or {}),
            attributes=attributes.get(raw.asin, NO_ATTRIBUTES),
        )
    if not products:
        raise ConfigError(f"{path}: expected products, found none")
    return products


def _prices(pricing: str | None, entry: Entry) -> tuple[float, ...]:
    """`$12.99$19.99` → (12.99, 19.99), in dollars; upstream uses the first two."""
    if not pricing:
        return (DEFAULT_PRICE,)
    try:
        prices = tuple(float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:])
    except InvalidOperation:
        prices = ()
    if not prices:
        raise ConfigError(f"{entry.location}: pricing: expected dollars such as '$9.99', found {pricing!r}")
    return prices[:2]


def _options(raw: Mapping[str, Sequence[_Option] | None]) -> dict[str, tuple[str, ...]]:
    return {
        intern(name.lower()): tuple(
            intern(option.value.strip().replace("/", " | ").lower()) for option in contents
        )
        for name, contents in raw.items()
        if contents is not None
    }
