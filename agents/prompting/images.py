"""Pictures as a vision-language model takes them, all of it by the model's own processor.

Where a picture stands in a conversation is its chat template's, how many tokens it is and what becomes of its
pixels the processor's: what is made here is what the processor would make of the whole conversation.
"""

import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError, EnvCrashed, MissingDependency, describe, to_line
from envs.requirements.detection import pip_install
from envs.types import Image

if TYPE_CHECKING:
    import PIL.Image
    import torch
    from transformers import ProcessorMixin

_WORD = "Wspan4picture"
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_OPENED = 64  # pictures that are kept decoded: a conversation's are shown again with every turn


class VisionProcessor:
    """A processor of images."""

    placeholder_ids: frozenset[int]
    """Tokens that stand for pictures, films or sound."""
    marks: frozenset[str]
    """The same as text, and what a template writes for them; environments must not."""

    def __init__(self, processor: "ProcessorMixin") -> None:
        """Raises `ConfigError` for a chat template that is missing, or shows no pictures."""
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
            without, with_one = (self.render([("user", _WORD, count)]) for count in (0, 1))
        except (TemplateError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the chat template of {type(processor).__name__} refuses pictures: {describe(error)[:200]}"
            ) from None
        # Most templates write the picture's token once; Gemma's writes where it begins.
        candidates = [getattr(processor, name, None) for name in ("image_token", "boi_token")]
        marks = [m for m in candidates if m and with_one.count(m) == without.count(m) + 1]
        if not marks or _WORD not in with_one:
            raise ConfigError(
                f"the chat template of {type(processor).__name__} shows no pictures; use a model whose does"
            )
        self._mark = marks[0]

    def render(
        self, turns: Sequence[tuple[str, str, int]], *, tools: list[dict[str, Any]] | None = None
    ) -> str:
        """(role, content, number of pictures) of each message as the template's text, the policy to speak."""
        conversation = [
            {"role": role, "content": [*[{"type": "image"}] * images, {"type": "text", "text": content}]}
            for role, content, images in turns
        ]
        processor = self._processor
        text = processor.apply_chat_template(
            conversation,
            # Some are saved with the tokenizer alone.
            chat_template=None if processor.chat_template else processor.tokenizer.chat_template,
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert isinstance(text, str)
        return text

    def encode(self, text: str, images: Sequence[Image]) -> list[int]:
        """A template's text with a placeholder for each of `images`, as tokens ([L]).

        Raises `ConfigError` for a text that shows another number of pictures; a processor would not.
        """
        shown = text.count(self._mark)
        if shown != len(images):
            raise ConfigError(
                f"the chat template of {type(self._processor).__name__} shows {shown} of {len(images)} "
                "pictures; use a model whose template shows them in messages of every role"
            )
        # The template has written all tokens that there are to be.
        ids = self._call(text, images, add_special_tokens=False)["input_ids"][0]
        return [int(token) for token in ids]

    def inputs(self, images: Sequence[Image]) -> dict[str, "torch.Tensor"]:
        """What a model is given of `images` besides the tokens, by its arguments' names; of none, nothing."""
        if not images:
            return {}
        made = self._call(self.render([("user", "", len(images))]), images, return_tensors="pt")
        return {name: value for name, value in made.items() if name not in _OF_TOKENS}

    def token_types(self, ids: Sequence[int]) -> list[int] | None:
        """Which modality each of `ids` stands for ([L], 0 for text); None for models that are not told."""
        if "mm_token_type_ids" not in self._processor.model_input_names:
            return None
        return [int(kind) for kind in self._processor.create_mm_token_type_ids([list(ids)])[0]]

    def _call(self, text: str, images: Sequence[Image], **options: Any) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self._processor(
            text=[text], images=[decode_image(image) for image in images], **options
        )
        return made


@lru_cache(_OPENED)
def decode_image(image: Image) -> "PIL.Image.Image":
    """Decoded, upright, in RGB: not to be changed.

    Raises `EnvCrashed` for what is no picture: whoever made it, it was not the policy.
    """
    import PIL.Image
    import PIL.ImageOps

    try:
        return PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(image.data))).convert("RGB")
    except Exception as error:  # Pillow raises whatever its decoders do
        raise EnvCrashed(
            f"a picture ({image.media_type}, {len(image.data)} bytes) cannot be read: {describe(error)}"
        ) from None


def check_image(image: Image) -> None:
    """Raise `ValueError` unless its first bytes are those of a picture that Pillow can open."""
    import PIL.Image

    try:
        PIL.Image.open(io.BytesIO(image.data)).verify()
    except Exception as error:  # see `decode_image`
        raise ValueError(f"is no picture that can be read: {describe(error)}") from None


def has_vision(model: str | Path) -> bool | None:
    """Whether the model of a folder takes pictures; None for what is no folder, but a name. Loads nothing."""
    config = Path(model) / "config.json"
    return "vision_config" in json.loads(config.read_text()) if config.is_file() else None


def load_processor(model: str | Path) -> "ProcessorMixin | None":
    """The processor of a model's folder or name; None of one that reads text only.

    Raises `ConfigError` for a model that sees and has no processor, `MissingDependency` for what that needs.
    """
    from transformers import AutoConfig, AutoProcessor

    if not hasattr(AutoConfig.from_pretrained(str(model)), "vision_config"):
        return None
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
