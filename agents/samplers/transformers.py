"""Samples any model that transformers knows, one completion at a time on the CPU; vision-language models too.

Completions are not batched, and nothing is cached between turns: the CPU engine (`agents/samplers/cpu/`) is
far faster for the models that it knows. Log-probs are those of the tempered, unfiltered distribution.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from agents.huggingface.files import load_tokenizer
from agents.prompting.images import VisionProcessor
from agents.samplers.sampling import check_params, random_key, sample_tokens, uniforms
from agents.samplers.stop_texts import StopDetector
from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import ConfigError, describe
from envs.types import Image

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin


class TransformersSampler:
    """Implements `agents.samplers.sampler.Sampler`; every method may be called from any event loop.

    The same seed, episode id and prompt give the same tokens.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        processor: "ProcessorMixin | None",
        *,
        context_length: int,
        seed: int = 0,
    ) -> None:
        """`model`: a folder in Hugging Face format, computed in float32. `processor`: of a model with
        vision.

        Raises `ConfigError` for a model that cannot be loaded.
        """
        from agents.huggingface.models import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForCausalLM if processor is None else AutoModelForImageTextToText
        try:
            self._model: PreTrainedModel = kind.from_pretrained(Path(model), dtype="float32").eval()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{model} cannot be loaded: {describe(error)[:300]}; check `model`") from error
        self._vision = None if processor is None else VisionProcessor(processor)
        self._tokenizer: PreTrainedTokenizerBase | None = None if processor is None else processor.tokenizer
        self._folder = Path(model)
        self._context_length = context_length
        self._seed = seed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transformers-sampler")

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Continue `prompt_ids` ([P]), which show `images`; placeholders of images are never sampled.

        Raises `ConfigError` for a request that can never be answered. A cancelled call ends at its next
        token.
        """
        check_params(params, vocab_size=self._model.get_input_embeddings().num_embeddings)
        room = self._context_length - len(prompt_ids)
        if not prompt_ids or room < 1:
            raise ConfigError(
                f"{episode_id}: {len(prompt_ids)} tokens of prompt in a context of {self._context_length}"
            )
        if images and self._vision is None:
            raise ConfigError(f"{episode_id}: {len(images)} images for a model that reads text only")
        cancellation = threading.Event()
        request = (list(prompt_ids), list(images), params, min(params.max_tokens, room), episode_id)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._complete, *request, cancellation
            )
        except asyncio.CancelledError:
            cancellation.set()
            raise

    def close(self) -> None:
        """End the thread; requests that have not started are cancelled."""
        self._thread.shutdown(cancel_futures=True)

    def _complete(
        self,
        prompt: list[int],
        images: list[Image],
        params: SamplingParams,
        max_tokens: int,
        episode_id: str,
        cancellation: threading.Event,
    ) -> Completion:
        import torch

        detector = StopDetector(params.stop, decode=self._decode) if params.stop else None
        key = random_key(self._seed, episode_id, len(prompt))
        placeholders = sorted(self._vision.placeholder_ids) if self._vision else []
        tokens: list[int] = []
        logprobs: list[float] = []
        with torch.inference_mode():
            inputs = self._model_inputs(prompt, images)
            positions = inputs.get("position_ids")
            while True:
                out = self._model(**inputs, use_cache=True, logits_to_keep=1)
                logits = out.logits[0, -1:].float()  # [1, V]
                candidates = logits.index_fill(1, torch.tensor(placeholders, dtype=torch.long), -torch.inf)
                uniform = uniforms([key], [len(prompt) + len(tokens)])
                ((token,), _) = sample_tokens(candidates.numpy(), params=[params], uniform=uniform)
                tokens.append(token)
                all_logprobs = torch.log_softmax(logits[0] / (params.temperature or 1.0), dim=-1)
                logprobs.append(float(all_logprobs[token]))
                reason = FinishReason.STOP if token in params.stop_token_ids else None
                if reason is None and detector is not None and detector.is_reached(tokens):
                    reason = FinishReason.CUT
                if reason is not None or len(tokens) == max_tokens or cancellation.is_set():
                    break
                inputs = {"input_ids": torch.tensor([[token]]), "past_key_values": out.past_key_values}
                if positions is not None:
                    positions = positions.amax().expand(positions.shape[0], 1, 1) + 1
                    inputs["position_ids"] = positions
        return Completion(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish_reason=reason or FinishReason.LENGTH,
            policy_version=0,
        )

    def _decode(self, token_ids: Sequence[int]) -> str:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._folder)
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _model_inputs(self, prompt: list[int], images: list[Image]) -> "dict[str, torch.Tensor]":
        """The model's arguments for a whole prompt."""
        import torch

        inputs = {"input_ids": torch.tensor([prompt])}
        if self._vision is None:
            return inputs
        inputs |= self._vision.inputs(images)
        types = self._vision.token_types(prompt)
        if types is None:
            return inputs
        # Positions in time, height and width, passed at every step: without them, a model continues from the
        # images of the last prompt that it computed, whichever that was.
        find = getattr(self._model.base_model, "get_rope_index", None)
        if find is None:
            return {**inputs, "mm_token_type_ids": torch.tensor([types])}
        grids = {name: grid for name, grid in inputs.items() if name.endswith("_grid_thw")}
        positions, _ = find(inputs["input_ids"], mm_token_type_ids=torch.tensor([types]), **grids)
        return {**inputs, "position_ids": positions}  # [3, 1, P]
