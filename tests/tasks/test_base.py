"""The base model's stage: data, start point, optimizer and a short run of the whole."""

import json
import random
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.multiprocessing.spawn import spawn

from bench.reading import cut_before_ingredient
from envs.builtin.textcraft.expert import parse
from envs.builtin.textcraft.invented import words
from tasks.base_model.data import sample_sequence
from tasks.base_model.model import make_model, make_tokenizer
from tasks.base_model.muon import orthogonal
from tasks.base_model.train import base, make_encoder, train_cycle
from tasks.config.base_model import BaseCycle, BaseSettings

SHORT_RUN = BaseSettings(
    seed=0,
    cycles=[BaseCycle(tokens=16_000), BaseCycle(tokens=4_000, misreads=0.5, widen=True)],
    processes=1,  # each of several would widen the model, for 16 CPU-seconds
    layers=3,
    width=128,
    batch_tokens=2000,
    muon_lr=0.02,
    adamw_lr=3e-3,
)


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return make_tokenizer()


def test_every_word_of_an_item_name_is_one_token(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    for word in [*words(), *map(str, range(1, 129))]:
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1, word


@pytest.mark.parametrize(
    "text", ["Thought: naïve ☃\nAction: get 1 x", "  spaces\n\n\tand tabs ", "craft 999 zzz"]
)
def test_any_text_survives_the_tokenizer(tokenizer: transformers.PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_sequences_follow_the_chat_template_and_target_no_opening(
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> None:
    encoder = make_encoder(tokenizer)
    rng = random.Random(3)
    for _ in range(30):
        cycle = BaseCycle(tokens=1, groups=0.2, families=0.2, twins=0.2, misreads=0.5)
        sequence = sample_sequence(encoder, rng, progress=0.9, cycle=cycle)
        assert len(sequence.ids) == len(sequence.targets)
        text = tokenizer.decode(sequence.ids)
        opening = text.split("<|end|>")[0]
        prompt_text = tokenizer.apply_chat_template(
            [{"role": "user", "content": opening.removeprefix("<|user|>")}],
            add_generation_prompt=True,
            tokenize=False,
        )
        prompt = tokenizer.encode(prompt_text, add_special_tokens=False)
        assert sequence.ids[: len(prompt)] == prompt
        assert not any(sequence.targets[: len(prompt)])
        assert any(sequence.targets)


def test_the_start_point_looks_back_one_two_and_three_tokens(
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> None:
    """Heads 0 to 2 of layer 0 attend 1, 2 and 3 tokens back, whatever the tokens are."""
    model = make_model(tokenizer, layers=2, width=128, seed=0)
    model.set_attn_implementation("eager")
    ids = torch.randint(300, len(tokenizer), (8, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        attention = model(ids, output_attentions=True).attentions[0]  # [B, H, T, T]
    for head, distance in enumerate((1, 2, 3)):
        weights = torch.diagonal(attention[:, head], offset=-distance, dim1=-2, dim2=-1)
        assert weights.mean() > 0.7


def test_the_start_point_copies_what_followed_before(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    """On `a b c d … a b c`, an untrained model says `d` far more often than chance (1 in 1,285)."""
    model = make_model(tokenizer, layers=4, width=128, seed=0)
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(300, len(tokenizer), (64, 40), generator=generator)
    ids = torch.cat([half, half], dim=1)
    with torch.inference_mode():
        predictions = model(ids).logits[:, 40:-1].argmax(-1)
    assert (predictions == ids[:, 41:]).float().mean() > 0.5


def test_orthogonal_brings_singular_values_near_one() -> None:
    for shape in ((32, 128), (128, 32), (64, 64)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(*shape)))
        assert values.min() > 0.3
        assert values.max() < 1.3


@pytest.fixture(scope="module")
def trained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of two short cycles, the second one with new heads."""
    folder = tmp_path_factory.mktemp("base")
    base(SHORT_RUN, folder)
    return folder


@pytest.mark.heavy
def test_a_short_run_learns_and_leaves_a_model_that_loads(trained_model: Path) -> None:
    lines = [json.loads(line) for line in (trained_model / "metrics.jsonl").read_text().splitlines()]
    assert [line["cycle"] for line in lines] == [0, 1]
    assert all(line["tokens"] >= cycle.tokens for line, cycle in zip(lines, SHORT_RUN.cycles, strict=True))
    assert lines[-1]["token_accuracy"] > 0.2  # the most frequent token alone: about 0.1
    model = transformers.AutoModelForCausalLM.from_pretrained(trained_model)
    assert (model.config.hidden_size, model.config.num_attention_heads) == (198, 6)
    assert model.config.eos_token_id == transformers.AutoTokenizer.from_pretrained(trained_model).eos_token_id


@pytest.mark.heavy
def test_a_widened_model_has_heads_for_the_line_of_a_product(
    trained_model: Path, tokenizer: transformers.PreTrainedTokenizerFast
) -> None:
    """Heads 4 and 5 of layer 0 attend one and four tokens back, head 4 of layer 1 the last ` using`."""
    encoder = make_encoder(tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(trained_model, attn_implementation="eager")
    cycle = BaseCycle(tokens=1, groups=0.3, twins=0.3)
    ids = sample_sequence(encoder, random.Random(5), progress=1.0, cycle=cycle).ids
    with torch.inference_mode():
        attentions = model(torch.tensor([ids]), output_attentions=True).attentions  # of a layer: [1, H, T, T]
    for head, distance in ((4, 1), (5, 4)):
        assert torch.diagonal(attentions[0][0, head], offset=-distance).mean() > 0.7
    [using] = encoder.text(" using")
    positions = [position for position, token in enumerate(ids) if token == using]
    found = [
        attentions[1][0, 4, position, max(p for p in positions if p <= position)]
        for position in range(positions[0], len(ids))
    ]
    assert torch.stack(found).mean() > 0.7


def train_on_one_sequence(rank: int, processes: int, folder: Path) -> None:
    """A step, as one of `processes`."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store-{processes}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
    settings = BaseSettings(
        seed=0,
        cycles=[BaseCycle(tokens=1)],
        processes=processes,
        layers=2,
        width=128,
        batch_tokens=1,
        muon_lr=0.02,
        adamw_lr=3e-3,
    )
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, layers=settings.layers, width=settings.width, seed=settings.seed)
    train_cycle(model, settings, number=0, encoder=make_encoder(tokenizer), log=None)
    if rank == 0:
        save_file(dict(model.named_parameters()), folder / f"{processes}.safetensors")
    torch.distributed.destroy_process_group()


@pytest.mark.heavy
def test_a_process_without_a_share_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    """A batch of one sequence is the work of one process."""
    for processes in (1, 2):
        spawn(train_on_one_sequence, (processes, tmp_path), nprocs=processes)
    alone, shared = (load_file(tmp_path / f"{processes}.safetensors") for processes in (1, 2))
    assert alone.keys() == shared.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(tensor, shared[name])


def test_a_command_is_cut_before_the_member_that_it_names() -> None:
    line = parse("craft 1 bowl using 2 stick, 3 oak planks")
    turn = "bowl using planks x 1\nAction: craft bowl using 2 stick, 3 oak planks"
    assert cut_before_ingredient(turn, line, 1) == turn.removesuffix(" oak planks")


@pytest.mark.parametrize(
    ("layers", "width", "cycles"),
    [
        (2, 128, [BaseCycle(tokens=1, widen=True)]),
        (3, 160, [BaseCycle(tokens=1, widen=True)]),
        (3, 128, [BaseCycle(tokens=1, widen=True), BaseCycle(tokens=1, widen=True)]),
    ],
)
def test_what_cannot_be_widened_is_refused_before_training(
    layers: int, width: int, cycles: list[BaseCycle]
) -> None:
    with pytest.raises(ValueError, match="can be widened once"):
        BaseSettings(
            seed=0,
            cycles=cycles,
            processes=1,
            layers=layers,
            width=width,
            batch_tokens=1,
            muon_lr=1,
            adamw_lr=1,
        )
