"""How fast the shop is, how little a visit holds, and whether a process that runs for long grows.

    python -m bench.webshop --steps 20000
    python -m bench.webshop --products 100000

Known solutions of `webshop-mini` are played on one instance in one process, each from its reset to the
purchase; in every second visit a query is searched first that nobody asked before, so that nothing of it is
remembered. Prints one JSON object:

- `load_s`: seconds to load the shop and its index
- `steps_per_s`: steps, resets counted as steps
- `step_us`: median microseconds of each kind of action
- `kb_per_visit`: memory of a visit, of `--visits` that are held open on the page of a product
- `growth`: share by which the process has grown over the steps, after the first tenth; caches fill by then

`--products` makes a shop of so many instead, out of the products of `webshop-mini` with other numbers, and
only searches.
"""

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from dataclasses import replace

import psutil

from envs.builtin.webshop.data import WEBSHOP_MINI, stock_of
from envs.builtin.webshop.env import Variant, WebShopEnv
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.shop import Shop, shop_of
from envs.registry import get_env

STOCK = stock_of(WEBSHOP_MINI, GoalKind.HUMAN)
VARIANT = Variant(name="webshop-mini", stock=STOCK)
SEARCHES = 200
TIMED = 5000
"""Actions of each kind that are timed: a list that grows would count as memory."""
UNHEARD = 5
"""Words of a query that nobody asked before."""


def measure(*, steps: int, visits: int) -> dict[str, object]:
    """See the docstring of this file."""
    started = time.perf_counter()
    shop = shop_of(STOCK)
    load_s = time.perf_counter() - started
    spec = get_env(VARIANT.name)
    train = spec.split(0).train
    solutions = [(item.index, [step.resolve("") for step in spec.solve(item)]) for item in train]
    rng = random.Random("bench/webshop")
    words = sorted({word for product in shop.products.values() for word in product.title.split()})
    took: dict[str, list[float]] = defaultdict(list)
    env = WebShopEnv(VARIANT)
    done, memory = 0, 0
    started = time.perf_counter()
    while done < steps:
        number, actions = rng.choice(solutions)
        env.start(shop, number)
        done += 1
        if rng.random() < 0.5:
            actions = [f"search[{' '.join(rng.sample(words, UNHEARD))}]", *actions]
        for action in actions:
            kind = _kind(action)
            before = time.perf_counter()
            env.act(action)
            if len(took[kind]) < TIMED:
                took[kind].append(time.perf_counter() - before)
            done += 1
        if not memory and done > steps / 10:
            memory = _memory()
    seconds = time.perf_counter() - started
    growth = _memory() / memory - 1
    return {
        "load_s": round(load_s, 2),
        "steps": done,
        "steps_per_s": round(done / seconds),
        "step_us": {kind: round(statistics.median(times) * 1e6) for kind, times in sorted(took.items())},
        "kb_per_visit": round(_held(shop, visits), 1),
        "growth": round(growth, 4),
    }


def search_many(products: int) -> dict[str, object]:
    """Load and search times of a shop of so many products."""
    small = shop_of(STOCK)
    shelf = list(small.products.values())
    many = {
        f"C{number}": replace(shelf[number % len(shelf)], asin=f"C{number}") for number in range(products)
    }
    started = time.perf_counter()
    shop = Shop(many, dict.fromkeys(many, 1.0), [])
    index_s = time.perf_counter() - started
    rng = random.Random("bench/webshop")
    words = sorted({word for product in shelf for word in product.title.split()})
    times = []
    for _ in range(SEARCHES):
        query = " ".join(rng.sample(words, UNHEARD))
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


def _held(shop: Shop, visits: int) -> float:
    """Kilobytes of a visit."""
    before = _memory()
    open_visits = []
    for number in range(visits):
        env = WebShopEnv(VARIANT)
        env.start(shop, number % len(shop.goals))
        env.act("search[waterproof wool boots]")
        env.act(f"click[{shop.search('waterproof wool boots')[0].asin}]")
        open_visits.append(env)
    return (_memory() - before) / visits / 1024


def _memory() -> int:
    return psutil.Process().memory_full_info().uss


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Speed and memory of the shop")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--visits", type=int, default=2_000)
    parser.add_argument("--products", type=int, help="only search, in a shop of so many products")
    arguments = parser.parse_args()
    if arguments.products is not None:
        result = search_many(arguments.products)
    else:
        result = measure(steps=arguments.steps, visits=arguments.visits)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
