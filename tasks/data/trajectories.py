"""Trajectories as JSON lines, and summaries of them for metrics.

Images are data URIs in the lines, so that a file of trajectories is complete.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.files import iterate_json_lines, write_atomically
from envs.types import Image, Item
from tasks.algorithms.equality import have_equal_rewards

T = TypeVar("T")

_IMAGE_FIELDS = ("prompt_images", "images")
NGRAM = 4
"""Tokens of an n-gram of `repetition`."""
_MULTIPLIER = 0x9E3779B97F4A7C15
MAX_KINDS = 40
"""Metadata keys with more distinct values than this are identifiers, by which nothing is grouped."""


def sort_kinds(values: Iterable[Any]) -> list[Any]:
    """Values of a metadata key in the order of tables: numbers, then texts, each ascending."""
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def group_by_kind(values: Iterable[tuple[Any, T]]) -> dict[str, list[T]]:
    """What has the same value of a metadata key, by the value as a text, in the order of tables.

    `values`: the value and what has it. Equal numbers of two types, as 1 and 1.0, are one value, and so are a
    number and its text.
    """
    pairs = list(values)
    names = {kind: str(kind) for kind in sort_kinds(dict.fromkeys(value for value, _ in pairs))}
    groups: dict[str, list[T]] = {name: [] for name in names.values()}
    for value, member in pairs:
        groups[names[value]].append(member)
    return groups


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write one trajectory a line to `path`, completely or not at all."""
    write_atomically(path, "".join(json.dumps(trajectory_to_dict(t)) + "\n" for t in trajectories))


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of `path`, in order. Raises `ConfigError` for a damaged line."""
    return [trajectory_from_dict(values) for values in iterate_json_lines(path)]


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as JSON values, the inverse of `trajectory_from_dict`."""
    values = asdict(trajectory)
    values["item"]["metadata"] = dict(trajectory.item.metadata)
    values |= {"metrics": dict(trajectory.metrics), "labels": dict(trajectory.labels)}
    for record in (values, *values["turns"]):
        for name in _IMAGE_FIELDS:
            if images := record.pop(name, None):  # most have none
                record[name] = [Image(**image).data_uri for image in images]
    return values


def trajectory_from_dict(values: dict[str, Any]) -> Trajectory:
    """The trajectory that `trajectory_to_dict` wrote."""
    return Trajectory(
        **{
            **values,
            "item": Item(**values["item"]),
            "prompt_ids": tuple(values["prompt_ids"]),
            "turns": tuple(map(_turn_from_dict, values["turns"])),
            "prompt_images": _read_images(values, "prompt_images"),
            "stop_reason": StopReason(values["stop_reason"]),
        }
    )


def _turn_from_dict(values: dict[str, Any]) -> Turn:
    completion = values["completion"]
    completion = {
        **completion,
        "token_ids": tuple(completion["token_ids"]),
        "logprobs": tuple(completion["logprobs"]),
        "finish_reason": FinishReason(completion["finish_reason"]),
    }
    prompt_ids = values["prompt_ids"]
    return Turn(
        **{
            **values,
            "completion": Completion(**completion),
            "observation_ids": tuple(values["observation_ids"]),
            "observation_spans": tuple((start, end) for start, end in values["observation_spans"]),
            "prompt_ids": None if prompt_ids is None else tuple(prompt_ids),
            "images": _read_images(values, "images"),
            "prompt_images": _read_images(values, "prompt_images"),
        }
    )


def _read_images(values: Mapping[str, Any], name: str) -> tuple[Image, ...]:
    return tuple(Image.read(uri) for uri in values.get(name, []))


def summarise(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over the valid episodes, and counts of those that failed.

    Keys: `episodes`, `reward`, `success`, `success_<key>_<value>` for each metadata key by which items are
    grouped, `success_env_<name>`, `reward_env_…` and `turns_env_…` if there are several environments,
    `reward_gap` (reward minus success), `repetition` (as in `repetition`), `turns`, `tokens` (all that were
    sampled), `tokens_per_turn`, each metric of the episodes (mean over those
    that have it, e.g. `parse_failures`, `tool_calls/search`), `stop_<reason>`, `dropped` and
    `dropped_<ErrorClass>` (counts). There are no means if no episode is valid.
    """
    valid = [t for t in trajectories if not t.has_failed]
    summary: dict[str, float] = {
        "episodes": len(valid),
        "dropped": len(trajectories) - len(valid),
        **{f"stop_{reason}": 0 for reason in StopReason if reason is not StopReason.ERROR},
    }
    stops = Counter(t.stop_reason for t in valid)
    summary |= {f"stop_{reason}": count for reason, count in stops.items()}
    failures = (t for t in trajectories if t.has_failed)
    causes = Counter(t.error_class for t in failures)
    summary |= {f"dropped_{cause}": count for cause, count in causes.items()}
    if not valid:
        return summary
    return summary | {
        **success_rates([(t.item, t.success) for t in valid]),
        **_means(valid),
        **_by_env(valid),
        **_episode_metrics(valid),
        "tokens": (tokens := sum(sampled_tokens(t) for t in valid)),
        "tokens_per_turn": tokens / max(1, sum(len(t.turns) for t in valid)),
        "reward_gap": fmean(t.reward for t in valid) - fmean(t.success for t in valid),
        **({"repetition": share} if (share := repetition(valid)) is not None else {}),
    }


def repetition(trajectories: Iterable[Trajectory]) -> float | None:
    """The share of the n-grams of `NGRAM` sampled tokens that occurred before in the same completion.

    1 - distinct n-grams / n-grams, counted in each completion and summed over all: seq-rep-n of Welleck et
    al. 2020 (arXiv 1908.04319), section 6, over turns. None if no completion is long enough to have one.
    """
    import numpy as np

    completions = [turn.completion.token_ids for t in trajectories for turn in t.turns]
    lengths = np.fromiter(map(len, completions), dtype=np.int64, count=len(completions))
    tokens = np.fromiter(chain.from_iterable(completions), dtype=np.uint64, count=int(lengths.sum()))
    owners = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    count = len(tokens) - NGRAM + 1
    if count < 1:
        return None
    # A 64-bit hash of each n-gram and the completion that it is in: the probability that two of a million
    # are equal by chance is below 1e-7.
    hashes = owners[:count] * _MULTIPLIER
    for offset in range(NGRAM):
        hashes = (hashes ^ tokens[offset : offset + count]) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(31)
    hashes = np.sort(hashes[owners[:count] == owners[NGRAM - 1 :]])
    return np.count_nonzero(hashes[1:] == hashes[:-1]) / len(hashes) if len(hashes) else None


def _means(trajectories: Sequence[Trajectory], *, suffix: str = "") -> dict[str, float]:
    return {
        f"reward{suffix}": fmean(t.reward for t in trajectories),
        f"turns{suffix}": fmean(len(t.turns) for t in trajectories),
    }


def _episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    grouped_values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            if isinstance(value, int | float):
                grouped_values.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in sorted(grouped_values.items())}


def success_rates(successes: Sequence[tuple[Item, float]]) -> dict[str, float]:
    """The means of `successes`, those of episodes or of items: the keys of `summarise` that begin with
    `success`; none if there are no values."""
    if not successes:
        return {}
    envs: dict[str, list[float]] = {}
    for item, success in successes:
        envs.setdefault(item.env, []).append(success)
    return {
        "success": fmean(success for _, success in successes),
        **_by_metadata(successes),
        **({f"success_env_{env}": fmean(values) for env, values in envs.items()} if len(envs) > 1 else {}),
    }


def _by_metadata(successes: Sequence[tuple[Item, float]]) -> dict[str, float]:
    values_of: dict[str, list[tuple[object, float]]] = {}
    for item, success in successes:
        for key, value in item.metadata.items():
            if isinstance(value, str | int | float):
                values_of.setdefault(key, []).append((value, success))
    return {
        f"success_{key}_{kind}": fmean(members)
        for key, values in sorted(values_of.items())
        if len(groups := group_by_kind(values)) <= MAX_KINDS
        for kind, members in groups.items()
    }


def _by_env(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    grouped_values: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        grouped_values.setdefault(trajectory.item.env, []).append(trajectory)
    if len(grouped_values) == 1:
        return {}
    return {
        k: v for env, group in grouped_values.items() for k, v in _means(group, suffix=f"_env_{env}").items()
    }


def is_informative(group: Sequence[Trajectory]) -> bool:
    """Whether its usable episodes' rewards differ by more than rounding, so that they can be compared."""
    return not have_equal_rewards([t.reward for t in group if is_usable(t)])


def is_usable(trajectory: Trajectory) -> bool:
    """Whether it was played to an end and holds anything of the policy's."""
    # An episode may end for want of room before the first turn: it holds nothing of the policy's.
    return not trajectory.has_failed and bool(trajectory.turns)


def is_fresh(trajectory: Trajectory, *, oldest_version: int) -> bool:
    """Whether no token was sampled by a policy older than `oldest_version`."""
    return all(turn.completion.policy_version >= oldest_version for turn in trajectory.turns)


def sampled_tokens(trajectory: Trajectory) -> int:
    """Tokens that the policy sampled."""
    return sum(len(turn.completion.token_ids) for turn in trajectory.turns)
