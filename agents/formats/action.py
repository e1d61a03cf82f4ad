"""Actions in an environment's own words, as AgentGym's environments take them, without tool calls."""

import re

from agents.formats.calls import ParsedTurn
from envs.types import replace_surrogates

_ACTION = re.compile(r"\bAction:[^\S\n]*(?:\n\s*)?([^\n]*)")
_THOUGHT_LABEL = re.compile(r"\A\s*Thought:\s*")


def action(text: str) -> ParsedTurn:
    """`Thought: …` (optional), then one `Action: …` of one line, on the label's line or the next.

    Two actions in one text are refused, as AgentGym refuses them: the second was written without
    the observation of the first. A text without an action is given to the environment whole.
    """
    text = replace_surrogates(text)
    matches = list(_ACTION.finditer(text))
    command = matches[0][1].strip() if len(matches) == 1 else ""
    if not command:
        return ParsedTurn(thought="", action=text, is_ambiguous=True)
    thought = text[: matches[0].start()]
    return ParsedTurn(thought=_THOUGHT_LABEL.sub("", thought).strip(), action=command)


def write_action(turn: ParsedTurn) -> str:
    """`Thought: …` where the turn has a thought, and `Action: …`."""
    thought = f"Thought: {turn.thought}\n" if turn.thought else ""
    return f"{thought}Action: {turn.action}"


ACTION_FORM = "Answer in this form, the action on one line:\n" + write_action(
    ParsedTurn(thought="your reasoning", action="{action}")
)


def raw(text: str) -> ParsedTurn:
    """The whole text is the action, without the white space around it."""
    return ParsedTurn(thought="", action=replace_surrogates(text).strip())


RAW_FORM = "Your whole text is taken as {action}."


def write_raw(turn: ParsedTurn) -> str:
    """The action; the format has no place for a thought."""
    return str(turn.action)
