"""A server that answers as vLLM does: log-probs of prompts of token ids, texts of ids, its context length."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.http_server import serving_in_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class CompletionsServer:
    """Computes one prompt after another."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    max_model_len: int
    failures: list[Response] = field(default_factory=list)
    """Sent before any answer, one for each request of a completion."""
    num_asked: int = 0
    url: str = ""

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "teacher", "max_model_len": self.max_model_len}]})

    async def complete(self, request: Request) -> Response:
        import torch

        self.num_asked += 1
        if self.failures:
            return self.failures.pop(0)
        body = await request.json()
        ids = body["prompt"]
        assert (body["prompt_logprobs"], body["temperature"]) == (0, 1.0)
        if len(ids) + body["max_tokens"] > self.max_model_len:
            text = f"This model's maximum context length is {self.max_model_len} tokens."
            return JSONResponse({"error": {"message": text}}, status_code=400)
        with torch.no_grad():
            log_probs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        places: list[object] = [None]
        for place, token in enumerate(ids[1:]):
            text = self.tokenizer.decode([token])
            value = float(log_probs[place, token])
            places.append({str(token): {"logprob": value, "rank": 1, "decoded_token": text}})
        return JSONResponse({"choices": [{"text": "", "prompt_logprobs": places}]})

    async def detokenize(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"prompt": self.tokenizer.decode(body["tokens"])})


@contextmanager
def completions_server(folder: Path, *, max_model_len: int = 512) -> Iterator[CompletionsServer]:
    """The model of `folder`, called `teacher`, while the context is open."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    server = CompletionsServer(model, AutoTokenizer.from_pretrained(folder), max_model_len)
    app = Starlette(
        routes=[
            Route("/v1/models", server.models),
            Route("/v1/completions", server.complete, methods=["POST"]),
            Route("/detokenize", server.detokenize, methods=["POST"]),
        ]
    )
    with serving_in_thread(app) as url:
        server.url = f"{url}/v1"
        yield server
