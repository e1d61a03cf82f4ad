"""Tools that search a corpus (`search`) and the web (`web_search`), with passages in Search-R1's form."""

import os
from collections.abc import Callable
from pathlib import Path

from agents.clients.web_search import QueryRejected, WebSearch, web_endpoint
from agents.tools.tool import Tool, tool
from agents.tools.types import ToolError
from envs.errors import ConfigError, MissingDependency
from envs.retrieval.cache import CachedRetriever, shared_cache
from envs.retrieval.selection import VARIABLE, retriever_at
from envs.retrieval.types import HasRetriever, Retriever, information
from envs.types import Environment

TOP_K = 3
MAX_LENGTH = 8192
"""Characters: three passages of 100 words have 2,000; other corpora have longer ones."""

_NOTHING = (
    "there is nothing to search: the environment has no corpus; export "
    f"{VARIABLE} with a corpus or the URL of a retriever (docs/search.md)"
)


def search_tool(
    retriever: Callable[[object], Retriever], *, check_env: Callable[[object], object] | None = None
) -> Tool:
    """A tool `search`; `retriever` is called with the episode's environment, or None without one. `check_env`
    is that of `@tool`."""

    # The retriever keeps the time; if it does not answer, the episode fails.
    @tool(stateful=True, keeps_time=True, max_length=MAX_LENGTH, check_env=check_env)
    async def search(query: str, env: Environment | None = None) -> str:
        """Search a collection of texts for passages.

        Args:
            query: What to look for.
        """
        return await _search(retriever(env), query)

    return search


def web_search_tool(web: Retriever) -> Tool:
    """A tool `web_search` over an endpoint (`agents/clients/web_search.py`)."""

    @tool(keeps_time=True, max_length=MAX_LENGTH)
    async def web_search(query: str) -> str:
        """Search the web; the results are titles, snippets and addresses of pages.

        Args:
            query: What to look for.
        """
        return await _search(web, query)

    return web_search


def search() -> Tool:
    """The prebuilt `search`: over the server or corpus that `WINGSPAN_RETRIEVER` names, else over the corpus
    of the episode's environment. Raises `ConfigError` for a wrong URL, `MissingDependency` for a missing
    corpus."""
    location = os.environ.get(VARIABLE)
    if not location:
        return search_tool(retriever_of, check_env=_check_corpus)
    if "://" not in location and not Path(location).is_file():
        raise MissingDependency(f"{VARIABLE} is {location!r}, and there is no such corpus; correct the path")
    retriever_named = retriever_at(location)
    return search_tool(lambda _: retriever_named)


def web_search() -> Tool:
    """The prebuilt `web_search`, at the endpoint that `WINGSPAN_WEB_SEARCH` names. Raises `ConfigError`."""
    return web_search_tool(CachedRetriever(WebSearch(web_endpoint()), shared_cache()))


def retriever_of(env: object) -> Retriever:
    """The environment's retriever. Raises `ConfigError` if it has none."""
    if not isinstance(env, HasRetriever):
        raise ConfigError(_NOTHING)
    return env.retriever


def _check_corpus(env: object) -> None:
    if not hasattr(type(env), "retriever"):  # of the instance, it might open the corpus
        raise ConfigError(_NOTHING)


async def _search(retriever: Retriever, query: str) -> str:
    if not query.strip():
        raise ToolError("the query is empty; write what to look for")
    try:
        return information((await retriever.search([query], top_k=TOP_K))[0])
    except QueryRejected as error:
        raise ToolError(f"the search was refused: {error}") from None
