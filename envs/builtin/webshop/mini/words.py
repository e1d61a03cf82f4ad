"""The words of the generated shop: few enough for a small model to know them all, and all distinct."""

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BRANDS = _words("tavora nordik belmara quillo zentha fernby lumora orvane pellow rudden silvano wexby")
COLOURS = _words("red blue green black white yellow orange pink purple brown gray")
SIZES = _words("small medium large")


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """One of the shop's categories."""

    name: str
    """The name in upstream's files."""
    path: str
    """The first parts of the product category."""
    nouns: tuple[str, ...]
    made_of: str
    """How an instruction joins noun and material."""
    materials: tuple[str, ...]
    """What the products are made of, or smell or taste like."""
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Options of every product: `color`, `size`."""


DEPARTMENTS = (
    Department(
        name="fashion",
        path="Clothing, Shoes & Jewelry \u203a Clothing",
        nouns=_words("boots gloves jacket scarf"),
        made_of="made of",
        materials=_words("leather wool cotton silk"),
        attributes=_words("waterproof warm soft washable stretchy breathable handmade padded"),
        options=("color", "size"),
    ),
    Department(
        name="garden",
        path="Home & Kitchen \u203a Furniture",
        nouns=_words("lamp table shelf mirror"),
        made_of="made of",
        materials=_words("oak birch bamboo glass iron copper"),
        attributes=_words("foldable sturdy modern rustic polished heavy handmade washable"),
        options=("color",),
    ),
    Department(
        name="electronics",
        path="Electronics \u203a Accessories",
        nouns=_words("speaker camera keyboard radio"),
        made_of="made of",
        materials=_words("steel carbon aluminum bamboo"),
        attributes=_words("wireless portable waterproof compact fast quiet foldable padded"),
        options=("color",),
    ),
    Department(
        name="beauty",
        path="Beauty & Personal Care \u203a Skin Care",
        nouns=_words("soap shampoo lotion candle"),
        made_of="with",
        materials=_words("lavender lemon coconut mint vanilla honey"),
        attributes=_words("vegan organic gentle handmade soothing fresh portable thick"),
        options=("size",),
    ),
    Department(
        name="grocery",
        path="Grocery & Gourmet Food \u203a Snacks",
        nouns=_words("cookies tea soup juice"),
        made_of="with",
        materials=_words("apple cocoa lemon ginger melon pumpkin"),
        attributes=_words("organic vegan sweet salted spicy fresh roasted dried"),
        options=(),
    ),
)
