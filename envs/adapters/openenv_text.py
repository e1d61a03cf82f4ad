"""OpenEnv's messages as text: observations are fields, actions are read by the JSON schema of theirs."""

import json
from collections.abc import Mapping
from typing import Any

HIDDEN = ("metadata", "done", "reward")
"""Fields of every observation and action that are for programs."""


def observation_text(fields: Mapping[str, Any]) -> str:
    """A single field's value, or a line `name: value` for each that says something."""
    told = {key: _text(value) for key, value in fields.items() if key not in HIDDEN}
    told = {key: text for key, text in told.items() if text not in ("", "null", "[]", "{}")}
    if len(told) == 1:
        return next(iter(told.values()))
    return "\n".join(f"{key}: {text}" for key, text in told.items())


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class ActionForm:
    """How an action is written: one field by its value alone, several as a JSON object."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """`schema` is the JSON schema of actions, as `/schema` gives it."""
        fields = {
            key: field
            for key, field in schema.get("properties", {}).items()
            if key not in HIDDEN and "const" not in field
        }
        required = [key for key in schema.get("required", ()) if key in fields]
        names = required or list(fields)
        self._schema = schema
        self._fields = fields
        self._single = names[0] if len(names) == 1 else None

    @property
    def described(self) -> str:
        """In a line, for whoever is to write one."""
        if self._single is not None:
            return f"{self._single}, {self._kind(self._single)}"
        listed = ", ".join(f"{name} ({self._kind(name)})" for name in self._fields)
        return f"a JSON object with {listed}"

    def read(self, said: str) -> dict[str, Any] | None:
        """The fields of the action that `said` is, or None where it is none by its form."""
        said = said.strip()
        if self._single is not None and self._type(self._single) == "string":
            return {self._single: said}
        try:
            value = json.loads(said)
        except (ValueError, RecursionError):
            return None
        if self._single is not None and not isinstance(value, dict):
            return {self._single: value}
        return value if isinstance(value, dict) else None

    def _kind(self, name: str) -> str:
        field = self._resolved(name)
        kind = " or ".join(json.dumps(one) for one in field["enum"]) if "enum" in field else self._type(name)
        return f"{kind}: {field['description']}" if field.get("description") else kind

    def _type(self, name: str) -> str:
        field = self._resolved(name)
        if "enum" in field and all(isinstance(one, str) for one in field["enum"]):
            return "string"
        return str(field.get("type", "any JSON value"))

    def _resolved(self, name: str) -> Mapping[str, Any]:
        field: Mapping[str, Any] = self._fields[name]
        reference = field.get("$ref", "")
        if reference.startswith("#/$defs/"):
            target: Mapping[str, Any] = self._schema.get("$defs", {}).get(
                reference.removeprefix("#/$defs/"), {}
            )
            return target
        return field
