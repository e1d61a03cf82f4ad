"""What `wingspan serve-policy`, `serve-retriever` and `view` serve until they are stopped."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError
from envs.network.server import bind, listening, stop_event

if TYPE_CHECKING:
    from agents.gateway.limits import GatewayLimits
    from agents.types import SamplingParams
    from envs.retrieval.dense import Kind
    from envs.retrieval.types import Retriever

GRACE_S = 0.2
"""Time for the viewer's answers under way when it is stopped: they change nothing."""


async def serve_policy(
    policy: str,
    *,
    host: str,
    port: int,
    model: str,
    sampling: "SamplingParams",
    context_length: int | None,
    threads: int,
    limits: "GatewayLimits",
    token: str | None,
    say: Callable[[str], None],
) -> None:
    """Serve a policy with OpenAI's protocol, sampled on the CPU, until SIGINT or SIGTERM.

    `context_length`: tokens; None is the model's. `say` gets the address.
    Vision models, and models that the CPU engine does not support, are sampled by transformers, slowly.
    Raises `ConfigError` for a policy that cannot be served.
    """
    from agents.clients.endpoint import Endpoint
    from agents.gateway.gateway import Gateway
    from agents.samplers.local import LocalModel
    from tasks.evaluation.models import NamedPolicy, find_policy, is_address

    if is_address(policy):
        raise ConfigError(f"{policy} is an endpoint, which serves already; give a folder or OWNER/NAME")
    found = find_policy(NamedPolicy(policy=policy))
    assert not isinstance(found, Endpoint)
    local = LocalModel(found.folder, threads=threads)
    bind(host, port).close()  # fail before the model is loaded, which takes long
    length = context_length or local.read_context_length()
    with local.load(context_length=length) as sampling_model:
        gateway = Gateway(
            sampling_model.sampler,
            sampling_model.tokenizer,
            sampling=sampling,
            context_length=length,
            model=model,
            limits=limits,
            token=token,
            processor=sampling_model.processor,
        )
        stop = stop_event()
        async with gateway.listening(host, port) as url:
            say(f"{model} at {url}/v1, OpenAI's protocol; stop with Ctrl-C")
            await stop.wait()


def make_retriever(corpus: Path, *, encoder: str | None, kind: "Kind", index: Path | None) -> "Retriever":
    """The retriever of `corpus`: a dense one if an encoder is named, else BM25.

    Raises `ConfigError` and `MissingDependency`.
    """
    if encoder is None:
        if index is not None or kind != "flat":
            raise ConfigError("--index and --kind need dense retrieval; name its model with --encoder")
        from envs.retrieval.bm25 import Bm25

        return Bm25(corpus)
    if index is not None and not index.is_file():
        raise ConfigError(f"--index: there is no file {index}")
    from agents.clients.encoder import TransformerEncoder
    from envs.retrieval.dense import Dense

    return Dense(corpus, TransformerEncoder(encoder), kind=kind, index=index)


async def view(
    paths: Sequence[Path], *, host: str, port: int, token: str | None, say: Callable[[str], None]
) -> None:
    """Serve runs and their trajectories to a browser until SIGINT or SIGTERM; `say` gets the address.

    Raises `ConfigError`.
    """
    from tasks.reporting.pages import format_count
    from tasks.runs.folders import find_runs
    from tasks.viewer.app import viewer_app
    from tasks.viewer.index import cache_folder
    from tasks.viewer.viewer import Viewer

    runs = find_runs(paths)
    app = viewer_app(Viewer(paths, cache=cache_folder()), host=host, token=token)
    stop = stop_event()
    async with listening(app, host, port, grace_s=GRACE_S) as bound_port:
        address = f"http://{host}:{bound_port}" + ("/?token=TOKEN" if token is not None else "")
        say(f"{format_count(len(runs), 'run')} at {address}; stop with Ctrl-C")
        await stop.wait()
