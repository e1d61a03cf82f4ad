"""Policy folders: what verl saves in Hugging Face format, made fit to be loaded anywhere."""

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agents.huggingface.files import find_file
from envs.files import replaced_folder

ADAPTER = "adapter"
"""In the folder of a policy that was trained with `train.lora`: the adapter alone, in peft's format."""
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def copy_policy(source: Path, target: Path) -> None:
    """Copy a policy that verl saved to `target`, replacing it at once.

    verl writes into `config.json` its own attention implementation, and `bfloat16` whatever the
    weights are: the first goes, the second is set right.
    """
    with replaced_folder(target) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)
        dtype = next(iter(_read_header(min(fresh.glob("*.safetensors"))).values()))["dtype"]
        path = fresh / "config.json"
        config = json.loads(path.read_text())
        config.pop("attn_implementation", None)
        path.write_text(json.dumps(config | {"dtype": _DTYPES[dtype]}, indent=2, sort_keys=True) + "\n")


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file of the format safetensors, by its name; the file is not loaded.

    Raises `struct.error` or `ValueError` for a truncated file.
    """
    return {name: tuple(tensor["shape"]) for name, tensor in _read_header(file).items()}


def _read_header(file: Path) -> dict[str, dict[str, Any]]:
    """What the file says of each tensor; torch would be imported for it by `safetensors.safe_open`."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, dict[str, Any]] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header


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
