"""Plug-ins: a distribution's entry points, and registration in one process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agents.agent import AGENTS, register_format
from agents.rewards import REWARDS, register_reward, reward
from agents.tools.registry import TOOLS, get_tool, register_tool
from agents.tools.tool import tool
from envs.errors import ConfigError
from envs.registry import ENVIRONMENTS, get_env, register_env
from tests.support.toy import toy_spec

ROOT = Path(__file__).parents[2]

PLUGIN = '''
from dataclasses import replace

from agents.agent import FormatAgent
from agents.rewards import reward
from agents.tools.tool import tool
from envs.registry import EnvSpec, Split
from envs.types import Item, StepResult


class Echo:
    async def reset(self, item):
        return "Say hello."

    async def step(self, action):
        return StepResult(action, reward=1.0, terminated=True, success=action == "hello")

    async def close(self):
        pass


def split(seed):
    items = [Item(item_id=f"echo_{i}", env="echo") for i in range(4)]
    return Split(train=items[:2], test=items[2:])


SPEC = EnvSpec(name="echo", make=Echo, split=split, expert=lambda item: (), instructions="", packages=())
EXAMPLE, SOURCE, PACKAGES = "acme:twice", "echoes", ()


def spec(argument):
    return replace(SPEC, name=f"acme:{argument}")


@tool
def shout(text: str) -> str:
    """Say it loudly.

    Args:
        text: What to say.
    """
    return text.upper()


@reward
def brevity(final_response: str) -> float:
    return 1.0 / max(1, len(final_response))


class Loud(FormatAgent):
    def __init__(self, schemas):
        super().__init__("react", schemas=schemas)

    def parse(self, text):
        return super().parse(text.lower())
'''

PROGRAM = """
import asyncio

from agents.samplers.sampler import ScriptedSampler
from agents.tools.registry import get_tool
from envs.errors import ConfigError
from envs.registry import ENVIRONMENTS, FAMILIES, get_env
from tasks.config.episodes import check_agent
from tasks.config.pipelines import load_pipeline
from tasks.config.user_code import agent_code, environment_code

overrides = {
    "data.parts": {"echo": {}},
    "warmup": None,
    "agent": {"format": "loud", "tools": ["shout", "act"], "reward": "brevity", "instructions": False},
}
pipeline = load_pipeline("textcraft-cpu", overrides=overrides, file=ROOT / "pipelines.yaml")
check_agent(pipeline)
assert "echo" in ENVIRONMENTS
assert get_env("acme:twice").name == "acme:twice"
assert "acme:twice" in [family.EXAMPLE for family in FAMILIES.values()]
assert [item.item_id for item in get_env("echo").split(0).train] == ["echo_0", "echo_1"]
assert asyncio.run(get_tool("shout").call({"text": "hi"})).observation == "HI"
assert [path.name for path in agent_code(pipeline.agent)] == ["acme_echo.py"]
assert [path.name for path in environment_code(pipeline.data.envs)] == ["acme_echo.py"]
overrides["data.parts"] = {"acme:twice": {}}
pipeline = load_pipeline("textcraft-cpu", overrides=overrides, file=ROOT / "pipelines.yaml")
assert pipeline.data.envs == ["acme:twice"]
assert [path.name for path in environment_code(pipeline.data.envs)] == ["acme_echo.py"]
print("all used")
"""


def install(folder: Path, *, name: str, entry_points: str, module: str | None = None) -> None:
    """Write a distribution, as an installer leaves it, into `folder`."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(entry_points)
    if module is not None:
        (folder / f"{name}.py").write_text(module)


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from pathlib import Path\nROOT = Path({str(ROOT)!r})\n{program}"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.heavy
def test_a_distribution_brings_an_environment_a_tool_a_reward_and_a_format(tmp_path: Path) -> None:
    install(
        tmp_path,
        name="acme_echo",
        entry_points="[wingspan.environments]\necho = acme_echo:SPEC\n"
        "[wingspan.families]\nacme = acme_echo\n"
        "[wingspan.tools]\nshout = acme_echo:shout\n"
        "[wingspan.rewards]\nbrevity = acme_echo:brevity\n[wingspan.formats]\nloud = acme_echo:Loud\n",
        module=PLUGIN,
    )
    done = run(PROGRAM, tmp_path)
    assert done.stdout == "all used\n", done.stderr


ALGORITHM = """
from pydantic import PositiveFloat
from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.conversations import Estimate


class Doubled(Grpo):
    name: str = "doubled"
    factor: PositiveFloat = 2.0

    def estimate(self, batch):
        return Estimate(self.factor * super().estimate(batch).advantages)
"""
TRAINING = """
import torch
from bench.advantages import random_batch
from tasks.algorithms.registry import parse_algorithm
from tasks.config.pipelines import load_pipeline
from tasks.config.user_code import algorithm_code

file = ROOT / "pipelines.yaml"
overrides = {"train.algorithm.name": "doubled", "train.algorithm.factor": 3}
algorithm = load_pipeline("textcraft-cpu", overrides=overrides, file=file).train.online_algorithm
batch = random_batch(16, 32)
advantages = parse_algorithm("grpo").estimate(batch).advantages
assert torch.equal(algorithm.estimate(batch).advantages, 3 * advantages)
assert [path.name for path in algorithm_code(algorithm)] == ["acme_doubled.py"]
print("trained with")
"""


@pytest.mark.heavy
def test_a_distribution_brings_an_algorithm(tmp_path: Path) -> None:
    entry_points = "[wingspan.algorithms]\ndoubled = acme_doubled:Doubled\n"
    install(tmp_path, name="acme_doubled", entry_points=entry_points, module=ALGORITHM)
    done = run(TRAINING, tmp_path)
    assert done.stdout == "trained with\n", done.stderr


@pytest.mark.parametrize(
    ("names", "value", "phrases"),
    [
        (["acme"], "acme:SPEC", ["'textcraft'", "wingspan (envs/registry.py)", "acme 1.0 (acme:SPEC)"]),
        (["acme", "bold"], "acme:SPEC", ["'twice'", "acme 1.0 (acme:SPEC)", "bold 1.0 (acme:SPEC)"]),
        (["acme"], "no_such_module:SPEC", ["'broken'", "acme 1.0", "ModuleNotFoundError"]),
    ],
    ids=["a builtin's name", "one name twice", "a module that is absent"],
)
def test_plugins_that_cannot_be_used_are_named(
    tmp_path: Path, names: Sequence[str], value: str, phrases: Sequence[str]
) -> None:
    env = phrases[0].strip("'")
    for name in names:
        install(tmp_path, name=name, entry_points=f"[wingspan.environments]\n{env} = {value}\n")
    done = run(f"from envs.registry import get_env\nget_env({env!r})", tmp_path)
    last_line = done.stderr.splitlines()[-1]
    assert "ConfigError" in last_line
    assert all(text in last_line for text in phrases), last_line


def test_what_is_registered_is_known_until_its_scope_ends() -> None:
    spec = replace(toy_spec(), name="own_toy")

    @tool
    def own_tool() -> str:
        """Do nothing."""
        return ""

    @reward
    def own_reward() -> float:
        return 1.0

    with ENVIRONMENTS.scope(), TOOLS.scope(), REWARDS.scope(), AGENTS.scope():
        register_env(spec)
        register_env(spec)  # the same again is no conflict
        register_tool(own_tool)
        register_reward(own_reward)
        register_format("own_format", lambda schemas: AGENTS.find("react")(schemas))
        assert get_env("own_toy") is spec
        assert get_tool("own_tool") is own_tool
        assert REWARDS.find("own_reward") is own_reward
        assert "own_format" in AGENTS
        with pytest.raises(
            ConfigError, match=r"two definitions of env 'own_toy': registered by tests\.tasks"
        ):
            register_env(replace(spec, instructions="another"))
    assert "own_toy" not in ENVIRONMENTS
    for names in (TOOLS, REWARDS, AGENTS):
        assert not [name for name in names if name.startswith("own_")]


def test_a_prebuilt_tool_is_not_replaced() -> None:
    with pytest.raises(
        ConfigError, match=r"two definitions of tool 'answer': wingspan \(agents/tools/registry"
    ):
        register_tool(get_tool("calculator"), name="answer")
