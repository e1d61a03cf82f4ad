"""The output of `wingspan compare` in a terminal: the tables of its page, without the plots."""

from rich.console import Console

from flows.cli.tables import print_table
from tasks.comparison.compare import Comparison
from tasks.comparison.tables import Table

LISTED = 8
"""Rows of a table that is too long for a terminal; of more than two sides, it is on the page only."""


def show(comparison: Comparison, *, console: Console) -> None:
    """Print the tables, and what must be known before they are read."""
    for sentence in (*comparison.results, *comparison.notes):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    are_two = len(comparison.names) <= 2
    for table in comparison.tables:
        if are_two or not table.is_for_page:
            console.print()
            _show_table(table, console=console)
    console.print(
        f"\nepisodes of items: {comparison.view_command}", markup=False, highlight=False, soft_wrap=True
    )


def _show_table(table: Table, *, console: Console) -> None:
    console.print(table.title, style="bold", markup=False, highlight=False, soft_wrap=True)
    if not table.rows:
        console.print(table.about, markup=False, highlight=False, soft_wrap=True)
        return
    rows = table.rows[:LISTED] if table.is_for_page else table.rows
    print_table(table.header, [[str(cell) for cell in row] for row in rows], console=console, has_header=True)
    if len(rows) < len(table.rows):
        console.print(f"and {len(table.rows) - len(rows)} more, on the page", markup=False, highlight=False)
