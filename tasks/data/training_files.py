"""Files of trajectories that a user trains on: `train.algorithm.data`."""

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agents.prompting.renderer import Renderer
from agents.rollout.packing import pack
from agents.types import Trajectory
from envs.errors import ConfigError, describe, to_line
from envs.types import Item
from tasks.algorithms.builtin.dpo import Dpo
from tasks.algorithms.offline import Imitation, OfflineAlgorithm
from tasks.data.supervised import make_pairs, select
from tasks.data.trajectories import is_usable, trajectory_from_dict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def read_training_files(
    files: Sequence[Path], *, test_items: Collection[Item], micro_batch_tokens: int
) -> list[Trajectory]:
    """The episodes of `files` that did not fail, in order.

    Raises `ConfigError` for a missing or malformed file, for an episode of one of `test_items`, on which the
    policy will be evaluated, for images, and for a conversation that fits into no micro-batch.
    """
    test_ids = {item.item_id for item in test_items}
    trajectories = []
    for file in files:
        for number, trajectory in _read(file):
            where = f"train.algorithm.data: {file}:{number}: {trajectory.item.item_id}"
            if trajectory.item.item_id in test_ids:
                raise ConfigError(
                    f"{where} is a test item of this pipeline, on which it is evaluated; give episodes of "
                    "other items"
                )
            if not is_usable(trajectory):
                continue
            for segment in pack(trajectory):
                if segment.images:
                    raise ConfigError(f"{where} has images, and supervised training takes text only")
                tokens = len(segment.prompt_ids) + len(segment.response_ids)
                if tokens > micro_batch_tokens:
                    raise ConfigError(
                        f"{where} has {tokens} tokens, more than train.micro_batch_tokens "
                        f"{micro_batch_tokens}; raise that"
                    )
            trajectories.append(trajectory)
    return trajectories


def check_episodes(trajectories: Sequence[Trajectory], algorithm: OfflineAlgorithm) -> None:
    """Raise `ConfigError` if `algorithm` samples no episodes and `trajectories`, those of its files, hold
    nothing that it learns from."""
    if algorithm.is_sampling:
        return
    if isinstance(algorithm, Imitation) and not select(trajectories, min_reward=algorithm.min_reward).rows:
        raise ConfigError(
            f"train.algorithm.data: none of {len(trajectories)} episodes is imitated (train.algorithm."
            f"min_reward {algorithm.min_reward}; null takes those that succeeded); lower that, or give other "
            "files"
        )
    if isinstance(algorithm, Dpo) and not make_pairs(
        trajectories,
        win_threshold=algorithm.win_threshold,
        min_gap=algorithm.min_gap,
        pairs_per_item=algorithm.pairs_per_item,
    ):
        raise ConfigError(
            f"train.algorithm.data: of {len(trajectories)} episodes, none has a reward of at least "
            f"{algorithm.win_threshold} (win_threshold) and at least {algorithm.min_gap} (min_gap) more than "
            "another of its item; lower these, or give other files"
        )


def check_tokens(
    trajectories: Sequence[Trajectory], tokenizer: "PreTrainedTokenizerBase", *, model: str
) -> None:
    """Raise `ConfigError` unless the tokens of `trajectories` are those of `model`'s tokenizer."""
    decode = Renderer(tokenizer).decode
    size = len(tokenizer)
    for trajectory in trajectories:
        for turn in trajectory.turns:
            ids = turn.completion.token_ids
            if max(ids, default=0) >= size or not decode(ids).startswith(turn.text):
                raise ConfigError(
                    f"train.algorithm.data: tokens of {trajectory.where} are not those of {model}'s "
                    "tokenizer; train on episodes that were sampled with it"
                )


def _read(file: Path) -> Iterator[tuple[int, Trajectory]]:
    """Each trajectory with the number of its line, from 1."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # JSON may hold other line ends
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"train.algorithm.data: {file} cannot be read ({describe(error)}); give files of trajectories"
        ) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, trajectory_from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"train.algorithm.data: {file}:{number} is no trajectory ({to_line(error, limit=100)}); give "
                "files as wingspan rollout --out writes them"
            ) from None
