"""New words for a small model: tokens for what its tokenizer would have to spell.

A model that was made for one environment spells another one's words byte by byte. It then needs several
times the tokens, and makes errors within words (`gn right` for `turn right`). Here the most frequent of
them become tokens. Their embeddings are sampled like those of the words that the model knows, so that what
it has learnt to do with any word, above all to copy it, applies to them, too; it must learn their meaning.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from agents.huggingface.files import load_tokenizer
from envs.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

SPACE = "Ġ"
"""How a tokenizer of byte pairs writes the space before a word."""


def add_whole_words(
    tokenizer: "PreTrainedTokenizerBase", patterns: Sequence[str], folder: Path
) -> "PreTrainedTokenizerBase":
    """`tokenizer` with each match of `patterns` as one word; written to `folder`.

    `patterns` are regular expressions as `tokenizers` reads them (Oniguruma's). Other text is split as
    before. Raises `ConfigError` for a tokenizer that does not split by a regular expression.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    contents = json.loads(path.read_text())
    steps = (contents.get("pre_tokenizer") or {}).get("pretokenizers", [])
    by_pattern = next(
        (step for step in steps if step["type"] == "Split" and "Regex" in step["pattern"]), None
    )
    if by_pattern is None:
        raise ConfigError(
            f"warmup.whole_words needs a tokenizer that cuts by a regular expression; that of "
            f"{tokenizer.name_or_path!r} does not; take it out"
        )
    whole = "|".join(f"(?:{pattern})" for pattern in patterns)
    # First they are cut out, then left whole by what cuts the rest.
    by_pattern["pattern"]["Regex"] = rf"\A(?:{whole})\z|{by_pattern['pattern']['Regex']}"
    first = {"type": "Split", "pattern": {"Regex": whole}, "behavior": "Isolated", "invert": False}
    contents["pre_tokenizer"]["pretokenizers"] = [first, *steps]
    path.write_text(json.dumps(contents, ensure_ascii=False))
    return load_tokenizer(folder)


def find_spelled_words(
    tokenizer: "PreTrainedTokenizerBase", conversations: Iterable[list[int]], *, at_most: int
) -> list[str]:
    """The words of `conversations` (token ids) that cost the most tokens in all, the costliest first.

    A word is what the tokenizer's own pre-tokenizer makes of a text, as it writes it (`Ġturn`); ties go by
    the alphabet. Raises `ConfigError` for a tokenizer that does not merge byte pairs.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or json.loads(backend.to_str())["model"]["type"] != "BPE":
        raise ConfigError(
            f"warmup.new_words is {at_most}, but the tokenizer of {tokenizer.name_or_path!r} merges no byte "
            "pairs; take it out"
        )
    control = set(tokenizer.all_special_ids) | tokenizer.added_tokens_decoder.keys()
    counts: Counter[str] = Counter()
    for ids in conversations:
        for is_control, part in groupby(ids, key=control.__contains__):
            if not is_control:
                counts.update(
                    word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.decode([*part]))
                )
    vocabulary = backend.get_vocab()
    cost = {
        word: count * (len(backend.model.tokenize(word)) - 1)
        for word, count in counts.items()
        if word not in vocabulary
    }
    return sorted(cost, key=lambda word: (-cost[word], word))[:at_most]


def add_words(
    model: str, tokenizer: "PreTrainedTokenizerBase", words: Sequence[str], folder: Path, *, seed: int
) -> None:
    """Save `model` and its `tokenizer` to `folder` with a new token for each of `words`
    (`find_spelled_words`).

    All other texts keep their tokens, and these their embeddings. A new embedding is sampled from a normal
    distribution with the mean and the spread, by dimension, of the embeddings of the known words of its form,
    after a space (`Ġtable`) or not (`table`). Both forms of a word share one sample, so that a word read in
    one form can be generated in the other.
    """
    import torch

    from agents.huggingface.models import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model)
    first = len(tokenizer)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    contents = json.loads(path.read_text())
    vocabulary = {word: number for word, number in contents["model"]["vocab"].items() if len(word) > 1}
    contents["model"]["vocab"] |= {word: first + i for i, word in enumerate(words)}
    contents["model"]["ignore_merges"] = (
        True  # a word that has a token is that token, with no merges to get there
    )
    path.write_text(json.dumps(contents, ensure_ascii=False))
    if first + len(words) > policy.config.vocab_size:
        policy.resize_token_embeddings(first + len(words), mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    matrices = [policy.get_input_embeddings().weight]
    if not policy.config.tie_word_embeddings:
        matrices.append(policy.get_output_embeddings().weight)
    with torch.no_grad():
        for matrix in matrices:
            matrix[first : first + len(words)] = _sample_embeddings(matrix, vocabulary, words, generator)
    policy.save_pretrained(folder)


def _sample_embeddings(
    matrix: "torch.Tensor", vocabulary: Mapping[str, int], words: Sequence[str], generator: "torch.Generator"
) -> "torch.Tensor":
    """Embeddings `[W, D]` of new words, sampled like the rows of `vocabulary` in `matrix` `[V, D]`."""
    import torch

    rows = {form: [n for word, n in vocabulary.items() if _is_spaced(word) == form] for form in (True, False)}
    mean = {form: matrix[indices].mean(0) for form, indices in rows.items()}
    spread = {form: matrix[indices].std(0) for form, indices in rows.items()}
    deviations: dict[str, torch.Tensor] = {}
    new = torch.empty(len(words), matrix.shape[1])
    for row, word in enumerate(words):
        form, stem = _is_spaced(word), word.removeprefix(SPACE)
        other_row = vocabulary.get(stem if form else SPACE + stem)
        if other_row is not None:
            deviations[stem] = (matrix[other_row] - mean[not form]) / spread[not form].clamp_min(1e-8)
        elif stem not in deviations:
            deviations[stem] = torch.randn(matrix.shape[1], generator=generator)
        new[row] = mean[form] + spread[form] * deviations[stem]
    return new


def _is_spaced(word: str) -> bool:
    return word.startswith(SPACE)
