"""Forks in the viewer: the policies that can go on from a trajectory, its forks, and the requests that run
them.

These requests act, so they are taken from the viewer's own page alone: with JSON, which other web pages
cannot send unasked; without a foreign Origin; and with the page's key, which only the viewer's own pages can
read. They are taken on a loopback address only.
"""

import secrets
import shlex
import sqlite3
from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agents.rollout.group import Callbacks
from agents.settings import describe_invalid
from agents.types import StopReason, Trajectory
from envs.errors import ConfigError, WingspanError
from envs.files import check_writable
from envs.network.server import RequestRejected, read_body
from tasks.evaluation.forks.records import MAX_OBSERVATION, PERSON
from tasks.runs.folders import RUNS
from tasks.viewer import browse
from tasks.viewer.answers import find_row, integer, json_answer
from tasks.viewer.live import ForkPlace, Live, LiveRuns
from tasks.viewer.query import list_keys, quote
from tasks.viewer.reading import IMAGE_TYPES, LineChanged
from tasks.viewer.viewer import OpenRun, Viewer

KEY_HEADER = "x-wingspan-key"
MAX_BODY_BYTES = 256 << 10
MAX_SAMPLES = 64
MAX_LINE = 20_000
"""Characters of a person's line."""
MAX_WAIT_S = 5.0
"""How long a request for a state waits for a newer one."""
MAX_FORKS = 5000
_B = TypeVar("_B", bound=BaseModel)


class ForkBody(BaseModel, extra="forbid"):
    """Body of `POST api/fork`."""

    run: str
    address: str
    digest: str
    """The trajectory's, as it was shown: it may have been rewritten since."""
    turn: int = Field(ge=1, le=1 << 20)
    policy: str
    """One of those that `api/forks` offers, or `person`."""
    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    temperature: float | None = Field(default=None, ge=0, le=10)
    max_turns: int | None = Field(default=None, ge=1, le=10_000)
    observation: str | None = Field(default=None, max_length=MAX_OBSERVATION)


class ConsoleBody(BaseModel, extra="forbid"):
    """Body of `POST api/console`: an environment without a past."""

    env: str = Field(max_length=200)
    item: str = Field(max_length=200)


class StopBody(BaseModel, extra="forbid"):
    """Body of `POST api/stop`."""

    id: str


class ActBody(StopBody):
    """Body of `POST api/act`."""

    line: str = Field(min_length=1, max_length=MAX_LINE)


def fork_routes(viewer: Viewer, *, is_loopback: bool) -> Sequence[Route]:
    """The routes of forks and consoles. Unless `is_loopback`, they refuse to run anything."""
    key, runs = secrets.token_urlsafe(32), LiveRuns()

    def forks(request: Request) -> Response:
        """The forks of a trajectory with their values, the one that is sampled now, the policies that can
        go on from it, and what `wingspan fork` needs as `--runs`."""
        name, address = (request.query_params.get(key, "") for key in ("run", "address"))
        served = viewer.open(name)
        with served.index.connect() as connection:
            _, location = find_row(connection, address)
            return json_answer(
                {
                    "forks": _list_forks(connection, address, digest=location.digest),
                    "sampling": runs.find_sampling(run=name, address=address),
                    "policies": _offer(viewer, served) if is_loopback else [],
                    "runs": [] if list(viewer.paths) == [RUNS] else [str(path) for path in viewer.paths],
                    "generation": browse.generation(connection),
                }
            )

    def key_of_page(_: Request) -> Response:
        return json_answer({"key": key if is_loopback else ""})

    def environments(_: Request) -> Response:
        from envs.registry import ENVIRONMENTS

        return json_answer({"environments": list(ENVIRONMENTS)})

    def live(request: Request) -> Response:
        live_run = runs.find(request.query_params.get("id", ""))
        return json_answer(live_run.snapshot(after=integer(request, "after", default=-1), wait_s=MAX_WAIT_S))

    def live_image(request: Request) -> Response:
        live_run = runs.find(request.query_params.get("id", ""))
        turn, number = integer(request, "turn", default=-1), integer(request, "number", default=0)
        image = live_run.find_image(turn=turn, number=number)
        if image is None or image.media_type not in IMAGE_TYPES:
            raise RequestRejected(404, "there is no such image")
        return Response(image.data, media_type=image.media_type)

    async def fork(request: Request) -> Response:
        body = await read_own(request, ForkBody)
        return json_answer({"id": (await run_in_threadpool(_start_fork, viewer, runs, body)).id})

    async def console(request: Request) -> Response:
        body = await read_own(request, ConsoleBody)
        return json_answer({"id": (await run_in_threadpool(_start_console, runs, body)).id})

    async def act(request: Request) -> Response:
        body = await read_own(request, ActBody)
        runs.find(body.id).act(body.line)
        return json_answer({})

    async def stop(request: Request) -> Response:
        body = await read_own(request, StopBody)
        runs.find(body.id).stop()
        return json_answer({})

    async def read_own(request: Request, kind: type[_B]) -> _B:
        if not is_loopback:
            raise RequestRejected(
                403, "forks run on a loopback address only: they act on this machine; reach it by ssh -L"
            )
        body = await read_page_body(request, kind, max_bytes=MAX_BODY_BYTES)
        if not compare_digest(request.headers.get(KEY_HEADER, "").encode(), key.encode()):
            raise RequestRejected(
                403, f"the page's key (header {KEY_HEADER}) is missing or old; reload the page"
            )
        return body

    reads = {
        "forks": forks,
        "key": key_of_page,
        "environments": environments,
        "live": live,
        "live-image": live_image,
    }
    acts = (fork, console, act, stop)
    return [
        *(Route(f"/api/{name}", read) for name, read in reads.items()),
        *(Route(f"/api/{run.__name__}", run, methods=["POST"]) for run in acts),
    ]


async def read_page_body(request: Request, kind: type[_B], *, max_bytes: int) -> _B:
    """The body of a request that changes something; raises `RequestRejected` for one of another web page."""
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise RequestRejected(403, "requests of other web pages (header Origin) are not taken")
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise RequestRejected(415, "the body is JSON (header Content-Type)")
    try:
        return kind.model_validate_json(await read_body(request, max_bytes))
    except ValidationError as error:
        raise RequestRejected(422, describe_invalid(error, kind)) from None


def _start_fork(viewer: Viewer, runs: LiveRuns, body: ForkBody) -> Live:
    from tasks.evaluation.forks.fork import run_person, sample_fork
    from tasks.evaluation.forks.parents import read_parent
    from tasks.evaluation.forks.records import append_fork
    from tasks.evaluation.forks.request import ForkRequest, plan_fork

    run = viewer.open(body.run)
    is_person = body.policy == PERSON
    choices = {} if is_person else _policies(viewer, run)
    if not is_person and body.policy not in choices:
        raise ConfigError(f"policy {body.policy!r} is not offered for this trajectory; reload the page")
    check_writable(run.run.folder, remedy="make it writable: forks are recorded beside the run")
    parent = read_parent(run.run, body.address)
    if parent.digest != body.digest:
        raise LineChanged(f"{body.address} was rewritten")
    options = body.model_dump(include={"max_turns", "observation"})
    if not is_person:
        options |= {"samples": body.samples, "temperature": body.temperature, **choices[body.policy]}
    plan = plan_fork(parent, body.turn, ForkRequest(is_person=is_person, **options))

    async def play(live: Live) -> Sequence[Trajectory]:
        if plan.policy is None:
            trajectory = await run_person(plan, live.read_line, live.callbacks)
            trajectories = [] if trajectory is None else [trajectory]
            for trajectory in trajectories:
                append_fork(run.run, trajectory)
        else:

            def end(trajectory: Trajectory) -> None:
                append_fork(run.run, trajectory)
                live.end(trajectory)

            trajectories = await sample_fork(plan, Callbacks(on_trajectory=end))
        run.refresh(is_forced=True)
        return trajectories

    place = ForkPlace(body.run, body.address, body.turn)
    return runs.start(Live(play, total=plan.samples, is_person=is_person, place=place))


def _start_console(runs: LiveRuns, body: ConsoleBody) -> Live:
    from agents.rollout.scripted import run_console
    from envs.registry import ENVIRONMENTS, find_item
    from envs.runtime.manager import EnvManager

    if body.env not in ENVIRONMENTS:  # a name of a user's module would be imported
        raise ConfigError(f"there is no environment {body.env!r}; choose one of the list")
    spec = ENVIRONMENTS.find(body.env)
    spec.check()
    item = find_item(spec, body.item)

    async def play(live: Live) -> Sequence[Trajectory]:
        envs = EnvManager([spec], capacity=1)
        try:
            async with envs.lease(spec.name) as env:
                trajectory = await run_console(env, item, live.read_line, live.callbacks)
        finally:
            await envs.close()
        return [] if trajectory is None else [trajectory]

    return runs.start(Live(play, total=1, is_person=True))


def _offer(viewer: Viewer, run: OpenRun) -> list[dict[str, str]]:
    """The policies that can go on, each with the option that names it to `wingspan fork`."""
    return [
        {
            "value": name,
            "option": " ".join(f"--{key} {shlex.quote(str(value))}" for key, value in options.items()),
        }
        for name, options in _policies(viewer, run).items()
    ]


def _policies(viewer: Viewer, served: OpenRun) -> Mapping[str, Mapping[str, object]]:
    """The policies that can go on: their names on the page → options of a `ForkRequest`."""
    from tasks.evaluation.record import is_record, read_record
    from tasks.verl.checkpoints import complete_steps

    run = served.run
    choices: dict[str, Mapping[str, object]] = {}
    if run.file is None and is_record(run.folder):
        try:
            is_local = "folder" in read_record(run.folder).policy
        except WingspanError:
            is_local = False
        choices |= {"the evaluated policy": {}} if is_local else {}
    elif run.file is None:
        if (run.folder / "policy" / "config.json").exists():
            choices["the run's policy"] = {}
        steps = complete_steps(run.folder / "train" / "checkpoints")
        choices |= {f"step {step}": {"step": step} for step in reversed(steps)}
    for other_run in viewer.runs():
        if other_run.identity != run.identity and (other_run.folder / "policy" / "config.json").exists():
            choices[f"run {other_run.name}"] = {"policy": str(other_run.folder)}
    return choices


def _list_forks(connection: sqlite3.Connection, address: str, *, digest: str) -> list[dict[str, object]]:
    """One entry for each request that forked the trajectory: what was asked, its value, its first address."""
    from tasks.evaluation.forks.records import make_value

    query = f"phase:fork label.parent:{quote(address)}"
    requests: dict[str, list[browse.TrajectoryRow]] = {}
    if "parent" in list_keys(connection)["label"]:
        for row in browse.list_trajectories(connection, query, limit=MAX_FORKS):
            if row.labels.get("parent_digest") == digest:
                requests.setdefault(repr(sorted(row.labels.items())), []).append(row)
    forks = []
    for rows in requests.values():
        valid = [row for row in rows if row.stop != StopReason.ERROR]
        value = make_value(
            [row.success for row in valid],
            [row.reward or 0.0 for row in valid],
            failed=len(rows) - len(valid),
        )
        names = ("turn", "policy", "temperature", "observation", "forked_at")
        forks.append({"first": rows[0].address, "value": value, **{k: rows[0].labels.get(k) for k in names}})
    return sorted(forks, key=lambda fork: (fork["turn"], fork["forked_at"]))
