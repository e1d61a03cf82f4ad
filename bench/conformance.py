"""What environments leave behind (`tests/support/leaks.py`), over more cycles than a test has.

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
    parser.add_argument("--hosted", action="store_true", help="each instance in a process of its own")
    arguments = parser.parse_args()
    growth = asyncio.run(measure(arguments.env, cycles=arguments.cycles, hosted=arguments.hosted))
    print(json.dumps(asdict(growth)))


if __name__ == "__main__":
    main()
