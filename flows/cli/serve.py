"""The commands that serve something over HTTP until Ctrl-C."""

from pathlib import Path
from typing import Annotated

import typer

from agents.gateway.limits import GatewayLimits
from envs.errors import ConfigError
from envs.network.tokens import read_token
from envs.serve.limits import ServerLimits
from flows.cli.options import TOKEN_DEFAULT, EnvironmentName, Host, MaxBodyBytes, MaxSessions, Port, Token
from tasks.reporting.links import PORT as VIEWER_PORT

_ENV_DEFAULTS = ServerLimits()
_POLICY_DEFAULTS = GatewayLimits()


def serve_env(
    name: EnvironmentName,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Annotated[
        list[str] | None,
        typer.Option(
            help="Require this token; repeat the option for further users' tokens.",
            show_default=TOKEN_DEFAULT,
        ),
    ] = None,
    max_sessions: MaxSessions = _ENV_DEFAULTS.max_sessions,
    idle_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a request after which an instance is closed.")
    ] = _ENV_DEFAULTS.idle_s,
    step_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds that one step or reset may take.")
    ] = _ENV_DEFAULTS.step_timeout_s,
    max_body_bytes: MaxBodyBytes = _ENV_DEFAULTS.max_body_bytes,
) -> None:
    """Serve an environment over HTTP, with three protocols, until Ctrl-C."""
    import asyncio

    from envs.registry import get_env
    from envs.serve.app import serve
    from flows.endings.guardian import guard

    given: list[str | None] = [*token] if token else [None]
    tokens = [text for value in given if (text := read_token(value)) is not None]
    guard()
    limits = ServerLimits(
        max_sessions=max_sessions, idle_s=idle_s, step_timeout_s=step_timeout_s, max_body_bytes=max_body_bytes
    )
    asyncio.run(serve(get_env(name), host=host, port=port, limits=limits, tokens=tokens, say=typer.echo))


def serve_policy(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY", help="Folder of a run, a checkpoint or a model, or OWNER/NAME on a hub."
        ),
    ],
    host: Host = "127.0.0.1",
    port: Port = 8001,
    model: Annotated[str, typer.Option(help="Name of the model that requests give.")] = "policy",
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Temperature of requests that give none.")
    ] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1, help="top_p of requests that give none.")] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of an answer whose request gives no limit.")
    ] = 512,
    context_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that prompt and answer may have.", show_default="the model's"),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads that sampling may use.")] = 1,
    token: Token = None,
    max_sessions: MaxSessions = _POLICY_DEFAULTS.max_sessions,
    idle_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a request after which a session is forgotten.")
    ] = _POLICY_DEFAULTS.idle_s,
    max_turns: Annotated[
        int, typer.Option(min=1, help="Answers that a session may have.")
    ] = _POLICY_DEFAULTS.max_turns,
    max_body_bytes: MaxBodyBytes = _POLICY_DEFAULTS.max_body_bytes,
) -> None:
    """Serve a policy over HTTP, with OpenAI's protocol, until Ctrl-C; sessions keep the sampled tokens."""
    import asyncio

    from agents.types import SamplingParams
    from flows.commands.serve import serve_policy as serve

    limits = GatewayLimits(
        max_sessions=max_sessions, idle_s=idle_s, max_turns=max_turns, max_body_bytes=max_body_bytes
    )
    asyncio.run(
        serve(
            policy,
            host=host,
            port=port,
            model=model,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p),
            context_length=context_length,
            threads=threads,
            limits=limits,
            token=read_token(token),
            say=typer.echo,
        )
    )


def serve_retriever(
    corpus: Annotated[
        Path,
        typer.Argument(metavar="CORPUS", help="JSONL file with a passage on each line (docs/search.md)."),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Model whose vectors find passages.", show_default="none: BM25 finds them"
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="Kind of the index of vectors: flat or ivf.")] = "flat",
    index: Annotated[
        Path | None, typer.Option(help="Existing faiss index of the corpus's lines, in their order.")
    ] = None,
    top_k: Annotated[
        int, typer.Option(min=1, help="Passages that a request gets if it asks for no number.")
    ] = 3,
    host: Host = "127.0.0.1",
    port: Port = 8002,
) -> None:
    """Serve a corpus for searches over HTTP, with Search-R1's protocol, until Ctrl-C."""
    import asyncio

    from envs.retrieval.cache import CachedRetriever, shared_cache
    from envs.retrieval.service import serve_retriever as serve
    from flows.commands.serve import make_retriever

    if kind not in ("flat", "ivf"):
        raise ConfigError(f"--kind {kind!r}: give flat or ivf")
    retriever = make_retriever(corpus, encoder=encoder, kind="ivf" if kind == "ivf" else "flat", index=index)
    cached_retriever = CachedRetriever(retriever, shared_cache())
    asyncio.run(serve(cached_retriever, host=host, port=port, top_k=top_k, say=typer.echo))


def serve_sites(
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65532, help="Port of the shop; forum, forge and CMS listen on the next three."
        ),
    ] = 7770,
) -> None:
    """Serve a fresh copy of webarena-local's sites on this machine until Ctrl-C."""
    from envs.builtin.webarena_local.sites.copies import serve_here
    from envs.builtin.webarena_local.sites.data import WEBARENA_LOCAL
    from flows.endings.guardian import guard

    guard()
    serve_here(WEBARENA_LOCAL.prepare(), first_port=port, say=typer.echo)


def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER…]",
            help="Workspaces, evaluations, folders of these, or files of trajectories.",
            show_default="runs",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = VIEWER_PORT,
    token: Token = None,
) -> None:
    """Show runs and their trajectories in a browser, from their files, until Ctrl-C."""
    import asyncio

    from flows.commands.serve import view as serve
    from flows.endings.guardian import guard
    from tasks.runs.folders import RUNS

    required_token = read_token(token)
    guard()  # forks start environments
    paths = folders or [RUNS]
    asyncio.run(serve(paths, host=host, port=port, token=required_token, say=typer.echo))
