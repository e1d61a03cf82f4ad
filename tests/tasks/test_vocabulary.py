"""New words for a small model: which they are, and that nothing else changes."""

import random
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from envs.builtin.textcraft.invented import invent
from envs.errors import ConfigError
from tasks.data.vocabulary import add_whole_words, add_words, find_spelled_words
from tests.support.tiny_model import save_small_base

BABYAI = [
    "You see red closed door 1: 1 ahead.\nYou carry nothing.\nActions: turn left, turn right, toggle",
    "Action: go to red closed door 1",
    "You see red open door 1: 1 ahead.\nYou carry nothing.\nActions: turn left, turn right, toggle",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_base(tmp_path_factory.mktemp("small"))


def words_of(tokenizer: transformers.PreTrainedTokenizerBase, texts: list[str], *, at_most: int) -> list[str]:
    conversations = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False)
        for text in texts
    ]
    return find_spelled_words(tokenizer, conversations, at_most=at_most)


def test_the_words_that_cost_most_come_first(small: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(small)
    words = words_of(tokenizer, BABYAI, at_most=100)
    cost = [
        sum(text.split(" ").count(word.removeprefix("Ġ")) for text in map(_add_spaces, BABYAI))
        * (len(tokenizer.encode(word.replace("Ġ", " "), add_special_tokens=False)) - 1)
        for word in words
    ]
    assert cost == sorted(cost, reverse=True)
    assert {"Ġturn", "Ġright", "Actions", "Ġtoggle", "Ġopen"} <= set(words)
    assert not {"Ġred", "Ġ1", "Ġget"} & set(words), "they have tokens"
    assert words_of(tokenizer, BABYAI, at_most=2) == words[:2]


def test_new_words_are_one_token_and_all_else_stays(small: Path, tmp_path: Path) -> None:
    before = transformers.AutoTokenizer.from_pretrained(small)
    words = words_of(before, BABYAI, at_most=8)
    add_words(str(small), before, words, tmp_path, seed=0)
    after = transformers.AutoTokenizer.from_pretrained(tmp_path)
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
        old = transformers.AutoModelForCausalLM.from_pretrained(small)(ids).logits
        new = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    assert new.shape[-1] == first + 8
    torch.testing.assert_close(new[..., :first], old)


def test_without_new_words_the_model_is_only_copied(small: Path, tmp_path: Path) -> None:
    add_words(str(small), transformers.AutoTokenizer.from_pretrained(small), [], tmp_path, seed=0)
    before, after = (
        transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (small, tmp_path)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_draw_is_seeded_and_looks_like_the_words_that_are_known(small: Path, tmp_path: Path) -> None:
    words = [f"Ġzz{i}" for i in range(400)]
    rows = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        add_words(
            str(small), transformers.AutoTokenizer.from_pretrained(small), words, tmp_path / name, seed=seed
        )
        rows[name] = (
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
            .get_input_embeddings()
            .weight.detach()
        )
    assert torch.equal(rows["a"], rows["b"])
    assert not torch.equal(rows["a"], rows["c"])
    new, old = rows["a"][-400:], rows["a"][300:-400]
    torch.testing.assert_close(new.std(0), old.std(0), rtol=0.3, atol=0.01)


def test_a_word_is_drawn_alike_after_a_space_and_not(small: Path, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(small)
    known_word = "Ġdiamond"
    assert known_word in tokenizer.get_vocab()
    words = ["Ġzzyx", "qwob", "diamond", "zzyx"]
    add_words(str(small), tokenizer, words, tmp_path, seed=0)
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path).get_vocab()
    rows = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().weight.detach()
    spaced_rows = [
        row for word, row in tokenizer.get_vocab().items() if word.startswith("Ġ") and len(word) > 1
    ]
    unspaced_rows = [row for word, row in tokenizer.get_vocab().items() if word[0] != "Ġ" and len(word) > 1]

    def standard(word: str) -> torch.Tensor:
        form_rows = rows[spaced_rows if word.startswith("Ġ") else unspaced_rows]
        varies = (
            rows[spaced_rows].std(0) * rows[unspaced_rows].std(0) > 0
        )  # not all that a new model is made of does
        standardized: torch.Tensor = (rows[ids[word]] - form_rows.mean(0)) / form_rows.std(0)
        return standardized[varies]

    torch.testing.assert_close(standard("zzyx"), standard("Ġzzyx"), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(standard("diamond"), standard(known_word), rtol=1e-3, atol=1e-3)
    assert torch.cosine_similarity(standard("qwob"), standard("zzyx"), dim=0) < 0.5


def test_a_pattern_makes_words_that_stay_whole(small: Path, tmp_path: Path) -> None:
    before = transformers.AutoTokenizer.from_pretrained(small)
    after = add_whole_words(before, [r" \[SEP\] ", r"B\d{3}"], tmp_path)
    page = "Page 1 [SEP] B041 [SEP] red wool boots"
    words = words_of(after, [page], at_most=100)
    assert {"Ġ[SEP]Ġ", "B041", "Page"} <= set(words)
    assert not {"[", "SEP", "ĠB041"} & set(words)
    add_words(str(small), after, words, tmp_path / "model", seed=0)
    final = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert final.tokenize("1 [SEP] B041 [SEP] red") == ["1", "Ġ[SEP]Ġ", "B041", "Ġ[SEP]Ġ", "red"]
    assert final.tokenize("click[B041]")[-2:] == ["B041", "]"]
    rng = random.Random(0)
    for text in [invent(rng, depth=2, distractors=8).opening for _ in range(20)] + [" [SEPx] B04", page]:
        assert final.decode(final.encode(text, add_special_tokens=False)) == text
        if text != page:
            assert after.encode(text, add_special_tokens=False) == before.encode(
                text, add_special_tokens=False
            )


def test_a_tokenizer_that_does_not_cut_by_an_expression_is_refused(tmp_path: Path) -> None:
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, "a")))
    with pytest.raises(ConfigError, match=r"warmup\.whole_words needs a tokenizer that cuts by"):
        add_whole_words(words, ["B"], tmp_path)


def test_a_tokenizer_without_byte_pairs_is_refused() -> None:
    whole_words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, "a"))
    )
    with pytest.raises(ConfigError, match=r"warmup\.new_words is 4"):
        find_spelled_words(whole_words, [[0, 1]], at_most=4)


def _add_spaces(text: str) -> str:
    for mark in ".,:\n":
        text = text.replace(mark, f" {mark} ")
    return text.replace("  ", " ")
