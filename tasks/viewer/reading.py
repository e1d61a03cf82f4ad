"""One trajectory as it is read: turns with their texts, calls and numbers; tokens on demand.

Everything comes from the trajectory's line, and from that of its update (`tasks/data/updates.py`) if there is
one. What they do not hold is None and not computed from anything else; `not_recorded` says why it is missing.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from agents.formats.json_values import parse_calls
from tasks.data.updates import TrajectoryUpdate, TurnUpdate, update_file
from tasks.runs.lines import digest_of, exact_integer, parse_json
from tasks.viewer.browse import Location
from tasks.viewer.index import Decode

_COLUMNS = {"advantage": "advantages", "log_ratio": "log_ratios", "entropy": "entropies"}
"""What the page shows of a turn's update, by its field of `TurnUpdate`."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Shown; SVG, which may hold scripts, and anything else is not."""
Update = TrajectoryUpdate | None
"""A line of `update_NNNN.jsonl`, if there is one."""
Split = Callable[[Sequence[int]], list[str] | None]
"""Tokens to their texts, one each; None without a tokenizer."""
_Part = tuple[Sequence[int], str, Sequence[float | None]]


class LineChanged(Exception):
    """The file no longer holds the trajectory where the index says."""


def load_trajectory(location: Location) -> dict[str, Any]:
    """The JSON values of a trajectory's line. Raises `LineChanged`."""
    try:
        with Path(location.path).open("rb") as file:
            file.seek(location.start)
            line = file.read(location.length)
    except OSError as error:
        raise LineChanged(f"{location.path}: {error.strerror or error}") from None
    if digest_of(line) != location.digest:
        raise LineChanged(f"{location.path} was rewritten")
    values: dict[str, Any] = parse_json(line)
    return values


def load_update(location: Location, values: Mapping[str, Any]) -> Update:
    """The line of the update about a trajectory, whose `values` these are; None if there is none that can be
    read."""
    if location.step is None:
        return None
    try:
        with update_file(Path(location.path).parent, location.step).open("rb") as file:
            line = next(islice(file, location.line - 1, None), b"null")
        update = msgspec.convert(parse_json(line), TrajectoryUpdate)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are `ValueError`s
        return None
    # A step that is sampled anew replaces one file after the other.
    return update if _is_about(update, values) else None


def not_recorded(update: Update) -> dict[str, str]:
    """Which numbers of the update a trajectory does not have, by their names on the page, and why."""
    if update is None:
        return {
            "advantage, trainer − sampler, entropy": "training keeps the credit (advantage), the difference "
            "of the trainer's log-probs from the sampler's, and the entropy of the trajectories of its steps "
            "alone"
        }
    if update.turns is None:
        return {
            "advantage, trainer − sampler, entropy": "the update did not learn from this trajectory: the "
            "episode failed, it was too old, or its group had nothing to compare, such as equal rewards"
        }
    if all(turn.log_ratios is None for turn in update.turns):
        return {
            "trainer − sampler, entropy": "training took the sampler's log-probs as they were; it computes "
            "its own, and the entropy, with vLLM and with train.rollout_correction"
        }
    return {}


def read_trajectory(values: Mapping[str, Any], *, decode: Decode, update: Update = None) -> dict[str, Any]:
    """A trajectory as the page shows it: the texts of its prompt and turns, and their numbers."""
    item = values["item"]
    turn_updates: Sequence[TurnUpdate | None] = [None] * len(values["turns"])
    if update is not None and update.turns is not None:
        turn_updates = update.turns
    facts = {
        "fields": item.get("fields") or {},
        "seed": item.get("seed"),
        "metrics": values.get("metrics") or {},
    }
    return {
        **json.loads(json.dumps(facts), parse_int=exact_integer),
        "attempts": values.get("attempts", 1),
        "seconds": values.get("seconds"),
        "final_state": values.get("final_state"),
        "prompt": _prompt(values.get("prompt_ids") or [], decode=decode),
        "prompt_images": _image_types(values.get("prompt_images")),
        "turns": [
            read_turn(turn, decode=decode) | _means(turn_update)
            for turn, turn_update in zip(values["turns"], turn_updates, strict=True)
        ],
        "not_recorded": not_recorded(update),
    }


def read_tokens(values: Mapping[str, Any], *, split: Split, update: Update = None) -> list[dict[str, Any]]:
    """The tokens of each turn: id, text, who wrote it, log-prob, and what the update has of `_COLUMNS`.

    `owner` is `policy` for sampled tokens, which the loss mask selects. Others are of the `prompt` of a new
    segment, of the `environment` (its words and the tools'), of the `template` (the chat template's own
    tokens), or of the `context` where the file does not tell the last two apart. Columns are lists of one
    length; `text` is None without a tokenizer, and `logprob` None where nothing was sampled.
    """
    turns = []
    for number, turn in enumerate(values["turns"]):
        columns = _read_turn_tokens(turn, split=split)
        sampled_ids = turn["completion"].get("token_ids") or []
        for name, tokens in _tokens_of_update(update, number=number, count=len(sampled_ids)).items():
            sampled = iter(tokens)
            owners = columns["owner"]
            columns[name] = [next(sampled, None) if owner == "policy" else None for owner in owners]
        turns.append(columns)
    return turns


def _read_turn_tokens(turn: Mapping[str, Any], *, split: Split) -> dict[str, Any]:
    completion = turn["completion"]
    sampled_ids, logprobs = completion.get("token_ids") or [], completion.get("logprobs") or []
    missing = [None] * (len(sampled_ids) - len(logprobs))
    parts = [
        _unsampled(turn.get("prompt_ids"), owner="prompt"),
        (sampled_ids, "policy", [*logprobs[: len(sampled_ids)], *missing]),
    ]
    observation, start = turn.get("observation_ids") or [], 0
    spans = turn.get("observation_spans")
    for first, last in spans or []:
        parts.append(_unsampled(observation[start:first], owner="template"))
        parts.append(_unsampled(observation[first:last], owner="environment"))
        start = last
    parts.append(_unsampled(observation[start:], owner="context" if spans is None else "template"))
    ids = [number for numbers, _, _ in parts for number in numbers]
    return {
        "id": ids,
        "text": split(ids),
        "owner": [owner for numbers, owner, _ in parts for _ in numbers],
        "logprob": [value for _, _, logprobs in parts for value in logprobs],
    }


def find_image(values: Mapping[str, Any], *, turn: int, number: int) -> tuple[bytes, str] | None:
    """Image `number` of turn `turn` (-1 is the prompt) with its media type; None if it is no image of
    `IMAGE_TYPES`."""
    record = values if turn < 0 else dict(enumerate(values["turns"])).get(turn, {})
    uri = dict(enumerate(record.get("prompt_images" if turn < 0 else "images") or [])).get(number)
    media_type = _media_type(uri)
    if uri is None or media_type not in IMAGE_TYPES:
        return None
    try:
        return base64.b64decode(uri.partition(",")[2], validate=True), media_type
    except (binascii.Error, ValueError):
        return None


def token_pieces(tokenizer_file: Path) -> Callable[[Sequence[int]], list[str] | None]:
    """Tokens to their texts, one each, which put together are the decoded text; "" for a token whose bytes
    make a character only with the next one's."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def split(ids: Sequence[int]) -> list[str]:
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, number) or "" for number in ids]

    return split


def read_turn(turn: Mapping[str, Any], *, decode: Decode) -> dict[str, Any]:
    """A turn as the page shows it."""
    completion = turn["completion"]
    logprobs = [value for value in completion.get("logprobs") or [] if math.isfinite(value)]
    action = turn.get("action") or ""
    return {
        "text": turn.get("text") or "",
        "thought": turn.get("thought") or "",
        "action": action,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in parse_calls(action)],
        "observation": turn.get("observation") or "",
        "reward": turn.get("reward"),
        "unparsed": bool(turn.get("is_malformed")),
        "finish": completion.get("finish_reason"),
        "version": completion.get("policy_version"),
        "tokens": len(completion.get("token_ids") or []),
        "logprob": fmean(logprobs) if logprobs else None,
        "state": turn.get("state"),
        "sampling_s": turn.get("sampling_s") or None,
        "env_s": turn.get("env_s") or None,
        "images": _image_types(turn.get("images")),
        "previous_turn": turn.get("previous_turn"),
        # A new segment: the model saw this instead of everything before.
        "prompt": _prompt(turn["prompt_ids"], decode=decode) if turn.get("prompt_ids") else None,
    }


def _is_about(update: TrajectoryUpdate, values: Mapping[str, Any]) -> bool:
    if (update.item_id, update.sample_index) != (values["item"]["item_id"], values.get("sample_index", 0)):
        return False
    if update.turns is None:
        return True
    counts = [len(turn["completion"].get("token_ids") or []) for turn in values["turns"]]
    return len(update.turns) == len(counts) and all(
        len(column) == count
        for turn, count in zip(update.turns, counts, strict=True)
        for column in _columns_of(turn).values()
        if isinstance(column, list)
    )


def _tokens_of_update(update: Update, *, number: int, count: int) -> dict[str, list[float]]:
    """What the update has of `_COLUMNS` on each of the `count` sampled tokens of turn `number`."""
    if update is None or update.turns is None:
        return {}
    return {
        name: column if isinstance(column, list) else [column] * count
        for name, column in _columns_of(update.turns[number]).items()
        if column is not None
    }


def _means(turn: TurnUpdate | None) -> dict[str, float | None]:
    """The means of `_COLUMNS` over a turn of an update; None where it has no values."""
    if turn is None:
        return dict.fromkeys(_COLUMNS)
    return {
        name: (fmean(column) if column else None) if isinstance(column, list) else column
        for name, column in _columns_of(turn).items()
    }


def _columns_of(turn: TurnUpdate) -> dict[str, float | list[float] | None]:
    return {name: getattr(turn, field) for name, field in _COLUMNS.items()}


def _prompt(ids: Sequence[int], *, decode: Decode) -> dict[str, Any]:
    return {"tokens": len(ids), "text": decode(ids) if ids else ""}


def _image_types(uris: Sequence[str] | None) -> list[str]:
    return [_media_type(uri) for uri in uris or []]


def _media_type(uri: object) -> str:
    return uri[5:].partition(";")[0] if isinstance(uri, str) and uri.startswith("data:") else ""


def _unsampled(ids: Sequence[int] | None, *, owner: str) -> _Part:
    return (ids or [], owner, [None] * len(ids or []))
