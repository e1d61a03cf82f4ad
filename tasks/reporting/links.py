"""Addresses of the viewer's pages, for links from other pages; `static/links.js` defines their form."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

PORT = 8003
"""Where `wingspan view` listens by default."""
_PLAIN = ":,!'()*"
"""What is not escaped in an address besides letters, digits and `_.-~`."""


@dataclass(frozen=True, slots=True)
class RunPages:
    """The pages of one run, at the address where the viewer is by default."""

    name: str
    """The run's name in the viewer."""

    def trajectory(self, line: int) -> str:
        """The trajectory of `line`, counted from 1, of the evaluation."""
        return self._address("at", f"evaluation:{line}")

    def item(self, item: str) -> str:
        """An item over the training."""
        return f"{self._address('item')}?item={_escape_value(item)}"

    def trajectories(self, query: str) -> str:
        """The trajectories that `query` selects."""
        return f"{self._address('trajectories')}?q={_escape_value(query)}"

    def _address(self, *parts: str) -> str:
        path = "/".join(quote(part, safe=_PLAIN) for part in ("run", self.name, *parts))
        return f"http://127.0.0.1:{PORT}/#/{path}"


def view_command(folders: Sequence[Path]) -> str:
    """The command that serves `folders`."""
    return shlex.join(["wingspan", "view", *map(str, folders)])


def _escape_value(text: str) -> str:
    return quote(text, safe=_PLAIN).replace("%20", "+")
