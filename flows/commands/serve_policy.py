"""`wingspan serve-policy`: an OpenAI-compatible server for a policy, sampled on the CPU."""

from collections.abc import Callable
from pathlib import Path

from agents.gateway.gateway import Gateway
from agents.gateway.limits import GatewayLimits
from agents.samplers.local import LocalModel
from agents.types import SamplingParams
from envs.network.server import bind, stop_event


async def serve_policy(
    folder: Path,
    *,
    host: str,
    port: int,
    model: str,
    sampling: SamplingParams,
    context_length: int | None,
    threads: int,
    limits: GatewayLimits,
    token: str | None,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `say` gets the address. `context_length`: tokens; None is the model's.

    Vision models, and models that the CPU engine does not support, are sampled by transformers, slowly.
    Raises `ConfigError` for a folder that cannot be served.
    """
    local = LocalModel(folder, threads=threads)
    local.check()
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
