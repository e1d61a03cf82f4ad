"""The data sets of the search environments, downloaded or made here."""

from envs.builtin.searchqa.mini.questions import CORPUS, QUESTIONS, make_mini
from envs.requirements.data_sets import DataFile, DataSet

_HUB = "https://huggingface.co/datasets"

SEARCHQA = DataSet(
    name="searchqa",
    about="questions of NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultihopQA, MuSiQue and Bamboogle with their "
    "answers, as Search-R1 and AgentGym put them together; each under its own licence",
    required_paths=("train.parquet", "test.parquet"),
    files=(
        DataFile(path="train.parquet", url=f"{_HUB}/PeterJinGo/nq_hotpotqa_train/resolve/main/train.parquet"),
        DataFile(path="test.parquet", url=f"{_HUB}/PeterJinGo/nq_hotpotqa_train/resolve/main/test.parquet"),
    ),
)

WIKI_18 = DataSet(
    name="wiki-18",
    about="Wikipedia of December 2018 in 21,015,324 passages of 100 words (some 5 GB, 14 GB unpacked), CC "
    "BY-SA; its BM25 index is built here on first use",
    required_paths=("wiki-18.jsonl",),
    files=(
        DataFile(
            path="wiki-18.jsonl.gz",
            url=f"{_HUB}/PeterJinGo/wiki-18-corpus/resolve/main/wiki-18.jsonl.gz",
            unpack=True,
        ),
    ),
)

WIKI_18_E5 = DataSet(
    name="wiki-18-e5",
    about="the flat faiss index of wiki-18 by intfloat/e5-base-v2 (64 GB, in two parts that are one file), "
    "for wingspan serve-retriever --index",
    required_paths=("part_aa", "part_ab"),
    files=tuple(
        DataFile(path=part, url=f"{_HUB}/PeterJinGo/wiki-18-e5-index/resolve/main/{part}")
        for part in ("part_aa", "part_ab")
    ),
)

SEARCHQA_MINI = DataSet(
    name="searchqa-mini",
    about="7,179 passages on airports and countries and 1,408 questions that take two or three of them; made "
    "here from the packages airportsdata and countryinfo (MIT)",
    required_paths=(CORPUS, QUESTIONS),
    make=make_mini,
    made_with=("airportsdata", "countryinfo", "tantivy"),
)

DATA_SETS = (SEARCHQA, WIKI_18, WIKI_18_E5, SEARCHQA_MINI)
