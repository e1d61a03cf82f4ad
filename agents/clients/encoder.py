"""Encoders of texts for retrieval: models of transformers, e.g. of the E5 family.

A vector is the mean of the last layer over the tokens, normalized to length 1. Models of the E5 family expect
`query: ` and `passage: ` before their texts (Wang et al. 2022, arXiv 2212.03533), those of the BGE family a
sentence before queries (their model cards). The model's name decides, as in the reference (Search-R1's
retrieval_server.py), where the family is a word of it: the hash in a folder's path may contain `e5` as well.
"""

import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, to_line
from envs.retrieval.dense import Vectors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_TOKENS = 256
"""The most tokens per query or passage, as in the reference; the rest is cut off."""

_PREFIXES = {
    "e5": ("query: ", "passage: "),
    "bge": ("Represent this sentence for searching relevant passages: ", ""),
}
_MODEL_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")
"""Suffixes of the files of a model: configuration, tokenizer, weights."""
_FAMILY = re.compile(rf"(?<![a-z0-9])({'|'.join(_PREFIXES)})(?![a-z0-9])")


class TransformerEncoder:
    """One model, on a GPU if there is one."""

    def __init__(self, model: str) -> None:
        """`model`: a folder in Hugging Face format, or a name on a model hub. Raises `ConfigError`."""
        import torch

        from agents.huggingface.models import AutoModel, AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model)
            self._model: PreTrainedModel = AutoModel.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise ConfigError(f"encoder {model!r} cannot be loaded: {to_line(error, limit=200)}") from None
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.eval().to(self._device)
        families = _FAMILY.findall(model.lower())
        # of a path, the last: it is nearest to the model
        self._query, self._passage = _PREFIXES[families[-1]] if families else ("", "")
        self.name = f"{model}/{self._query}/{self._passage}/{MAX_TOKENS}{_digest(Path(model))}"
        self._turn = threading.Lock()  # a tokenizer that pads is not thread-safe

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self._encode([self._query + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._encode([self._passage + text for text in texts])

    def _encode(self, texts: list[str]) -> Vectors:
        import torch

        with self._turn, torch.inference_mode():
            tokens = self._tokenizer(
                texts, max_length=MAX_TOKENS, padding=True, truncation=True, return_tensors="pt"
            ).to(self._device)
            states = self._model(**tokens).last_hidden_state  # [N, L, D]
            mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)  # [N, L, 1]
            mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
            vectors: Vectors = torch.nn.functional.normalize(mean, dim=-1).float().cpu().numpy()
            return vectors


def _digest(folder: Path) -> str:
    """`/` and a digest of the model's files, since another model may be saved in the same folder; empty for a
    name on a hub."""
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in _MODEL_FILES and file.is_file():
            with file.open("rb") as stream:
                digest.update(f"{file.name}\0".encode() + hashlib.file_digest(stream, "sha256").digest())
    return f"/{digest.hexdigest()}"
