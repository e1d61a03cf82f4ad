"""Real training on the CPU that samples with vLLM, whose process is killed in between."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tasks.data.trajectories import read_trajectories
from tasks.runs.progress import Progress
from tasks.stages.train import TrainSession
from tests.support.sampler_toy import reference_logprobs
from tests.support.sockets import is_loopback, listening
from tests.support.verl_runs import prepare_toy_run
from tests.support.verl_toy import toy_pipeline
from tests.support.vllm_there import needs_vllm
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, needs_vllm]

CLOSE = 1e-4
"""Between probabilities of float32 models, one in vLLM and one in transformers or verl."""


def find_vllm() -> list[psutil.Process]:
    """vLLM's processes beneath this one."""
    children = psutil.Process().children(recursive=True)
    return [p for p in children if p.is_running() and any("vllm_program" in text for text in p.cmdline())]


def test_a_training_with_vllm_knows_how_far_its_probabilities_are_from_the_trainers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folder = prepare_toy_run(monkeypatch, tmp_path)
    pipeline = toy_pipeline(
        folder, backend__rollout="vllm-cpu", train__steps=3, train__steps_per_round=2, train__lr=1e-2
    )
    step_numbers: list[int] = []
    pids: list[int] = []

    def on_step(values: Mapping[str, float]) -> None:
        step_numbers.append(int(values["step"]))
        [process] = find_vllm()
        pids.append(process.pid)
        open_to = {name: address for name, address, _ in listening()}
        assert any("vllm_program" in name for name in open_to)
        assert {name: address for name, address in open_to.items() if not is_loopback(address)} == {}
        if step_numbers == [1, 2]:
            os.kill(process.pid, signal.SIGKILL)

    with TrainSession(pipeline, tmp_path, Progress(on_step=on_step)) as session:
        session.evaluate_round(session.train_round(0))  # by a new process, from the checkpoint of step 2
        session.evaluate_round(session.train_round(1))
    wait_until(lambda: not find_vllm())

    assert step_numbers == [1, 2, 3]  # nothing is trained twice: step 2 was saved
    assert pids[0] == pids[1] != pids[2]
    lines = [json.loads(line) for line in (tmp_path / "train" / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert 0 < line["rollout_probs_diff_mean"] < line["rollout_probs_diff_max"] < CLOSE
        assert line["importance_mean"] == pytest.approx(1, abs=CLOSE)
        assert (line["importance_capped"], line["importance_rejected"]) == (0, 0)
        assert line["dropped"] == 0
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    for step in (1, 2, 3):
        trajectories = read_trajectories(tmp_path / "train" / "trajectories" / f"step_{step:04d}.jsonl")
        for trajectory in trajectories:
            context = list(trajectory.prompt_ids)
            for turn in trajectory.turns:
                tokens, logprobs = turn.completion.token_ids, turn.completion.logprobs
                assert turn.completion.policy_version == step - 1
                if step == 1:
                    expected = reference_logprobs(model, context, tokens, temperature=1.3)
                    assert logprobs == pytest.approx(expected, abs=CLOSE)
                context += [*tokens, *turn.observation_ids]
