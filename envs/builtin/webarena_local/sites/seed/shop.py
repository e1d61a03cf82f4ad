"""Fills the shop: catalogue, reviews, and one customer's orders, addresses and wish list."""

import random
from datetime import timedelta
from decimal import Decimal

from django.contrib.auth.models import User
from oscar.apps.address.abstract_models import AbstractUserAddress
from oscar.apps.catalogue.abstract_models import AbstractProduct
from oscar.core.loading import get_class, get_model
from oscar.core.prices import Price
from time_machine import Traveller

from envs.builtin.webarena_local.sites.seed.goods import (
    BLAME,
    CARE,
    GOODS,
    MATERIALS,
    MIDDLING,
    ORIGINS,
    PRAISE,
)
from envs.builtin.webarena_local.sites.seed.people import EMMA, NOW, OTHER_PEOPLE, days_ago

STATUSES = ("Complete", "Complete", "Cancelled", "Complete", "Complete", "Being processed", "Pending")
"""The statuses of the customer's orders, oldest first."""


def seed_shop(clock: Traveller) -> None:
    """Fill the shop in a database that has only users."""
    rng = random.Random("webarena-local/shop")
    products = _catalogue(rng, clock)
    _reviews(rng, clock, products)
    addresses = _addresses(clock)
    _orders(rng, clock, products, addresses[0])
    WishList = get_model("wishlists", "WishList")
    wish_list = WishList.objects.create(owner=User.objects.get(username=EMMA.username), name="Birthday")
    WishList.objects.update(key="birthday")  # oscar generates a random one
    for product in (products[11], products[29], products[60]):
        wish_list.add(product)


def _catalogue(rng: random.Random, clock: Traveller) -> list[AbstractProduct]:
    Product, ProductClass = get_model("catalogue", "Product"), get_model("catalogue", "ProductClass")
    Category, StockRecord = get_model("catalogue", "Category"), get_model("partner", "StockRecord")
    goods = ProductClass.objects.create(name="Goods", requires_shipping=True, track_stock=True)
    for code, name in (("material", "Material"), ("origin", "Made in")):
        goods.attributes.create(code=code, name=name, type="text", required=False)
    partner = get_model("partner", "Partner").objects.create(name="Harbour & Pine", code="harbour-pine")
    products: list[AbstractProduct] = []
    for category_name, wares in GOODS.items():
        category = Category.add_root(name=category_name, description="")
        for title, price in wares:
            clock.move_to(days_ago(400 - 4 * len(products)))
            material, origin, care = rng.choice(MATERIALS), rng.choice(ORIGINS), rng.choice(CARE)
            product = Product(
                title=title,
                upc=f"HP-{1001 + len(products)}",
                product_class=goods,
                description=f"<p>{title}, made of {material} in {origin}. To keep it well, {care}.</p>",
            )
            product.attr.material, product.attr.origin = material, origin
            product.save()
            product.categories.add(category)
            StockRecord.objects.create(
                product=product,
                partner=partner,
                partner_sku=product.upc,
                price_currency="USD",
                price=Decimal(str(price)),
                num_in_stock=0 if len(products) % 17 == 5 else rng.randint(4, 40),
            )
            products.append(product)
    return products


def _reviews(rng: random.Random, clock: Traveller, products: list[AbstractProduct]) -> None:
    Review = get_model("reviews", "ProductReview")
    users = {user.username: user for user in User.objects.all()}
    for number, product in enumerate(products):
        writers = rng.sample(OTHER_PEOPLE, rng.randint(1, 4))
        for turn, writer in enumerate(writers):
            clock.move_to(days_ago(90 - number % 40 - 7 * turn) + timedelta(minutes=number))
            score = rng.choice((1, 2, 3, 3, 4, 4, 5, 5, 5))
            title, body = rng.choice(BLAME if score < 3 else MIDDLING if score == 3 else PRAISE)
            Review.objects.create(
                product=product, score=score, title=title, body=body, user=users[writer.username], status=1
            )


def _addresses(clock: Traveller) -> list[AbstractUserAddress]:
    clock.move_to(days_ago(300))
    Country, UserAddress = get_model("address", "Country"), get_model("address", "UserAddress")
    for code, code3, number, name in (
        ("US", "USA", "840", "United States"),
        ("CA", "CAN", "124", "Canada"),
        ("DE", "DEU", "276", "Germany"),
        ("GB", "GBR", "826", "United Kingdom"),
        ("NO", "NOR", "578", "Norway"),
    ):
        Country.objects.create(
            iso_3166_1_a2=code,
            iso_3166_1_a3=code3,
            iso_3166_1_numeric=number,
            printable_name=name,
            name=name,
            is_shipping_country=True,
            display_order=1 if code == "US" else 0,
        )
    emma = User.objects.get(username=EMMA.username)
    country = Country.objects.get(iso_3166_1_a2="US")
    rows = (
        ("14 Alder Street", "Portland", "Oregon", "97205", True),
        ("9 Quay Road", "Astoria", "Oregon", "97103", False),
    )
    return [
        UserAddress.objects.create(
            user=emma,
            first_name=EMMA.first_name,
            last_name=EMMA.last_name,
            line1=line,
            line4=town,
            state=state,
            postcode=postcode,
            country=country,
            is_default_for_shipping=default,
        )
        for line, town, state, postcode, default in rows
    ]


def _orders(
    rng: random.Random, clock: Traveller, products: list[AbstractProduct], address: AbstractUserAddress
) -> None:
    Basket, ShippingAddress = get_model("basket", "Basket"), get_model("order", "ShippingAddress")
    emma = User.objects.get(username=EMMA.username)
    strategy = get_class("partner.strategy", "Selector")().strategy(user=emma)
    free = get_class("shipping.methods", "Free")()
    in_stock = [
        product for product in products if strategy.fetch_for_product(product).stockrecord.num_in_stock
    ]
    for turn, status in enumerate(STATUSES):
        clock.move_to(NOW - timedelta(days=26 * (len(STATUSES) - turn), hours=turn))
        basket = Basket.objects.create(owner=emma)
        basket.strategy = strategy
        for product in rng.sample(in_stock, rng.randint(1, 3)):
            basket.add_product(product, rng.randint(1, 2))
        delivery = ShippingAddress()
        address.populate_alternative_model(delivery)
        delivery.save()
        charge = free.calculate(basket)
        order = get_class("order.utils", "OrderCreator")().place_order(
            basket=basket,
            total=Price("USD", excl_tax=basket.total_excl_tax, incl_tax=basket.total_incl_tax),
            shipping_method=free,
            shipping_charge=charge,
            user=emma,
            shipping_address=delivery,
            order_number=str(200101 + turn),
            status="Pending",
        )
        for step in ("Being processed", "Complete") if status == "Complete" else (status,):
            if step != order.status:
                order.set_status(step)
        basket.submit()
