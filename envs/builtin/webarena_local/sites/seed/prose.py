"""The CMS in words: sections with their pages, and the journal's articles."""

SECTIONS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "Help": (
        "Answers before you write to us",
        (
            ("Shipping and delivery", "Parcels leave our store house within two working days."),
            ("Returns", "You may send back what you do not like within 45 days."),
            ("Payment", "We take cards, transfers and gift vouchers."),
            ("Gift vouchers", "A voucher is valid for three years from the day it is bought."),
            ("Repairs", "We repair what we sell, in our own workshop in Astoria."),
            ("Size guide", "How our tents, packs and linen are measured."),
            ("Your account", "How to change your address and your password."),
            ("Contact", "Write to help@harbour-pine.example or call 555 0142."),
        ),
    ),
    "About us": (
        "Who we are",
        (
            ("Our story", "Harbour & Pine was founded in 1987 in a boat shed."),
            ("The workshop", "Eleven people build and mend things here."),
            ("Suppliers", "We know every one of our 26 suppliers by name."),
            ("Jobs", "We look for a joiner and for somebody to run the parcel desk."),
            ("Press", "Pictures and facts for those who write about us."),
        ),
    ),
    "Policies": (
        "What we promise, and what we ask",
        (
            ("Privacy", "We keep your address for ten years, because the tax office asks for it."),
            ("Terms of sale", "The law of the state of Oregon holds."),
            ("Sustainability", "By 2028 all parcels will travel without plastic."),
            ("Accessibility", "Tell us where our pages stand in your way."),
            ("Cookies", "Two cookies, both needed, none of them for advertising."),
        ),
    ),
    "Stores": (
        "Where to find us",
        (
            ("Portland store", "Open Tuesday to Saturday, 10 to 18."),
            ("Astoria store", "Open Wednesday to Sunday, 11 to 17."),
            ("Seattle store", "Open every day but Monday, 10 to 19."),
        ),
    ),
}

ARTICLES: tuple[tuple[str, str], ...] = (
    ("Seasoning cast iron in one evening", "Kitchen"),
    ("Five soups for one pot", "Kitchen"),
    ("How sharp is sharp enough", "Kitchen"),
    ("What a scale taught us about bread", "Kitchen"),
    ("Pouring coffee slowly", "Kitchen"),
    ("Tea at the end of the pier", "Kitchen"),
    ("Packing for three days of rain", "Outdoors"),
    ("A tent for two, and one dog", "Outdoors"),
    ("Reading contour lines", "Outdoors"),
    ("Sleeping warm at zero degrees", "Outdoors"),
    ("Birds of the estuary in winter", "Outdoors"),
    ("The stove that would not light", "Outdoors"),
    ("Walking the coast path backwards", "Outdoors"),
    ("Pruning apple trees without fear", "Garden"),
    ("Compost in a small yard", "Garden"),
    ("Rain, measured", "Garden"),
    ("Herbs on a north window", "Garden"),
    ("Feeding birds, and when to stop", "Garden"),
    ("Light for reading, light for eating", "Home"),
    ("A lamp made of brass and patience", "Home"),
    ("Washing linen in cold water", "Home"),
    ("Wool that does not itch", "Home"),
    ("Letters on paper", "Home"),
    ("A calendar printed by hand", "Home"),
)
AUTHORS = ("Edda Torres", "Mats Holm", "Priya Nair", "Owen Clarke")
DRAFTS: tuple[tuple[str, str], ...] = (
    ("Mending a zip on the road", "Outdoors"),
    ("The last quince of the year", "Kitchen"),
    ("Shade for a hot terrace", "Garden"),
    ("What the tide leaves behind", "Outdoors"),
    ("Bookshelves without screws", "Home"),
)
"""Written, not yet published."""

PARAGRAPHS = (
    "We began with a question from a customer, and ended with a table full of samples.",
    "The first attempt took {number} minutes, the last one less than half of that.",
    "Nobody in the workshop agreed, so we asked the neighbours, {number} of them.",
    "Keep it dry, keep it simple, and write down what you did.",
    "If you only remember one thing, let it be the number {number}.",
    "There are cheaper ways. There are few that last longer.",
    "The light was poor, the tea was cold, and the result was better than it had any right to be.",
)
