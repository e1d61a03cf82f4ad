"""What a search is: a query in, passages out. The one interface of every retriever."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

MAX_QUERY = 1000
"""Characters of a query that are read; what follows is not searched for."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage as a retriever found it."""

    passage_id: str
    contents: str
    """As in wiki-18: the title in double quotes on the first line, the text below."""
    score: float
    """The higher, the better; comparable within one answer only."""

    @property
    def title(self) -> str:
        """The first line, quotes included, as Search-R1 shows it."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """What follows the title."""
        return self.contents.partition("\n")[2]


class Retriever(Protocol):
    """Finds passages. One serves all episodes of a process; none of it blocks the event loop."""

    async def version(self) -> str:
        """Names all that decides its answers beside query and `top_k`: method, corpus, model."""
        ...

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """For each query the best passages, best first, at most `top_k`; none where nothing fits.

        Raises `SearchFailed` if no answer can be had.
        """
        ...

    async def close(self) -> None:
        """Free what it holds for the running event loop. Idempotent; it may be used again."""
        ...


@runtime_checkable
class HasRetriever(Protocol):
    """What an environment has besides, if its episodes search."""

    @property
    def retriever(self) -> Retriever:
        """For a tool that searches instead of an action (`agents/tools/search.py`)."""
        ...


def told(passages: Sequence[Passage]) -> str:
    """Passages in the words of Search-R1 and AgentGym: `Doc 1(Title: "…") …`, a line each."""
    return "\n".join(
        f"Doc {number}(Title: {passage.title}) {passage.text}"
        for number, passage in enumerate(passages, start=1)
    ).strip()


def information(passages: Sequence[Passage]) -> str:
    """What a policy is told of a search; empty within where nothing was found."""
    return f"<information>{told(passages)}</information>"
