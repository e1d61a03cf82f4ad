"""New words for a small model: which they are, and that nothing else changes."""

import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from envs.errors import ConfigError
from envs.textcraft_invented import invent
from tasks.base_model import make_model, make_tokenizer
from tasks.vocabulary import add_words, spelt_words

BABYAI = [
    "You see red closed door 1: 1 ahead.\nYou carry nothing.\nActions: turn left, turn right, toggle",
    "Action: go to red closed door 1",
    "You see red open door 1: 1 ahead.\nYou carry nothing.\nActions: turn left, turn right, toggle",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer, layers=2, width=128, seed=0).save_pretrained(folder)
    return folder


def words_of(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, at_most: int) -> list[str]:
    conversations = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False)
        for text in texts
    ]
    return spelt_words(tokenizer, conversations, at_most=at_most)


def test_the_words_that_cost_most_come_first(small: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small)
    words = words_of(tokenizer, BABYAI, at_most=100)
    cost = [
        sum(text.split(" ").count(word.removeprefix("Ġ")) for text in map(_spaced, BABYAI))
        * (len(tokenizer.encode(word.replace("Ġ", " "), add_special_tokens=False)) - 1)
        for word in words
    ]
    assert cost == sorted(cost, reverse=True)
    assert {"Ġturn", "Ġright", "Actions", "Ġtoggle", "Ġopen"} <= set(words)
    assert not {"Ġred", "Ġ1", "Ġget"} & set(words), "they have tokens"
    assert words_of(tokenizer, BABYAI, at_most=2) == words[:2]


def test_new_words_are_one_token_and_all_else_stays(small: Path, tmp_path: Path) -> None:
    before = AutoTokenizer.from_pretrained(small)
    words = words_of(before, BABYAI, at_most=8)
    add_words(str(small), words, tmp_path, seed=0)
    after = AutoTokenizer.from_pretrained(tmp_path)
    first = len(before)
    assert [after.encode(w.replace("Ġ", " "), add_special_tokens=False) for w in words] == [
        [first + i] for i in range(8)
    ]
    rng = random.Random(0)
    for text in [invent(rng, depth=2, distractors=8).opening for _ in range(20)] + ["naïve ☃ turning x"]:
        ids = after.encode(text, add_special_tokens=False)
        assert ids == before.encode(text, add_special_tokens=False)
        assert after.decode(ids) == text
    for text in BABYAI:
        assert after.decode(after.encode(text, add_special_tokens=False)) == text

    ids = torch.tensor([before.encode(BABYAI[0], add_special_tokens=False)])
    with torch.inference_mode():
        old = AutoModelForCausalLM.from_pretrained(small)(ids).logits
        new = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    assert new.shape[-1] == first + 8
    torch.testing.assert_close(new[..., :first], old)


def test_the_draw_is_seeded_and_looks_like_the_words_that_are_known(small: Path, tmp_path: Path) -> None:
    words = [f"Ġzz{i}" for i in range(400)]
    rows = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        add_words(str(small), words, tmp_path / name, seed=seed)
        rows[name] = (
            AutoModelForCausalLM.from_pretrained(tmp_path / name).get_input_embeddings().weight.detach()
        )
    assert torch.equal(rows["a"], rows["b"])
    assert not torch.equal(rows["a"], rows["c"])
    new, old = rows["a"][-400:], rows["a"][300:-400]
    torch.testing.assert_close(new.std(0), old.std(0), rtol=0.3, atol=0.01)


def test_a_tokenizer_without_byte_pairs_is_refused() -> None:
    whole_words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, "a")))
    with pytest.raises(ConfigError, match=r"warmup\.new_words is 4"):
        spelt_words(whole_words, [[0, 1]], at_most=4)


def _spaced(text: str) -> str:
    for mark in ".,:\n":
        text = text.replace(mark, f" {mark} ")
    return text.replace("  ", " ")
