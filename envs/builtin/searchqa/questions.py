"""The questions of Search-R1 and AgentGym in `data_sets/searchqa`: two Parquet files, one question per row.

Rows and their order are those of Search-R1's data scripts, which AgentGym uses as well: item N of its
numbering is row N of the test file, and from 51713 on row N - 51713 of the training file. The columns
`question`, `golden_answers` and `data_source` are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, describe


@dataclass(frozen=True, slots=True)
class Source:
    """Consecutive questions of one data set."""

    name: str
    count: int


TEST = (
    Source("nq", 3610),
    Source("triviaqa", 11313),
    Source("popqa", 14267),
    Source("hotpotqa", 7405),
    Source("2wikimultihopqa", 12576),
    Source("musique", 2417),
    Source("bamboogle", 125),
)
TRAIN = (Source("nq", 79168), Source("hotpotqa", 90447))
"""AgentGym's tables of items: its tests are 0 to 51712, its training items 51713 to 221327."""

_COLUMNS = ("question", "golden_answers", "data_source")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its accepted answers."""

    question: str
    answers: Sequence[str]
    """At least one; all count the same."""


class QuestionFile:
    """One of the files; rows become questions when they are read."""

    def __init__(self, path: Path, *, sources: Sequence[Source]) -> None:
        """Raises `ConfigError` if the file is truncated, lacks columns, or has other rows than `sources`."""
        from pyarrow import parquet

        self._path = path
        try:
            schema = parquet.read_schema(path)
            if not set(_COLUMNS) <= set(schema.names):
                raise ConfigError(
                    f"{path}: expected columns {', '.join(_COLUMNS)}; it has {', '.join(schema.names)}"
                )
            self._table = parquet.read_table(path, columns=list(_COLUMNS))
        except ConfigError:
            raise
        except Exception as error:  # from pyarrow, or from the disk
            raise ConfigError(
                f"{path}: not a complete Parquet file ({describe(error)}); delete it and run: "
                "wingspan data pull searchqa"
            ) from None
        self._check(sources)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> Question:
        """Raises `ConfigError` for a malformed row."""
        return self._question(row, self._table.slice(row, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[Question]:
        """All questions in order; raises `ConfigError` for a malformed row."""
        row = 0
        for batch in self._table.to_batches():
            for values in batch.to_pylist():
                yield self._question(row, values)
                row += 1

    def _question(self, row: int, values: Mapping[str, Any]) -> Question:
        question, answers = values["question"], values["golden_answers"]
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(f"{self._path}, row {row}: expected a question, got {question!r}")
        is_valid = isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)
        if not is_valid or not answers:
            raise ConfigError(
                f"{self._path}, row {row}: expected golden_answers, a list of texts; got {answers!r}"
            )
        text = question.strip()
        return Question(text if text.endswith("?") else f"{text}?", answers)  # as in the data scripts

    def _check(self, sources: Sequence[Source]) -> None:
        num_rows = sum(source.count for source in sources)
        if len(self) != num_rows:
            raise ConfigError(
                f"{self._path}: expected {num_rows} rows, got {len(self)}; delete it and run: wingspan "
                "data pull searchqa"
            )
        row, column = 0, self._table.column("data_source")
        for source in sources:
            for end in (row, row + source.count - 1):
                if column[end].as_py() != source.name:
                    raise ConfigError(
                        f"{self._path}, row {end}: expected a question of {source.name}, got one of "
                        f"{column[end].as_py()!r}; the items would have other numbers than AgentGym's"
                    )
            row += source.count


def ranges(sources: Sequence[Source], *, first: int) -> Iterator[tuple[Source, range]]:
    """Each source with the numbers of its items, from `first` on."""
    for source in sources:
        yield source, range(first, first + source.count)
        first += source.count
