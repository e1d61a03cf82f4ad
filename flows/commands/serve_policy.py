"""`wingspan serve-policy`: a policy's folder as an OpenAI-compatible server, sampled on the CPU."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from agents.gateway.gateway import Gateway, listener
from agents.gateway.limits import GatewayLimits
from agents.samplers.local import LocalModel
from agents.types import SamplingParams


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
    """Serve until SIGINT or SIGTERM; `say` is told where. `context_length`: tokens; None is the model's own.

    A model that the CPU engine does not know is sampled by transformers, slowly; one that sees, too. Raises
    `ConfigError` for a folder that cannot be served.
    """
    local = LocalModel(folder, threads=threads)
    local.check()
    listener(host, port).close()  # before the model is loaded, which takes long
    length = context_length or _context_of(folder)
    with local.load(context_length=length) as loaded:
        gateway = Gateway(
            loaded.sampler,
            loaded.tokenizer,
            sampling=sampling,
            context_length=length,
            model=model,
            limits=limits,
            token=token,
            processor=loaded.processor,
        )
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        async with gateway.listening(host, port) as url:
            say(f"{model} at {url}/v1, by OpenAI's protocol; Ctrl-C stops it")
            await stopped.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second one ends it at once


def _context_of(folder: Path) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(str(folder)).get_text_config().max_position_embeddings)
