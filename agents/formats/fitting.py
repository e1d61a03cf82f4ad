"""Gives arguments that were written as text the types of a tool's schema.

Only for formats that write values without types. What does not fit is left as it is, for the tool's own
check.
"""

import re
from collections.abc import Mapping

from agents.formats.calls import Schema, ToolCall
from agents.formats.json_values import MAX_DIGITS, Value, decode_at
from agents.formats.react import PLAIN_INPUT

_INTEGER = re.compile(rf"[+-]?[0-9]{{1,{MAX_DIGITS}}}")
_NULL = ("null", "None")
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {"number": (int, float), "object": dict, "array": list}


def fit_types(call: ToolCall, parameters: Schema) -> ToolCall:
    """`call`, its text values as the JSON schema `parameters` has them.

    A plain input (`react.py`) goes to the only parameter, or to the only one that is required. A number,
    boolean, null, array or object is read where the schema has that type; a text may be meant wherever the
    schema allows one. Source: Qwen3-Coder's own tool parser, which converts by the schema, too; Python's
    `True` and `None` are what its chat template writes.
    """
    properties = parameters.get("properties", {})
    arguments = dict(call.arguments)
    if arguments.keys() == {PLAIN_INPUT} and PLAIN_INPUT not in properties:
        names = list(properties) if len(properties) == 1 else list(parameters.get("required", ()))
        if len(names) == 1:
            arguments = {names[0]: arguments[PLAIN_INPUT]}
    for name, value in arguments.items():
        if isinstance(value, str) and isinstance(properties.get(name), Mapping):
            arguments[name] = _fit(value, _types(properties[name], parameters))
    return ToolCall(call.name, arguments)


def _types(schema: Schema, root: Schema) -> set[str]:
    types: set[str] = set()
    pending, followed = [schema], set[str]()
    while pending:
        part = pending.pop()
        names = part.get("type", [])
        types |= {names} if isinstance(names, str) else set(names)
        pending += [*part.get("anyOf", []), *part.get("oneOf", [])]
        reference = part.get("$ref", "")
        if reference and reference not in followed:  # a definition may refer to itself
            followed.add(reference)
            pending.append(find_definition(reference, root))
    return types


def find_definition(reference: str, root: Schema) -> Schema:
    """Return the part of `root` that `reference` points to, such as `#/$defs/Town`, or an empty mapping if it
    points nowhere."""
    part: object = root
    for key in reference.removeprefix("#/").split("/"):
        part = part.get(key) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _fit(text: str, types: set[str]) -> object:
    token = text.strip()
    if "null" in types and token in _NULL:
        return None
    if not types or "string" in types:
        return text
    if "boolean" in types and token.lower() in ("true", "false"):
        return token.lower() == "true"
    if "integer" in types and _INTEGER.fullmatch(token):
        return int(token)
    decoded = decode_at(token, 0)
    if not isinstance(decoded, Value) or decoded.end < len(token) or isinstance(decoded.value, bool):
        return text
    fits = any(kind in types and isinstance(decoded.value, _JSON_TYPES[kind]) for kind in _JSON_TYPES)
    return decoded.value if fits else text
