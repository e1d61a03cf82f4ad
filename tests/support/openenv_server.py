"""Environments behind `openenv`'s own server: `python openenv_server.py FOLDER WORD...` prints its port.

`/riddle` and `/grid` are written with the package's API; `/echo` is the environment that it ships as the
template of `openenv init`, filled in as that command does, in FOLDER.
"""

import importlib.util
import random
import socket
import sys
from importlib.resources import files
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class WordAction(Action):
    message: str = Field(description="the word")


class TextObservation(Observation):
    text: str


class Riddle(Environment[WordAction, TextObservation, State]):
    """One of the words of the command line, whose first letter is given."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> TextObservation:
        self.word = random.Random(seed).choice(sys.argv[2:])
        return TextObservation(text=f"It begins with {self.word[0]}.")

    def step(self, action: WordAction, timeout_s: float | None = None, **_: object) -> TextObservation:
        is_right = action.message == self.word
        return TextObservation(text="Yes." if is_right else "No.", done=is_right, reward=float(is_right))

    @property
    def state(self) -> State:
        return State()


class PlaceAction(Action):
    row: int
    column: int


class Board(Observation):
    rows: list[str]
    last: str = ""


class Grid(Environment[PlaceAction, Board, State]):
    """Place 0, 0 is right, row 9 breaks the environment, a third place ends the game from outside."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> Board:
        self.num_placed = 0
        return Board(rows=["..", ".."])

    def step(self, action: PlaceAction, timeout_s: float | None = None, **_: object) -> Board:
        if action.row == 9:
            raise RuntimeError("the board broke")
        self.num_placed += 1
        if (action.row, action.column) == (0, 0):
            return Board(rows=["x.", ".."], done=True, reward=0.5, metadata={"success": True})
        is_truncated = self.num_placed == 3
        return Board(
            rows=["..", ".."],
            last="missed",
            done=is_truncated,
            reward=-0.25,
            metadata={"truncated": is_truncated},
        )

    @property
    def state(self) -> State:
        return State()


def template_app(folder: Path) -> FastAPI:
    """The template's application, its own `app.py` as it is."""
    template = files("openenv.cli") / "templates" / "openenv_env"
    sources = {"models.py": "models.py", "server/__ENV_NAME___environment.py": "server/echo_environment.py"}
    for source, target in {**sources, "server/app.py": "server/app.py", "server/__init__.py": ""}.items():
        text = template.joinpath(source).read_text()
        for mark, value in {"__ENV_NAME__": "echo", "__ENV_CLASS_NAME__": "Echo"}.items():
            text = text.replace(mark, value)
        if target:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            (folder / target).write_text(text.replace("__ENV_TITLE_NAME__", "Echo"))
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("echo_app", folder / "server" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app: FastAPI = module.app
    return app


def main() -> None:
    app = FastAPI()
    app.mount("/riddle", create_fastapi_app(Riddle, WordAction, TextObservation, max_concurrent_envs=8))
    app.mount("/grid", create_fastapi_app(Grid, PlaceAction, Board, max_concurrent_envs=1))
    app.mount("/echo", template_app(Path(sys.argv[1])))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
