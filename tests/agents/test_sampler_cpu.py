"""The CPU sampler against Hugging Face's own forward and `generate`, and against itself when cold."""

import asyncio
import inspect
import json
import math
import os
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import Context
from pathlib import Path
from typing import Any, Never, TypeVarTuple

import numpy as np
import pytest
import torch
import transformers

from agents.samplers import kernels, tiles
from agents.samplers.cpu import CpuSampler, drafts, forward
from agents.samplers.cpu.engine import TOKENS_PER_STEP, SamplingRequest
from agents.samplers.cpu.llama import Llama, model_shape, read_checkpoint
from agents.samplers.sampling import sample_tokens, uniforms
from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import ConfigError, SamplerFailed
from tests.support.sampler_toy import (
    CONTEXT,
    KINDS,
    SIZES,
    VOCAB,
    complete,
    groups,
    make_engine,
    make_model,
    random_tokens,
    reference_logprobs,
)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_model("mha-tied")


def test_greedy_is_what_generate_gives_over_several_turns(model: Any, rng: random.Random) -> None:
    engine = make_engine(model)
    prompts = groups(rng)
    for _ in range(4):
        completions = complete(engine, prompts, params=SamplingParams(max_tokens=7, temperature=0))
        for episode, prompt in prompts.items():
            with torch.no_grad():
                reference = model.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                    max_new_tokens=7,
                    do_sample=False,
                )[0, len(prompt) :].tolist()
            assert [*completions[episode].token_ids] == reference
            prompts[episode] = prompt + reference + random_tokens(rng, rng.randrange(1, 9))
    assert engine.stats.reused_tokens > 0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_full_forward(model: Any, rng: random.Random, temperature: float) -> None:
    engine = make_engine(model)
    prompts = groups(rng)
    for turn in range(3):
        params = SamplingParams(max_tokens=4 + turn, temperature=temperature)
        for episode, completion in complete(engine, prompts, params=params).items():
            reference = reference_logprobs(
                model, prompts[episode], completion.token_ids, temperature=temperature
            )
            assert completion.logprobs == pytest.approx(reference, abs=1e-4)
            prompts[episode] += [*completion.token_ids, *random_tokens(rng, rng.randrange(1, 12))]


def test_logprobs_ignore_the_filters(llama: Any, rng: random.Random) -> None:
    prompt = random_tokens(rng, 30)
    params = SamplingParams(max_tokens=8, temperature=0.9, top_k=4, top_p=0.6)
    completion = complete(make_engine(llama), {"e": prompt}, params=params)["e"]
    reference = reference_logprobs(llama, prompt, completion.token_ids, temperature=0.9)
    assert completion.logprobs == pytest.approx(reference, abs=1e-4)


def test_requests_join_and_leave_at_any_step(model: Any, rng: random.Random) -> None:
    """Prompts and observations of every length, in one batch with decoding, at random moments."""
    engine = make_engine(model, max_sequences=12)
    conversations = {str(i): random_tokens(rng, rng.randrange(1, 130)) for i in range(12)}
    conversations |= {f"{i}'": list(conversations[str(i)]) for i in range(0, 12, 2)}
    ready, running, num_checked = list(conversations), dict[int, str](), 0
    while num_checked < 60:
        while ready and rng.random() < 0.4:
            episode = ready.pop(rng.randrange(len(ready)))
            number = len(running) + num_checked
            params = SamplingParams(max_tokens=rng.randrange(1, 9))
            running[num_checked * 1000 + number] = episode
            engine.submit(
                SamplingRequest(
                    request_id=num_checked * 1000 + number,
                    episode_id=episode,
                    prompt_ids=list(conversations[episode]),
                    params=params,
                )
            )
        for request_id, completion in engine.step():
            episode = running.pop(request_id)
            prompt = conversations[episode]
            reference = reference_logprobs(model, prompt, completion.token_ids)
            assert completion.logprobs == pytest.approx(reference, abs=1e-4)
            prompt += [*completion.token_ids, *random_tokens(rng, rng.choice([1, 2, 5, 67]))]
            num_checked += 1
            if len(prompt) < CONTEXT - 10:
                ready.append(episode)
            else:
                conversations[episode + "+"] = random_tokens(rng, 5)
                ready.append(episode + "+")


def test_a_warm_engine_samples_what_a_cold_one_does(model: Any, rng: random.Random) -> None:
    warm = make_engine(model, seed=3)
    params = SamplingParams(max_tokens=6)
    prompts = groups(rng)
    for _ in range(4):
        together = complete(warm, prompts, params=params)
        for episode, prompt in prompts.items():
            alone = complete(make_engine(model, seed=3), {episode: prompt}, params=params)[episode]
            assert together[episode].token_ids == alone.token_ids
            assert together[episode].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
            prompts[episode] = [*prompt, *alone.token_ids, *random_tokens(rng, 3)]


def test_a_group_computes_its_prompt_once_and_each_turn_only_the_new(llama: Any, rng: random.Random) -> None:
    engine = make_engine(llama)
    prompts = {str(i): list(prompt) for prompt in [random_tokens(rng, 50)] for i in range(8)}
    first = complete(engine, prompts, params=SamplingParams(max_tokens=5))
    # 49 tokens once; then each sample feeds the 50th for its own logits
    assert engine.stats.prefilled_tokens == 49 + 8
    assert engine.stats.reused_tokens == 7 * 49
    assert engine.stats.sampled_tokens == 8 * 5
    for episode in prompts:
        prompts[episode] = [*prompts[episode], *first[episode].token_ids, 5, 6]
    complete(engine, prompts, params=SamplingParams(max_tokens=5))
    # the last sampled token was never computed
    assert engine.stats.prefilled_tokens == 49 + 8 + 8 * 3
    assert engine.stats.reused_tokens == 7 * 49 + 8 * 54
    assert len({tuple(completion.token_ids) for completion in first.values()}) > 1


def test_a_changed_history_is_computed_again(model: Any, rng: random.Random) -> None:
    engine = make_engine(model)
    prompt = random_tokens(rng, 30)
    params = SamplingParams(max_tokens=6)
    sample_ids = complete(engine, {"e": prompt}, params=params)["e"].token_ids
    histories = [
        [*prompt, *sample_ids[:3], 9, 8, 7],  # diverges within what was sampled
        [*prompt, *sample_ids[:3], 9, 8, 7],  # the same again
        [*prompt, *sample_ids[:2]],  # shorter
        [*prompt[:-1], 3, *sample_ids],  # diverges at the end of the first prompt
        [*prompt[:10], 3, *prompt[11:]],  # diverges within the shared part
        prompt[:5],
    ]
    for history in histories:
        completion = complete(engine, {"e": history}, params=params)["e"]
        reference = reference_logprobs(model, history, completion.token_ids)
        assert completion.logprobs == pytest.approx(reference, abs=1e-4)


def test_new_weights_leave_nothing_of_the_old_in_the_cache(llama: Any, rng: random.Random) -> None:
    other_model = make_model("mha-tied", seed=1)
    engine = make_engine(llama)
    prompt = random_tokens(rng, 30)
    params = SamplingParams(max_tokens=TOKENS_PER_STEP + 3)
    old = complete(engine, {"e": prompt}, params=params)["e"]
    assert old.policy_version == 0
    history = [*prompt, *old.token_ids, 5]
    # one request is under way, one has not begun: both are answered by the new weights alone
    engine.submit(SamplingRequest(request_id=0, episode_id="e", prompt_ids=history, params=params))
    engine.step()
    engine.submit(SamplingRequest(request_id=1, episode_id="f", prompt_ids=prompt, params=params))
    engine.load_weights(other_model.state_dict(), policy_version=5)
    completions: dict[int, Completion] = {}
    while engine.is_busy:
        completions |= dict(engine.step())
    for request_id, tokens in ((0, history), (1, prompt)):
        completion = completions[request_id]
        assert completion.policy_version == 5
        assert len(completion.token_ids) == TOKENS_PER_STEP + 3
        reference = reference_logprobs(other_model, tokens, completion.token_ids)
        assert completion.logprobs == pytest.approx(reference, abs=1e-4)


def test_weights_that_do_not_fit_change_nothing(llama: Any, rng: random.Random) -> None:
    engine = make_engine(llama)
    good = llama.state_dict()
    bad_weights = {
        "lack": {name: weight for name, weight in good.items() if "o_proj" not in name},
        "not": good | {"model.norm.weight": torch.ones(3)},
        "extra": good | {"extra.weight": torch.ones(3)},
    }
    for word, weights in bad_weights.items():
        with pytest.raises(ConfigError, match=word):
            engine.load_weights(weights, policy_version=1)
    prompt = random_tokens(rng, 9)
    completion = complete(engine, {"e": prompt}, params=SamplingParams(max_tokens=3))["e"]
    assert completion.policy_version == 0
    assert completion.logprobs == pytest.approx(
        reference_logprobs(llama, prompt, completion.token_ids), abs=1e-4
    )


def test_few_slots_evict_the_oldest_and_stay_right(model: Any, rng: random.Random) -> None:
    engine = make_engine(model, max_sequences=2)
    params = SamplingParams(max_tokens=4)
    prompts = {str(i): random_tokens(rng, 10 + i) for i in range(5)}
    for _ in range(3):
        for episode, completion in complete(engine, prompts, params=params).items():
            reference = reference_logprobs(model, prompts[episode], completion.token_ids)
            assert completion.logprobs == pytest.approx(reference, abs=1e-4)
            prompts[episode] += [*completion.token_ids, *random_tokens(rng, 2)]
    # each time the two that hold a slot go first, and the other three take their places
    assert engine.stats.evictions == 3 * 3


def test_a_tiny_budget_forgets_prompts_and_stays_right(llama: Any, rng: random.Random) -> None:
    per_slot = SIZES["num_hidden_layers"] * 4 * (8 + 16) * 4 * CONTEXT  # values are padded to 16
    engine = make_engine(llama, cache_gb=2 * per_slot / 1e9 * 1.01)
    kept_prompt = random_tokens(rng, 200)
    for prompt in (kept_prompt, random_tokens(rng, 200), kept_prompt):
        completion = complete(engine, {str(prompt[:3]): prompt}, params=SamplingParams(max_tokens=4))
        tokens = completion[str(prompt[:3])]
        reference = reference_logprobs(llama, prompt, tokens.token_ids)
        assert tokens.logprobs == pytest.approx(reference, abs=1e-4)
    assert engine.stats.reused_tokens == 0  # two prompts of 200 are more than 256 tokens
    with pytest.raises(ConfigError, match=r"no room for an episode: one of 256 tokens takes 0.000393 GB"):
        make_engine(llama, cache_gb=per_slot / 1e9)


def test_a_stop_token_ends_a_completion_and_is_its_last(llama: Any, rng: random.Random) -> None:
    prompt = random_tokens(rng, 20)
    free = complete(make_engine(llama), {"e": prompt}, params=SamplingParams(max_tokens=12))["e"]
    assert free.finish_reason is FinishReason.LENGTH
    stop = free.token_ids[4]
    first = free.token_ids.index(stop)
    params = SamplingParams(max_tokens=12, stop_token_ids=(stop,))
    completion = complete(make_engine(llama), {"e": prompt}, params=params)["e"]
    assert completion.token_ids == free.token_ids[: first + 1]
    assert completion.finish_reason is FinishReason.STOP


def test_the_context_length_ends_a_completion(llama: Any, rng: random.Random) -> None:
    engine = make_engine(llama, context_length=40)
    completion = complete(engine, {"e": random_tokens(rng, 36)}, params=SamplingParams(max_tokens=99))["e"]
    assert len(completion.token_ids) == 4
    assert completion.finish_reason is FinishReason.LENGTH


def test_seed_and_episode_choose_the_tokens(llama: Any, rng: random.Random) -> None:
    prompt = random_tokens(rng, 20)
    params = SamplingParams(max_tokens=12)

    def tokens(seed: int, episode: str) -> tuple[int, ...]:
        return complete(make_engine(llama, seed=seed), {episode: prompt}, params=params)[episode].token_ids

    assert tokens(0, "a") == tokens(0, "a")
    assert tokens(0, "a") != tokens(1, "a")
    assert tokens(0, "a") != tokens(0, "b")


def test_a_shortened_conversation_draws_new_numbers_at_the_same_positions(
    llama: Any, rng: random.Random
) -> None:
    """At such a temperature all tokens are equally likely, so that a token tells the number drawn for it."""
    prompt = random_tokens(rng, 24)
    params = SamplingParams(max_tokens=24, temperature=1000.0)
    engine = make_engine(llama)
    whole, shortened = (
        complete(engine, {"a": ids}, params=params)["a"].token_ids for ids in (prompt, prompt[8:])
    )
    at_same_positions = zip(whole, shortened[8:], strict=False)  # from position 24 on
    assert sum(abs(first - second) < 4 for first, second in at_same_positions) < 8


FILTERS = [
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=1, temperature=0.5),
    SamplingParams(max_tokens=1, top_k=3),
    SamplingParams(max_tokens=1, top_p=0.7),
    SamplingParams(max_tokens=1, temperature=1.5, top_k=6, top_p=0.8),
]


def exact_distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """By hand: temper, keep the top k, of those the fewest that reach top p, renormalise."""
    weights = [math.exp(value / params.temperature) for value in logits]
    ranking = sorted(range(len(logits)), key=lambda i: -weights[i])[: params.top_k or None]
    total, kept_prompt, mass = sum(weights[i] for i in ranking), [], 0.0
    for i in ranking:
        kept_prompt.append(i)
        mass += weights[i] / total
        if mass >= params.top_p:
            break
    total = sum(weights[i] for i in kept_prompt)
    return [weights[i] / total if i in kept_prompt else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_frequencies_are_those_of_the_exact_distribution(params: SamplingParams) -> None:
    num_draws = 20_000
    logits = torch.randn(10, generator=torch.Generator().manual_seed(5)) * 1.5
    uniform = uniforms(list(range(num_draws)), [11] * num_draws)
    tokens, _ = sample_tokens(
        logits.expand(num_draws, -1).numpy(), params=[params] * num_draws, uniform=uniform
    )
    exact = exact_distribution(logits.tolist(), params)
    counts = [tokens.count(i) for i in range(len(exact))]
    assert all(count == 0 for count, p in zip(counts, exact, strict=True) if p == 0)
    reference = [(count, num_draws * p) for count, p in zip(counts, exact, strict=True) if p > 0]
    chi_square = sum((count - mean) ** 2 / mean for count, mean in reference)
    # 99.9% quantile of chi-square by degrees of freedom
    quantile = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 9: 27.88}
    assert chi_square < quantile[len(reference) - 1]


def test_rows_of_one_batch_keep_their_own_parameters() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(2)) * 2
    params = [
        SamplingParams(max_tokens=1, temperature=0),
        SamplingParams(max_tokens=1, temperature=0.3, top_k=2),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, top_p=0.5),
        SamplingParams(max_tokens=1, temperature=2.0),
        SamplingParams(max_tokens=1, temperature=0),
    ]
    uniform = uniforms([1, 2, 3, 4, 5, 6], [1] * 6)
    together = sample_tokens(logits.numpy(), params=params, uniform=uniform)
    for i, own_params in enumerate(params):
        (token,), (logprob,) = sample_tokens(
            logits[i : i + 1].numpy(), params=[own_params], uniform=uniform[i : i + 1]
        )
        assert together[0][i] == token
        assert together[1][i] == pytest.approx(logprob, abs=1e-6)
    assert together[0][0] == int(logits[0].argmax())
    log_prob = torch.log_softmax(logits[0], dim=-1)[together[0][0]]
    assert together[1][0] == pytest.approx(float(log_prob), abs=1e-5)


def test_the_edges_of_the_uniform_draw_possible_tokens() -> None:
    logits = np.array([[-math.inf, 0.0, 1.0, -math.inf]] * 2, dtype=np.float32)
    uniform = np.array([0.0, 1 - 2**-24], dtype=np.float32)
    tokens, _ = sample_tokens(logits, params=FILTERS[:1] * 2, uniform=uniform)
    assert tokens == [1, 2]


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    keys, positions = list(range(200)) * 100, [i // 200 for i in range(20_000)]
    values = torch.from_numpy(uniforms(keys, positions)).view(100, 200).double()
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    counts = torch.histc(values, bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8  # 99.9% quantile, 19 degrees of freedom
    deviations = values - values.mean()
    for products in (deviations[1:] * deviations[:-1], deviations[:, 1:] * deviations[:, :-1]):
        correlation = float(products.mean() / values.var())
        assert abs(correlation) < 4 / math.sqrt(products.numel())


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("hidden_act", {"hidden_act": "gelu"}),
    ("attention_bias", {"attention_bias": True}),
    ("mlp_bias", {"mlp_bias": True}),
    ("rope_type", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    ("head_dim", {"head_dim": 7}),
    ("quantization_config", {"quantization_config": {"quant_method": "gptq"}}),
]


@pytest.mark.parametrize(("key", "change"), CONFIGS, ids=[key for key, _ in CONFIGS])
def test_unsupported_models_are_refused(key: str, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"the test: .*{key} is .*; the CPU engine samples"):
        model_shape(transformers.LlamaConfig(**SIZES | change), source="the test")


def test_other_architectures_and_windows_are_refused() -> None:
    from transformers import GPT2Config

    with pytest.raises(ConfigError, match="model_type is 'gpt2'"):
        model_shape(GPT2Config(), source="the test")
    config = transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=0
    )
    with pytest.raises(ConfigError, match="use_sliding_window is True"):
        model_shape(config, source="the test")


def test_a_config_file_is_read_as_transformers_reads_it(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    theta = values.pop("rope_parameters")["rope_theta"]
    older_values = {name: value for name, value in values.items() if name != "layer_types"}
    older_values |= {"rope_theta": theta, "rope_scaling": None}
    defaults_left_out = {name: value for name, value in older_values.items() if name != "rms_norm_eps"}
    for written_values in (None, older_values, defaults_left_out):
        if written_values is not None:
            file.write_text(json.dumps(written_values))
        shape, _ = read_checkpoint(tmp_path)
        assert shape == model_shape(transformers.AutoConfig.from_pretrained(tmp_path), source="the test")
        assert shape.rope_theta == theta


def test_a_config_file_of_another_architecture_is_refused(llama: Any, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    for change in ({"model_type": "gpt2"}, {"mlp_bias": True}, {"hidden_act": "gelu"}):
        file.write_text(json.dumps(llama.config.to_dict() | change, default=str))
        with pytest.raises(ConfigError, match=rf"{file}: {next(iter(change))} is "):
            read_checkpoint(tmp_path)


PARAMS: list[tuple[str, SamplingParams]] = [
    ("max_tokens is 0", SamplingParams(max_tokens=0)),
    ("temperature is -1", SamplingParams(max_tokens=1, temperature=-1)),
    ("temperature is nan", SamplingParams(max_tokens=1, temperature=math.nan)),
    ("top_p is 0", SamplingParams(max_tokens=1, top_p=0)),
    ("top_k is -1", SamplingParams(max_tokens=1, top_k=-1)),
    ("stop_token_ids is", SamplingParams(max_tokens=1, stop_token_ids=(VOCAB,))),
]


@pytest.mark.parametrize(("text", "params"), PARAMS, ids=[text for text, _ in PARAMS])
def test_parameters_out_of_range_are_refused(llama: Any, text: str, params: SamplingParams) -> None:
    with pytest.raises(ConfigError, match=text):
        complete(make_engine(llama), {"e": [1, 2]}, params=params)


@pytest.mark.parametrize(
    "prompt", [[], [1] * CONTEXT, [VOCAB], [-1]], ids=["empty", "long", "big", "negative"]
)
def test_prompts_that_cannot_be_continued_are_refused(llama: Any, prompt: list[int]) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        complete(make_engine(llama), {"e": prompt}, params=SamplingParams(max_tokens=1))


def test_a_context_beyond_the_models_is_refused(llama: Any) -> None:
    with pytest.raises(ConfigError, match="context_length 513 is more than the model's 512"):
        make_engine(llama, context_length=513)


# -- the asynchronous front


@pytest.fixture(scope="module")
def folder(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    llama.save_pretrained(path)
    return path


@pytest.fixture
def sampler(folder: Path) -> Iterator[CpuSampler]:
    with closing(CpuSampler(folder, context_length=CONTEXT, max_sequences=64)) as sampler:
        yield sampler


def play(sampler: CpuSampler, prompt: list[int], *, episode: str, turns: int) -> Any:
    async def episode_of_turns() -> list[tuple[list[int], Completion]]:
        history, history_of_turns = list(prompt), []
        for turn in range(turns):
            params = SamplingParams(max_tokens=3 + turn)
            completion = await sampler.sample(history, params=params, episode_id=episode)
            history_of_turns.append((list(history), completion))
            history += [*completion.token_ids, 5, 6]
        return history_of_turns

    return episode_of_turns()


async def test_64_episodes_at_once_through_the_front(
    sampler: CpuSampler, llama: Any, rng: random.Random
) -> None:
    prompts = [random_tokens(rng, 12 + i) for i in range(8)]
    episodes = [play(sampler, prompts[i // 8], episode=str(i), turns=3) for i in range(64)]
    history_of_turns, stats = (
        await asyncio.wait_for(asyncio.gather(*episodes), timeout=60),
        await sampler.stats(),
    )
    for history, completion in (turn for episode in history_of_turns for turn in episode):
        reference = reference_logprobs(llama, history, completion.token_ids)
        assert completion.logprobs == pytest.approx(reference, abs=1e-4)
    assert stats.sampled_tokens == 64 * (3 + 4 + 5)
    # far fewer forwards than completions have tokens: they are batched
    assert stats.forwards < stats.sampled_tokens / 4


async def test_bad_requests_fail_alone(sampler: CpuSampler) -> None:
    params = SamplingParams(max_tokens=4)
    good, bad = await asyncio.gather(
        sampler.sample([1, 2, 3], params=params, episode_id="good"),
        sampler.sample([VOCAB], params=params, episode_id="bad"),
        return_exceptions=True,
    )
    assert isinstance(good, Completion)
    assert len(good.token_ids) == 4
    assert isinstance(bad, ConfigError)


async def test_new_weights_through_the_front(sampler: CpuSampler) -> None:
    other_model = make_model("mha-tied", seed=1)
    params = SamplingParams(max_tokens=4)
    await sampler.sample([1, 2, 3], params=params, episode_id="e")
    with pytest.raises(ConfigError, match="lack"):
        await sampler.load_weights({}, policy_version=8)
    await sampler.load_weights(other_model.state_dict(), policy_version=9)
    completion = await sampler.sample([1, 2, 3], params=params, episode_id="e")
    assert completion.policy_version == 9
    reference = reference_logprobs(other_model, [1, 2, 3], completion.token_ids)
    assert completion.logprobs == pytest.approx(reference, abs=1e-4)


async def test_a_cancelled_request_makes_room(folder: Path) -> None:
    with closing(CpuSampler(folder, context_length=512, max_sequences=1)) as sampler:
        params = SamplingParams(max_tokens=10**9)
        request = asyncio.ensure_future(sampler.sample([1, 2], params=params, episode_id="a"))
        await asyncio.sleep(0)  # it is with the engine
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        # the same episode may ask again, and there is only one slot
        for episode in ("a", "b"):
            params = SamplingParams(max_tokens=2)
            completion = await sampler.sample([1, 2], params=params, episode_id=episode)
        assert len(completion.token_ids) == 2


_Args = TypeVarTuple("_Args")


def test_a_loop_that_closes_while_it_is_answered_ends_nothing(sampler: CpuSampler) -> None:
    has_stopped = threading.Event()

    class ClosingLoop(asyncio.SelectorEventLoop):
        """Another thread's callback comes just after it was closed."""

        def call_soon_threadsafe(
            self, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
        ) -> asyncio.Handle:
            has_stopped.wait()
            self.close()
            return super().call_soon_threadsafe(callback, *args, context=context)

    loop = ClosingLoop()
    loop.set_exception_handler(lambda *_: None)  # of the request that nobody waits for any more
    request = loop.create_task(sampler.sample([VOCAB], params=SamplingParams(max_tokens=1), episode_id="bad"))
    loop.run_until_complete(asyncio.sleep(0))
    has_stopped.set()
    assert asyncio.run(sampler.stats()).sampled_tokens == 0
    assert loop.is_closed()
    assert not request.done()


async def test_a_broken_engine_fails_everyone_and_recovers(
    sampler: CpuSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Never:
        raise TypeError("broken")

    params = SamplingParams(max_tokens=4)
    with monkeypatch.context() as patch:
        patch.setattr(Llama, "compute", fail)
        requests = [sampler.sample([1, 2, i], params=params, episode_id=str(i)) for i in range(5)]
        failures = await asyncio.gather(*requests, return_exceptions=True)
    await sampler.sample([1, 2], params=params, episode_id="0")
    assert all(isinstance(failure, SamplerFailed) for failure in failures)


async def test_weights_that_have_diverged_are_named_as_the_cause(sampler: CpuSampler) -> None:
    huge = {name: value * 1e30 for name, value in make_model("mha-tied", seed=1).state_dict().items()}
    await sampler.load_weights(huge, policy_version=2)
    with pytest.raises(SamplerFailed, match=r"^the policy's logits are not numbers.* lower train\.lr$"):
        await sampler.sample([1, 2, 3], params=SamplingParams(max_tokens=4), episode_id="a")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["embed_tokens", "q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "layernorm"]
)
def test_a_weight_that_is_no_number_is_found(llama: Any, name: str, value: float) -> None:
    weights = {key: weight.clone() for key, weight in llama.state_dict().items()}
    next(weight for key, weight in weights.items() if name in key).view(-1)[5] = value
    engine = make_engine(llama)
    engine.load_weights(weights, policy_version=1)
    for top_p in (1.0, 0.9):
        engine.reset()
        params = SamplingParams(max_tokens=3, top_p=top_p)
        with pytest.raises(SamplerFailed, match="diverged"):
            complete(engine, {"e": [0, 1, 2, 3]}, params=params)


def test_what_is_compiled_belongs_to_the_files_that_it_was_compiled_from() -> None:
    """numba looks at the function's own file, and at its closure."""
    sources = b"".join(Path(inspect.getfile(module)).read_bytes() for module in (tiles, kernels, drafts))
    for function in (forward.forward, forward.generate):
        assert inspect.getclosurevars(function.py_func).nonlocals["digest"] == zlib.crc32(sources)


def test_probabilities_are_added_in_one_order() -> None:
    logits = 3 * np.random.default_rng(0).normal(size=(20, 1286)).astype(np.float32)
    masses = np.empty_like(logits)
    totals, _ = kernels.exponentiate_rows(logits, np.ones(20, np.float32), masses)
    lanes = masses[:, :1284].astype(np.float64).reshape(20, -1, 4).cumsum(axis=1)[:, -1].T
    sums = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    for rest in (1284, 1285):
        sums = sums + masses[:, rest]
    assert totals.tolist() == sums.tolist()


def add_lanes(numbers: np.ndarray) -> float:
    """The sum of `numbers` [C] in the order that `kernels.sum_of` names, each addition rounded by numpy."""
    whole = len(numbers) // 16 * 16
    lanes = np.zeros(16, np.float32)
    for vector in numbers[:whole].reshape(-1, 16):
        lanes = vector + lanes
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    total = lanes[0]
    for number in numbers[whole:]:
        total = total + number
    return float(total)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 300, 1003])
def test_a_row_is_added_up_in_one_order(count: int) -> None:
    numbers = np.random.default_rng(count).normal(size=count).astype(np.float32)
    assert kernels.sum_of(numbers) == add_lanes(numbers)
    assert kernels.highest_of(numbers) == numbers.max()
    assert kernels.highest_of(np.full(count, -np.inf, np.float32)) == -np.inf
    # Products of numbers of 11 bits are exact, so that each multiply-add rounds like an addition.
    a, b = (np.random.default_rng(seed).integers(-1023, 1024, count).astype(np.float32) for seed in (1, 2))
    assert kernels.dot(a, b) == add_lanes(a * b)


async def sample_with_shipped_model() -> list[tuple[float, ...]]:
    """The log-probs of four completions. With a tiny model, there was no difference when there was one."""
    sampler = CpuSampler("models/textcraft-base", context_length=256, max_sequences=4)
    params = SamplingParams(max_tokens=40)
    prompts = {str(first): list(range(first, first + 60)) for first in range(5, 9)}
    completions = await asyncio.gather(
        *(sampler.sample(prompt, params=params, episode_id=name) for name, prompt in prompts.items())
    )
    sampler.close()
    return [completion.logprobs for completion in completions]


@pytest.mark.heavy
def test_bits_do_not_depend_on_the_compilation(tmp_path: Path) -> None:
    """A process that compiles without optimization, and this one, which loads what was compiled with it."""
    code = (
        "import asyncio\n"
        "from tests.agents.test_sampler_cpu import sample_with_shipped_model\n"
        "print(asyncio.run(sample_with_shipped_model()))"
    )
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"NUMBA_OPT": "0", "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == f"{asyncio.run(sample_with_shipped_model())}\n"


async def test_a_closed_sampler_answers_with_an_error(folder: Path) -> None:
    sampler = CpuSampler(folder, context_length=512, max_sequences=1)
    params = SamplingParams(max_tokens=500)
    requests = [
        asyncio.create_task(sampler.sample([1, 2], params=params, episode_id=str(i))) for i in range(40)
    ]
    await asyncio.sleep(0)  # they are with the engine, which has seconds of work
    await asyncio.to_thread(sampler.close)
    answers = await asyncio.gather(*requests, return_exceptions=True)
    refusals = [answer for answer in answers if not isinstance(answer, Completion)]
    assert {str(refusal) for refusal in refusals} == {"the CPU sampler was closed"}
    assert answers[-1] in refusals
    assert all(isinstance(refusal, SamplerFailed) for refusal in refusals)
    with pytest.raises(SamplerFailed, match="closed"):
        await sampler.sample([1, 2], params=params, episode_id="e")


@pytest.mark.heavy
def test_a_process_starts_without_compiling_and_without_transformers(folder: Path) -> None:
    """To compile takes 6 CPU seconds, to import transformers two."""
    code = (
        "import sys\n"
        "from agents.samplers.cpu import CpuSampler\n"
        f"CpuSampler({str(folder)!r}, context_length={CONTEXT}).close()\n"
        "from agents.samplers.cpu.forward import forward, generate\n"
        "misses = [sum(function.stats.cache_misses.values()) for function in (forward, generate)]\n"
        "print(misses, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[0, 0] False\n"  # the functions are on disk, where this process has left them


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model in"):
        CpuSampler(tmp_path, context_length=CONTEXT)
