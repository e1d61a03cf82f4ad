"""Images where no token is: in rows of data, other processes, endpoints, files and on consoles."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from agents.clients.endpoint import Endpoint
from agents.prompting.images import decode_image
from agents.rollout.chat_conversation import TOOL_IMAGES
from agents.rollout.conversation import ContextPolicy
from agents.rollout.rollout import rollout
from agents.tools.tool import tool
from agents.types import Trajectory
from envs.builtin.question.env import QuestionEnv
from envs.errors import ConfigError
from envs.registry import EnvSpec, Split, register_env
from envs.runtime.hosted import HostedEnv
from envs.runtime.processes import ProcessHost
from envs.types import Image, Item, Observation, StepResult
from flows.commands.turns import TurnPrinter
from tasks.config.data import DataSettings
from tasks.config.episodes import check_vision
from tasks.data.demonstrations import demonstrate
from tasks.data.files import read_parts
from tasks.data.items import item_from_json, item_to_json
from tasks.data.trajectories import read_trajectories, trajectory_to_dict, write_trajectories
from tasks.rollout.runner import make_runner
from tests.agents.test_images import Viewer, play_episode
from tests.support import verl_toy
from tests.support.chat_server import calls, chat_server, in_turn, says
from tests.support.gallery import SMALL, TALL, WIDE, Gallery
from tests.support.serving import listening
from tests.support.toy import ToyEnv, toy_item, toy_tokenizer
from tests.support.verl_toy import toy_pipeline


def image_part(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.data_uri}}


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
    ],
)
def test_kinds_are_recognised_and_written_as_uris(head: bytes, media_type: str) -> None:
    image = Image.recognize(head + b"x")
    assert image == Image(head + b"x", media_type)
    assert Image.read(image.data_uri) == image


@pytest.mark.parametrize("head", [b"", b"RIFF\0\0\0\0WAVE", b"BM"])
def test_other_kinds_are_not(head: bytes) -> None:
    with pytest.raises(ValueError, match="no known format"):
        Image.recognize(head)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "geo"
    folder.mkdir(parents=True)
    (folder / "wide.png").write_bytes(WIDE.data)
    (folder / "cut.png").write_bytes(WIDE.data[:40])
    (folder / "note.txt").write_text("hello")
    return folder


def rows_of(folder: Path, *rows: dict[str, Any], test: Sequence[dict[str, Any]] = ()) -> Split:
    for name, part_rows in (("train", rows), ("test", test or [{"question": "?"}])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part_rows))
    part = {"env": "question", "train": "data/geo/train.jsonl", "test": "data/geo/test.jsonl"}
    return read_parts(DataSettings.model_validate({"parts": {"geo": part}}))["geo"]


async def test_a_row_may_show_images(project: Path) -> None:
    split = rows_of(
        project,
        {"question": "How wide?", "image": "wide.png", "answer": "120"},
        {"messages": [{"role": "user", "content": "And?"}], "images": [TALL.data_uri, "wide.png"]},
        {"question": "None?", "images": []},
    )
    (project / "wide.png").unlink()  # items are whole
    items = [item_from_json(item_to_json(item), location="x") for item in split.train]
    assert ([await QuestionEnv().reset(item) for item in items]) == [
        Observation("How wide?", (WIDE,)),
        Observation("And?", (TALL, WIDE)),
        "None?",
    ]
    with pytest.raises(ConfigError, match="geo_0 has images, and the model reads only text"):
        check_vision(items, has_vision=False)
    check_vision(items, has_vision=True)
    check_vision(items[2:], has_vision=False)


async def test_images_of_tables_and_datasets(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hugging Face writes them into Parquet, and as its package hands them out."""
    import datasets

    column = datasets.Features({"question": datasets.Value("string"), "images": [datasets.Image()]})
    part_rows = [{"question": "a", "images": [{"bytes": WIDE.data, "path": None}]}]
    table = datasets.Dataset.from_list(part_rows, features=column)
    table.to_parquet(project / "train.parquet")
    (project / "test.jsonl").write_text('{"question": "?"}\n')
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    for train in ("data/geo/train.parquet", "hf://some/set#train"):
        part = {"env": "question", "train": train, "test": "data/geo/test.jsonl"}
        [item] = read_parts(DataSettings.model_validate({"parts": {"geo": part}}))["geo"].train
        [image] = Observation.wrap(await QuestionEnv().reset(item)).images
        assert decode_image(image).tobytes() == decode_image(WIDE).tobytes()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": "none.png"}, r"row 1 .*image: 'none\.png' is no file .*No such file"),
        ({"image": "note.txt"}, r"image: 'note\.txt' begins with b'hello'.*give PNG"),
        ({"images": ["wide.png", "cut.png"]}, r"images\[1\]: is not an image that can be read"),
        ({"images": "wide.png"}, r"images is a str, .*give a list"),
        ({"image": ["wide.png"]}, r"image is a list"),
        ({"image": "data:image/png;base64,@"}, r"image: .* is no base64"),
        ({"image": "data:image/png,abc"}, r"image: .* is not data:MEDIA_TYPE;base64,"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_with_its_row(
    project: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_of(project, {"question": "a"}, {"question": "b", **columns})


def test_the_same_words_to_another_image_are_another_question(project: Path) -> None:
    body = {"question": "How wide?"}
    rows_of(project, {**body, "image": TALL.data_uri}, test=[{**body, "image": "wide.png"}])
    with pytest.raises(ConfigError, match="are the same"):
        rows_of(project, {**body, "image": WIDE.data_uri}, test=[{**body, "image": "wide.png"}])


async def test_a_player_of_text_refuses_items_with_images(project: Path) -> None:
    [item] = rows_of(project, {"question": "How wide?", "image": "wide.png"}).train
    part = {"env": "question", "train": "data/geo/train.jsonl", "test": "data/geo/test.jsonl"}
    agent = {"instructions": False, "format": "raw", "reward": "string_equal"}
    pipeline = toy_pipeline(Path("none"), data={"parts": {"geo": part}}, agent=agent)
    runner = make_runner(pipeline, sampler=Viewer(0), tokenizer=toy_tokenizer())
    try:
        runner.check([Item(item_id="geo_1", env="question", fields={"question": "a", "answer": "b"})])
        with pytest.raises(ConfigError, match="geo_0"):
            runner.check([Item(item.item_id, item.env, fields={**item.fields, "answer": "b"})])
    finally:
        await runner.close()


@pytest.mark.heavy
async def test_images_come_out_of_an_environments_process() -> None:
    async def start_two(env: Any) -> list[Any]:
        return [await env.reset(toy_item(target=50)), *[await env.step("add 1") for _ in range(8)]]

    host = ProcessHost(Gallery)
    env = HostedEnv(host)
    try:
        here, there = await start_two(Gallery()), await start_two(env)
    finally:
        await env.close()
        await host.close()
    assert sum(len(result.images) for result in here[1:]) > 2
    assert there[1:] == here[1:]
    opening = here[0] if here[0].images else here[0].text
    assert there[0] == opening


async def test_a_server_refuses_to_leave_images_out() -> None:
    class Closing(ToyEnv):
        async def step(self, action: str) -> StepResult:
            return StepResult("Look.", images=(SMALL,))

    spec = EnvSpec(
        name="toy",
        make=Closing,
        split=lambda seed: Split(train=[toy_item()], test=[]),
        expert=lambda item: [],
        instructions="",
        packages=(),
    )
    async with listening(spec) as url, httpx.AsyncClient(base_url=url) as http:
        reset_body = {"item_id": "toy_0", "metadata": {"target": 3}}
        session = (await http.post("/reset", json=reset_body)).json()["metadata"]["session_id"]
        body = {"action": {"text": "add 1"}, "session_id": session}
        refusal = await http.post("/step", json=body)
        assert refusal.status_code == 501
        assert "answers with images, which cannot be served" in refusal.json()["detail"]
        assert (await http.post("/step", json=body)).status_code == 410


@tool
def look(left: bool) -> dict[str, Any]:
    """Look to a side."""
    return {"observation": "seen", "images": [SMALL] if left else [WIDE, TALL]}


def test_an_endpoint_gets_images_as_uris() -> None:
    script = in_turn(calls(("look", {"left": True}), ("look", {"left": False})), says("Done."))
    with chat_server(script) as server:
        [trajectory] = rollout(
            [{"question": "What is there?", "image": TALL.data_uri}],
            agent="hermes",
            tools=[look],
            model=Endpoint(server.url, "toy", backoff_s=0.01),
        )
    first, second = server.requests
    assert first["messages"] == [
        {"role": "user", "content": [image_part(TALL), {"type": "text", "text": "What is there?"}]}
    ]
    assert second["messages"][2:] == [
        {"role": "tool", "content": "seen", "tool_call_id": "id0"},
        {"role": "tool", "content": "seen", "tool_call_id": "id1"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": TOOL_IMAGES},
                image_part(SMALL),
                image_part(WIDE),
                image_part(TALL),
            ],
        },
    ]
    assert trajectory.prompt_images == (TALL,)
    assert trajectory.turns[0].images == (SMALL, WIDE, TALL)


def trajectory_with_images() -> Trajectory:
    return play_episode(Viewer(5), Gallery(), toy_item(5), policy=ContextPolicy(keep_thoughts=False))


def test_trajectories_with_images_come_back(tmp_path: Path) -> None:
    trajectory = trajectory_with_images()
    assert any(turn.images for turn in trajectory.turns)
    assert any(turn.prompt_images for turn in trajectory.turns)
    write_trajectories(tmp_path / "t.jsonl", [trajectory])
    assert read_trajectories(tmp_path / "t.jsonl") == [trajectory]


def test_without_images_a_line_says_nothing_of_them() -> None:
    trajectory = play_episode(Viewer(5), ToyEnv(), toy_item(5), policy=ContextPolicy())
    values = trajectory_to_dict(trajectory)
    assert not {"images", "prompt_images"} & {*values, *values["turns"][0]}


def test_the_console_names_an_image() -> None:
    trajectory, file = trajectory_with_images(), io.StringIO()
    printer = TurnPrinter(Console(file=file))
    printer.turn(trajectory.item, 0, trajectory.turns[:1])
    printer.trajectory(trajectory)
    kinds = ", ".join(image.media_type for image in trajectory.turns[0].images)
    assert f"toy_5 #0 turn 1 images: {kinds}\n" in file.getvalue()


async def test_demonstrations_with_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class ImageEnv(verl_toy.ParityEnv):
        async def step(self, action: str) -> StepResult:
            return StepResult("Go on.", images=(SMALL,))

    spec = EnvSpec(
        name="parity",
        make=ImageEnv,
        split=verl_toy.SPEC.split,
        expert=verl_toy.SPEC.expert,
        instructions="",
        packages=(),
    )
    register_env(spec)
    warmup = {"demonstrations": 1, "noise": 0, "steps": 1, "batch_size": 1, "lr": 1e-3}
    pipeline = toy_pipeline(Path("none"), warmup=warmup)
    with pytest.raises(ConfigError, match=r"warmup: parity_\d+ .* reads text only.*set warmup: null"):
        await demonstrate(verl_toy.toy_items(3), pipeline=pipeline, tokenizer=toy_tokenizer())
