"""Packs a trajectory into the sequences that are trained on, one for each of its segments.

    prompt | completion 0 | observation 0 | completion 1 | … | completion n
    mask     1 1 1 1 1 1    0 0 0 0 0 0     1 1 1 1 1 1        1 1 1 1 1 1

Token in, token out: the ids are those that were sampled. Padding and tensors are the trainer's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agents.types import Trajectory, Turn
from envs.types import Image

_Prompt = tuple[tuple[int, ...], tuple[Image, ...]]
"""Token ids and images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSegment:
    """A segment token by token; the response begins at the first sampled token and ends at the last."""

    prompt_ids: tuple[int, ...]  # [P]
    response_ids: tuple[int, ...]  # [R]
    response_mask: tuple[int, ...]  # [R], 1 on the policy's tokens, 0 on the environment's
    observation_mask: tuple[int, ...]  # [R], 1 on what the environment wrote (`Turn.observation_spans`)
    logprobs: tuple[float, ...]  # [R], 0.0 where the policy's mask is 0
    policy_versions: tuple[int, ...]  # [R], of the turn that the token belongs to
    images: tuple[Image, ...]
    """The images of prompt and response, in order; their tokens are the environment's."""


def pack(trajectory: Trajectory) -> list[PackedSegment]:
    """The trajectory's segments, in the order in which they begin; most trajectories have one.

    A segment ends with its last sampled token: the observation after it is dropped. Raises `ValueError` for a
    failed episode and for a turn without a sampled token, neither of which may be trained on.
    """
    return [_pack_segment(prompt, turns) for prompt, turns in _segments(trajectory)]


def segment_lengths(trajectory: Trajectory) -> list[int]:
    """The tokens of each segment, its prompt included, without packing them. Raises as `pack` does."""
    return [
        len(prompt_ids)
        + sum(len(turn.completion.token_ids) for turn in turns)
        + sum(len(turn.observation_ids) for turn in turns[:-1])
        for (prompt_ids, _), turns in _segments(trajectory)
    ]


def segment_numbers(turns: Sequence[Turn]) -> list[int]:
    """The number of each turn's segment, from 0 in the order in which the segments begin."""
    numbers: list[int] = []
    num_segments = 0
    for index, turn in enumerate(turns):
        if index and turn.prompt_ids is None:
            numbers.append(numbers[index - 1 if turn.previous_turn is None else turn.previous_turn])
        else:
            numbers.append(num_segments)
            num_segments += 1
    return numbers


def sampled_runs(turns: Sequence[Turn]) -> list[tuple[int, slice]]:
    """Where the policy's tokens are, in the order of the turns: the number of a segment, and a slice of that
    segment's sampled tokens. Consecutive turns of a segment are one run."""
    runs: list[tuple[int, slice]] = []
    num_tokens: dict[int, int] = {}  # of each segment so far
    for turn, number in zip(turns, segment_numbers(turns), strict=True):
        start = num_tokens.get(number, 0)
        end = num_tokens[number] = start + len(turn.completion.token_ids)
        if runs and runs[-1][0] == number:
            start = runs.pop()[1].start
        runs.append((number, slice(start, end)))
    return runs


def _segments(trajectory: Trajectory) -> list[tuple[_Prompt, list[Turn]]]:
    where = trajectory.where
    if trajectory.has_failed:
        raise ValueError(f"{where}: a failed episode never trains ({trajectory.error}); drop it and count it")
    if not trajectory.turns or not trajectory.turns[-1].completion.token_ids:
        raise ValueError(f"{where}: no sampled token can carry the reward; drop it and count it")
    segments: list[tuple[_Prompt, list[Turn]]] = []
    numbers = segment_numbers(trajectory.turns)
    for index, (turn, number) in enumerate(zip(trajectory.turns, numbers, strict=True)):
        num_tokens, num_logprobs = len(turn.completion.token_ids), len(turn.completion.logprobs)
        if num_tokens != num_logprobs or not num_tokens:
            raise ValueError(f"{where}, turn {index}: {num_tokens} tokens, {num_logprobs} log-probs")
        if number == len(segments):
            record = trajectory if turn.prompt_ids is None else turn
            segments.append(((record.prompt_ids or (), record.prompt_images), []))
        segments[number][1].append(turn)
    return segments


def _pack_segment(prompt: _Prompt, turns: Sequence[Turn]) -> PackedSegment:
    ids: list[int] = []
    mask: list[int] = []
    observation_mask: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn in turns:
        completion = turn.completion
        num_sampled = len(completion.token_ids)
        observation_ids = () if turn is turns[-1] else turn.observation_ids
        num_observed = len(observation_ids)
        observation_mask += [0] * (num_sampled + num_observed)
        if turn is not turns[-1]:
            start_of_reply = len(ids) + num_sampled
            for start, end in turn.observation_spans:
                observation_mask[start_of_reply + start : start_of_reply + end] = [1] * (end - start)
        ids += completion.token_ids
        ids += observation_ids
        mask += [1] * num_sampled
        mask += [0] * num_observed
        logprobs += completion.logprobs
        logprobs += [0.0] * num_observed
        versions += [completion.policy_version] * (num_sampled + num_observed)
    prompt_ids, prompt_images = prompt
    return PackedSegment(
        prompt_ids=prompt_ids,
        response_ids=tuple(ids),
        response_mask=tuple(mask),
        observation_mask=tuple(observation_mask),
        logprobs=tuple(logprobs),
        policy_versions=tuple(versions),
        images=(*prompt_images, *(image for turn in turns[:-1] for image in turn.images)),
    )
