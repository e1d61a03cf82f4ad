"""`wingspan serve-policy`: a policy's folder as an OpenAI-compatible server, sampled on the CPU."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from agents.gateway.gateway import Gateway
from agents.gateway.limits import Limits
from agents.sampler_cpu import CpuSampler
from agents.types import SamplingParams
from envs.errors import ConfigError


async def serve_policy(
    folder: Path,
    *,
    host: str,
    port: int,
    model: str,
    sampling: SamplingParams,
    context_length: int | None,
    threads: int,
    limits: Limits,
    token: str | None,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `say` is told where. `context_length`: tokens; None is the model's own.

    Raises `ConfigError` for a folder that cannot be served.
    """
    from transformers import AutoConfig, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"no model in {folder}: it has no config.json; name a folder in Hugging Face format"
        )
    length = context_length or int(AutoConfig.from_pretrained(folder).max_position_embeddings)
    sampler = CpuSampler(folder, context_length=length, threads=threads)
    try:
        gateway = Gateway(
            sampler,
            AutoTokenizer.from_pretrained(folder),
            sampling=sampling,
            context_length=length,
            model=model,
            limits=limits,
            token=token,
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
    finally:
        sampler.close()
