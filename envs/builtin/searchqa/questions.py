"""The real questions, as `data_sets/searchqa` has them: two Parquet files, a question a row.

Rows and their order are those of Search-R1's data scripts, which AgentGym runs, too: item N of its numbering
is row N of the test file, from 51713 on row N - 51713 of the training file. Of a row, `question`,
`golden_answers` and `data_source` are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, describe


@dataclass(frozen=True, slots=True)
class Source:
    """Questions of one data set, in a row."""

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
"""AgentGym's tables of items; its tests are 0 to 51712, its training items 51713 to 221327."""

_COLUMNS = ("question", "golden_answers", "data_source")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what counts as its answer."""

    question: str
    answers: Sequence[str]
    """At least one; each is as good as the others."""


class QuestionFile:
    """One of the files; rows are made into questions when they are asked for."""

    def __init__(self, path: Path, *, sources: Sequence[Source]) -> None:
        """Raises `ConfigError` for a file that is cut off, has other columns, or not the rows of
        `sources`."""
        from pyarrow import parquet

        self._path = path
        try:
            schema = parquet.read_schema(path)
            lacks = [name for name in _COLUMNS if name not in schema.names]
            if lacks:
                raise ConfigError(
                    f"{path}: expected columns {', '.join(_COLUMNS)}; there are {', '.join(schema.names)}"
                )
            self._table = parquet.read_table(path, columns=list(_COLUMNS))
        except ConfigError:
            raise
        except Exception as error:  # of pyarrow, or of the disk
            raise ConfigError(
                f"{path}: no whole Parquet file ({describe(error)}); delete it and run: "
                "wingspan data pull searchqa"
            ) from None
        self._check(sources)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, row: int) -> Question:
        """Raises `ConfigError` for a row that is no question."""
        return self._question(row, self._table.slice(row, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[Question]:
        """All of them, in order; raises as for one."""
        row = 0
        for batch in self._table.to_batches():
            for values in batch.to_pylist():
                yield self._question(row, values)
                row += 1

    def _question(self, row: int, values: Mapping[str, Any]) -> Question:
        question, answers = values["question"], values["golden_answers"]
        if not isinstance(question, str) or not question.strip():
            raise ConfigError(f"{self._path}, row {row}: expected a question, got {question!r}")
        texts = isinstance(answers, list) and all(isinstance(one, str) for one in answers)
        if not texts or not answers:
            raise ConfigError(
                f"{self._path}, row {row}: expected golden_answers, a list of texts; got {answers!r}"
            )
        return Question(_asked(question), answers)

    def _check(self, sources: Sequence[Source]) -> None:
        wanted = sum(source.count for source in sources)
        if len(self) != wanted:
            raise ConfigError(
                f"{self._path}: expected {wanted} rows, got {len(self)}; delete it and run: wingspan "
                "data pull searchqa"
            )
        row, column = 0, self._table.column("data_source")
        for source in sources:
            for at in (row, row + source.count - 1):
                if column[at].as_py() != source.name:
                    raise ConfigError(
                        f"{self._path}, row {at}: expected a question of {source.name}, got one of "
                        f"{column[at].as_py()!r}; the items would have other numbers than AgentGym's"
                    )
            row += source.count


def _asked(question: str) -> str:
    """As the data scripts put it to a policy: it ends with a question mark."""
    stripped = question.strip()
    return stripped if stripped.endswith("?") else f"{stripped}?"


def ranges(sources: Sequence[Source], *, first: int) -> Iterator[tuple[Source, range]]:
    """Each source with the numbers of its items."""
    for source in sources:
        yield source, range(first, first + source.count)
        first += source.count
