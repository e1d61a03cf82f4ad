"""A toy environment and toy tokenizers: a whole rollout in milliseconds, every number by hand.

The game: reach `item.metadata["target"]` by `add N`. Faults are asked for by the environment's own
script of them, so that a test says which instance breaks, where and how.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from envs.registry import EnvSpec, ExpertStep, Split
from envs.runtime.manager import EnvManager
from envs.types import Environment, Item, StepResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIPES = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] | trim }} </s>{% endif %}{% endfor %}"
)

_SPECIAL = {
    CHATML: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    PIPES: ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
    NO_SYSTEM: ["<s>", "</s>"],
}
_EOS = {CHATML: "<|im_end|>", PIPES: "<|end|>", NO_SYSTEM: "</s>"}


@cache
def toy_tokenizer(template: str = CHATML) -> "PreTrainedTokenizerFast":
    """A byte-level BPE with merges, so that decoding and encoding random tokens drifts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL[template],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["Thought: Action: add the total is now Goal: reach could not"] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=_EOS[template],
        bos_token="<s>" if template == NO_SYSTEM else None,
        additional_special_tokens=_SPECIAL[template],
    )
    tokenizer.chat_template = template
    return tokenizer


def encode(text: str) -> list[int]:
    """As the toy's tokenizer does, with nothing added."""
    ids: list[int] = toy_tokenizer().encode(text, add_special_tokens=False)
    return ids


def token_id(token: str, *, template: str = CHATML) -> int:
    """The id of one token of a toy tokenizer."""
    index = toy_tokenizer(template).convert_tokens_to_ids(token)
    assert isinstance(index, int)
    return index


def toy_item(index: int = 0, *, target: int = 3) -> Item:
    """The item `toy_<index>`."""
    return Item(item_id=f"toy_{index}", env="toy", metadata={"target": target})


CLING_S = 3.0
"""Longer than a call that was cancelled may take to clean up (`envs/runtime/time_limits.py`)."""


@dataclass
class ToyEnv:
    """Counts up to a target. `crash_at`, `hang_at`, `cling_at`: the step (from 1; 0 is the reset) that fails.

    One that clings catches its cancellation and goes on, for `CLING_S`.
    """

    crash_at: int | None = None
    hang_at: int | None = None
    cling_at: int | None = None
    max_steps: int = 100
    resets: int = field(default=0, init=False)
    is_closed: bool = field(default=False, init=False)
    _total: int = field(default=0, init=False)
    _target: int = field(default=0, init=False)
    _steps: int = field(default=0, init=False)

    async def reset(self, item: Item) -> str:
        self.resets += 1
        self._total, self._target, self._steps = 0, item.metadata["target"], 0
        await self._fail_if_due()
        return f"Goal: reach {self._target}."

    async def step(self, action: str) -> StepResult:
        self._steps += 1
        await self._fail_if_due()
        is_truncated = self._steps >= self.max_steps
        verb, _, number = action.partition(" ")
        if verb != "add" or not number.isdecimal():
            return StepResult(f"Could not execute {action}", truncated=is_truncated)
        self._total += int(number)
        is_solved = self._total == self._target
        return StepResult(
            f"The total is {self._total}.",
            reward=1.0 if is_solved else 0.0,
            terminated=is_solved or self._total > self._target,
            truncated=is_truncated,
            success=is_solved,
        )

    def state_key(self) -> str | None:
        return str(self._total) if 0 < self._target > self._total else None

    async def close(self) -> None:
        self.is_closed = True

    async def _fail_if_due(self) -> None:
        if self._steps == self.crash_at:
            raise KeyError("the toy broke")
        if self._steps == self.hang_at:
            await asyncio.Event().wait()
        if self._steps == self.cling_at:
            end = time.monotonic() + CLING_S
            while time.monotonic() < end:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)


def toy_spec(make: Callable[[], Environment] = ToyEnv, **changes: Any) -> EnvSpec:
    """The toy as the registry would have it."""
    facts: dict[str, Any] = {
        "name": "toy",
        "make": make,
        "split": lambda seed: Split(train=[toy_item(i) for i in range(8)], test=[toy_item(8)]),
        "expert": lambda item: [ExpertStep("", "add 1")] * item.metadata["target"],
        "instructions": "",
        "packages": (),
        "has_states": True,
    }
    return EnvSpec(**(facts | changes))


def toys(make: Callable[[], Environment] = ToyEnv, *, capacity: int) -> EnvManager:
    """Toy environments only."""
    return EnvManager([toy_spec(make)], capacity=capacity)
