"""Demonstrations by hand, and one supervised training run through verl's engine."""

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agents.agent import FormatAgent
from agents.formats.calls import ToolCall
from agents.huggingface.files import load_tokenizer
from agents.prompting.renderer import Renderer
from agents.tools.episode import act
from agents.tools.toolbox import Toolbox
from envs.errors import ConfigError, WingspanError
from envs.registry import EnvSpec, ExpertStep, Split, register_env
from envs.types import Item, Message
from tasks.config.pipelines import Pipeline
from tasks.data.demonstrations import Demonstration, demonstrate, prepare_cloning
from tasks.data.items import write_items
from tasks.runs.progress import Progress
from tasks.stages.warmup import warmup
from tests.support.tiny_model import save_small_base, save_tiny_model
from tests.support.tool_templates import TEMPLATES, with_template
from tests.support.toy import ToyEnv, toy_item, toy_tokenizer
from tests.support.verl_toy import register, toy_items, toy_pipeline

SETTINGS = {"demonstrations": 6, "noise": 0.0, "steps": 12, "batch_size": 4, "lr": 1e-2}


TOY_DATA: dict[str, Any] = {"parts": {"toy": {}}}


def adder(item: Item) -> list[ExpertStep]:
    """Reaches the target of `ToyEnv` by ones."""
    return [ExpertStep(thought="on" if i else "", action="add 1") for i in range(item.metadata["target"])]


EXPERT = adder
SPEC = EnvSpec(
    name="toy",
    make=ToyEnv,
    split=lambda _: Split(train=(), test=()),
    expert=lambda item: EXPERT(item),
    instructions="Play.",
    packages=(),
)


@pytest.fixture(autouse=True)
def _toy_is_registered() -> None:
    register_env(SPEC)


def play(pipeline: Pipeline, items: list[Item]) -> list[Demonstration]:
    return asyncio.run(demonstrate(items, pipeline=pipeline, tokenizer=toy_tokenizer()))


def pipeline(**warmup: float) -> Pipeline:
    return toy_pipeline(Path("none"), warmup=SETTINGS | warmup, data=TOY_DATA)


def test_a_demonstration_is_the_conversation_that_an_episode_would_see() -> None:
    [demonstration, *_] = play(pipeline(), [toy_item(0, target=2)])
    tokenizer = toy_tokenizer()
    assert tokenizer.decode(demonstration.prompt_ids + demonstration.response_ids) == (
        "<|im_start|>user\nGoal: reach 2.<|im_end|>\n<|im_start|>assistant\n"
        "Action: add 1<|im_end|>\n"
        "<|im_start|>user\nThe total is 1.<|im_end|>\n<|im_start|>assistant\n"
        "Thought: on\nAction: add 1<|im_end|>"
    )
    policy_ids = [i for i, m in zip(demonstration.response_ids, demonstration.mask, strict=True) if m]
    assert tokenizer.decode(policy_ids) == "Action: add 1<|im_end|>Thought: on\nAction: add 1<|im_end|>"
    reply = Renderer(tokenizer).reply([Message("user", "The total is 1.")], is_closed=True)
    observation_ids = list(reply.ids)
    assert [
        i for i, m in zip(demonstration.response_ids, demonstration.mask, strict=True) if not m
    ] == observation_ids


@pytest.mark.parametrize("imitate_noise", [False, True])
def test_useless_turns_are_seen_and_imitated_only_where_asked(
    imitate_noise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A borrowed `look` does nothing; a borrowed `add 1` passes the target: such an episode is dropped."""
    monkeypatch.setattr(
        sys.modules[__name__], "EXPERT", lambda item: [ExpertStep(thought="", action="look"), *adder(item)]
    )
    settings = SETTINGS | {"noise": 0.4, "imitate_noise": imitate_noise}
    noisy = toy_pipeline(Path("none"), warmup=settings, data=TOY_DATA, rollout__context_length=500)
    items = [toy_item(i, target=2) for i in range(3)]
    demonstrations = play(noisy, items)
    assert max(demonstration.turns for demonstration in demonstrations) > 3, (
        "no useless turn in any demonstration"
    )
    for demonstration in demonstrations:
        text = toy_tokenizer().decode(demonstration.response_ids)
        imitated_text = toy_tokenizer().decode(
            [i for i, m in zip(demonstration.response_ids, demonstration.mask, strict=True) if m]
        )
        assert imitated_text.count("Action:") == (demonstration.turns if imitate_noise else 3)
        assert imitated_text.count("Action: add 1") == 2
        assert text.count("Action:") == demonstration.turns
        assert text.count("Action: look") == demonstration.turns - 2


@pytest.mark.parametrize("format", ["json", "react", "hermes", "qwen3"])
async def test_demonstrations_are_written_in_the_agents_format(format: str) -> None:
    """What is imitated is read as the expert's actions by the agent that will be trained."""
    tokenizer = with_template(TEMPLATES[format]) if format in TEMPLATES else toy_tokenizer()
    agent = {"format": format, "tools": ["act"], "instructions": False}
    long = toy_pipeline(
        Path("none"), warmup=SETTINGS, data=TOY_DATA, agent=agent, rollout__context_length=4000
    )
    items = [toy_item(0, target=2)]
    [episode, *_] = await demonstrate(items, pipeline=long, tokenizer=tokenizer)
    texts = tokenizer.decode([i for i, m in zip(episode.response_ids, episode.mask, strict=True) if m])
    first, second, rest = texts.split("<|im_end|>")
    schemas = Toolbox([act]).schemas
    turns = [FormatAgent(format, schemas=schemas).parse(text) for text in (first, second)]
    assert [turn.calls for turn in turns] == [(ToolCall("act", {"action": "add 1"}),)] * 2
    assert [turn.thought for turn in turns] == ["", "on"]
    assert not rest
    assert "The total is 1." in tokenizer.decode(episode.response_ids)


def test_careless_turns_have_the_form_of_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A careless turn where the expert thinks has the place of the thought, which is empty."""
    monkeypatch.setitem(globals(), "EXPERT", lambda item: [ExpertStep("", "look"), *adder(item)])
    settings = SETTINGS | {"noise": 0.6, "imitate_noise": True}
    texts = {
        "action": "Thought:\nAction: look",
        "react": 'Thought:\nAction: act\nAction Input: {"action": "look"}',
        "json": '<think>\n\n</think>\n\n{"name": "act", "arguments": {"action": "look"}}',
    }
    for format, text in texts.items():
        agent = {"format": format, "tools": [] if format == "action" else ["act"], "instructions": False}
        noisy = toy_pipeline(
            Path("none"), warmup=settings, data=TOY_DATA, agent=agent, rollout__context_length=4000
        )
        episodes = play(noisy, [toy_item(i, target=2) for i in range(3)])
        assert any(text in toy_tokenizer().decode(episode.response_ids) for episode in episodes)


def test_instructions_open_the_prompt_where_the_pipeline_says_so() -> None:
    with_them = toy_pipeline(
        Path("none"),
        warmup=SETTINGS,
        data=TOY_DATA,
        agent={"instructions": True},
        rollout__context_length=300,
    )
    [demonstration, *_] = play(with_them, [toy_item(0)])
    assert "Action: your next action\n\nGoal: reach 3." in toy_tokenizer().decode(demonstration.prompt_ids)


def test_the_same_seed_gives_the_same_demonstrations_and_another_one_others() -> None:
    items = [toy_item(i, target=3 + i) for i in range(4)]
    assert play(pipeline(noise=0.3), items) == play(pipeline(noise=0.3), items)
    another_seed = toy_pipeline(Path("none"), warmup=SETTINGS | {"noise": 0.3}, data=TOY_DATA, seed=1)
    assert play(another_seed, items) != play(pipeline(noise=0.3), items)


def test_items_that_do_not_fit_are_left_out_and_none_fitting_is_refused() -> None:
    demonstrations = play(pipeline(), [toy_item(0, target=2), toy_item(1, target=40)])
    assert {demonstration.item_id for demonstration in demonstrations} == {"toy_0"}
    with pytest.raises(ConfigError, match=r"rollout\.context_length 160"):
        play(pipeline(), [toy_item(1, target=40)])


def test_an_episode_that_fits_with_the_new_words_is_demonstrated(tmp_path: Path) -> None:
    model, folder = save_small_base(tmp_path / "model"), tmp_path / "with new words"
    items = [toy_item(0, target=4)]

    def clone(*, new_words: int, context_length: int) -> int:
        """The length of the demonstrations."""
        settings = toy_pipeline(
            model,
            warmup=SETTINGS | {"new_words": new_words},
            data=TOY_DATA,
            rollout__context_length=context_length,
        )
        [length] = {
            len(one.prompt_ids) + len(one.response_ids)
            for one in prepare_cloning(settings, Split(train=items, test=[]), folder=folder).demonstrations
        }
        return length

    spelled = clone(new_words=0, context_length=1000)
    with pytest.raises(ConfigError, match=rf"rollout\.context_length {spelled - 1}"):
        clone(new_words=0, context_length=spelled - 1)
    assert clone(new_words=50, context_length=spelled - 1) < spelled


def test_names_of_test_items_have_tokens_and_stand_in_renamed_demonstrations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A number that an item must reach, by adding it, is the item's name."""
    monkeypatch.setitem(globals(), "EXPERT", lambda item: [ExpertStep("", f"add {item.metadata['target']}")])
    model, folder = save_small_base(tmp_path / "model"), tmp_path / "with new words"
    items = [toy_item(n, target=70_000 + n) for n in range(40)]
    settings = toy_pipeline(
        model,
        warmup=SETTINGS
        | {"new_words": 200, "rename_words": True, "demonstrations": 40, "batch_size": 10, "steps": 20},
        data=TOY_DATA,
        rollout__context_length=1000,
    )
    split = Split(train=items, test=[toy_item(99, target=90_009)])
    cloning = prepare_cloning(settings, split, folder=folder)
    path, demonstrations = cloning.model, cloning.demonstrations
    assert cloning.copies == 5
    assert len(demonstrations) == 20 * 10  # none is shown twice
    assert {one.item_id for one in demonstrations} == {item.item_id for item in items}
    tokenizer = load_tokenizer(path)
    assert len(tokenizer.encode(" 90009", add_special_tokens=False)) == 1
    for one in demonstrations:
        [goal] = re.findall(r"Goal: reach (\d+)", tokenizer.decode(one.prompt_ids))
        assert f"add {goal}" in tokenizer.decode(one.response_ids)
    texts = [tokenizer.decode(one.prompt_ids) for one in demonstrations]
    assert any("reach 90009" in text for text in texts)
    assert len(set(texts)) > 30


def test_names_of_all_items_have_tokens_whatever_the_weights_of_their_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the order of training, a part with 1 of 21 items has three quarters of the places."""
    monkeypatch.setitem(globals(), "EXPERT", lambda item: [ExpertStep("", f"add {item.metadata['target']}")])
    few, many = [70_000], [80_000 + number for number in range(20)]
    parts = {
        "few": {"env": "toy", "where": {"target": few}, "weight": 3},
        "many": {"env": "toy", "where": {"target": many}},
    }
    settings = toy_pipeline(
        save_small_base(tmp_path / "model"),
        warmup=SETTINGS | {"new_words": 200, "rename_words": True},
        data={"parts": parts},
        rollout__context_length=1000,
    )
    items = [toy_item(number, target=target) for number, target in enumerate([*few, *many])]
    split = Split(train=items[:11], test=items[11:])
    tokenizer = load_tokenizer(prepare_cloning(settings, split, folder=tmp_path / "with new words").model)
    for target in (*few, *many):
        assert len(tokenizer.encode(f" {target}", add_special_tokens=False)) == 1


def test_no_warmup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no warm-up"):
        warmup(toy_pipeline(tmp_path, warmup=None), tmp_path)


def test_a_model_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    register()
    write_items(tmp_path / "data" / "train.jsonl", toy_items(4))
    write_items(tmp_path / "data" / "test.jsonl", toy_items(1))
    with pytest.raises(ConfigError, match=r"loading the tokenizer of model .* raised "):
        warmup(toy_pipeline(tmp_path / "none", warmup=SETTINGS), tmp_path)


def prepare(workspace: Path) -> Path:
    """Write four training items and a model into `workspace`; returns the model's folder."""
    register()
    write_items(workspace / "data" / "train.jsonl", toy_items(4))
    write_items(workspace / "data" / "test.jsonl", toy_items(1))
    return save_tiny_model(workspace / "model")


@pytest.mark.slow
def test_the_loss_falls_and_the_policy_is_a_model_like_the_one_it_came_from(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = prepare(tmp_path)
    steps: list[Mapping[str, float]] = []
    folder = warmup(toy_pipeline(model, warmup=SETTINGS), tmp_path, Progress(on_step=steps.append))
    assert [m["step"] for m in steps] == list(range(1, 13))
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 12

    # The first loss is that of the untrained model on the first batch's 4 equal demonstrations: by hand.
    demonstration = asyncio.run(
        demonstrate(toy_items(1), pipeline=toy_pipeline(model, warmup=SETTINGS), tokenizer=toy_tokenizer())
    )[0]
    assert steps[0]["tokens"] == 4 * sum(demonstration.mask)
    losses = [loss_of(AutoModelForCausalLM.from_pretrained(path), demonstration) for path in (model, folder)]
    assert steps[0]["loss"] == pytest.approx(losses[0], rel=0.02)  # prompts differ in one digit
    assert losses[1] < 0.3 * losses[0]

    before, after = (AutoModelForCausalLM.from_pretrained(p).state_dict() for p in (model, folder))
    assert before.keys() == after.keys()
    assert {t.dtype for t in after.values()} == {torch.float32}
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == toy_tokenizer().get_vocab()
    assert AutoTokenizer.from_pretrained(folder).chat_template == toy_tokenizer().chat_template


@pytest.mark.heavy
def test_a_training_that_diverges_ends_with_the_reason(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = prepare(tmp_path)
    (file,) = model.glob("*.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in load_file(file).items()}, file)
    with pytest.raises(WingspanError, match="supervised training diverged: loss is nan"):
        warmup(toy_pipeline(model, warmup=SETTINGS), tmp_path)
    assert not (tmp_path / "warmup" / "config.json").exists()


def loss_of(model: Any, demonstration: Demonstration) -> float:
    """Mean negative log-prob of the tokens that are trained on."""
    import torch

    ids = torch.tensor(demonstration.prompt_ids + demonstration.response_ids)
    is_target = torch.tensor([0] * len(demonstration.prompt_ids) + demonstration.mask, dtype=torch.bool)[1:]
    with torch.no_grad():
        log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1)
    return -float(log_probs.gather(1, ids[1:, None])[:, 0][is_target].mean())
