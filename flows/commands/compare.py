"""The output of `wingspan compare` in a terminal: the tables of its page, without the plots."""

from rich.console import Console

from flows.display.tables import print_plain, print_table
from tasks.reporting.comparison.compare import Comparison
from tasks.reporting.comparison.tables import Table

LISTED = 8
"""Rows of a table that is too long for a terminal; of more than two sides, it is on the page only."""


def show(comparison: Comparison, *, console: Console) -> None:
    """Print the tables, and what must be known before they are read."""
    for sentence in (*comparison.results, *comparison.notes):
        print_plain(sentence, console=console)
    are_two = len(comparison.names) <= 2
    for table in comparison.tables:
        if are_two or not table.is_for_page:
            console.print()
            _show_table(table, console=console)
    print_plain(f"\nepisodes of items: {comparison.view_command}", console=console)


def _show_table(table: Table, *, console: Console) -> None:
    print_plain(table.title, console=console, style="bold")
    if not table.rows:
        print_plain(table.about, console=console)
        return
    rows = table.rows[:LISTED] if table.is_for_page else table.rows
    print_table(table.header, [[str(cell) for cell in row] for row in rows], console=console, has_header=True)
    if len(rows) < len(table.rows):
        print_plain(f"and {len(table.rows) - len(rows)} more, on the page", console=console)
