"""Synchronous tools side by side: how long many take that each sleep.

    python -m bench.tools --calls 8 --seconds 0.3

Prints one JSON object: `wall_s` of all calls together, `ideal_s` of the longest alone.
"""

import argparse
import asyncio
import json
import time

from agents.tools.tool import tool


@tool
def doze(seconds: float) -> str:
    """Sleep.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "awake"


async def measure(*, calls: int, seconds: float) -> float:
    """Wall seconds of `calls` at once."""
    start_s = time.perf_counter()
    answers = await asyncio.gather(*(doze.call({"seconds": seconds}) for _ in range(calls)))
    if any(answer.observation != "awake" for answer in answers):
        raise RuntimeError(f"a call failed: {answers}")
    return time.perf_counter() - start_s


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Synchronous tools side by side")
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.3, help="that each call takes")
    arguments = parser.parse_args()
    wall_s = asyncio.run(measure(calls=arguments.calls, seconds=arguments.seconds))
    report = {"calls": arguments.calls, "wall_s": round(wall_s, 3), "ideal_s": arguments.seconds}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
