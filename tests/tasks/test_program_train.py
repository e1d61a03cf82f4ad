"""A program that uses OpenAI's client, trained by real verl on the CPU, with the policy served meanwhile."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from agents.clients.endpoint import Endpoint
from agents.rollout.packing import pack
from agents.rollout.rollout import rollout
from agents.types import EpisodeLimits, Trajectory
from tasks.data.trajectories import read_trajectories
from tasks.progress import Progress
from tasks.rollout.served_policy import ServedAt
from tasks.stages.evaluate import evaluate
from tasks.stages.prepare import prepare
from tasks.stages.train import TrainSession
from tasks.verl.process import RayTrainingProcess
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.tasks.test_served_policy import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
STEPS = 2


class Questioner(threading.Thread):
    """Asks the served policy again and again, from before it is there until it is gone."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
        self.fingerprints: list[str | None] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        message: Any = {"role": "user", "content": "Are you there?"}
        while not self.is_over.is_set():
            try:
                answer = self._client.chat.completions.create(
                    model="policy", messages=[message], max_tokens=4
                )
            except openai.APIConnectionError:
                self.is_over.wait(0.2)
            else:
                self.fingerprints.append(answer.system_fingerprint)


def test_a_program_is_trained_token_exactly_and_its_policy_answers_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    log = tmp_path / "log"
    for side, count in (("train", 4), ("test", 2)):
        rows = [{"question": f"{side} {n}?", "log": str(log)} for n in range(count)]
        Path(f"data/{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = save_tiny_model(tmp_path / "model")
    pipeline = toy_pipeline(
        model,
        data={
            "parts": {"asked": {"env": "question", "train": "data/train.jsonl", "test": "data/test.jsonl"}}
        },
        agent={"program": "tests.support.program_toy:play"},
        train__steps=STEPS,
        train__steps_per_round=STEPS,
        rollout__items_per_step=2,
        evaluate__quick_items=2,
    )
    workspace = tmp_path / "run"
    prepare(pipeline, workspace)
    address = ServedAt(host="127.0.0.1", port=free_port(), token=None)
    questioner = Questioner(address.url)
    questioner.start()
    versions_after: list[int] = []

    def on_step(values: Mapping[str, float]) -> None:
        episodes = rollout(
            ["And now?"],
            agent="raw",
            model=Endpoint(address.url, "policy"),
            limits=EpisodeLimits(max_turns=1, max_tokens_per_turn=4),
        )
        versions_after.extend(turn.completion.policy_version for t in episodes for turn in t.turns)

    with TrainSession(
        pipeline, workspace, Progress(on_step=on_step), process=RayTrainingProcess(serve=address)
    ) as session:
        result = session.evaluate_round(session.train_round(0))
        questioner.is_over.set()
        session.export()
    questioner.join()
    assert result.evaluation["episodes"] == 2
    assert versions_after == [1, 2]  # after each step, the weights of that step
    versions = [int((request or "").removeprefix("policy_version=")) for request in questioner.fingerprints]
    assert set(versions) <= set(range(STEPS + 1))
    assert len(set(versions)) > 1
    assert versions == sorted(versions)

    evaluate(pipeline, workspace)
    evaluation = json.loads((workspace / "evaluation.json").read_text())
    assert evaluation["after"]["sampled"]["turns"] == 2

    clients = [json.loads(line) for line in log.read_text().splitlines()]
    talk_by_texts = {json.dumps([request["says"] for request in talk]): talk for talk in clients}
    for step in range(1, STEPS + 1):
        trajectories = read_trajectories(workspace / "train" / "trajectories" / f"step_{step:04d}.jsonl")
        assert len(trajectories) == 2 * 4
        for trajectory in trajectories:
            talk = talk_by_texts[json.dumps([turn.text for turn in trajectory.turns])]
            assert {request["fingerprint"] for request in talk} == {f"policy_version={step - 1}"}
            assert {turn.completion.policy_version for turn in trajectory.turns} == {step - 1}
            assert trajectory.reward == float(len(talk[-1]["says"]) % 2 == 0)
            # What the client was told of its requests is where the mask is 1, and nothing else is.
            (segment,) = pack(trajectory)
            mask = [0] * len(segment.prompt_ids) + list(segment.response_mask)
            request_mask = [0] * len(mask)
            for request in talk:
                begins = request["prompt_tokens"]
                request_mask[begins : begins + request["completion_tokens"]] = [1] * request[
                    "completion_tokens"
                ]
            assert mask == request_mask
    first = read_trajectories(workspace / "train" / "trajectories" / "step_0001.jsonl")
    assert_sampled_by(model, first, temperature=1.3)


def assert_sampled_by(model: Path, trajectories: list[Trajectory], *, temperature: float) -> None:
    """Transformers' own forward pass gives every trained token the log-prob that was recorded."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model)
    for trajectory in trajectories:
        for segment in pack(trajectory):
            ids = torch.tensor(segment.prompt_ids + segment.response_ids)
            with torch.no_grad():
                logits = policy(ids[None]).logits[0, :-1] / temperature
            logprobs = torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]
            is_sampled = torch.tensor(segment.response_mask, dtype=torch.bool)
            ours = torch.tensor(segment.logprobs)[is_sampled]
            torch.testing.assert_close(
                logprobs[len(segment.prompt_ids) - 1 :][is_sampled], ours, atol=1e-4, rtol=0
            )
