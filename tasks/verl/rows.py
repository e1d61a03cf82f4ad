"""A step's episodes as rows of verl's TransferQueue: which are trained on, and how they are laid out.

A failed episode is never a row. Nor is the only one that is left of a group, where episodes are compared, for
a reward compared with nothing says nothing; nor any of a group whose advantages, and so its gradient, are all
zero: for most algorithms, one of equal rewards.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from agents.rollout.packing import PackedSegment, pack, segment_lengths
from agents.types import Trajectory
from tasks.config.training import TrainSettings
from tasks.data.trajectories import is_usable, sampled_tokens

if TYPE_CHECKING:
    from tensordict import TensorDict
    from transformers import ProcessorMixin


def trainable(group: Sequence[Trajectory], train: TrainSettings, *, context_length: int) -> list[Trajectory]:
    """The episodes of a group that are trained on."""
    usable = [t for t in group if is_usable(t)]
    if train.online_algorithm.compares_group and len(usable) < 2:
        return []
    if train.online_algorithm.skips_equal_groups and not has_gradient_without_advantage(train):
        scores = [t.reward - overlong_penalty(t, train, context_length=context_length) for t in usable]
        return usable if train.online_algorithm.has_advantages(usable, scores) else []
    return usable


def overlong_penalty(trajectory: Trajectory, train: TrainSettings, *, context_length: int) -> float:
    """What the algorithm takes from the reward of a trajectory with a long context; 0.0 without a rule."""
    if train.online_algorithm.overlong is None:
        return 0.0
    tokens = max(segment_lengths(trajectory))
    return train.online_algorithm.overlong.compute_penalty(tokens, context_length=context_length)


def has_gradient_without_advantage(train: TrainSettings) -> bool:
    """Whether an episode of advantage 0 has a gradient all the same: from the KL, from the entropy, from its
    observations, or from a loss that penalizes ratios."""
    return (
        train.kl is not None
        or train.entropy_coef > 0
        or train.observation_loss > 0
        or train.online_algorithm.loss.penalizes_ratios
    )


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One segment of a trajectory, as verl keeps it."""

    uid: str
    """The uid of the group."""
    trajectory: Trajectory
    number: int
    """The number of the segment."""
    packed: PackedSegment
    conversation_tokens: int
    """Sampled tokens of all segments of the trajectory."""

    @property
    def key(self) -> str:
        """The key by which verl knows which segments are one episode's."""
        return f"{self.uid}_{self.trajectory.sample_index}_{self.number}"


def rows_of(uid: str, group: Sequence[Trajectory]) -> list[TrainingRow]:
    """The rows of a group's episodes."""
    return [
        TrainingRow(uid, trajectory, number, packed, sampled_tokens(trajectory))
        for trajectory in group
        for number, packed in enumerate(pack(trajectory))
    ]


def count_mini_batches(rows: int, *, most: int, workers: int) -> int:
    """The mini-batches of a step with `rows`, padding included or not: `most`, or fewer if equal parts would
    leave some without a row. With padding alone, AdamW's momentum would still change the weights."""
    rows_per_worker = math.ceil(rows / workers)
    rows_per_mini_batch = math.ceil(rows_per_worker / most)
    return math.ceil(rows_per_worker / rows_per_mini_batch)


def observation_tokens(rows: Iterable[TrainingRow]) -> int:
    """Tokens of `rows` that the environment wrote."""
    return sum(sum(row.packed.observation_mask) for row in rows)


def fields_of(
    rows: Sequence[TrainingRow], processor: "ProcessorMixin | None" = None, *, with_observations: bool = False
) -> "TensorDict":
    """Rows as verl's agent loop lays them out: nested, [rows, tokens], where no shape is given.

    `loss_mask` has the tokens whose log-probs the loss needs: the policy's, and `with_observations` the
    environment's. (verl's padding has neither, whatever row it copies; a field of ours it would copy.)
    `processor`: as verl loads it, of a model that sees; then there are `multi_modal_inputs`, and positions
    are [rows, 4, tokens] where the model's are. Raises `ConfigError` for images that it cannot train on.
    """
    from tensordict import NonTensorStack, TensorDict

    packed = [row.packed for row in rows]

    def nest(values: Sequence[object], dtype: type[np.generic] = np.int64) -> torch.Tensor:
        # numpy reads a tuple in a third of torch's time
        arrays = [np.array(v, dtype=dtype) for v in values]
        return torch.nested.as_nested_tensor([torch.from_numpy(a) for a in arrays], layout=torch.jagged)

    masks = loss_masks = nest([p.response_mask for p in packed])
    if with_observations:
        loss_masks = nest([np.maximum(p.response_mask, p.observation_mask) for p in packed])
    sequences = [p.prompt_ids + p.response_ids for p in packed]
    positions = nest([np.arange(len(s)) for s in sequences])
    vision_fields = {}
    if processor is not None or any(p.images for p in packed):
        from tasks.verl.vision import side_by_side, vision_of

        vision = [vision_of(s, p.images, processor) for s, p in zip(sequences, packed, strict=True)]
        positions = side_by_side([row_vision.position_ids for row_vision in vision])
        vision_fields["multi_modal_inputs"] = NonTensorStack(*[row_vision.inputs for row_vision in vision])
    return TensorDict(
        {
            "prompts": nest([p.prompt_ids for p in packed]),
            "responses": nest([p.response_ids for p in packed]),
            "input_ids": nest(sequences),
            "position_ids": positions,
            **vision_fields,
            "response_mask": masks,
            "loss_mask": loss_masks,
            "conversation": torch.tensor(number_conversations(row.key for row in rows)),  # [rows]
            "conversation_tokens": torch.tensor([row.conversation_tokens for row in rows]),  # [rows]
            "rollout_log_probs": nest([p.logprobs for p in packed], np.float32),
            "uid": NonTensorStack(*[row.uid for row in rows]),
            "num_turns": NonTensorStack(*[len(row.trajectory.turns) for row in rows]),
            "extra_fields": NonTensorStack(
                *[{"policy_versions": sorted(set(p.policy_versions))} for p in packed]
            ),
        },
        batch_size=[len(rows)],
    )


def parent_key(key: str) -> str:
    """The key of a row's conversation, or the uid of a conversation's group."""
    return key.rpartition("_")[0]


def segment_number(key: str) -> int:
    """The number of a row's segment."""
    return int(key.rpartition("_")[2])


def number_conversations(keys: Iterable[str]) -> list[int]:
    """The number of each row's conversation, in order of appearance."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(parent_key(key), len(numbers)) for key in keys]


def tag_of(row: TrainingRow, *, step: int) -> dict[str, object]:
    """What verl wants to know of a row without reading it; policy versions are its global steps."""
    packed = row.packed
    return {
        "status": "success",
        "prompt_len": len(packed.prompt_ids),
        "response_len": len(packed.response_ids),
        "seq_len": len(packed.prompt_ids) + len(packed.response_ids),
        "global_steps": step,
        "min_global_steps": min(packed.policy_versions),
        "max_global_steps": max(packed.policy_versions),
    }
