"""ReAct with a tool and its input on lines of their own, and `Final Answer:`."""

import re
from dataclasses import dataclass

from agents.formats.calls import ParsedTurn, ToolCall
from agents.formats.json_values import MAX_NAME, InvalidJson, decode_at, dumps
from agents.formats.scan import UNCLOSED_THOUGHT, limit_text, marks, scan

PLAIN_INPUT = "input"
"""The argument for an input that is not a JSON object; `fitting.py` gives it the parameter's name."""

HINT = (
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
    value: dict[str, object] | None = None
    """The JSON object after `Action Input:`."""
    problem: str | None = None


@limit_text
def react(text: str) -> ParsedTurn:
    """`Thought:` (optional), `Action:` and `Action Input:`, or `Final Answer:`, each on a line of its own.

    Source: the prompt of LangChain's ReAct agent, which AgentFly's has, too. An input that begins with `{`
    must be JSON; any other text is taken as it is. One action per turn, and nothing labelled after its input:
    that would have been written without the observation.
    """
    result = scan(text, marks=_MARKS, read=_read)
    sections: list[tuple[_Label, str]] = []
    thoughts: list[str] = [result.thinking]
    for part in result.parts:
        if isinstance(part, _Label):
            sections.append((part, ""))
        elif sections:
            label, before = sections[-1]
            sections[-1] = (label, before + part)
        else:
            thoughts.append(part)
    thoughts += [body for label, body in sections if label.name == "Thought"]
    thought = "\n".join(filter(None, (piece.strip() for piece in thoughts)))
    acts = [(label, body.strip()) for label, body in sections if label.name != "Thought"]
    if not acts and not result.is_closed:
        return ParsedTurn(thought=thought, problem=f"{UNCLOSED_THOUGHT} {HINT}")
    late_thought = bool(acts) and sections[-1][0].name == "Thought"
    return _turn(acts, thought=thought, late_thought=late_thought)


def _turn(acts: list[tuple[_Label, str]], *, thought: str, late_thought: bool) -> ParsedTurn:
    def refuse(why: str) -> ParsedTurn:
        return ParsedTurn(thought=thought, problem=f"{why} {HINT}")

    names = [label.name for label, _ in acts]
    if names == ["Final Answer"]:
        answer = acts[0][1]
        return ParsedTurn(thought=thought, answer=answer) if answer else refuse("Your Final Answer is empty.")
    if "Action" in names and "Final Answer" in names:
        return refuse("Your turn has both an Action and a Final Answer.")
    if names.count("Action") > 1:
        return refuse(f"Your turn has {names.count('Action')} actions; one a turn.")
    if names[:2] == ["Action", "Action Input"] and (len(names) > 2 or late_thought):
        return refuse("Your turn goes on after its Action Input.")
    if names != ["Action", "Action Input"]:
        missing = "Action Input" if "Action" in names else "Action"
        return refuse(f"Your turn has no {missing}.")
    (_, tool), (arguments, text) = acts
    if not 0 < len(tool) <= MAX_NAME or "\n" in tool:
        return refuse("Action: must be followed by the name of one tool, on the same line.")
    if arguments.problem:
        return refuse(arguments.problem)
    if arguments.value is not None:
        return ParsedTurn(thought=thought, calls=(ToolCall(tool, arguments.value),))
    return ParsedTurn(thought=thought, calls=(ToolCall(tool, {PLAIN_INPUT: text} if text else {}),))


def _read(text: str, match: re.Match[str]) -> tuple[_Label, int]:
    name = match["label"]
    opening = _OBJECT.match(text, match.end()) if name == "Action Input" else None
    if not opening:
        return _Label(name), match.end()
    value = decode_at(text, opening.end())
    if isinstance(value, InvalidJson):
        problem = f"Your Action Input cannot be read: its JSON {value.why}."
        return _Label(name, problem=problem), value.position
    return _Label(name, value=value.value), value.end


def write_react(turn: ParsedTurn) -> str:
    """`Thought:` where the turn has one, then the call or the final answer."""
    lines = [f"Thought: {turn.thought}"] if turn.thought else []
    for call in turn.calls:
        lines += [f"Action: {call.name}", f"Action Input: {dumps(call.arguments)}"]
    if turn.answer is not None:
        lines.append(f"Final Answer: {turn.answer}")
    return "\n".join(lines)
