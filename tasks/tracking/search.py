"""Searches in MLflow, whose answers come in pages."""

from collections.abc import Callable, Iterator
from typing import Any


def all_pages(search: Callable[..., Any], *args: Any, **options: Any) -> Iterator[Any]:
    """What `search`, a method of MLflow's client, finds with these arguments, on all pages."""
    token: str | None = None
    while True:
        page = search(*args, **options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
