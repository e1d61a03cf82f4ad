"""New words for a small model: tokens for what its tokenizer would have to spell.

A model that was made for one environment spells another one's words byte by byte. It then needs several
times the tokens, and goes wrong within words (`gn right` for `turn right`). Here the most frequent of
them become tokens. Their embeddings are drawn like those of the words that the model knows, so that what
it has learnt to do with any word, above all to copy it, holds for them, too; what they mean it must learn.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def spelt_words(
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
    said: Counter[str] = Counter()
    for ids in conversations:
        for is_control, part in groupby(ids, key=control.__contains__):
            if not is_control:
                said.update(
                    word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.decode([*part]))
                )
    known = backend.get_vocab()
    cost = {
        word: count * (len(backend.model.tokenize(word)) - 1)
        for word, count in said.items()
        if word not in known
    }
    return sorted(cost, key=lambda word: (-cost[word], word))[:at_most]


def add_words(model: str, words: Sequence[str], folder: Path, *, seed: int) -> None:
    """Save `model` to `folder` with a token for each of `words` (`spelt_words`), after those that it has.

    All other texts keep their tokens, and these their embeddings. A new one is drawn from a normal
    distribution with the mean and the spread, by dimension, of the embeddings of tokens longer than a byte.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    policy = AutoModelForCausalLM.from_pretrained(model)
    first = len(tokenizer)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    known = [number for word, number in told["model"]["vocab"].items() if len(word) > 1]
    told["model"]["vocab"] |= {word: first + i for i, word in enumerate(words)}
    told["model"]["ignore_merges"] = (
        True  # a word that has a token is that token, with no merges to get there
    )
    path.write_text(json.dumps(told, ensure_ascii=False))
    if first + len(words) > policy.config.vocab_size:
        policy.resize_token_embeddings(first + len(words), mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    matrices = [policy.get_input_embeddings().weight]
    if not policy.config.tie_word_embeddings:
        matrices.append(policy.get_output_embeddings().weight)
    with torch.no_grad():
        for matrix in matrices:
            trained = matrix[known]
            drawn = torch.randn(len(words), matrix.shape[1], generator=generator)
            matrix[first : first + len(words)] = trained.mean(0) + trained.std(0) * drawn
    policy.save_pretrained(folder)
