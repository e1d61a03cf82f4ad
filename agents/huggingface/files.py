"""Loads what a model's folder says without its weights: tokenizer and configuration."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from agents.process_memory import no_garbage_collection
from envs.errors import ConfigError, boundary

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_NEEDED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
)
"""The keys of config.json for which its readers here have no default."""
_OLDER_KEYS = ("rope_theta", "rope_scaling", "partial_rotary_factor")
"""The keys of config.json that transformers translates into `rope_parameters`."""
_GGUF = "transformers.modeling_gguf_pytorch_utils"
_PLAIN = "transformers.tokenization_utils_tokenizers"


def find_file(model: str | Path, name: str) -> Path | None:
    """The file `name` of a model that is a folder or in the hub's cache; None if it is not there."""
    if Path(model).is_dir():
        return file if (file := Path(model) / name).exists() else None
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # the name cannot be one on the hub
        cached_path = try_to_load_from_cache(str(model), name)
        if isinstance(cached_path, str):
            return Path(cached_path)
    return None


def load_tokenizer(model: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder or of a name on the hub: the one that `AutoTokenizer` chooses.

    The class of plain `tokenizer.json` files, which the CPU pipelines' models have, is imported alone:
    transformers' table of all models brings torch and its compiler along, seconds and 200 MB that a process
    without a model has no use for. Raises `ConfigError`.
    """
    folder = Path(model)
    if folder.is_dir() and not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model {str(model)!r} has no tokenizer: the folder has no {TOKENIZER_FILES[0]}; save one there "
            "with tokenizer.save_pretrained"
        )
    subject, remedy = f"loading the tokenizer of model {str(model)!r}", "correct the name, or save it again"
    # Of transformers, the hub's client, or a damaged file.
    with boundary(ConfigError, subject, remedy=remedy):
        if _is_plain(folder):
            return _import_plain_tokenizer().from_pretrained(str(model))
        from agents.huggingface.models import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(model))


def decoder(*folders: Path | str, special_tokens: bool = True) -> Callable[[Sequence[int]], str | None]:
    """Tokens to text by the tokenizer of the first of `folders` that has one; to None if none has.

    A folder may be a name on a model hub that was downloaded before.
    """
    file = find_tokenizer(*folders)
    if file is None:
        return lambda _: None
    from tokenizers import Tokenizer

    return partial(Tokenizer.from_file(str(file)).decode, skip_special_tokens=not special_tokens)


def find_tokenizer(*folders: Path | str) -> Path | None:
    """The tokenizer's file in the first of `folders` that has one; as for `decoder`."""
    return next((file for folder in folders if (file := _tokenizer_file(folder)) is not None), None)


def _tokenizer_file(folder: Path | str) -> Path | None:
    is_name = isinstance(folder, str) and folder.count("/") == 1
    return find_file(folder, "tokenizer.json") if is_name or Path(folder).is_dir() else None


class PlainConfig(SimpleNamespace):
    """The keys of a `config.json` that says all that is asked of it here, as transformers 5 writes it."""

    def get_text_config(self) -> Self:
        return self


def load_config(model: str | Path) -> "PlainConfig | PretrainedConfig":
    """The configuration of a folder or of a name on the hub.

    The complete file of a Llama or a Qwen2 needs no transformers, whose import takes two seconds and which,
    for all others, fills in defaults and translates older keys. Raises `OSError` and `ValueError`.
    """
    file = Path(model) / "config.json"
    if file.is_file():
        values = json.loads(file.read_text())
        if _is_complete(values):
            return PlainConfig(**values)
    from agents.huggingface.models import AutoConfig

    config: PretrainedConfig = AutoConfig.from_pretrained(str(model))
    return config


def _is_complete(values: Mapping[str, Any]) -> bool:
    model_type = values.get("model_type")
    needed_keys = {*_NEEDED_KEYS, *(("layer_types",) if model_type == "qwen2" else ())}
    return (
        model_type in ("llama", "qwen2")
        and all(values.get(key) is not None for key in needed_keys)
        and {"rope_theta", "rope_type"} <= values["rope_parameters"].keys()
        and not values.keys() & set(_OLDER_KEYS)
    )


def _is_plain(folder: Path) -> bool:
    """Whether the tokenizer says that its `tokenizer.json` is all there is to it."""
    config = folder / "tokenizer_config.json"
    if not (folder / "tokenizer.json").is_file() or not config.is_file():
        return False
    values = json.loads(config.read_text())
    classes = ("TokenizersBackend", "PreTrainedTokenizerFast")
    return values.get("tokenizer_class") in classes and "auto_map" not in values


def _import_plain_tokenizer() -> "type[PreTrainedTokenizerBase]":
    """The class of plain tokenizers.

    Its module imports transformers' reader of GGUF files, and with it torch. No tokenizer here is such a
    file: during the first import, a module that imports the reader when it is called takes its place.
    """

    def load_gguf_checkpoint(*args: object, **options: object) -> object:
        return import_module(_GGUF).load_gguf_checkpoint(*args, **options)

    is_imported = not sys.modules.keys().isdisjoint((_GGUF, _PLAIN))
    if not is_imported:
        sys.modules[_GGUF] = stand_in = ModuleType(_GGUF)
        stand_in.load_gguf_checkpoint = load_gguf_checkpoint  # type: ignore[attr-defined]
    try:
        with no_garbage_collection():
            tokenizer: type[PreTrainedTokenizerBase] = import_module(_PLAIN).TokenizersBackend
            return tokenizer
    finally:
        if not is_imported:
            del sys.modules[_GGUF]
