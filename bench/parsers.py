"""The cost of parsing a turn of 1,000 tokens with a thought and a tool call, in each format that has calls.

    python -m bench.parsers --turns 200

Prints one JSON object:

- `characters`: length of the longest completion; four characters count as a token
- `ms_per_turn`: format → milliseconds of CPU per completion, fitting arguments to the schema included
- `ms_per_hostile_turn`: the same for the costliest of some hostile texts of that length
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from agents.formats import ACTIONS, FORMATS, turn_parser
from agents.formats.calls import ParsedTurn

TOKENS, CHARS_PER_TOKEN = 1000, 4
THINKING = 'The total of {a} and [b] is 7, so the "query" should name both; then I\'ll look again.\n'
CODE = "for i in range(3):\n    print({'i': i}, \"<think>\")"
_ARGUMENTS = json.dumps({"code": CODE, "timeout": 5})
CALLS = {
    "react": f"Thought: so\nAction: run\nAction Input: {_ARGUMENTS}",
    "hermes": f'<tool_call>\n{{"name": "run", "arguments": {_ARGUMENTS}}}\n</tool_call>',
    "qwen3": f"<tool_call>\n<function=run>\n<parameter=code>\n{CODE}\n</parameter>\n"
    "<parameter=timeout>\n5\n</parameter>\n</function>\n</tool_call>",
    "llama3": f'{{"name": "run", "parameters": {_ARGUMENTS}}}',
    "json": f'```json\n{{"name": "run", "arguments": {_ARGUMENTS}}}\n```',
    "code": f"```python\n{CODE}\n```",
    "searchr1": "<search>who wrote it</search>",
}
SCHEMA = {
    "name": "run",
    "parameters": {"properties": {"code": {"type": "string"}, "timeout": {"type": "integer"}}},
}
HOSTILE = (
    "<tool_call>{",
    '{"a" x</think>',
    '{"',
    "\n```\n",
    "<function=a>",
    "\nAction Input: {",
    "[" * 99 + '{"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The figures that are printed (module docstring)."""

    turns: int
    characters: int
    ms_per_turn: dict[str, float]
    ms_per_hostile_turn: dict[str, float]


def completion(format: str) -> str:
    """A turn of `TOKENS` tokens: half a think-block, a quarter prose, then the call."""
    room = TOKENS * CHARS_PER_TOKEN - len(CALLS[format])
    lines = room // len(THINKING)
    return f"<think>\n{THINKING * (lines * 2 // 3)}</think>\n\n{THINKING * (lines // 3)}{CALLS[format]}"


def measure(*, turns: int) -> Cost:
    """Time every format that calls tools on `turns` completions."""
    names = [name for name in FORMATS if name not in ACTIONS]
    usual, hostile = {}, {}
    for name in names:
        parse = turn_parser(name, [SCHEMA])
        text = completion(name)
        assert parse(text).calls, name
        usual[name] = _ms(parse, text, turns=turns)
        bombs = [bomb * (TOKENS * CHARS_PER_TOKEN // len(bomb)) for bomb in HOSTILE]
        hostile[name] = max(_ms(parse, bomb, turns=max(1, turns // 10)) for bomb in bombs)
    longest = max(len(completion(name)) for name in names)
    return Cost(turns=turns, characters=longest, ms_per_turn=usual, ms_per_hostile_turn=hostile)


def _ms(parse: Callable[[str], ParsedTurn], text: str, *, turns: int) -> float:
    start = time.process_time()
    for _ in range(turns):
        parse(text)
    return round((time.process_time() - start) / turns * 1000, 4)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="CPU time of parsing a completion")
    parser.add_argument("--turns", type=int, default=200)
    print(json.dumps(asdict(measure(turns=parser.parse_args().turns))))


if __name__ == "__main__":
    main()
