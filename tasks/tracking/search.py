"""Searches in MLflow, whose answers come in pages."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mlflow.store.entities import PagedList

T = TypeVar("T")


def all_pages(search: "Callable[..., PagedList[T]]", *args: object, **options: object) -> Iterator[T]:
    """What `search`, a method of MLflow's client, finds with these arguments, on all pages."""
    token: str | None = None
    while True:
        page = search(*args, **options, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
