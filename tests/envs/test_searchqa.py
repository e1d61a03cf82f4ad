"""SearchQA: turns, scores of answers, the format of upstream's data, and the questions of searchqa-mini."""

import asyncio
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from envs.builtin.searchqa import spec as upstream
from envs.builtin.searchqa.data import SEARCHQA_MINI
from envs.builtin.searchqa.env import SearchQAEnv, parse_turn
from envs.builtin.searchqa.mini import spec as mini
from envs.builtin.searchqa.mini.questions import CORPUS, QUESTIONS
from envs.builtin.searchqa.mini.spec import read_mini
from envs.builtin.searchqa.questions import TEST, TRAIN, Question, QuestionFile, Source, ranges
from envs.builtin.searchqa.scoring import compare
from envs.errors import ConfigError, MissingDependency
from envs.registry import EnvSpec, get_env
from envs.retrieval.types import Passage
from envs.types import Item, StepResult


class FakeRetriever:
    """A retriever with two passages, which records its searches."""

    def __init__(self) -> None:
        self.searches: list[tuple[Sequence[str], int]] = []

    async def version(self) -> str:
        return "fake"

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        self.searches.append((queries, top_k))
        passages = [
            Passage("0", '"Iceland"\nIts capital is\nReykjavik.', 2.0),
            Passage("1", '"Oslo"\nNorway.', 1.0),
        ]
        return [passages[:top_k] for _ in queries]

    async def close(self) -> None: ...


def play(
    *actions: str, answers: Sequence[str] = ("Reykjavik",)
) -> tuple[str, list[StepResult], FakeRetriever]:
    retriever = FakeRetriever()

    async def main() -> tuple[str, list[StepResult]]:
        env = SearchQAEnv(lambda item: Question("Which city?", answers), lambda: retriever, top_k=2)
        opening = await env.reset(Item(item_id="any_0", env="any"))
        return opening, [await env.step(action) for action in actions]

    return *asyncio.run(main()), retriever


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("<think>I wonder</think><search> the capital\nof it </search>", ("search", "the capital\nof it")),
        ("<answer>Oslo</answer>", ("answer", "Oslo")),
        ("<search>a</search><answer>b</answer>", ("search", "a")),
        ("<answer>b</answer><search>a</search>", ("answer", "b")),
        ("<answer>a</answer> or rather <answer>b</answer>", ("answer", "b")),
        ("<answer>a <search>q</search>", ("search", "q")),
        ("<search>q <answer>a</answer>", ("answer", "a")),
        ("<answer>a<answer>b</answer>", ("answer", "a<answer>b")),
        ("<answer></answer>", ("answer", "")),
        ("<search>never closed", None),
        ("</search>q<search>", None),
        ("Reykjavik", None),
        ("", None),
    ],
)
def test_a_turn_is_what_the_references_patterns_find(text: str, reading: tuple[str, str] | None) -> None:
    """Theirs: the first match of `<(search|answer)>(.*?)</\\1>`; of an answer, the last
    `<answer>(.*?)</answer>`."""
    first = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    reference = None if first is None else (first[1], first[2].strip())
    if reference is not None and reference[0] == "answer":
        reference = ("answer", re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)[-1].strip())
    assert parse_turn(text) == reference == reading


def test_reading_a_turn_takes_time_by_its_length_alone() -> None:
    """The pattern above takes minutes for these."""
    assert parse_turn("<search>" * 200_000) is None
    assert parse_turn("<answer>" * 100_000 + "</search>" * 100_000) is None
    assert parse_turn("<answer>x</answer>" * 50_000) == ("answer", "x")


def test_results_of_a_search_are_written_as_search_r1_writes_them() -> None:
    opening, (result,), retriever = play("<search>capital of Iceland</search>")
    assert opening == "Question: Which city?"
    assert result == StepResult(
        '<information>Doc 1(Title: "Iceland") Its capital is\nReykjavik.\nDoc 2(Title: "Oslo") Norway.'
        "</information>"
    )
    assert retriever.searches == [(["capital of Iceland"], 2)]


def test_an_answer_ends_the_episode_right_or_wrong() -> None:
    right = play("no tags", "<think>It is.</think><answer>The Reykjavik!</answer>")[1]
    assert "<search>" in right[0].observation
    assert (right[0].reward, right[0].terminated) == (0.0, False)
    assert (right[1].reward, right[1].terminated, right[1].success) == (1.0, True, True)
    assert right[1].metrics == {"exact_match": 1.0, "f1": 1.0}
    (wrong,) = play("<answer>Reykjavik city</answer>")[1]
    assert (wrong.reward, wrong.terminated, wrong.success) == (0.0, True, False)
    assert wrong.metrics == {"exact_match": 0.0, "f1": pytest.approx(2 / 3)}
    with pytest.raises(RuntimeError, match="after the end"):
        play("<answer>Oslo</answer>", "<answer>Reykjavik</answer>")


@pytest.mark.parametrize(
    ("text", "answers", "exact", "f1"),
    [
        ("the Beatles", ["Beatles"], 1, 1),
        ("J.R.R. Tolkien", ["JRR Tolkien"], 1, 1),
        ("an  apple a day", ["apple day"], 1, 1),
        ("14 December 1972", ["December 14, 1972", "1972"], 0, 1),  # F1 knows no order
        ("Paris, France", ["Paris"], 0, 2 / 3),  # 1 of 2 words, 1 of 1
        ("Denver Broncos", ["Carolina Panthers", "Broncos of Denver"], 0, 4 / 5),  # 2 of 2, 2 of 3
        ("yes yes no", ["yes no no"], 0, 2 / 3),  # as multisets: 2 of 3, 2 of 3
        ("São Paulo", ["Sao Paulo"], 0, 1 / 2),
        ("", ["x"], 0, 0),
        ("the", ["a"], 1, 0),  # nothing is left of either, as in SQuAD's script
    ],
)
def test_scores_of_worked_cases(text: str, answers: list[str], exact: int, f1: float) -> None:
    result = compare(text, answers)
    assert result.exact == exact
    assert result.f1 == pytest.approx(f1)


def rows_as_upstream(names: Sequence[str]) -> list[dict[str, object]]:
    """Rows with the columns that Search-R1's data scripts leave."""
    return [
        {
            "id": f"{'test' if name == 'bamboogle' else 'train'}_{number}",
            "question": f"who wrote book {number} of {name}",
            "golden_answers": [f"Author {number}", f"A. {number}"],
            "metadata": None,
            "data_source": name,
            "prompt": [{"content": "Answer the given question. …", "role": "user"}],
            "ability": "fact-reasoning",
            "reward_model": {
                "ground_truth": {"target": [f"Author {number}", f"A. {number}"]},
                "style": "rule",
            },
            "extra_info": {"index": number, "split": "test"},
        }
        for number, name in enumerate(names)
    ]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


SAMPLE = (Source("nq", 3), Source("hotpotqa", 2))


def test_questions_are_read_in_upstreams_form(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", rows_as_upstream(["nq"] * 3 + ["hotpotqa"] * 2))
    file = QuestionFile(path, sources=SAMPLE)
    assert len(file) == 5
    assert file[3] == Question("who wrote book 3 of hotpotqa?", ["Author 3", "A. 3"])
    assert list(file) == [file[row] for row in range(5)]


def test_the_error_for_a_wrong_file_of_questions_has_the_place(tmp_path: Path) -> None:
    rows = rows_as_upstream(["nq"] * 3 + ["hotpotqa"] * 2)
    path = write(tmp_path / "q.parquet", rows)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ConfigError, match=r"q\.parquet: not a complete Parquet file .* wingspan data pull searchqa"
    ):
        QuestionFile(path, sources=SAMPLE)
    write(path, rows[:4])
    with pytest.raises(ConfigError, match=r"q\.parquet: expected 5 rows, got 4"):
        QuestionFile(path, sources=SAMPLE)
    write(path, [*rows[:2], rows[3], rows[2], rows[4]])
    with pytest.raises(ConfigError, match=r"row 2: expected a question of nq, got one of 'hotpotqa'"):
        QuestionFile(path, sources=SAMPLE)
    write(path, [{"question": row["question"]} for row in rows])
    with pytest.raises(
        ConfigError, match=r"expected columns question, golden_answers, data_source; it has quest"
    ):
        QuestionFile(path, sources=SAMPLE)
    write(path, [*rows[:4], rows[4] | {"golden_answers": []}])
    with pytest.raises(ConfigError, match=r"row 4: expected golden_answers, a list of texts; got \[\]"):
        QuestionFile(path, sources=SAMPLE)[4]


def test_items_are_numbered_as_in_agentgyms_tables() -> None:
    """agentenv-searchqa/README.md and its env_wrapper.py."""
    tests = {source.name: numbers for source, numbers in ranges(TEST, first=0)}
    assert tests["triviaqa"] == range(3610, 14923)
    assert tests["popqa"] == range(14923, 29190)
    assert tests["hotpotqa"] == range(29190, 36595)
    assert tests["2wikimultihopqa"] == range(36595, 49171)
    assert tests["musique"] == range(49171, 51588)
    assert tests["bamboogle"] == range(51588, 51713)
    assert [numbers for _, numbers in ranges(TRAIN, first=51713)] == [
        range(51713, 130881),
        range(130881, 221328),
    ]
    assert (upstream.FIRST_TRAIN, upstream.END) == (51713, 221328)


@pytest.mark.heavy
async def test_real_items_are_played_from_files_in_upstreams_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of upstream's size: every row of the seven and the two data sets, made up."""
    folder = tmp_path / "searchqa"
    folder.mkdir()
    for name, sources in (("test", TEST), ("train", TRAIN)):
        names = [source.name for source in sources for _ in range(source.count)]
        table = {
            "question": [f"question {row} of {source}" for row, source in enumerate(names)],
            "golden_answers": [[f"answer {row}"] for row in range(len(names))],
            "data_source": names,
        }
        parquet.write_table(pyarrow.table(table), folder / f"{name}.parquet")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        json.dumps({"id": "0", "contents": '"Question 7"\nquestion 7 of hotpotqa, answered'}) + "\n"
    )
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    monkeypatch.setenv("WINGSPAN_RETRIEVER_SEARCHQA", str(corpus))
    for read_file in (upstream.read_test, upstream.read_train):
        read_file.cache_clear()
    try:
        spec = get_env("searchqa")
        spec.check()
        split = spec.split(0)
        assert (len(split.train), len(split.test)) == (169_615, 400)
        assert split.train[0].item_id == "searchqa_51713"
        assert {item.metadata["source"] for item in split.test} == {source.name for source in TEST}
        assert [item.index for item in split.test] == upstream.held_out(0) != upstream.held_out(1)
        item = spec.make_item(51713 + 79168 + 7) if spec.make_item else None
        assert item is not None
        assert item.metadata == {"source": "hotpotqa"}
        results = await solve(spec, item)
        assert '"Question 7"' in results[0].observation
        assert results[-1].success
        with pytest.raises(ConfigError, match=r"221328 items, .*; there is no 'searchqa_221328'"):
            spec.make_item(221328) if spec.make_item else None
    finally:
        for read_file in (upstream.read_test, upstream.read_train):
            read_file.cache_clear()


def test_without_its_data_searchqa_names_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    monkeypatch.delenv("WINGSPAN_RETRIEVER_SEARCHQA", raising=False)
    with pytest.raises(MissingDependency, match=r"wingspan data pull searchqa; wingspan data pull wiki-18"):
        get_env("searchqa").check()
    monkeypatch.setenv("WINGSPAN_RETRIEVER_SEARCHQA", "http://127.0.0.1:9")
    with pytest.raises(MissingDependency) as error:
        get_env("searchqa").check()
    assert "wiki-18" not in str(error.value)


async def solve(spec: EnvSpec, item: Item) -> list[StepResult]:
    env = spec.make()
    await env.reset(item)
    return [await env.step(step.resolve("")) for step in spec.expert(item)]


def mini_corpus() -> dict[str, str]:
    lines = SEARCHQA_MINI.path(CORPUS).read_text().splitlines()
    return {(row := json.loads(line))["id"]: row["contents"] for line in lines}


AIRPORT = re.compile(
    r'"(?P<name>.+)"\n(?P<code>[A-Z]{3}) is an airport of (?P<city>.+) in (?P<country>.+), (?P<feet>-?\d+) '
    "feet high"
)


@pytest.mark.heavy
def test_every_answer_of_the_stand_in_follows_from_its_passages_and_is_the_only_one() -> None:
    """Worked out anew from the passages' words alone, for all of its questions."""
    corpus = mini_corpus()
    airports = [match.groupdict() for text in corpus.values() if (match := AIRPORT.match(text))]
    countries = {
        text.partition("\n")[0].strip('"'): text for id, text in corpus.items() if id.startswith("country-")
    }
    by_code = {airport["code"]: airport for airport in airports}
    assert len(by_code) == len(airports)
    assert len(corpus) >= 5000

    def fact(country: str, relation: str) -> list[str]:
        phrase = "is a country in" if relation == "region" else f"Its {relation} is"
        return re.findall(rf"{phrase} (.+?)\.(?: Its|$)", countries[country])

    questions = read_mini(SEARCHQA_MINI.path(QUESTIONS))
    assert len(questions) >= 500
    assert len({question.question for question in questions}) == len(questions)
    for question in questions:
        if question.kind == "higher":
            codes = re.findall(r"\b[A-Z]{3}\b", question.question)
            feet = {code: int(by_code[code]["feet"]) for code in codes}
            assert [code for code in codes if feet[code] == max(feet.values())] == [question.answer]
            continue
        subject = re.search(r"that has (?:airport ([A-Z]{3})|(.+))\?$", question.question)
        assert subject is not None
        start = [a for a in airports if subject[1] == a["code"] or subject[2] == a["name"]]
        assert len(start) == 1, question.question
        country = start[0]["country"]
        if question.kind == "capital airport":
            (capital,) = fact(country, "capital")
            codes = [a["code"] for a in airports if (a["city"], a["country"]) == (capital, country)]
            assert codes == [question.answer]
        else:
            assert fact(country, question.kind) == [question.answer], question.question
        assert len(question.hops) >= 2
        assert {hop.evidence for hop in question.hops} <= corpus.keys()
        assert len({hop.evidence for hop in question.hops}) == len(question.hops)


def test_the_stand_ins_splits_share_no_passage_that_an_answer_needs() -> None:
    questions = read_mini(SEARCHQA_MINI.path(QUESTIONS))
    for seed in range(5):
        split = mini.split(seed)
        evidence = [
            {hop.evidence for item in items for hop in questions[item.index].hops}
            for items in (split.train, split.test)
        ]
        assert not evidence[0] & evidence[1]
        assert len(split.train) + len(split.test) == len(questions)
        assert len(split.test) > 200
    assert mini.split(0) == mini.split(0)


async def test_the_experts_searches_show_the_evidence_and_its_answer_is_right() -> None:
    """Every twentieth question; `python -m bench.experts searchqa-mini`, also with `--test`, plays all."""
    corpus = mini_corpus()
    spec = get_env("searchqa-mini")
    questions = read_mini(SEARCHQA_MINI.path(QUESTIONS))
    for item in spec.split(0).train[::20]:
        results = await solve(spec, item)
        for hop, result in zip(questions[item.index].hops, results, strict=False):
            assert corpus[hop.evidence].partition("\n")[2] in result.observation
        assert results[-1].success
        assert max(len(result.observation.split()) for result in results) < 2 * 45


def test_passages_look_alike() -> None:
    """Of ten airports' names at least three share all words but one with another's."""
    names = [match["name"] for text in mini_corpus().values() if (match := AIRPORT.match(text))]
    rest: dict[frozenset[str], int] = {}
    for name in names:
        words = frozenset(unicodedata.normalize("NFC", name).split())
        for word in words:
            rest[words - {word}] = rest.get(words - {word}, 0) + 1
    alike = [name for name in names if any(rest[frozenset(name.split()) - {w}] > 1 for w in name.split())]
    assert len(alike) > 0.3 * len(names)


def test_the_error_for_a_broken_line_of_the_stand_in_has_its_number(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    lines = SEARCHQA_MINI.path(QUESTIONS).read_text().splitlines()[:3]
    path.write_text("\n".join([*lines[:2], lines[2][:40]]))
    with pytest.raises(
        ConfigError, match=r"questions\.jsonl, line 3: expected a question .* wingspan data make"
    ):
        read_mini(path)
    with pytest.raises(ConfigError, match="there is no 'searchqa-mini_99999'"):
        mini.make_item(99999)
