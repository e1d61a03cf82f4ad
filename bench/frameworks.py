"""Agents of other frameworks against the gateway, over HTTP: the training data that each leaves.

    python -m venv /tmp/framework && /tmp/framework/bin/pip install openai-agents
    python -m bench.frameworks openai-agents --python /tmp/framework/bin/python

Each runs in its own environment (openai-agents is imported as `agents`, as our package is), gets a URL and a
key, and has a question and a tool. The policy samples prescribed texts in Hermes' format, with the tokenizer
of `models/textcraft-base`. Prints one JSON object a line:

- `agent`: which of the framework's interfaces
- `answer`: its answer; the right one is 391
- `turns`, `segments`: sampled turns, and in how many conversations
"""

import argparse
import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agents.gateway.gateway import Gateway
from agents.rollout.packing import pack
from agents.samplers.sampler import ScriptedSampler
from agents.types import SamplingParams
from envs.types import Item

MODEL = Path(__file__).parents[1] / "models" / "textcraft-base"
TEMPLATE = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def call(name: str, **arguments: Any) -> str:
    """A call as the policy writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LOOK = f"I multiply.\n{call('multiply', a=17, b=23)}"
_OPENAI_AGENTS = """
import asyncio, sys
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
set_tracing_disabled(True)
set_default_openai_api("chat_completions" if sys.argv[1] == "chat" else "responses")
@function_tool
def multiply(a: int, b: int) -> int:
    "Multiplies."
    return a * b
agent = Agent(name="m", instructions="Use the tool.", tools=[multiply], model="policy")
async def main():
    if sys.argv[1] == "stream":
        result = Runner.run_streamed(agent, "What is 17 * 23?")
        async for _ in result.stream_events():
            pass
    else:
        previous = sys.argv[1] == "previous"
        result = await Runner.run(agent, "What is 17 * 23?", auto_previous_response_id=previous)
    print(result.final_output)
asyncio.run(main())
"""
_LANGGRAPH = """
import sys
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
def multiply(a: int, b: int) -> int:
    "Multiplies."
    return a * b
model = ChatOpenAI(model="policy", use_responses_api=sys.argv[1] == "responses", max_retries=0)
agent = create_react_agent(model, [multiply])
print(agent.invoke({"messages": [("user", "What is 17 * 23?")]})["messages"][-1].text)
"""
_PYDANTIC_AI = """
import sys
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
class Product(BaseModel):
    value: int
kind = OpenAIResponsesModel if sys.argv[1] == "responses" else OpenAIChatModel
model = kind("policy", profile={"supports_forced_tool_choice": False})
agent = Agent(model, output_type=Product if sys.argv[1] == "structured" else str)
@agent.tool_plain
def multiply(a: int, b: int) -> int:
    "Multiplies."
    return a * b
print(agent.run_sync("What is 17 * 23?").output)
"""
_SMOLAGENTS = '''
import os, sys
from smolagents import CodeAgent, LogLevel, OpenAIServerModel, ToolCallingAgent, tool
@tool
def multiply(a: int, b: int) -> int:
    """Multiplies.

    Args:
        a: One number.
        b: The other.
    """
    return a * b
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
model = OpenAIServerModel("policy", api_base=url, api_key=key, tool_choice="auto")
kind = CodeAgent if sys.argv[1] == "code" else ToolCallingAgent
print(kind([multiply], model, verbosity_level=LogLevel.OFF).run("What is 17 * 23?"))
'''
SAYS = [LOOK, "It is 391."]
FRAMEWORKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "openai-agents": (_OPENAI_AGENTS, dict.fromkeys(("chat", "responses", "previous", "stream"), SAYS)),
    "langgraph": (_LANGGRAPH, dict.fromkeys(("chat", "responses"), SAYS)),
    "pydantic-ai": (
        _PYDANTIC_AI,
        {"chat": SAYS, "responses": SAYS, "structured": [LOOK, call("final_result", value=391)]},
    ),
    "smolagents": (
        _SMOLAGENTS,
        {
            "tools": [LOOK, call("final_answer", answer="391")],
            "code": ["<code>\nprint(multiply(a=17, b=23))\n</code>", "<code>\nfinal_answer(391)\n</code>"],
        },
    ),
}
"""By name: a program, and the texts of the policy for each of its interfaces."""


async def play(framework: str, agent: str, *, python: Path) -> dict[str, Any]:
    """One episode by `agent` of `framework`, in the environment of `python`."""
    from transformers import AutoTokenizer

    program, ways = FRAMEWORKS[framework]
    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    tokenizer.chat_template = TEMPLATE
    says: Iterator[str] = iter(ways[agent])
    gateway = Gateway(
        ScriptedSampler(
            lambda _, __: next(says), encode=lambda text: tokenizer.encode(text, add_special_tokens=False)
        ),
        tokenizer,
        sampling=SamplingParams(max_tokens=512),
        context_length=1 << 17,
    )
    async with gateway.listening(), gateway.session(Item("trial_0", "program")) as session:
        keys = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.api_key}
        with TemporaryDirectory() as folder:
            file = Path(folder) / "agent.py"  # smolagents reads its tools' source
            file.write_text(program)
            process = await asyncio.create_subprocess_exec(
                *(str(python), "-W", "ignore", str(file), agent),
                env={**os.environ, **keys, "PYTHONPATH": ""},
                cwd=folder,
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await process.communicate()
        trajectory = session.trajectory()
    return {
        "agent": agent,
        "answer": output.decode().strip(),
        "turns": len(trajectory.turns),
        "segments": len(pack(trajectory)) if trajectory.turns else 0,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="A framework's agents against the gateway")
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--python", type=Path, required=True, help="of an environment that has it")
    arguments = parser.parse_args()
    for agent in FRAMEWORKS[arguments.framework][1]:
        print(json.dumps(asyncio.run(play(arguments.framework, agent, python=arguments.python))), flush=True)


if __name__ == "__main__":
    main()
