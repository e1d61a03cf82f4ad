"""What a file of weights in the format safetensors says of its tensors, without loading them.

`safetensors.safe_open` would import torch for it.
"""

import json
import struct
from pathlib import Path
from typing import TypedDict


class TensorEntry(TypedDict):
    """A tensor as the file describes it; where its bytes are is left out."""

    dtype: str
    """E.g. `BF16`."""
    shape: list[int]


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file of the format safetensors, by its name; the file is not loaded.

    Raises `struct.error` or `ValueError` for a truncated file.
    """
    return {name: tuple(tensor["shape"]) for name, tensor in read_header(file).items()}


def read_header(file: Path) -> dict[str, TensorEntry]:
    """What a file says of each tensor, by its name. Raises as `read_shapes` does."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, TensorEntry] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header
