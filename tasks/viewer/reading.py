"""One trajectory as it is read: turns with their texts, calls and numbers; tokens on demand.

Everything comes from the trajectory's line. What a line does not hold is None and not computed from anything
else; `NOT_RECORDED` names what readers look for and files never hold.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agents.formats.json_values import parse_calls
from tasks.runs.lines import digest_of, exact_integer, parse_json
from tasks.viewer.browse import Location
from tasks.viewer.index import Decode

NOT_RECORDED = {
    "entropy": "the entropy of each token's distribution: training records its mean over a step "
    "(metrics.jsonl)",
    "trainer_logprob": "the trainer's log-probs, and so the difference from the sampler's: training records "
    "their mean and maximum over a step, where it computes them",
    "advantage": "the credit (advantage) of a turn or a token: it is computed in the update and not kept",
}
"""What files of trajectories do not hold, with where something like it is."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Shown; SVG, which may hold scripts, and anything else is not."""
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


def read_trajectory(values: Mapping[str, Any], *, decode: Decode) -> dict[str, Any]:
    """A trajectory as the page shows it: the texts of its prompt and turns, and their numbers."""
    item = values["item"]
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
        "turns": [read_turn(turn, decode=decode) for turn in values["turns"]],
        "not_recorded": NOT_RECORDED,
    }


def read_tokens(
    values: Mapping[str, Any], *, number: int, split: Callable[[Sequence[int]], list[str] | None]
) -> dict[str, Any]:
    """The tokens of turn `number` (from 0; -1 is the prompt): id, text, who wrote it, log-prob.

    `owner` is `policy` for sampled tokens, which the loss mask selects. Others are of the `prompt`, of the
    `environment` (its words and the tools'), of the `template` (the chat template's own tokens), or of the
    `context` where the file does not tell the last two apart. Columns are lists of one length; `text` is None
    without a tokenizer, and `logprob` None where nothing was sampled.
    """
    if number < 0:
        return _token_columns([_unsampled(values.get("prompt_ids"), owner="prompt")], split=split)
    turn = values["turns"][number]
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
    return _token_columns(parts, split=split)


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
        "unparsed": bool(turn.get("failed")),
        "finish": completion.get("finish_reason"),
        "version": completion.get("policy_version"),
        "tokens": len(completion.get("token_ids") or []),
        "logprob": fmean(logprobs) if logprobs else None,
        "state": turn.get("state"),
        "sampling_s": turn.get("sampling_s") or None,
        "env_s": turn.get("env_s") or None,
        "images": _image_types(turn.get("images")),
        # A new segment: the model saw this instead of everything before.
        "prompt": _prompt(turn["prompt_ids"], decode=decode) if turn.get("prompt_ids") else None,
    }


def _prompt(ids: Sequence[int], *, decode: Decode) -> dict[str, Any]:
    return {"tokens": len(ids), "text": decode(ids) if ids else ""}


def _image_types(uris: Sequence[str] | None) -> list[str]:
    return [_media_type(uri) for uri in uris or []]


def _media_type(uri: object) -> str:
    return uri[5:].partition(";")[0] if isinstance(uri, str) and uri.startswith("data:") else ""


def _unsampled(ids: Sequence[int] | None, *, owner: str) -> _Part:
    return (ids or [], owner, [None] * len(ids or []))


def _token_columns(
    parts: Sequence[_Part], *, split: Callable[[Sequence[int]], list[str] | None]
) -> dict[str, Any]:
    ids = [number for numbers, _, _ in parts for number in numbers]
    return {
        "id": ids,
        "text": split(ids),
        "owner": [owner for numbers, owner, _ in parts for _ in numbers],
        "logprob": [value for _, _, logprobs in parts for value in logprobs],
    }
