"""Every environment with every format: the prompt states one form of a turn, that of the format."""

import json
import re
from pathlib import Path

import pytest

from agents.formats import ACTIONS, FORMATS, NATIVE
from agents.tools.episode import act
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from envs.errors import ConfigError
from envs.registry import ENVIRONMENTS, get_env
from envs.types import Item
from tasks.config.agent import AgentSettings
from tasks.config.episodes import agent_of

FAMILIES = ("gymnasium:CartPole-v1", "openenv:http://127.0.0.1:1", "reasoning-gym:countdown")

MARKERS = {
    "action": "Answer in this form, the action on one line:\nThought: your reasoning\nAction: ",
    "raw": "Your whole text is taken as ",
    "react": "Action Input: a JSON object",
    "json": '{"name": "the name of a tool", "arguments"',
    "code": "```python",
    "searchr1": "write one query within <search> and </search>",
}
"""What states each form in words. The forms of `NATIVE` are the chat template's."""


@tool
def search(query: str) -> str:
    """Search."""
    return query


@tool
def code_interpreter(code: str) -> str:
    """Run code."""
    return code


TOOLS = {"code": code_interpreter, "searchr1": search}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("env", [*ENVIRONMENTS, *FAMILIES])
def test_a_prompt_states_the_form_of_its_format_and_no_other(env: str, format: str) -> None:
    spec = get_env(env)
    tools = None if format in ACTIONS else Toolbox([TOOLS.get(format) or act])
    settings = AgentSettings(format=format, instructions=True)
    opening = agent_of(settings, spec, tools).render(Item(item_id="a_0", env=env), "You see a door.")
    prompt = "\n".join(message.content for message in opening.messages)
    form_names = [name for name, marker in MARKERS.items() for _ in range(prompt.count(marker))]
    # SearchQA's actions are Search-R1's turns: its instructions say what a turn looks like.
    is_stated_by_env = env.startswith("searchqa") and format in ACTIONS
    assert form_names == ([] if format in NATIVE or is_stated_by_env else [format])
    assert json.dumps(opening.tools).count('"act"') == (format in NATIVE)


@pytest.mark.parametrize("env", [*ENVIRONMENTS, *FAMILIES])
def test_instructions_leave_thoughts_and_lines_to_the_format(env: str) -> None:
    words = re.findall(r"thought|<think>|on one line|Thought:|Action:", get_env(env).instructions)
    assert words == []


def test_without_instructions_a_turns_form_is_not_stated() -> None:
    settings = AgentSettings(format="action", instructions=False)
    opening = agent_of(settings, get_env("textcraft"), None).render(
        Item(item_id="a_0", env="textcraft"), "See"
    )
    assert [message.content for message in opening.messages] == ["See"]


@pytest.mark.parametrize(
    ("env", "end"), [("miniwob", "the height of the window\n"), ("textcraft", 'at your "inventory". ')]
)
def test_the_form_continues_a_paragraph_and_follows_a_list_on_a_line_of_its_own(env: str, end: str) -> None:
    settings = AgentSettings(format="action", instructions=True)
    [message] = agent_of(settings, get_env(env), None).render(Item(item_id="a_0", env=env), "x").messages
    form = "Answer in this form, the action on one line:\nThought: your reasoning\nAction: your next action"
    assert message.content.endswith(f"{end}{form}\n\nx")


def test_a_prompt_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "brief.md"
    latin.write_bytes("Préparez le dîner.".encode("latin-1"))
    for file in (latin, tmp_path, tmp_path / "none.md"):
        settings = AgentSettings(format="action", instructions=False, prompt=file)
        with pytest.raises(ConfigError, match=rf"agent\.prompt: cannot read {file}: .*; name another"):
            agent_of(settings, get_env("textcraft"), None)
