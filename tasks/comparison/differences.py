"""Parameters that are not the same on all sides."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def differences(parameters: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each key whose value is not the same in all `parameters`: the key and each value.

    Sides whose parameters are unknown have `?` and make no difference.
    """
    recorded_parameters = [values for values in parameters if values]
    keys = dict.fromkeys(key for values in recorded_parameters for key in values if key != "description")
    return [
        [key, *(_format_value(values, key) for values in parameters)]
        for key in keys
        if len({_format_value(values, key) for values in recorded_parameters}) > 1
    ]


def _format_value(values: Mapping[str, Any], key: str) -> str:
    if not values:
        return "?"
    return json.dumps(values[key], ensure_ascii=False).strip('"') if key in values else "-"
