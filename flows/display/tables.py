"""Lines and rows of text; rows are a table on a terminal, and plain lines elsewhere."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_CONTROLS = re.compile(r"[\x00-\x06\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, except for tabs, line ends and those that Rich removes, and the characters that embed,
override and isolate a direction of text."""
_MARK = "\N{REPLACEMENT CHARACTER}"


def mask_controls(text: str) -> str:
    """`text` with U+FFFD for each of `_CONTROLS`. What environments and policies write may be hostile: a
    terminal obeys such characters."""
    return _CONTROLS.sub(_MARK, text)


def print_plain(text: str, *, console: Console, style: str | None = None) -> None:
    """Print `text` as `mask_controls` leaves it, without wrapping its lines."""
    text = mask_controls(text)
    console.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    console: Console | None = None,
    has_header: bool = False,
) -> None:
    """Print `rows`, one cell per column, as `mask_controls` leaves them.

    Plain lines are never wrapped or cut. For programs that read them, they have no header unless `has_header`
    says that the cells mean nothing without it.
    """
    console = console or Console()
    if not console.is_terminal:
        lines = [columns, *rows] if has_header else rows
        widths = [max(len(cell) for cell in cells) for cells in zip(*lines, strict=True)]
        for row in lines:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print_plain(line.rstrip(), console=console)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(mask_controls(cell)) for cell in row))
    console.print(table)
