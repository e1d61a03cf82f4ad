"""Actions in an environment's own words, as AgentGym's environments take them; no tools are called."""

import re

from agents.formats.calls import ParsedTurn

_ACTION = re.compile(r"\bAction:[^\S\n]*(?:\n\s*)?([^\n]*)")
_THOUGHT_LABEL = re.compile(r"\A\s*Thought:\s*")


def action(text: str) -> ParsedTurn:
    """`Thought: …` (optional), then one `Action: …` of one line, on the label's line or the next.

    Two actions in one text are refused, as AgentGym refuses them: the second was written without
    having seen the observation of the first. A text without an action is given to the environment whole.
    """
    found = _ACTION.findall(text)
    said = found[0].strip() if len(found) == 1 else ""
    if not said:
        return ParsedTurn(thought="", action=text, is_ambiguous=True)
    thought = text[: text.index("Action:")]
    return ParsedTurn(thought=_THOUGHT_LABEL.sub("", thought).strip(), action=said)


def raw(text: str) -> ParsedTurn:
    """The whole text is the action, without the white space around it."""
    return ParsedTurn(thought="", action=text.strip())
