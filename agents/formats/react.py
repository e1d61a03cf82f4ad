"""ReAct with a tool and its input on lines of their own, and `Final Answer:`."""

import re
from dataclasses import dataclass
from typing import Any

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import MAX_NAME, InvalidJson, decode_at, dumps
from agents.formats.scan import UNCLOSED, bounded, marks, scan

PLAIN_INPUT = "input"
"""The argument that an input which is no JSON object becomes; `fitting.py` gives it the parameter's name."""

EXPECTED = (
    "Write Thought: ..., then Action: TOOL, then Action Input: with a JSON object of its arguments, "
    "and stop; or Final Answer: ... when you are done."
)

_MARKS = marks(
    r"(?:^|(?<=</think>))[ \t]*(?P<label>Thought|Action Input|Action|Observation|Final Answer)[ \t]*:",
    re.MULTILINE,
)
_OBJECT = re.compile(r"\s*(?:```(?:json)?\s*)?(?=\{)")


@dataclass(frozen=True, slots=True)
class _Label:
    name: str
    value: dict[str, Any] | None = None
    """The JSON object after `Action Input:`."""
    problem: str | None = None


@bounded
def react(text: str) -> ParsedTurn:
    """`Thought:` (optional), `Action:` and `Action Input:`, or `Final Answer:`, each on a line of its own.

    Source: the prompt of LangChain's ReAct agent, which AgentFly's has, too. An input that begins with `{`
    must be JSON; any other text is taken as it is. One action a turn, and nothing labelled after its input:
    what follows was written without having seen the observation.
    """
    scanned = scan(text, marks=_MARKS, read=_read)
    sections: list[tuple[_Label, str]] = []
    beside: list[str] = [scanned.thinking]
    for part in scanned.parts:
        if isinstance(part, _Label):
            sections.append((part, ""))
        elif sections:
            label, before = sections[-1]
            sections[-1] = (label, before + part)
        else:
            beside.append(part)
    beside += [body for label, body in sections if label.name == "Thought"]
    thought = "\n".join(filter(None, (piece.strip() for piece in beside)))
    acts = [(label, body.strip()) for label, body in sections if label.name != "Thought"]
    if not acts and not scanned.closed:
        return ParsedTurn(thought=thought, problem=f"{UNCLOSED} {EXPECTED}")
    late_thought = bool(acts) and sections[-1][0].name == "Thought"
    return _turn(acts, thought=thought, late_thought=late_thought)


def _turn(acts: list[tuple[_Label, str]], *, thought: str, late_thought: bool) -> ParsedTurn:
    def refused(why: str) -> ParsedTurn:
        return ParsedTurn(thought=thought, problem=f"{why} {EXPECTED}")

    names = [label.name for label, _ in acts]
    if names == ["Final Answer"]:
        answer = acts[0][1]
        return (
            ParsedTurn(thought=thought, answer=answer) if answer else refused("Your Final Answer is empty.")
        )
    if "Action" in names and "Final Answer" in names:
        return refused("Your turn has both an Action and a Final Answer.")
    if names.count("Action") > 1:
        return refused(f"Your turn has {names.count('Action')} actions; one a turn.")
    if names[:2] == ["Action", "Action Input"] and (len(names) > 2 or late_thought):
        return refused("Your turn goes on after its Action Input.")
    if names != ["Action", "Action Input"]:
        missing = "Action Input" if "Action" in names else "Action"
        return refused(f"Your turn has no {missing}.")
    (_, tool), (given, plain) = acts
    if not 0 < len(tool) <= MAX_NAME or "\n" in tool:
        return refused("Action: must be followed by the name of one tool, on the same line.")
    if given.problem:
        return refused(given.problem)
    if given.value is not None:
        return ParsedTurn(thought=thought, calls=(ToolCall(tool, given.value),))
    return ParsedTurn(thought=thought, calls=(ToolCall(tool, {PLAIN_INPUT: plain} if plain else {}),))


def _read(text: str, match: re.Match[str]) -> tuple[_Label, int]:
    name = match["label"]
    opening = _OBJECT.match(text, match.end()) if name == "Action Input" else None
    if not opening:
        return _Label(name), match.end()
    decoded = decode_at(text, opening.end())
    if isinstance(decoded, InvalidJson):
        problem = f"Your Action Input cannot be read: its JSON {decoded.why}."
        return _Label(name, problem=problem), decoded.position
    return _Label(name, value=decoded.value), decoded.end


def write_react(turn: ParsedTurn) -> str:
    """`Thought:` where the turn has one, then the call or the final answer."""
    lines = [f"Thought: {turn.thought}"] if turn.thought else []
    for call in turn.calls:
        lines += [f"Action: {call.name}", f"Action Input: {dumps(call.arguments)}"]
    if turn.answer is not None:
        lines.append(f"Final Answer: {turn.answer}")
    return "\n".join(lines)
