"""Images for a vision-language model, by the model's own processor.

The chat template decides where an image stands in a conversation; the processor decides how many tokens it
takes and transforms its pixels. The result equals that of the processor for the whole conversation.
"""

import io
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from agents.formats.calls import Schema
from agents.huggingface.files import load_config
from envs.errors import ConfigError, EnvCrashed, MissingDependency, boundary, describe, to_line
from envs.requirements.detection import pip_install
from envs.types import Image

if TYPE_CHECKING:
    import PIL.Image
    import torch
    from transformers import BatchFeature, ProcessorMixin

_SENTINEL = "Wspan4image"
_TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_DECODED_IMAGES = 64  # in a cache: every turn uses the images of the conversation again


class VisionProcessor:
    """The processor of a vision-language model."""

    placeholder_ids: frozenset[int]
    """Tokens that stand for images, videos or sound."""
    marks: frozenset[str]
    """The texts of the marks, which environments must not write."""

    def __init__(self, processor: "ProcessorMixin") -> None:
        """Raises `ConfigError` for a chat template that is missing or shows no images."""
        from jinja2 import TemplateError

        self._processor = processor
        tokens = {
            value
            for name in vars(processor)
            if name.endswith("_token") and isinstance(value := getattr(processor, name), str)
        }
        self.marks = frozenset({*tokens, *processor.all_special_multimodal_tokens})
        kinds = (processor.image_token_ids, processor.video_token_ids, processor.audio_token_ids)
        self.placeholder_ids = frozenset(number for ids in kinds for number in ids if number is not None)
        try:
            text_only, with_image = (self.render([("user", _SENTINEL, count)]) for count in (0, 1))
        except (TemplateError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the chat template of {type(processor).__name__} refuses images: {describe(error)[:200]}"
            ) from None
        # Most templates write the image's token once; Gemma's writes a token where it begins.
        candidates = [getattr(processor, name, None) for name in ("image_token", "boi_token")]
        marks = [m for m in candidates if m and with_image.count(m) == text_only.count(m) + 1]
        if not marks or _SENTINEL not in with_image:
            raise ConfigError(
                f"the chat template of {type(processor).__name__} shows no images; use another model"
            )
        self._mark = marks[0]

    def render(self, turns: Sequence[tuple[str, str, int]], *, tools: Sequence[Schema] | None = None) -> str:
        """Render (role, content, number of images) of each message, up to where the policy answers."""
        conversation = [
            {"role": role, "content": [*[{"type": "image"}] * images, {"type": "text", "text": content}]}
            for role, content, images in turns
        ]
        processor = self._processor
        text = processor.apply_chat_template(
            conversation,
            # Some templates are saved with the tokenizer alone.
            chat_template=None if processor.chat_template else processor.tokenizer.chat_template,
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert isinstance(text, str)
        return text

    def encode(self, text: str, images: Sequence[Image]) -> list[int]:
        """A template's text with a placeholder for each of `images`, as tokens ([L]).

        Raises `ConfigError` for a text that shows another number of images; a processor would accept it.
        """
        count = text.count(self._mark)
        if count != len(images):
            raise ConfigError(
                f"the chat template of {type(self._processor).__name__} shows {count} of {len(images)} "
                "images; use a model whose template shows them in messages of every role"
            )
        ids = self._call(text, images, add_special_tokens=False)["input_ids"][0]
        return [int(token) for token in ids]

    def inputs(self, images: Sequence[Image]) -> dict[str, "torch.Tensor"]:
        """The model's inputs for `images` besides the tokens, by argument name; empty without images."""
        if not images:
            return {}
        inputs = self._call(self.render([("user", "", len(images))]), images, return_tensors="pt")
        return {name: value for name, value in inputs.items() if name not in _TOKEN_INPUTS}

    def token_types(self, ids: Sequence[int]) -> list[int] | None:
        """The modality of each of `ids` ([L], 0 for text); None for models without such an input."""
        if "mm_token_type_ids" not in self._processor.model_input_names:
            return None
        return [int(kind) for kind in self._processor.create_mm_token_type_ids([list(ids)])[0]]

    def _call(self, text: str, images: Sequence[Image], **options: object) -> "BatchFeature":
        return self._processor(text=[text], images=[decode_image(image) for image in images], **options)


@lru_cache(_DECODED_IMAGES)
def decode_image(image: Image) -> "PIL.Image.Image":
    """Decode an image, upright and in RGB; the result is shared and must not be changed.

    Raises `EnvCrashed` for data that is not an image, which is never the policy's fault.
    """
    import PIL.Image
    import PIL.ImageOps

    with boundary(EnvCrashed, f"reading an image ({image.media_type}, {len(image.data)} bytes)"):
        return PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(image.data))).convert("RGB")


def check_image(image: Image) -> None:
    """Raise `ValueError` unless Pillow can open the image."""
    import PIL.Image

    try:
        PIL.Image.open(io.BytesIO(image.data)).verify()
    except Exception as error:  # Pillow raises whatever its decoders do
        raise ValueError(f"is not an image that can be read: {describe(error)}") from None


def has_vision(model: str | Path) -> bool | None:
    """Whether the model in a folder takes images; None for a name instead of a folder. Loads nothing."""
    config = Path(model) / "config.json"
    return "vision_config" in json.loads(config.read_text()) if config.is_file() else None


def load_processor(model: str | Path) -> "ProcessorMixin | None":
    """The processor of a model's folder or name; None for a model that reads text only.

    Raises `ConfigError` for a vision-language model without a processor, `MissingDependency` for a package
    that the processor needs.
    """
    if not hasattr(load_config(model), "vision_config"):
        return None
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(str(model))
    except ImportError as error:
        why = to_line(error, limit=120)
        raise MissingDependency(
            f"the processor of {model} cannot be loaded ({why}); {pip_install('torchvision')}"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{model} has no processor ({describe(error)[:200]}); save it beside the model"
        ) from error
