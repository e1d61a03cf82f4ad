"""A tiny vision-language model from sampler to trainer: the same ids, pixels and positions at both ends."""

import importlib.util
import inspect
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from agents.prompting.images import decode_image, has_vision, load_processor
from agents.rollout.conversation import ContextPolicy
from agents.rollout.packing import pack
from agents.samplers.cpu import CpuSampler
from agents.samplers.local import LocalModel
from agents.samplers.transformers import TransformersSampler
from agents.types import Completion, FinishReason, SamplingParams, Trajectory
from envs.errors import ConfigError, MissingDependency
from envs.types import Image, Message
from tasks.verl.config import check_pipeline, verl_config
from tasks.verl.rollout import VerlSampler
from tasks.verl.rows import fields_of, rows_of
from tasks.verl.vision import vision_of
from tests.agents.test_images import LIMITS, PAD, play_episode, renderer
from tests.support.gallery import SMALL, TALL, WIDE, Gallery
from tests.support.tiny_model import save_tiny_model
from tests.support.toy import toy_item
from tests.support.verl_toy import toy_pipeline
from tests.support.vision_toy import save_vision_model, tiny_config, vision_processor, vision_tokenizer
from tests.tasks.test_gpu_model import pretend_installed

SHORT = replace(LIMITS, max_tokens_per_turn=10, context_length=280)
HAS_FILMS = importlib.util.find_spec("torchvision") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def bound_processor() -> Any:
    """The processor with the model's own way to count positions, as verl's `hf_processor` binds it."""
    from types import MethodType

    from transformers.models.qwen2_vl import Qwen2VLModel

    processor = vision_processor()
    processor.config = tiny_config()
    processor.get_rope_index = MethodType(Qwen2VLModel.get_rope_index, processor)
    processor.get_vision_position_ids = MethodType(Qwen2VLModel.get_vision_position_ids, processor)
    return processor


def make_sampler(folder: Path, **options: Any) -> TransformersSampler:
    return TransformersSampler(
        folder, vision_processor(), **{"context_length": LIMITS.context_length, **options}
    )


def trajectory(folder: Path, *, seed: int, policy: ContextPolicy | None = None) -> Trajectory:
    sampler = make_sampler(folder, seed=seed)
    try:
        return play_episode(
            sampler, Gallery(), toy_item(seed), policy=policy or ContextPolicy(), limits=SHORT
        )
    finally:
        sampler.close()


def test_what_was_sampled_is_what_the_trainer_computes_and_it_learns(
    folder: Path, bound_processor: Any
) -> None:
    """Rows of several segments and numbers of images, through the model as verl calls it."""
    policies = [ContextPolicy(), ContextPolicy(when_full="drop"), ContextPolicy(when_full="summarize")]
    group = [trajectory(folder, seed=i, policy=policy) for i, policy in enumerate(policies)]
    rows = rows_of("u", group)
    assert sum(len(row.packed.images) for row in rows) > 5
    assert len(rows) > len(group)
    fields = fields_of(rows, bound_processor)
    model = transformers.Qwen2VLForConditionalGeneration.from_pretrained(folder)
    positions = fields["position_ids"].unbind()
    for number, row in enumerate(rows):
        ids = fields["input_ids"].unbind()[number]
        inputs = dict(fields["multi_modal_inputs"][number])
        inputs.pop("images_seqlens", None)
        logits = model(
            input_ids=ids[None], position_ids=positions[number][:, None], attention_mask=None, **inputs
        ).logits[0]
        prompt = len(row.packed.prompt_ids)
        logprobs = torch.log_softmax(logits[prompt - 1 : -1], dim=-1)
        logprobs = logprobs[range(len(ids) - prompt), ids[prompt:]]
        mask = torch.tensor(row.packed.response_mask).bool()
        sampled_logprobs = torch.tensor(row.packed.logprobs)
        torch.testing.assert_close(logprobs[mask].detach(), sampled_logprobs[mask], atol=1e-4, rtol=1e-4)
        logprobs[mask].sum().backward()
    gradient = model.model.visual.blocks[0].attn.qkv.weight.grad
    assert gradient is not None
    assert float(gradient.abs().sum()) > 0


def test_rows_are_as_verl_lays_them_out(verl: ModuleType, folder: Path, bound_processor: Any) -> None:
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

    # Ray traces what is an actor's.
    inputs_of = inspect.unwrap(AgentLoopWorkerTQ._compute_multi_modal_inputs)
    positions_of = inspect.unwrap(AgentLoopWorkerTQ._compute_position_ids)
    worker = SimpleNamespace(
        processor=bound_processor, tokenizer=vision_tokenizer(), _get_mm_processor_kwargs=lambda audios: {}
    )
    for images in ((), (WIDE,), (SMALL, TALL, WIDE)):
        ids = renderer().prompt_ids([Message("user", "Goal.", images[:1])])
        ids += renderer().reply([Message("user", "And now?", images[1:])], is_closed=False).ids
        output = SimpleNamespace(
            multi_modal_data={"images": [decode_image(image) for image in images] or None},
            mm_processor_kwargs=None,
        )
        tokens = torch.tensor(ids)
        theirs = inputs_of(worker, output, tokens)
        positions = positions_of(worker, tokens[None], torch.ones_like(tokens)[None], theirs)
        ours = vision_of(ids, images, bound_processor)
        torch.testing.assert_close(ours.position_ids, positions[0])
        assert set(ours.inputs) == set(theirs)
        for name, value in theirs.items():
            torch.testing.assert_close(ours.inputs[name], value)


def test_the_engine_gets_the_rows_as_it_takes_them(
    verl: ModuleType, folder: Path, bound_processor: Any
) -> None:
    """verl's own reading of a micro-batch: values of the nested tensors, pixels of all rows together."""
    from verl.utils import tensordict_utils
    from verl.utils.model import extract_multi_modal_inputs

    rows = rows_of("u", [trajectory(folder, seed=seed) for seed in (3, 4)])
    fields = fields_of(rows, bound_processor)
    assert fields["position_ids"].values().shape == (4, len(fields["input_ids"].values()))
    assert fields["position_ids"].dim() == 3
    pixels = extract_multi_modal_inputs(fields["multi_modal_inputs"])
    patches = sum(int(grid.prod()) for grid in pixels["image_grid_thw"])
    assert len(pixels["pixel_values"]) == patches
    assert int((fields["input_ids"].values() == PAD).sum()) == patches // 4  # merged by 2 x 2
    selection = tensordict_utils.index_select_tensor_dict(fields, [1])
    assert selection["position_ids"].unbind()[0].shape == (4, len(selection["input_ids"].unbind()[0]))
    assert selection["input_ids"].unbind()[0].tolist() == [
        *rows[1].packed.prompt_ids,
        *rows[1].packed.response_ids,
    ]


async def test_draws_do_not_depend_on_what_was_seen_before(folder: Path) -> None:
    sampler = make_sampler(folder)
    stops = vision_tokenizer().eos_token_id
    params = SamplingParams(max_tokens=12, temperature=0.8, top_p=0.9, stop_token_ids=(stops,))
    requests = {
        "text": ((), renderer().prompt_ids([Message("user", "Goal.")])),
        "wide": ((WIDE,), renderer().prompt_ids([Message("user", "Goal.", (WIDE,))])),
    }

    async def sample(name: str) -> Completion:
        images, ids = requests[name]
        return await sampler.sample(ids, images=images, params=params, episode_id="e")

    first = {name: await sample(name) for name in ("text", "wide")}
    again = {name: await sample(name) for name in ("wide", "text")}
    assert first == again
    assert all(PAD not in completion.token_ids for completion in first.values())
    whole = await sampler.sample(requests["wide"][1], images=(WIDE,), params=params, episode_id="e")
    assert whole.finish_reason is (FinishReason.STOP if whole.token_ids[-1] == stops else FinishReason.LENGTH)
    with pytest.raises(ConfigError, match="tokens of prompt"):
        await sampler.sample([1] * LIMITS.context_length, params=params, episode_id="e")
    sampler.close()


async def test_verl_gets_images_opened() -> None:
    generate_calls: list[Any] = []

    class Client:
        async def generate(self, request_id: str, **request: Any) -> Any:
            generate_calls.append(request)
            return SimpleNamespace(
                token_ids=[7], log_probs=[-1.0], stop_reason="x", extra_fields={"global_steps": 1}
            )

    async def sample(*images: Image) -> None:
        params = SamplingParams(max_tokens=1)
        await VerlSampler(Client()).sample([1, PAD, PAD], images=images, params=params, episode_id="e")

    await sample(WIDE, TALL)
    await sample()
    assert [(i.mode, i.size) for i in generate_calls[0]["image_data"]] == [
        ("RGB", (120, 40)),
        ("RGB", (30, 90)),
    ]
    assert generate_calls[0]["prompt_ids"] == [1, PAD, PAD]
    assert generate_calls[1]["image_data"] is None


async def test_what_cannot_see_says_so(folder: Path, tmp_path: Path) -> None:
    text = save_tiny_model(tmp_path)
    params = SamplingParams(max_tokens=1)
    samplers: list[CpuSampler | TransformersSampler] = [
        CpuSampler(text, context_length=64),
        TransformersSampler(text, None, context_length=64),
    ]
    for sampler in samplers:
        with pytest.raises(ConfigError, match="1 images"):
            await sampler.sample([1], images=[SMALL], params=params, episode_id="e")
        assert (await sampler.sample([1], params=params, episode_id="e")).token_ids
        sampler.close()
    assert (has_vision(folder), has_vision(text), has_vision("some/name")) == (True, False, None)
    with pytest.raises(ConfigError, match="trains text only"):
        check_pipeline(toy_pipeline(folder))
    with pytest.raises(ConfigError, match="no positions for images"):
        vision_of([1, PAD], [SMALL], None)


@pytest.mark.heavy
def test_a_pipeline_for_gpus_composes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(tmp_path, "2.8.3", monkeypatch)
    pipeline = toy_pipeline(
        folder, backend={"device": "cuda", "rollout": "vllm"}, rollout__top_p=1.0, rollout__top_k=0
    )
    config = verl_config(pipeline, model=folder, checkpoints=tmp_path)
    assert config.actor_rollout_ref.model.path == str(folder)


def test_a_model_of_this_machine_comes_with_its_processor(folder: Path, tmp_path: Path) -> None:
    save_vision_model(tmp_path)
    vision_processor().image_processor.save_pretrained(tmp_path)  # as those on the hub are
    if not HAS_FILMS:
        with pytest.raises(MissingDependency, match="torchvision"):
            load_processor(tmp_path)
        return
    with LocalModel(tmp_path, seed=1).load(context_length=LIMITS.context_length) as model:
        assert isinstance(model.sampler, TransformersSampler)
        episode = play_episode(model.sampler, Gallery(), toy_item(1), policy=ContextPolicy(), limits=SHORT)
        assert [s.response_ids for s in pack(episode)] == [
            s.response_ids for s in pack(trajectory(folder, seed=1))
        ]


def test_a_model_that_sees_needs_its_processor(folder: Path) -> None:
    with pytest.raises((ConfigError, MissingDependency)):
        load_processor(folder)
