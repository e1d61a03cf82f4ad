"""Turns a trajectory into the sequences that are trained on: one for each of its segments.

    prompt | completion 0 | observation 0 | completion 1 | … | completion n
    mask     1 1 1 1 1 1    0 0 0 0 0 0     1 1 1 1 1 1        1 1 1 1 1 1

Token in, token out: the ids are those that were sampled. Padding and tensors are the trainer's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agents.types import StopReason, Trajectory, Turn
from envs.types import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSegment:
    """A segment token by token; the response begins at the first sampled token, ends at the last."""

    prompt_ids: list[int]  # [P]
    response_ids: list[int]  # [R]
    response_mask: list[int]  # [R], 1 on the policy's tokens, 0 on the environment's
    logprobs: list[float]  # [R], 0.0 where the mask is 0
    rewards: list[float]  # [R], each turn's reward on its last sampled token, 0.0 elsewhere
    policy_versions: list[int]  # [R], of the turn that the token belongs to
    images: list[Image]
    """All that prompt and response show, in their order; their tokens are the environment's."""


def pack(trajectory: Trajectory) -> list[PackedSegment]:
    """The trajectory's segments, in order; of most there is one.

    A reward lies on the last *action* token of its turn: on an observation token the mask would multiply
    it away. An observation after the last completion is therefore dropped. The last segment has the rewards
    of all earlier ones, too, on its last token: its sum is the episode's, from which the one advantage of
    all segments is computed (verl 0.9.1, `compute_advantage_for_multi_trajectories`). Raises `ValueError`
    for what must never train: an episode that failed, or a segment that has no sampled token.
    """
    where = f"{trajectory.item.item_id}, sample {trajectory.sample_index}"
    if trajectory.stop_reason is StopReason.ERROR:
        raise ValueError(f"{where}: a failed episode never trains ({trajectory.error}); drop it and count it")
    if not trajectory.turns or not trajectory.turns[-1].completion.token_ids:
        raise ValueError(f"{where}: no sampled token can carry the reward; drop it and count it")
    segments: list[tuple[list[int], tuple[Image, ...], list[Turn]]] = [
        (trajectory.prompt_ids, trajectory.prompt_images, [])
    ]
    for index, turn in enumerate(trajectory.turns):
        sampled, logprobs = len(turn.completion.token_ids), len(turn.completion.logprobs)
        if sampled != logprobs or not sampled:
            raise ValueError(f"{where}, turn {index}: {sampled} tokens, {logprobs} log-probs")
        if turn.prompt_ids is not None:
            segments.append((turn.prompt_ids, turn.prompt_images, []))
        segments[-1][2].append(turn)
    packed = [_pack(prompt, images, turns) for prompt, images, turns in segments if turns]
    packed[-1].rewards[-1] += sum(sum(segment.rewards) for segment in packed[:-1])
    for segment in packed[:-1]:
        segment.rewards[:] = [0.0] * len(segment.rewards)
    return packed


def _pack(prompt_ids: list[int], prompt_images: tuple[Image, ...], turns: Sequence[Turn]) -> PackedSegment:
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    rewards: list[float] = []
    versions: list[int] = []
    for turn in turns:
        completion = turn.completion
        sampled = len(completion.token_ids)
        observed = [] if turn is turns[-1] else turn.observation_ids
        ids += completion.token_ids
        ids += observed
        mask += [1] * sampled
        mask += [0] * len(observed)
        logprobs += completion.logprobs
        logprobs += [0.0] * len(observed)
        rewards += [0.0] * (sampled - 1)
        rewards += [turn.reward]
        rewards += [0.0] * len(observed)
        versions += [completion.policy_version] * (sampled + len(observed))
    return PackedSegment(
        prompt_ids=prompt_ids,
        response_ids=ids,
        response_mask=mask,
        logprobs=logprobs,
        rewards=rewards,
        policy_versions=versions,
        images=[*prompt_images, *(image for turn in turns[:-1] for image in turn.images)],
    )
