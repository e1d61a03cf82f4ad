"""The tensors of a file in the format safetensors, by its header; the file is not loaded."""

import json
import struct
from pathlib import Path


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, by its name. Raises `struct.error` or `ValueError` for a truncated file."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
