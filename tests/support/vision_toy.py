"""A tiny random Qwen2-VL with the toy tokenizer's words: everything of a vision-language model but the size.

Its processor is transformers' own without films, which alone need torchvision.
"""

import copy
import io
from functools import cache
from pathlib import Path
from typing import Any

import PIL.Image
import transformers

from agents.huggingface.models import AutoModelForImageTextToText
from envs.types import Message
from tests.support.toy import CHATML, toy_tokenizer

QWEN2_VL = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PATCH = 14


@cache
def vision_tokenizer() -> transformers.PreTrainedTokenizerFast:
    tokenizer = copy.deepcopy(toy_tokenizer(CHATML))
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *VISION]
    tokenizer.add_special_tokens({"additional_special_tokens": control})
    tokenizer.chat_template = QWEN2_VL
    return tokenizer


@cache
def vision_processor() -> transformers.ProcessorMixin:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class Qwen2VLProcessor(transformers.Qwen2VLProcessor):  # type: ignore[misc]
        """Of images alone."""

        def __init__(
            self, image_processor: object = None, tokenizer: Any = None, chat_template: str | None = None
        ) -> None:
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            transformers.ProcessorMixin.__init__(
                self, image_processor, tokenizer, chat_template=chat_template
            )

    pixels = (2 * PATCH) ** 2
    images = Qwen2VLImageProcessorPil(min_pixels=pixels, max_pixels=12 * pixels, patch_size=PATCH)
    return Qwen2VLProcessor(images, vision_tokenizer(), chat_template=QWEN2_VL)


LLAVA = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}:"
    "{% for c in m['content'] if c['type'] == 'image' %} <image>\n{% endfor %}"
    "{% for c in m['content'] if c['type'] == 'text' %} {{ c['text'] }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


@cache
def llava_processor() -> transformers.ProcessorMixin:
    """Another kind: every image as many tokens, and a template that takes no plain text."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = copy.deepcopy(toy_tokenizer(CHATML))
    tokenizer.add_tokens(["<image>"])  # which is not special here, as in some models
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, do_convert_rgb=True
    )
    return transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=LLAVA,
    )


def whole(messages: list[Message], processor: transformers.ProcessorMixin) -> list[int]:
    """The conversation as the processor itself makes it, the policy to speak next."""
    conversation = [
        {
            "role": m.role,
            "content": [*({"type": "image"} for _ in m.images), {"type": "text", "text": m.content}],
        }
        for m in messages
    ]
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    images = [PIL.Image.open(io.BytesIO(image.data)) for m in messages for image in m.images]
    ids: list[int] = processor(text=[text], images=images or None)["input_ids"][0]
    return ids


def tiny_config() -> transformers.Qwen2VLConfig:
    tokenizer = vision_tokenizer()
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,  # far from uniform, so that a wrong position shows
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    }
    eyes = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "patch_size": PATCH,
        "mlp_ratio": 2,
    }
    return transformers.Qwen2VLConfig(
        text_config=sizes,
        vision_config=eyes | {"initializer_range": 0.3},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def save_vision_model(folder: Path, *, seed: int = 0) -> Path:
    """Write the model, without a processor, to `folder`; returns that."""
    import torch

    torch.manual_seed(seed)
    AutoModelForImageTextToText.from_config(tiny_config()).save_pretrained(folder)
    vision_tokenizer().save_pretrained(folder)
    return folder
