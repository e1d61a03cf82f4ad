"""What behaviour cloning starts from: demonstrations, and the model with the tokens that it lacks.

The environments' scripted experts play training items in the agent's format.

With noise, some turns are preceded by a careless one: an action out of another item's solution, without a
thought. The environment answers, and the expert goes on where it was. Unless `warmup.imitate_noise` is true,
careless turns are seen but not trained on: the policy learns to recover from errors, not to make them.
"""

import asyncio
import math
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agents.huggingface.files import load_tokenizer
from agents.prompting.renderer import Renderer
from agents.rollout.packing import pack
from agents.rollout.scripted import ScriptLine, expert_script, run_script, write_action
from agents.types import MIN_COMPLETION, StopReason
from envs.errors import ConfigError, SamplerFailed
from envs.registry import EnvSpec, ExpertStep, Split, get_env
from envs.types import Item
from tasks.config.episodes import make_episode_config
from tasks.config.pipelines import Pipeline
from tasks.data.items import training_order
from tasks.data.renaming import rename_words
from tasks.data.supervised import SupervisedRow
from tasks.data.vocabulary import add_whole_words, add_words, find_spelled_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CARELESS_ITEMS = 32
"""Items whose solutions supply the careless actions; an expert may need seconds for an item."""
ATTEMPTS = 8
"""Attempts at one demonstration: a careless action may end the episode, or make it too long."""
_THOUGHT = "\ufffc"
"""Takes the place of a thought that is then removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration(SupervisedRow):
    """A segment of an expert's episode, packed as a trajectory is; an episode is one segment, unless the
    context policy leaves out thoughts."""

    turns: int
    """The turns of the whole episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloning:
    """What behaviour cloning starts from."""

    model: str
    demonstrations: list[Demonstration]
    """The demonstrations in the tokens of `model`."""
    copies: int
    """How often each demonstration is among them, each time with other names; 1 without
    `warmup.rename_words`."""


def prepare_cloning(pipeline: Pipeline, items: Split, *, folder: Path) -> Cloning:
    """The model to start from (saved in `folder` if it gets new words), and demonstrations in its tokens.

    With `warmup.rename_words`, the words of test items are new words, too; nothing else of them is used. The
    same arguments give the same of both. Raises `ConfigError` for a model that cannot be loaded.
    """
    settings = pipeline.warmup
    assert settings is not None
    tokenizer = load_tokenizer(pipeline.model)
    if not settings.new_words:
        demonstrations = asyncio.run(demonstrate(items.train, pipeline=pipeline, tokenizer=tokenizer))
        return Cloning(model=pipeline.model, demonstrations=demonstrations, copies=1)
    if settings.whole_words:
        tokenizer = add_whole_words(tokenizer, settings.whole_words, folder)
    conversations = _play_for_words(pipeline, items, tokenizer=tokenizer)
    words = find_spelled_words(tokenizer, conversations, at_most=settings.new_words)
    add_words(pipeline.model, tokenizer, words, folder, seed=pipeline.seed)
    tokenizer = load_tokenizer(folder)
    demonstrations = asyncio.run(demonstrate(items.train, pipeline=pipeline, tokenizer=tokenizer))
    copies = 1
    if settings.rename_words:
        ids = dict(zip(words, tokenizer.convert_tokens_to_ids(words), strict=True))
        copies = math.ceil(settings.steps * settings.batch_size / len(demonstrations))  # none is shown twice
        demonstrations = rename_words(demonstrations, ids, copies=copies, seed=pipeline.seed)
    return Cloning(model=str(folder), demonstrations=demonstrations, copies=copies)


def _play_for_words(
    pipeline: Pipeline, items: Split, *, tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[list[int]]:
    """The conversations in which new words are counted: with `warmup.rename_words`, one of each item.

    They may be of any length: with new words they are much shorter.
    """
    settings = pipeline.warmup
    assert settings is not None
    rollout = pipeline.rollout.model_copy(update={"context_length": sys.maxsize // 2})
    boundless = pipeline.model_copy(update={"rollout": rollout})
    if settings.rename_words:
        without_noise = settings.model_copy(update={"noise": 0.0})
        boundless = boundless.model_copy(update={"warmup": without_noise})
        playing = _demonstrate_each([*items.train, *items.test], pipeline=boundless, tokenizer=tokenizer)
    else:
        playing = demonstrate(items.train, pipeline=boundless, tokenizer=tokenizer)
    for demonstration in asyncio.run(playing):
        yield demonstration.prompt_ids + demonstration.response_ids


async def _demonstrate_each(
    items: Sequence[Item], *, pipeline: Pipeline, tokenizer: "PreTrainedTokenizerBase"
) -> list[Demonstration]:
    """Play one episode of each of `items`; without those that the experts do not solve. Raises as
    `demonstrate`, but not if they solve none."""
    rng = random.Random(f"demonstrations/{pipeline.seed}")
    async with _open_experts(items, pipeline=pipeline, tokenizer=tokenizer, rng=rng) as experts:
        return [segment for item in items for segment in await experts[item.env].demonstrate(item)]


@asynccontextmanager
async def _open_experts(
    items: Sequence[Item], *, pipeline: Pipeline, tokenizer: "PreTrainedTokenizerBase", rng: random.Random
) -> AsyncIterator[dict[str, "_Expert"]]:
    """The expert of each environment of `pipeline`, by its name."""
    experts = {
        spec.name: _Expert(spec, items, pipeline=pipeline, tokenizer=tokenizer, rng=rng)
        for spec in map(get_env, pipeline.data.envs)
    }
    try:
        yield experts
    finally:
        for expert in experts.values():
            await expert.env.close()


async def demonstrate(
    items: Sequence[Item], *, pipeline: Pipeline, tokenizer: "PreTrainedTokenizerBase"
) -> list[Demonstration]:
    """Play `warmup.demonstrations` episodes of `items`, in the order of training; seeded.

    Raises `ConfigError` if the experts solve none of them within the context length, if the agent's format
    cannot express an action, and for images, which demonstrations cannot hold.
    """
    settings = pipeline.warmup
    assert settings is not None
    seed = f"demonstrations/{pipeline.seed}"
    rng = random.Random(seed)
    order = training_order(items, pipeline.data, seed=seed)
    demonstrations: list[Demonstration] = []
    successes = failures = 0
    async with _open_experts(items, pipeline=pipeline, tokenizer=tokenizer, rng=rng) as experts:
        while successes < settings.demonstrations:
            item = items[next(order)]
            segments = await experts[item.env].demonstrate(item)
            demonstrations += segments
            successes += bool(segments)
            failures += not segments
            if failures > len(items) and not successes:
                raise ConfigError(
                    f"the experts of {', '.join(experts)} solve no training item within "
                    f"rollout.context_length {pipeline.rollout.context_length}; raise it; without an expert, "
                    "warmup: null"
                )
    return demonstrations


class _Expert:
    """Plays the items of one environment."""

    def __init__(
        self,
        spec: EnvSpec,
        items: Sequence[Item],
        *,
        pipeline: Pipeline,
        tokenizer: "PreTrainedTokenizerBase",
        rng: random.Random,
    ) -> None:
        settings = pipeline.warmup
        assert settings is not None
        self.env = spec.make()
        self._spec = spec
        self._settings = settings
        self._renderer = Renderer(tokenizer)
        self._rng = rng
        self._context_length = pipeline.rollout.context_length
        self._context = pipeline.agent.context.model_copy(update={"when_full": "stop"})
        config = make_episode_config(spec, pipeline, tokenizer=tokenizer)
        # Nothing is cut: what is too long is no demonstration.
        length = self._context_length + MIN_COMPLETION
        limits = replace(config.limits, context_length=length, max_tokens_per_turn=length)
        self._config = replace(config, limits=limits, reward=None)
        self._solutions: dict[str, Sequence[ExpertStep]] = {}
        spec_items = [item for item in items if item.env == spec.name]
        other_items = rng.sample(spec_items, min(CARELESS_ITEMS, len(spec_items))) if settings.noise else []
        # An action that depends on the observation is no action in another item.
        actions = (step.action for item in other_items for step in self._solve(item))
        self._careless_actions = sorted({action for action in actions if isinstance(action, str)})

    async def demonstrate(self, item: Item) -> list[Demonstration]:
        """An episode that is solved by the last line of its script, and only then; empty after `ATTEMPTS`."""
        solution = self._solve(item)
        for attempt in range(ATTEMPTS if solution else 0):
            noise = self._settings.noise if attempt < ATTEMPTS - 1 else 0.0
            turns = list(self._add_careless(solution, noise=noise))
            if segments := await self._play(item, turns):
                return segments
        return []

    def _solve(self, item: Item) -> Sequence[ExpertStep]:
        """The solution, remembered: some take seconds to find."""
        if item.item_id not in self._solutions:
            self._solutions[item.item_id] = self._spec.solve(item)
        return self._solutions[item.item_id]

    def _add_careless(
        self, solution: Sequence[ExpertStep], *, noise: float
    ) -> Iterator[tuple[ScriptLine, bool]]:
        """The lines of a script, and whether each is the expert's."""
        for step, line in zip(solution, expert_script(solution, config=self._config), strict=True):
            if self._rng.random() < noise and self._careless_actions:
                yield self._careless_line(self._rng.choice(self._careless_actions), step), False
            yield line, True

    def _careless_line(self, action: str, step: ExpertStep) -> ScriptLine:
        """`action` in the form of the expert's own turn, with the thought left out."""
        config, thought = self._config, _THOUGHT if step.thought else ""
        text = write_action(config.agent, config.tools, thought=thought, action=action)
        text = text.replace(f" {_THOUGHT}", "").replace(_THOUGHT, "")
        return lambda observation: text

    async def _play(self, item: Item, turns: Sequence[tuple[ScriptLine, bool]]) -> list[Demonstration]:
        limits = replace(self._config.limits, max_turns=len(turns))
        try:
            trajectory = await run_script(
                self.env,
                item,
                (line for line, _ in turns),
                config=replace(self._config, limits=limits),
                renderer=self._renderer,
                context=self._context,
            )
        except SamplerFailed:  # a careless turn has led away from what the expert knows
            return []
        except ConfigError as error:
            raise ConfigError(
                f"warmup: {item.item_id} cannot be demonstrated: {error}; or set warmup: null"
            ) from None
        has_ended = trajectory.stop_reason in (StopReason.TERMINATED, StopReason.TRUNCATED)
        if not trajectory.success or not has_ended or len(trajectory.turns) < len(turns):
            return []
        # A token's policy version becomes the index of its turn, which says whether to imitate it.
        numbered_turns = tuple(
            replace(turn, completion=replace(turn.completion, policy_version=index))
            for index, turn in enumerate(trajectory.turns)
        )
        is_imitated = [is_expert or self._settings.imitate_noise for _, is_expert in turns]
        segments = pack(replace(trajectory, turns=numbered_turns))
        if any(len(s.prompt_ids) + len(s.response_ids) > self._context_length for s in segments):
            return []
        return [
            Demonstration(
                item_id=item.item_id,
                prompt_ids=list(segment.prompt_ids),
                response_ids=list(segment.response_ids),
                mask=[
                    is_sampled and int(is_imitated[turn])
                    for is_sampled, turn in zip(segment.response_mask, segment.policy_versions, strict=True)
                ],
                turns=len(turns),
            )
            for segment in segments
        ]
