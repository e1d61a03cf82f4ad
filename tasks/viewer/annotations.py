"""Annotations: a label and a note on a trajectory, in `annotations.jsonl` next to a run's files.

Lines are only ever appended. The last line about a trajectory holds; one whose label and note are empty takes
the annotation back. A trajectory is known by its `file` and its content (`digest`), so an annotation does not
move to another episode when training is resumed and rewrites a step. `line`, `item` and `sample` are for
people and scripts that read the file.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from envs.files import append_line
from tasks.runs.lines import parse_json

MAX_LABEL = 40
MAX_NOTE = 4000
"""Characters of a label and of a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What somebody has written about a trajectory."""

    digest: str
    file: str
    line: int
    item: str
    sample: int
    label: str
    note: str
    written_at: str
    """The time, in UTC and ISO 8601."""


def read_annotations(path: Path) -> Iterator[Annotation]:
    """The annotations in `path` in order, later ones about the same trajectory included; other lines are left
    out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.split("\n"):  # a note may hold other separators of lines
        try:
            annotation = Annotation(**parse_json(line))
        except (ValueError, TypeError, RecursionError):
            continue  # half written, or somebody else's
        texts = (annotation.digest, annotation.file, annotation.label, annotation.note, annotation.written_at)
        if all(isinstance(text, str) for text in texts):
            yield annotation


def append_annotation(path: Path, annotation: Annotation) -> None:
    """Append it as a line of its own. Raises `ConfigError`."""
    append_line(path, json.dumps(asdict(annotation)))
