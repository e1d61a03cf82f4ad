"""The block `data`: which items a pipeline is trained and tested on."""

import posixpath
import re
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from agents.horizon import Horizon
from agents.settings import Positive, Seed, Settings
from envs.types import Item

FOLDER = "data"
"""The project's folder of data; DVC's dependency (dvc.yaml)."""
HUB = "hf://"
HUB_FORM = re.compile(r"hf://(?P<name>[^@#]+)(?:@(?P<config>[^@#]+))?#(?P<split>[^@#]+)")
ENDINGS = (".json", ".jsonl", ".parquet", ".csv")
"""The formats of files with rows (`tasks/data/sources.py`)."""


def check_source(source: str) -> str:
    """`source`, if it has one of the forms; raises `ValueError`, for pydantic."""
    if source.startswith(HUB):
        if not HUB_FORM.fullmatch(source):
            raise ValueError(f"{source!r} is not {HUB}NAME#SPLIT or {HUB}NAME@CONFIG#SPLIT")
        return source
    normal = posixpath.normpath(source)
    if not normal.startswith(f"{FOLDER}/"):
        raise ValueError(
            f"{source!r} is not below {FOLDER}/, where DVC sees it; put the file there, or give "
            f"{HUB}NAME#SPLIT"
        )
    ending = posixpath.splitext(normal)[1]
    if ending not in ENDINGS:
        raise ValueError(f"{source!r} ends with {ending or 'nothing'!r}; give one of {', '.join(ENDINGS)}")
    return normal


Source = Annotated[str, AfterValidator(check_source)]


class PartSettings(Settings):
    """Items of one environment, their share of the training, and how many turns their episodes may have."""

    env: str
    """Name in `envs/registry.py`; where it is left out, the part's own name."""
    train: Source | None = None
    """Your data instead of the environment's own items (docs/data.md): a JSON, JSONL, Parquet or CSV file
    below `data/`, or `hf://NAME[@CONFIG]#SPLIT`."""
    test: Source | None = None
    """The same for the held-out items."""
    columns: dict[str, str] = Field(default={})
    """For `train` and `test`, the name that a column has in docs/data.md → its name in the rows, e.g.
    `{question: problem}`."""
    where: dict[str, Annotated[list[str | int | float], Field(min_length=1)]] = Field(default={})
    """Metadata key → the values to select, e.g. `{depth: [1, 2]}`; other items are left out."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the training items, relative to the other parts' weights."""
    evaluate: bool = True
    """Whether its test items are evaluated; false for a part that is only trained on."""
    horizon: Horizon | None = None
    """Instead of the pipeline's."""
    max_turns: Positive | None = None
    """Instead of `evaluate.max_turns`."""

    @model_validator(mode="after")
    def _both_or_none(self) -> "PartSettings":
        if (self.train is None) != (self.test is None):
            missing = "test" if self.test is None else "train"
            raise ValueError(f"{missing} is missing; give train and test, or neither")
        if self.columns and self.train is None:
            raise ValueError(f"columns {self.columns} are those of train and test; give these, too")
        if not self.evaluate and self.max_turns is not None:
            raise ValueError("max_turns is the limit in evaluation, and `evaluate` is false; leave one out")
        return self

    def has(self, item: Item) -> bool:
        """Whether `item` is of this environment and has the metadata that `where` selects."""
        if item.env != self.env:
            return False
        where = self.where
        # `all` alone takes most of the time where nothing is selected; an environment may have 20,000 items
        return not where or all(item.metadata.get(key) in values for key, values in where.items())


class DataSettings(Settings):
    """A mixture of parts, of one or several environments."""

    parts: Annotated[dict[str, PartSettings], Field(min_length=1)]
    split_seed: Seed = 0
    """Chooses the held-out items; the same seed always gives the same split."""

    @field_validator("parts", mode="before")
    @classmethod
    def _named_after_their_env(cls, parts: object) -> object:
        if not isinstance(parts, dict):
            return parts
        return {
            name: {"env": name} | (part or {}) if part is None or isinstance(part, dict) else part
            for name, part in parts.items()
        }

    @model_validator(mode="after")
    def _something_is_evaluated(self) -> "DataSettings":
        if not any(part.evaluate for part in self.parts.values()):
            raise ValueError("no part is evaluated; leave `evaluate: false` out of one of them")
        return self

    @property
    def envs(self) -> list[str]:
        """The environments, in the order of the parts."""
        return list(dict.fromkeys(part.env for part in self.parts.values()))

    @property
    def evaluated_envs(self) -> list[str]:
        """The environments with a part whose test items are evaluated."""
        return list(dict.fromkeys(part.env for part in self.parts.values() if part.evaluate))

    def part_of(self, item: Item) -> str | None:
        """Name of the part that `item` belongs to; None if it is in none.

        Items of a user's data carry the name of their part; `where` tells the environments' own items apart.
        """
        if item.part:
            part = self.parts.get(item.part)
            return item.part if part is not None and part.train is not None and part.has(item) else None
        return next(
            (name for name, part in self.parts.items() if part.train is None and part.has(item)), None
        )
