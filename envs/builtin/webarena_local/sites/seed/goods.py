"""The shop's catalogue in words: categories, goods with their prices in dollars, and what buyers say."""

GOODS: dict[str, tuple[tuple[str, float], ...]] = {
    "Kitchen": (
        ("Cast Iron Skillet 26 cm", 39.5),
        ("Enamel Stock Pot 6 l", 54.0),
        ("Walnut Cutting Board", 32.75),
        ("Hand Grinder for Spices", 21.9),
        ("Linen Tea Towels, Set of 4", 18.0),
        ("Copper Milk Pan", 47.25),
        ("Stoneware Mixing Bowl", 26.4),
        ("Bamboo Steamer Basket", 16.8),
        ("Digital Kitchen Scale", 24.99),
    ),
    "Coffee and Tea": (
        ("Pour-Over Dripper, White", 17.5),
        ("Gooseneck Kettle 0.9 l", 62.0),
        ("Burr Coffee Grinder", 88.0),
        ("Cast Iron Teapot", 45.9),
        ("Glass Tea Infuser", 12.6),
        ("Moka Pot for 6 Cups", 34.2),
        ("Cold Brew Bottle", 28.75),
        ("Insulated Travel Mug", 23.4),
        ("Porcelain Tea Set", 71.0),
    ),
    "Camping": (
        ("Two Person Ridge Tent", 189.0),
        ("Down Sleeping Bag -5 C", 164.5),
        ("Folding Camp Stool", 27.9),
        ("Gas Stove, Single Burner", 41.25),
        ("Titanium Spork", 9.8),
        ("Foam Sleeping Mat", 22.0),
        ("Camp Lantern, Rechargeable", 36.6),
        ("Water Filter Straw", 19.95),
        ("Canvas Tarp 3 x 3 m", 58.4),
    ),
    "Hiking": (
        ("Trail Backpack 35 l", 112.0),
        ("Trekking Poles, Pair", 64.9),
        ("Merino Hiking Socks", 15.75),
        ("Waterproof Map Case", 13.2),
        ("Orienteering Compass", 29.0),
        ("Rain Cover for Backpacks", 17.95),
        ("Trail Gaiters", 33.5),
        ("First Aid Pouch", 25.8),
        ("Steel Water Bottle 0.75 l", 21.0),
    ),
    "Garden": (
        ("Bypass Pruning Shears", 28.9),
        ("Galvanised Watering Can", 35.0),
        ("Seed Starting Tray", 14.3),
        ("Ash Handle Spade", 46.5),
        ("Kneeling Pad", 11.9),
        ("Bird Feeder, Cedar", 31.4),
        ("Rain Gauge, Copper", 24.25),
        ("Compost Caddy", 27.6),
        ("Herb Garden Planter", 39.9),
    ),
    "Lighting": (
        ("Brass Reading Lamp", 79.0),
        ("Paper Pendant Shade", 22.5),
        ("Motion Sensor Night Light", 13.9),
        ("Dimmable Desk Lamp", 56.75),
        ("String Lights, Warm White", 18.6),
        ("Clip-On Book Light", 12.4),
        ("Hurricane Oil Lamp", 42.0),
        ("LED Bulb, Pack of 6", 16.2),
        ("Bedside Lamp, Oak", 49.3),
    ),
    "Books and Paper": (
        ("Field Guide to Coastal Birds", 24.0),
        ("Dotted Notebook A5", 11.5),
        ("Fountain Pen, Fine Nib", 38.0),
        ("Watercolour Pad", 19.8),
        ("Knots for Every Day", 16.9),
        ("Bread from a Cold Oven", 27.5),
        ("Star Chart Poster", 14.0),
        ("Recycled Envelopes, 50", 8.75),
        ("Letterpress Calendar", 22.2),
    ),
    "Bath and Linen": (
        ("Waffle Bath Towel", 26.0),
        ("Olive Oil Soap, 3 Bars", 12.9),
        ("Linen Duvet Cover", 129.0),
        ("Cedar Bath Mat", 44.6),
        ("Wool Throw Blanket", 84.0),
        ("Cotton Bathrobe", 67.5),
        ("Laundry Basket, Rope", 38.8),
        ("Lavender Sachets, 6", 10.4),
        ("Feather Pillow", 41.0),
    ),
}

MATERIALS = ("recycled steel", "untreated wood", "organic cotton", "stoneware clay", "brass", "waxed canvas")
ORIGINS = ("Porto", "Gdansk", "Bergen", "Ghent", "Trieste", "Galway")
CARE = ("wipe it with a dry cloth", "wash it by hand", "keep it out of the rain", "oil it once a year")

PRAISE = (
    ("Better than I hoped", "Six months in and it still works as on the first day."),
    ("A gift that landed", "My sister uses hers every day and asked where it came from."),
    ("Solid work", "You feel the weight of it, and nothing rattles."),
    ("Worth the money", "I compared it with three others; this one stayed."),
    ("Lovely to look at", "It stands on the shelf in plain view, that says it all."),
    ("Exactly as described", "Size, colour and finish are what the page says."),
)
MIDDLING = (
    ("Fine, with one flaw", "It does its job, but the packaging was torn when it came."),
    ("All right", "Neither good nor bad; I would look for a cheaper one next time."),
    ("Smaller than it looks", "Mind the measures, the picture is no help."),
    ("Does what it should", "Took a while to arrive, then worked."),
)
BLAME = (
    ("Broke within a month", "The handle came off and support took two weeks to answer."),
    ("Not for me", "It smells of varnish even after a week by the window."),
    ("Sent it back", "One part was missing, and there was no manual in the box."),
    ("Disappointing", "The finish scratches as soon as you look at it."),
)
