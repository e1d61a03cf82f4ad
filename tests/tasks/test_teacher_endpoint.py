"""A teacher behind HTTP, against the same model in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline
from tasks.errors import TeacherFailed
from tasks.rollout.teacher import Teacher, check_teacher, make_teacher
from tests.support.completions_server import CompletionsServer, completions_server
from tests.support.scored_episodes import episode
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline

pytest.importorskip("torch")

from agents.samplers.scoring import LocalScorer

EPISODES = {"a_0": episode(0), "a_1": episode(1, shape=((3, 1), (2,), (1,)))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("teacher"), seed=1)


@pytest.fixture
def server(folder: Path) -> Iterator[CompletionsServer]:
    with completions_server(folder) as running:
        yield running


def pipeline(folder: Path, url: str, **teacher: object) -> Pipeline:
    endpoint = {"url": url, "model": "teacher", "max_attempts": 2, "request_timeout_s": 60} | teacher
    algorithm = {"name": "distill", "teacher": endpoint}
    return toy_pipeline(
        folder, train__algorithm=algorithm, rollout__temperature=1.0, rollout__final_temperature=None
    )


def connect(folder: Path, server: CompletionsServer) -> Teacher:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    teacher = make_teacher(pipeline(folder, server.url), model=str(folder), tokenizer=tokenizer)
    assert teacher is not None
    return teacher


def test_the_numbers_are_those_of_the_same_model_here(folder: Path, server: CompletionsServer) -> None:
    actual = connect(folder, server).score(EPISODES, temperature=1.0)
    expected = Teacher(LocalScorer(folder)).score(EPISODES, temperature=1.0)
    assert actual.keys() == expected.keys()
    for key, values in expected.items():
        assert actual[key] == pytest.approx(values, abs=1e-5)
    assert server.num_asked == 2 + 3, "a request for each segment"


def test_a_failure_is_tried_again_and_then_ends_the_step(folder: Path, server: CompletionsServer) -> None:
    teacher = connect(folder, server)
    short = {"a_0": episode(0, shape=((1,),))}
    busy = JSONResponse({"error": "busy"}, status_code=503, headers={"retry-after": "0"})
    server.failures = [busy]
    assert teacher.score(short, temperature=1.0).keys() == short.keys()
    assert server.num_asked == 2
    server.failures = [busy, busy]
    with pytest.raises(
        TeacherFailed, match=r"answered 503: .*, at the last of 2 attempts; restore it and run"
    ):
        teacher.score(short, temperature=1.0)
    server.failures = [PlainTextResponse("{}"), busy]
    with pytest.raises(TeacherFailed, match="503"):
        teacher.score(short, temperature=1.0)


def test_a_server_that_cannot_teach_is_refused_before_anything_starts(
    folder: Path, server: CompletionsServer
) -> None:
    check_teacher(pipeline(folder, server.url))
    with pytest.raises(ConfigError, match=r"teacher: .* has no model 'other'; it has: teacher"):
        check_teacher(pipeline(folder, server.url, model="other"))
    with pytest.raises(ConfigError, match="teacher: no endpoint: "):
        check_teacher(pipeline(folder, "http://127.0.0.1:9/v1"))
    server.max_model_len = 160
    with pytest.raises(
        ConfigError, match=r"it reads prompts of 159 tokens, and rollout\.context_length is 160"
    ):
        check_teacher(pipeline(folder, server.url))


def test_a_server_with_other_tokens_is_refused(folder: Path, server: CompletionsServer) -> None:
    from tests.support.toy import PIPES, toy_tokenizer

    server.tokenizer = toy_tokenizer(PIPES)
    with pytest.raises(ConfigError, match=r"the tokenizer of teacher is not that of .*: tokens 0 to \d+ are"):
        check_teacher(pipeline(folder, server.url))
