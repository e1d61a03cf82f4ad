"""A TextCraft episode with given actions, as a record that can be forked."""

import asyncio
from collections.abc import Sequence

from agents.agent import FormatAgent
from agents.rollout.episode import EpisodeConfig
from agents.rollout.scripted import expert_script, run_script
from agents.types import UNLIMITED, Trajectory
from envs.registry import ExpertStep, get_env, get_item

SPEC = get_env("textcraft")
ITEM = get_item(SPEC, 0)
SOLUTION = [step.resolve("") for step in SPEC.solve(ITEM)]


def run_actions(actions: Sequence[str]) -> Trajectory:
    config = EpisodeConfig(agent=FormatAgent("action"), limits=UNLIMITED)
    script = expert_script([ExpertStep("", action) for action in actions], config=config)
    return asyncio.run(run_script(SPEC.make(), ITEM, script, config=config))
