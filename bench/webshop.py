"""Measures the shop: speed, memory of a visit, and growth of a process that runs for long.

    python -m bench.webshop --steps 20000
    python -m bench.webshop --products 100000

One instance in one process plays expert solutions of `webshop-mini`, each from reset to purchase. Every
second visit begins with a new random query, which no cache holds. Prints one JSON object:

- `load_s`: seconds to load the shop and its index
- `steps_per_s`: steps, resets counted as steps
- `step_us`: median microseconds of each kind of action
- `kb_per_visit`: memory of a visit, of `--visits` that are open on the page of a product
- `growth`: relative growth of the process over the steps, after the first tenth, by when the caches are full

With `--products` it builds a shop of that many products, copies of those of `webshop-mini`, and only
searches.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections import defaultdict
from dataclasses import replace

import psutil

from envs.builtin.webshop.data import WEBSHOP_MINI
from envs.builtin.webshop.env import Variant, WebShopEnv, load_shop
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.shop import Shop
from envs.registry import get_env
from envs.types import Item

VARIANT = Variant(name="webshop-mini", data=WEBSHOP_MINI, goals=GoalKind.HUMAN)
SEARCHES = 200
MAX_TIMES = 5000
"""Actions of each kind to time; a list without a limit would count as memory."""
QUERY_WORDS = 5
"""Words of a random query."""


async def measure(*, steps: int, visits: int) -> dict[str, object]:
    """The JSON object that the docstring of this file describes."""
    start = time.perf_counter()
    shop = load_shop(VARIANT)
    load_s = time.perf_counter() - start
    spec = get_env(VARIANT.name)
    solutions = [(item, [step.resolve("") for step in spec.solve(item)]) for item in spec.split(0).train]
    rng = random.Random("bench/webshop")
    words = sorted({word for product in shop.products.values() for word in product.title.split()})
    step_times: dict[str, list[float]] = defaultdict(list)
    env = WebShopEnv(VARIANT)
    num_steps, memory = 0, 0
    start = time.perf_counter()
    while num_steps < steps:
        item, actions = rng.choice(solutions)
        await env.reset(item)
        num_steps += 1
        if rng.random() < 0.5:
            actions = [f"search[{' '.join(rng.sample(words, QUERY_WORDS))}]", *actions]
        for action in actions:
            kind = _kind(action)
            before = time.perf_counter()
            await env.step(action)
            if len(step_times[kind]) < MAX_TIMES:
                step_times[kind].append(time.perf_counter() - before)
            num_steps += 1
        if not memory and num_steps > steps / 10:
            memory = _memory()
    seconds = time.perf_counter() - start
    growth = _memory() / memory - 1
    return {
        "load_s": round(load_s, 2),
        "steps": num_steps,
        "steps_per_s": round(num_steps / seconds),
        "step_us": {
            kind: round(statistics.median(times) * 1e6) for kind, times in sorted(step_times.items())
        },
        "kb_per_visit": round(await _kb_per_visit(shop, visits), 1),
        "growth": round(growth, 4),
    }


def search_many(products: int) -> dict[str, object]:
    """Load and search times of a shop of `products` products."""
    originals = list(load_shop(VARIANT).products.values())
    copies = {
        f"C{number}": replace(originals[number % len(originals)], asin=f"C{number}")
        for number in range(products)
    }
    start = time.perf_counter()
    shop = Shop(copies, dict.fromkeys(copies, 1.0), [])
    index_s = time.perf_counter() - start
    rng = random.Random("bench/webshop")
    words = sorted({word for product in originals for word in product.title.split()})
    times = []
    for _ in range(SEARCHES):
        query = " ".join(rng.sample(words, QUERY_WORDS))
        before = time.perf_counter()
        shop.search(query)
        times.append(time.perf_counter() - before)
    return {
        "products": products,
        "index_s": round(index_s, 1),
        "search_ms": round(statistics.median(times) * 1000, 2),
        "mb": round(_memory() / 2**20),
    }


def _kind(action: str) -> str:
    if action.startswith("search"):
        return "search"
    return "buy" if action == "click[Buy Now]" else "click"


async def _kb_per_visit(shop: Shop, visits: int) -> float:
    before = _memory()
    open_visits = []
    for number in range(visits):
        env = WebShopEnv(VARIANT)
        await env.reset(Item(item_id=f"webshop-mini_{number % len(shop.goals)}", env=VARIANT.name))
        await env.step("search[waterproof wool boots]")
        await env.step(f"click[{shop.search('waterproof wool boots')[0].asin}]")
        open_visits.append(env)
    return (_memory() - before) / visits / 1024


def _memory() -> int:
    return psutil.Process().memory_full_info().uss


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Speed and memory of the shop")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--visits", type=int, default=2_000)
    parser.add_argument("--products", type=int, help="only search, in a shop of this many products")
    arguments = parser.parse_args()
    if arguments.products is not None:
        result = search_many(arguments.products)
    else:
        result = asyncio.run(measure(steps=arguments.steps, visits=arguments.visits))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
