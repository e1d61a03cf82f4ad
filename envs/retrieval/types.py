"""The interface of all retrievers: a query in, passages out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

MAX_QUERY = 1000
"""Characters of a query that are used."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage in the results of a search."""

    passage_id: str
    contents: str
    """The contents as in wiki-18: the title in double quotes on the first line, the text below."""
    score: float
    """The higher, the better; comparable within one answer only."""

    @property
    def title(self) -> str:
        """The first line, quotes included, as Search-R1 shows it."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """The lines after the title."""
        return self.contents.partition("\n")[2]


class Retriever(Protocol):
    """Searches passages. One instance serves all episodes of a process; it never blocks the event loop."""

    async def version(self) -> str | None:
        """Identifies everything besides query and `top_k` that decides the results: method, corpus, model.

        None if it is unknown: then another corpus may give other results at any time.
        """

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """Find the best passages for each query, best first, at most `top_k`.

        Raises `SearchFailed` if the search cannot be carried out.
        """

    async def close(self) -> None:
        """Release the resources of the running event loop. Idempotent; the retriever can be used again."""


@runtime_checkable
class HasRetriever(Protocol):
    """An environment whose episodes search."""

    @property
    def retriever(self) -> Retriever:
        """Used by the tool `search` (`agents/tools/search.py`)."""


def format_passages(passages: Sequence[Passage]) -> str:
    """Passages as Search-R1 and AgentGym write them: `Doc 1(Title: "…") …`, one per line."""
    return "\n".join(
        f"Doc {number}(Title: {passage.title}) {passage.text}"
        for number, passage in enumerate(passages, start=1)
    ).strip()


def information(passages: Sequence[Passage]) -> str:
    """The observation of a search; the tag is empty if there are no results."""
    return f"<information>{format_passages(passages)}</information>"
