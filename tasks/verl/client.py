"""verl's client of vLLM's servers, with one difference: a request that nobody waits for is aborted.

verl leaves it running to its last token, and the servers' next sleep waits for it. Cancelling the call in
Ray cancels the server's coroutine, upon which vLLM aborts the request. The server's own `abort_request`
would drop the prefix cache of all others.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import ray
from verl.workers.rollout.llm_server import LLMServerClient


class CancellingClient(LLMServerClient):  # type: ignore[misc]
    """For `LLMServerManager.get_client`; a cancelled `generate` is cancelled on the server, too."""

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server_id, server = await super()._acquire_server(request_id, **extra)

        async def generate(**request: Any) -> Any:
            answer = server.generate.remote(**request)
            try:
                return await answer
            except asyncio.CancelledError:
                ray.cancel(answer)
                raise

        return server_id, SimpleNamespace(generate=SimpleNamespace(remote=generate))
