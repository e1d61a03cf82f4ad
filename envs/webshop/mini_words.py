"""The words of the made-up shop: few, so that a small model can know them all, and none like another."""

from dataclasses import dataclass

BRANDS = "tavora nordik belmara quillo zentha fernby lumora orvane pellow rudden silvano wexby".split()
COLOURS = "red blue green black white yellow orange pink purple brown gray".split()
SIZES = "small medium large".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """One of the shop's categories."""

    name: str
    """As upstream's files call it."""
    path: str
    """First parts of the product category."""
    nouns: tuple[str, ...]
    made: str
    """How an instruction joins noun and material."""
    materials: tuple[str, ...]
    """What the products are made of, or smell or taste of."""
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Of every product: `color`, `size`."""


DEPARTMENTS = (
    Department(
        name="fashion",
        path="Clothing, Shoes & Jewelry › Clothing",
        nouns=tuple("boots gloves jacket scarf hat shirt leggings socks".split()),
        made="made of",
        materials=tuple("leather wool cotton silk".split()),
        attributes=tuple("waterproof warm soft washable stretchy breathable handmade padded".split()),
        options=("color", "size"),
    ),
    Department(
        name="garden",
        path="Home & Kitchen › Furniture",
        nouns=tuple("lamp carpet table shelf bowl clock mirror ladder".split()),
        made="made of",
        materials=tuple("oak birch bamboo glass iron copper".split()),
        attributes=tuple("foldable sturdy modern rustic polished heavy handmade washable".split()),
        options=("color",),
    ),
    Department(
        name="electronics",
        path="Electronics › Accessories",
        nouns=tuple("speaker camera keyboard headphones charger tripod radio projector".split()),
        made="made of",
        materials=tuple("steel carbon aluminum bamboo".split()),
        attributes=tuple("wireless portable waterproof compact fast quiet foldable padded".split()),
        options=("color",),
    ),
    Department(
        name="beauty",
        path="Beauty & Personal Care › Skin Care",
        nouns=tuple("soap shampoo lotion perfume cream candle scrub balm".split()),
        made="with",
        materials=tuple("lavender lemon coconut mint vanilla honey".split()),
        attributes=tuple("vegan organic gentle handmade soothing fresh portable thick".split()),
        options=("size",),
    ),
    Department(
        name="grocery",
        path="Grocery & Gourmet Food › Snacks",
        nouns=tuple("cookies tea coffee soup bread cake juice crackers".split()),
        made="with",
        materials=tuple("apple cocoa lemon ginger melon pumpkin".split()),
        attributes=tuple("organic vegan sweet salted spicy fresh roasted dried".split()),
        options=(),
    ),
)
