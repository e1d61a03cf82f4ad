"""The gateway over a real model on the CPU, in process and as the command."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from agents.gateway.gateway import Gateway
from agents.rollout.packing import pack
from agents.samplers.cpu import CpuSampler
from agents.types import SamplingParams
from tests.support.gateway_toy import ITEM, QUESTION, SEARCH, ask, client_of, to_history, tokenizer_with
from tests.support.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[2]


async def test_a_real_model_is_trained_on_what_it_sampled(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    sampler = CpuSampler(folder, context_length=512)
    gateway = Gateway(sampler, tokenizer_with(), sampling=SamplingParams(max_tokens=12), context_length=512)
    async with gateway.listening():
        trajectories = []
        for _ in range(2):
            async with (
                gateway.session(ITEM, name="a/0/0/1") as session,
                client_of(session.base_url) as client,
            ):
                talk: list[Any] = [QUESTION]
                for _ in range(4):
                    talk += [to_history(await ask(client, talk, tools=[SEARCH])), QUESTION]
            trajectories.append(session.trajectory(reward=1.0))
        stats = await sampler.stats()
    sampler.close()
    first, second = (pack(trajectory) for trajectory in trajectories)
    assert first == second  # the same name draws the same
    assert len(first) == 1
    assert sum(first[0].response_mask) == sum(
        len(turn.completion.token_ids) for turn in trajectories[0].turns
    )
    assert stats.reused_tokens > stats.prefilled_tokens  # turns go on in the sampler's cache


@pytest.mark.heavy
def test_the_command_serves_the_policy_of_a_run_until_it_is_interrupted(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "policy")
    code = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve-policy", str(tmp_path), "--port", "0", "--max-tokens", "5"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = re.search(r"http://\S+/v1", process.stdout.readline())
        assert url is not None
        with openai.OpenAI(base_url=url.group(), api_key="none") as client:
            message: Any = QUESTION
            answer = client.chat.completions.create(model="policy", messages=[message])
        assert answer.usage is not None
        assert 0 < answer.usage.completion_tokens <= 5
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
