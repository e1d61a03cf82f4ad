"""The effect of `kill -9` on a rollout (`tests/support/kills.py`), with more kills and episodes than a test.

    python -m bench.kill textcraft --kills 50
    python -m bench.kill sciworld --kills 50
    python -m bench.kill alfworld-mini --kills 20 --items 6
    python -m bench.kill textcraft --kills 50 --servers 2

Prints the fields of `Outcome` as one JSON object. `--servers` kills HTTP servers instead of processes.
"""

import argparse
import json
from dataclasses import asdict

from envs.registry import get_env
from tests.support.kills import Fleet, measure, take_solvable_items


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Rollouts whose environments are killed")
    parser.add_argument("env", help="name in envs/registry.py")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--items", type=int, default=16)
    parser.add_argument("--servers", type=int, default=0, help="HTTP servers for the instances; 0: none")
    arguments = parser.parse_args()
    items = take_solvable_items(get_env(arguments.env), arguments.items)
    fleet = Fleet(arguments.env, arguments.servers) if arguments.servers else None
    try:
        print(json.dumps(asdict(measure(arguments.env, items, kills=arguments.kills, fleet=fleet))))
    finally:
        if fleet is not None:
            fleet.close()


if __name__ == "__main__":
    main()
