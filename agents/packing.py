"""Turns a trajectory into the one sequence that is trained on.

    prompt | completion 0 | observation 0 | completion 1 | … | completion n
    mask     1 1 1 1 1 1    0 0 0 0 0 0     1 1 1 1 1 1        1 1 1 1 1 1

Token in, token out: the ids are those that were sampled. Padding and tensors are the trainer's.
"""

from dataclasses import dataclass

from agents.types import StopReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTrajectory:
    """A trajectory token by token; the response begins at the first sampled token, ends at the last."""

    prompt_ids: list[int]  # [P]
    response_ids: list[int]  # [R]
    response_mask: list[int]  # [R], 1 on the policy's tokens, 0 on the environment's
    logprobs: list[float]  # [R], 0.0 where the mask is 0
    rewards: list[float]  # [R], the episode's reward on the last token, 0.0 elsewhere
    policy_versions: list[int]  # [R], of the turn that the token belongs to


def pack(trajectory: Trajectory) -> PackedTrajectory:
    """The trajectory as one sequence.

    The reward lies on the last *action* token: on an observation token the mask would multiply it
    away. An observation after the last completion is therefore dropped. Raises `ValueError` for
    what must never train: an episode that failed, or that has no sampled token to carry the reward.
    """
    where = f"{trajectory.item.item_id}, chain {trajectory.chain}"
    if trajectory.stop_reason is StopReason.ERROR:
        raise ValueError(f"{where}: a failed episode never trains ({trajectory.error}); drop it and count it")
    if not trajectory.turns or not trajectory.turns[-1].completion.token_ids:
        raise ValueError(f"{where}: no sampled token can carry the reward; drop it and count it")

    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    last = len(trajectory.turns) - 1
    for index, turn in enumerate(trajectory.turns):
        completion = turn.completion
        sampled = len(completion.token_ids)
        if sampled != len(completion.logprobs):
            raise ValueError(f"{where}, turn {index}: {sampled} tokens, {len(completion.logprobs)} log-probs")
        observed = [] if index == last else turn.observation_ids
        ids += completion.token_ids
        ids += observed
        mask += [1] * sampled
        mask += [0] * len(observed)
        logprobs += completion.logprobs
        logprobs += [0.0] * len(observed)
        versions += [completion.policy_version] * (sampled + len(observed))
    rewards = [0.0] * len(ids)
    rewards[-1] = trajectory.reward
    return PackedTrajectory(
        prompt_ids=trajectory.prompt_ids,
        response_ids=ids,
        response_mask=mask,
        logprobs=logprobs,
        rewards=rewards,
        policy_versions=versions,
    )
