"""Tools described in words and by chat templates; a template that ignores them is refused."""

from typing import Any

import pytest

from agents.formats import FORMATS, NATIVE
from agents.formats.calls import ToolCall
from agents.prompting.native_tools import check_native
from agents.prompting.renderer import Renderer
from agents.prompting.tools_prompt import FORMATS_WITH_PROMPT, PLACEHOLDER, tools_prompt
from envs.errors import ConfigError
from envs.types import Message
from tests.support.format_writers import ARGUMENTS
from tests.support.tool_templates import END, MESSAGE, TEMPLATES, TOOLS_OF_JSON, with_template
from tests.support.toy import CHATML


def schema(name: str, *arguments: str, description: str = "Does it.") -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


SEARCH = schema("search", "query", description="Finds {{tools}} passages.")
RUN = schema("code_interpreter", "code", description="Runs Python.")
TOOLS = {"react": [SEARCH, RUN], "json": [SEARCH, RUN], "code": [RUN], "searchr1": [SEARCH]}


@pytest.mark.parametrize("format", FORMATS_WITH_PROMPT)
def test_every_format_without_a_template_has_a_prompt_with_its_tools(format: str) -> None:
    prompt = tools_prompt(format, TOOLS[format])
    for tool in TOOLS[format]:
        assert tool["function"]["description"] in prompt
    assert prompt.replace(SEARCH["function"]["description"], "").count(PLACEHOLDER) == 0
    assert tools_prompt(format, [tool["function"] for tool in TOOLS[format]]) == prompt


@pytest.mark.parametrize("format", ["react", "json"])
def test_names_and_arguments_are_shown(format: str) -> None:
    prompt = tools_prompt(format, TOOLS[format])
    assert '"name": "search"' in prompt
    assert '"properties": {"code": {"type": "string"}}' in prompt


def test_what_the_prompts_show_is_read() -> None:
    beginnings = {"json": '{"name": "the name', "code": "```python", "searchr1": "<answer>Beijing"}
    for format, beginning in beginnings.items():
        prompt = tools_prompt(format, TOOLS[format])
        assert FORMATS[format].parse(prompt[prompt.rindex(beginning) :]).problem is None


@pytest.mark.parametrize(
    ("format", "schemas", "why"),
    [
        ("hermes", [SEARCH], "'hermes' has no prompt"),
        ("react", [], "there are none; name them in agent.tools"),
        ("react", [SEARCH, SEARCH], "different names"),
        ("code", [SEARCH], r"can call code_interpreter\(code\) and nothing else"),
        ("code", [RUN, SEARCH], "nothing else"),
        ("searchr1", [schema("search", "q")], r"can call search\(query\)"),
        ("json", [{}], "no name"),
    ],
)
def test_tools_that_a_format_cannot_call_are_refused(
    format: str, schemas: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        tools_prompt(format, schemas)


@pytest.mark.parametrize("format", NATIVE)
def test_a_template_that_shows_tools_and_writes_the_format_is_accepted(format: str) -> None:
    tokenizer = with_template(TEMPLATES[format])
    check_native(tokenizer, format)
    text = tokenizer.decode(Renderer(tokenizer).prompt_ids([Message("user", "Goal.")], tools=[SEARCH]))
    assert '"name": "search"' in text
    assert text.endswith("Goal.<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("format", NATIVE)
def test_what_the_template_writes_is_read(format: str) -> None:
    tokenizer = with_template(TEMPLATES[format])
    for arguments in ARGUMENTS:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        says = {"role": "assistant", "content": "", "tool_calls": [call]}
        text = tokenizer.apply_chat_template([{"role": "user", "content": ""}, says], tokenize=False)
        turn = FORMATS[format].parse(
            text.rpartition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")
        )
        if format == "qwen3" and not all(isinstance(value, str) for value in arguments.values()):
            assert [call.name for call in turn.calls] == ["f"]
        else:
            assert turn.calls == (ToolCall("f", arguments),)


def test_a_template_that_ignores_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not show the tools' names, descriptions, arguments; use a"):
        check_native(with_template(CHATML), "hermes")
    names = MESSAGE + "{% for t in tools %}{{ t.function.name }}{% endfor %}" + END
    with pytest.raises(ConfigError, match="does not show the tools' descriptions, arguments; use a model"):
        check_native(with_template(names), "hermes")


@pytest.mark.parametrize("template", ["qwen3", "llama3"])
def test_a_template_that_writes_other_calls_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=f"in format 'hermes'; use format '{template}'"):
        check_native(with_template(TEMPLATES[template]), "hermes")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (TOOLS_OF_JSON + MESSAGE + END, "does not write calls in format 'hermes'; use a model"),
        ("{{ raise_exception('no tools') }}", "refuses tools or a conversation with them: no tools; use a"),
    ],
)
def test_a_template_without_calls_is_refused(template: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_native(with_template(template), "hermes")


def test_a_format_that_no_template_has_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="'react' belongs to no chat template; use one of hermes, qwen3, llama3"
    ):
        check_native(with_template(CHATML), "react")
