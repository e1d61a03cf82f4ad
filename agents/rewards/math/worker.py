"""The program of a process that compares mathematics (`process.py`).

Reads `{"gold": [...], "response", "cpu_s"}` a line and answers `{"correct", "found"}`, or `{"unreadable"}`
with the accepted answer that is not mathematics. The kernel kills a process whose comparison exceeds its CPU
time: sympy can spend hours in one operation that nothing else interrupts.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from types import ModuleType

MEMORY_BYTES = 2 << 30
_MARK = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")
"""Begins mathematics; an escaped dollar is an amount of money."""
_EXPONENT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d{1,9})")
_PERCENT = re.compile(r"(?<!\\)%")


def main() -> None:
    """Serve until the requests end."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries may print
    try:
        import math_verify
    except Exception as error:
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    logging.disable()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])  # then SIGPROF kills this process
        answer = compare(math_verify, request["gold"], request["response"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=answers, flush=True)


def compare(math_verify: ModuleType, gold: list[str], response: str) -> dict[str, object]:
    """Whether the response's answer equals one of `gold`."""
    # Its own limits are alarms; the timer above replaces them.
    answers = math_verify.parse(response, parsing_timeout=None)
    for gold_answer in gold:
        gold_value = math_verify.parse(as_latex(gold_answer), parsing_timeout=None)
        if not gold_value:
            return {"unreadable": gold_answer}
        if answers and math_verify.verify(gold_value, answers, timeout_seconds=None):
            return {"correct": True, "found": True}
    return {"correct": False, "found": bool(answers)}


def as_latex(gold: str) -> str:
    """An accepted answer in dollars, because math-verify looks for mathematics there. In LaTeX a bare `%`
    begins a comment, and the `e` of `1e-05`, as Python writes a number, is Euler's."""
    if _MARK.search(gold):
        return gold
    if number := _EXPONENT.fullmatch(gold.strip()):
        gold = rf"{number[1]} \times 10^{{{int(number[2])}}}"
    gold = _PERCENT.sub(r"\\%", gold)
    return f"${gold}$"


if __name__ == "__main__":
    main()
