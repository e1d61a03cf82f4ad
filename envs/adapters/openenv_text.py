"""OpenEnv's messages as text: observations are fields, actions follow their JSON schema."""

import json
from collections.abc import Mapping
from typing import Any

HIDDEN_FIELDS = ("metadata", "done", "reward")
"""Fields of every observation and action that only programs need."""


def observation_text(fields: Mapping[str, object]) -> str:
    """A single field's value, or a line `name: value` for each field that is not empty."""
    lines = {key: _text(value) for key, value in fields.items() if key not in HIDDEN_FIELDS}
    lines = {key: text for key, text in lines.items() if text not in ("", "null", "[]", "{}")}
    if len(lines) == 1:
        return next(iter(lines.values()))
    return "\n".join(f"{key}: {text}" for key, text in lines.items())


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class ActionForm:
    """The text form of an action: the value alone for one field, a JSON object for several."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """`schema` is the JSON schema of actions, as `/schema` gives it."""
        fields = {
            key: field
            for key, field in schema.get("properties", {}).items()
            if key not in HIDDEN_FIELDS and "const" not in field
        }
        required_names = [key for key in schema.get("required", ()) if key in fields]
        names = required_names or list(fields)
        self._schema = schema
        self._fields = fields
        self._single = names[0] if len(names) == 1 else None

    @property
    def description(self) -> str:
        """One line for the policy."""
        if self._single is not None:
            return f"{self._single}, {self._kind(self._single)}"
        fields = ", ".join(f"{name} ({self._kind(name)})" for name in self._fields)
        return f"a JSON object with {fields}"

    def read(self, text: str) -> dict[str, object] | None:
        """Parse the fields of an action; None if `text` does not have its form."""
        text = text.strip()
        if self._single is not None and self._type(self._single) == "string":
            return {self._single: text}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if self._single is not None and not isinstance(value, dict):
            return {self._single: value}
        return value if isinstance(value, dict) else None

    def _kind(self, name: str) -> str:
        field = self._resolve(name)
        kind = (
            " or ".join(json.dumps(value) for value in field["enum"]) if "enum" in field else self._type(name)
        )
        return f"{kind}: {field['description']}" if field.get("description") else kind

    def _type(self, name: str) -> str:
        field = self._resolve(name)
        if "enum" in field and all(isinstance(value, str) for value in field["enum"]):
            return "string"
        return str(field.get("type", "any JSON value"))

    def _resolve(self, name: str) -> Mapping[str, Any]:
        field: Mapping[str, Any] = self._fields[name]
        options = [option for option in field.get("anyOf", ()) if option.get("type") != "null"]
        if len(options) == 1:  # `str | None`, as pydantic writes it
            field = {**field, **options[0]}
        if "$ref" in field:  # `#/$defs/NAME`, as pydantic refers
            field = self._schema.get("$defs", {}).get(field["$ref"].rpartition("/")[2], {})
        return field
