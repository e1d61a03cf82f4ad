"""What the CPU engine samples for an episode is the same to the last bit, whatever else happens in it."""

import random
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import transformers

from agents.samplers.cpu import engine as engine_module
from agents.samplers.cpu import scheduler
from agents.samplers.cpu.engine import CpuEngine, SamplingRequest
from agents.samplers.cpu.llama import model_shape
from agents.samplers.cpu.scheduler import bytes_per_token
from agents.types import Completion, SamplingParams
from tests.support.sampler_toy import KINDS, SIZES, complete, make_engine, make_model, random_tokens, rope

EPISODES, GROUP, TURNS = 12, 4, 4
PARAMS = (
    SamplingParams(max_tokens=9),
    SamplingParams(max_tokens=6, temperature=1.3),
    SamplingParams(max_tokens=7, temperature=0.8, top_k=20, top_p=0.9),
    SamplingParams(max_tokens=5, temperature=0),
)

Played = list[tuple[tuple[int, ...], tuple[float, ...]]]  # tokens and log-probs of each turn


@pytest.fixture(scope="module", params=[*KINDS, "shipped"])
def model(request: pytest.FixtureRequest) -> Any:
    """Small models, and one of the shipped model's size, whose products have more panels and rows."""
    if request.param != "shipped":
        return make_model(request.param)
    torch.manual_seed(1)
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "vocab_size": 1286}
    config = transformers.LlamaConfig(**SIZES | sizes, tie_word_embeddings=True, rope_parameters=rope(1e6))
    return transformers.LlamaForCausalLM(config).eval()


class EpisodeSet:
    """Episodes of several turns, in groups of one opening; observations are a function of the episode."""

    def __init__(self, episodes: Iterable[int] = range(EPISODES)) -> None:
        self.prompts = {str(i): _tokens(f"opening {i // GROUP}", 3 + 41 * (i // GROUP)) for i in episodes}
        self.turns_by_episode: dict[str, Played] = {episode: [] for episode in self.prompts}

    def request(self, episode: str, number: int) -> SamplingRequest:
        params = PARAMS[(int(episode) + len(self.turns_by_episode[episode])) % len(PARAMS)]
        return SamplingRequest(
            request_id=number, episode_id=episode, prompt_ids=list(self.prompts[episode]), params=params
        )

    def answer(self, episode: str, completion: Completion) -> None:
        turns = self.turns_by_episode[episode]
        turns.append((completion.token_ids, completion.logprobs))
        observation = _tokens(f"{episode} observes {len(turns)}", (1, 9, 2, 30)[len(turns) % 4])
        self.prompts[episode] = [*self.prompts[episode], *completion.token_ids, *observation]
        if (int(episode) + len(turns)) % 5 == 0:  # some turn's end is forgotten
            self.prompts[episode] = self.prompts[episode][:-12] + observation


def _tokens(name: str, count: int) -> list[int]:
    return random_tokens(random.Random(name), count)


def play(
    engine: CpuEngine, episode_set: EpisodeSet, *, rng: random.Random, patience: float, live: int = EPISODES
) -> dict[str, Played]:
    """Play all episodes to their end, at most `live` at once; after each step of the engine, each request
    that could be made is made with probability `patience`."""
    ready, running = list(episode_set.prompts), dict[int, str]()
    rng.shuffle(ready)
    number = 0
    while ready or running:
        for episode in list(ready):
            if len(running) < live and rng.random() < patience:
                ready.remove(episode)
                engine.submit(episode_set.request(episode, number))
                running[number] = episode
                number += 1
        for request_id, completion in engine.step():
            episode = running.pop(request_id)
            episode_set.answer(episode, completion)
            if len(episode_set.turns_by_episode[episode]) < TURNS:
                ready.append(episode)
    return episode_set.turns_by_episode


@pytest.fixture(scope="module")
def reference(model: Any) -> dict[str, Played]:
    """Tokens and log-probs of each episode, played in an engine of its own and without drafts."""
    turns_by_episode: dict[str, Played] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine_module, "MAX_DRAFT", 0)
        for episode in range(EPISODES):
            turns_by_episode |= play(
                make_engine(model, seed=3), EpisodeSet([episode]), rng=random.Random(0), patience=1
            )
    return turns_by_episode


@pytest.mark.parametrize(("patience", "live"), [(1, EPISODES), (0.3, EPISODES), (0.05, EPISODES), (0.5, 3)])
def test_whatever_else_is_in_the_batch_and_whenever_requests_arrive(
    model: Any, reference: dict[str, Played], patience: float, live: int
) -> None:
    rng = random.Random(live)
    assert play(make_engine(model, seed=3), EpisodeSet(), rng=rng, patience=patience, live=live) == reference


def test_whether_keys_and_values_are_cached_shared_or_computed_anew(
    model: Any, reference: dict[str, Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer slots than live episodes, no patience with idle ones, and room for hardly a prompt."""
    monkeypatch.setattr(scheduler, "GRACE_STEPS", 0)
    monkeypatch.setattr(engine_module, "CHUNK", 7)
    shape = model_shape(model.config, source="the test")
    monkeypatch.setattr(scheduler, "PREFIX_SHARE", 50.5 * bytes_per_token(shape) / 4e9)  # 50 tokens
    engine = make_engine(model, seed=3, max_sequences=5, cache_gb=4.0)
    assert play(engine, EpisodeSet(), rng=random.Random(5), patience=0.3) == reference
    assert engine.stats.evictions > 5


def test_whichever_of_two_engines_an_episode_is_played_by(model: Any, reference: dict[str, Played]) -> None:
    turns_by_episode: dict[str, Played] = {}
    for first in (0, 1):
        episode_set = EpisodeSet(range(first, EPISODES, 2))
        turns_by_episode |= play(make_engine(model, seed=3), episode_set, rng=random.Random(6), patience=0.5)
    assert turns_by_episode == reference


def test_however_few_sequences_advance_together(
    model: Any, reference: dict[str, Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "HOT_BYTES", 1)
    monkeypatch.setattr(engine_module, "MIN_HOT", 2)
    monkeypatch.setattr(engine_module, "TOKENS_PER_STEP", 3)
    for threads in (1, 3):
        engine = make_engine(model, seed=3, max_sequences=5, threads=threads)
        assert play(engine, EpisodeSet(), rng=random.Random(9), patience=0.5) == reference


def test_however_many_threads_share_the_sequences(model: Any, reference: dict[str, Played]) -> None:
    engine = make_engine(model, seed=3, threads=3)
    assert play(engine, EpisodeSet(), rng=random.Random(8), patience=0.3) == reference


def test_completions_that_start_again_with_the_same_weights(
    model: Any, reference: dict[str, Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(model, seed=3)
    steps, compute = iter(range(10**6)), engine.step

    def step() -> list[tuple[int, Completion]]:
        if next(steps) % 10 == 9:
            engine.load_weights(model.state_dict(), policy_version=0)
        return compute()

    monkeypatch.setattr(engine, "step", step)
    assert play(engine, EpisodeSet(), rng=random.Random(7), patience=0.4) == reference


@pytest.mark.parametrize(("temperature", "least_accepted"), [(0, 0.9), (0.02, 0.2)])
@pytest.mark.parametrize("threads", [1, 3])
def test_however_many_tokens_are_drafted(
    model: Any, temperature: float, least_accepted: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups are sampled twice, and the second time they are drafted from the first: at temperature 0
    nearly all drafts are right, and the higher it is, the fewer."""
    params = SamplingParams(max_tokens=40, temperature=temperature)
    completions_by_draft = []
    for max_draft in (0, 1, 4, 100):
        monkeypatch.setattr(engine_module, "MAX_DRAFT", max_draft)
        engine = make_engine(model, seed=3, threads=threads)
        completions: dict[str, Completion] = {}
        for wave in "ab":
            prompts = {f"{wave}{i}": _tokens(f"opening {i // GROUP}", 50) for i in range(2 * GROUP)}
            completions |= complete(engine, prompts, params=params)
        completions_by_draft.append(completions)
        stats = engine.stats
        assert stats.accepted_tokens <= stats.drafted_tokens
        if max_draft == 0:
            assert stats.drafted_tokens == 0
        elif max_draft == 4:  # the second time
            assert stats.accepted_tokens >= least_accepted * 2 * GROUP * 40 * 4 // 5
            assert stats.drafted_tokens > stats.accepted_tokens or temperature == 0
    assert completions_by_draft[1:] == completions_by_draft[:1] * 3


def test_text_that_does_not_repeat_itself_is_hardly_drafted(model: Any) -> None:
    """However full the table is: a run of other tokens is no reason for a draft."""
    engine = make_engine(model, seed=3)
    params = SamplingParams(max_tokens=30, temperature=3.0)
    for wave in range(4):
        prompts = {f"{wave} {i}": _tokens(f"text {wave} {i}", 200) for i in range(20)}
        complete(engine, prompts, params=params)
    assert engine.stats.drafted_tokens < engine.stats.sampled_tokens / 20
