"""Leaks of environments (`tests/support/leaks.py`), over more cycles than a test.

    python -m bench.conformance textcraft --cycles 1000 --hosted

Prints the fields of `Growth` as one JSON object.
"""

import argparse
import asyncio
import json
from dataclasses import asdict

from tests.support.leaks import measure


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Processes, files and memory that environments leave behind")
    parser.add_argument("env", help="name in envs/registry.py")
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--hosted", action="store_true", help="run each instance in its own process")
    arguments = parser.parse_args()
    growth = asyncio.run(measure(arguments.env, cycles=arguments.cycles, is_hosted=arguments.hosted))
    print(json.dumps(asdict(growth)))


if __name__ == "__main__":
    main()
