"""References within a JSON schema, as pydantic writes them for models and enumerations."""

from collections.abc import Mapping
from typing import Any


def find_definition(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of `root` that `reference` points to, such as `#/$defs/Town`, or an empty mapping if it
    points nowhere."""
    part: Any = root
    for key in reference.removeprefix("#/").split("/"):
        part = part.get(key) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}
