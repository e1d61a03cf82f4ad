"""Makes the data set `searchqa-mini`: a corpus and its questions (`envs/builtin/searchqa/data.py` names
it)."""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from envs.builtin.searchqa.mini.questions import questions
from envs.builtin.searchqa.mini.world import load
from envs.retrieval.bm25 import Bm25

CORPUS, QUESTIONS = "corpus.jsonl", "questions.jsonl"
TOP_K = 2
"""Passages that a search shows: the length of an episode is mostly theirs."""


def make_mini(folder: Path) -> None:
    """Write `corpus.jsonl` and `questions.jsonl` into `folder`; takes some seconds."""
    world = load()
    corpus = folder / CORPUS
    corpus.write_text("".join(_line(id=name, contents=contents) for name, contents in world.passages()))
    with tempfile.TemporaryDirectory() as elsewhere:  # an index is no data: its files have random names
        searched = Bm25(Path(shutil.copy(corpus, elsewhere)))

        def shows(query: str, passage_id: str) -> bool:
            found = searched.search_sync([query], top_k=TOP_K)[0]
            return passage_id in [passage.passage_id for passage in found]

        made = questions(world, shows=shows)
    (folder / QUESTIONS).write_text("".join(_line(**asdict(one)) for one in made))


def _line(**values: object) -> str:
    return json.dumps(values) + "\n"
