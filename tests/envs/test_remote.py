"""Playing on servers: the same game as at home, several of them, dead ones, full ones, wrong ones."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agents.agent import FormatAgent
from agents.prompting.renderer import Renderer
from agents.rollout.conversation import TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import GroupSpec, run_groups
from agents.samplers.sampler import ScriptedSampler
from agents.types import EpisodeLimits, SamplingParams, StopReason, Trajectory
from envs.builtin.textcraft.env import make_item
from envs.errors import ConfigError, EnvCrashed
from envs.registry import Split, get_env
from envs.remote.servers import RemoteEnv, Servers, WireProtocol, on_servers
from envs.runtime.manager import EnvManager
from envs.serve.limits import ServerLimits
from envs.types import Environment, Item, StepResult
from tests.support.experts import actions_of
from tests.support.http_server import serving
from tests.support.serving import ServerProcess, listening, serve_env, wait_for_metric
from tests.support.toy import ToyEnv, encode, toy_item, toy_spec, toy_tokenizer
from tests.support.waiting import wait_until_async

PLAYS = itertools.count()


@pytest.fixture(scope="module")
def textcraft() -> Iterator[ServerProcess]:
    with serve_env("textcraft") as server:
        yield server


async def play_items(
    envs: EnvManager,
    items: Sequence[Item],
    *,
    num_samples: int = 2,
    latency_s: float = 0.0,
    on_turn: Callable[[str, int], None] = lambda episode_id, turn: None,
) -> list[list[Trajectory]]:
    """The expert plays, in every sample."""
    spec = get_env(items[0].env)
    texts = [[f"Action: {action}" for action in await actions_of(spec, item)] for item in items]

    def script(episode_id: str, turn: int) -> str:
        on_turn(episode_id, turn)
        return texts[int(episode_id.split("/")[1])][turn]

    limits = EpisodeLimits(
        max_turns=60, max_tokens_per_turn=300, context_length=100_000, episode_timeout_s=60, step_timeout_s=20
    )
    config = EpisodeConfig(agent=FormatAgent("action"), limits=limits)
    return await run_groups(
        items,
        GroupSpec(name=f"play {next(PLAYS)}", num_samples=num_samples, max_attempts=3),
        envs=envs,
        start_conversation=partial(
            TokenConversation,
            sampler=ScriptedSampler(script, encode=encode, latency_s=latency_s),
            renderer=Renderer(toy_tokenizer()),
            sampling=SamplingParams(max_tokens=300),
        ),
        get_config=lambda _: config,
    )


def essence(groups: list[list[Trajectory]]) -> list[object]:
    """All of the trajectories but how long they took."""
    return [
        (t.item, t.sample_index, t.prompt_ids, t.turns, t.stop_reason, t.reward, t.success)
        for group in groups
        for t in group
    ]


def without_states(trajectory: Trajectory) -> Trajectory:
    turns = tuple(replace(turn, state=None) for turn in trajectory.turns)
    return replace(trajectory, turns=turns, final_state=None)


@pytest.mark.heavy
@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
@pytest.mark.parametrize(
    ("env", "positions"),
    [
        ("textcraft", range(6)),
        ("babyai", (0, 5)),
        ("searchqa-mini", (0, 5)),
        ("webshop-mini", (0, 5)),
        ("alfworld-mini", (0,)),
    ],
)
async def test_a_remote_episode_is_the_local_one(
    env: str, positions: Sequence[int], protocol: WireProtocol
) -> None:
    spec = get_env(env)
    if any(need.find_remedy() for need in spec.needs):
        pytest.skip(f"{env} needs something that is not installed")
    items = [spec.split(0).test[position] for position in positions]
    async with listening(spec) as url:
        servers = Servers(spec.name, [url], protocol=protocol)
        remote = EnvManager([on_servers(spec, servers)], capacity=4)
        local = EnvManager([spec], capacity=4)
        there, here = await play_items(remote, items), await play_items(local, items)
        states = [turn.state for group in here for trajectory in group for turn in trajectory.turns]
        assert (None not in states) == spec.has_states
        if protocol == "agentgym":  # which has no place for them
            here = [[without_states(trajectory) for trajectory in group] for group in here]
        assert essence(there) == essence(here)
        assert all(trajectory.success for group in here for trajectory in group)
        await remote.close()
        assert servers.live == {url: 0}


@pytest.mark.heavy
@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_a_killed_servers_episodes_are_played_elsewhere(
    protocol: WireProtocol, textcraft: ServerProcess
) -> None:
    deep = [item for item in get_env("textcraft").split(0).test if item.metadata["depth"] > 1]
    items = deep[:20]
    dying = ServerProcess("textcraft")
    started_episodes: set[str] = set()

    def kill_when_all_are_playing(episode_id: str, turn: int) -> None:
        if turn == 1:
            started_episodes.add(episode_id)
        if len(started_episodes) == 16:
            dying.process.kill()

    try:
        servers = Servers("textcraft", [dying.url, textcraft.url], protocol=protocol)
        envs = EnvManager([on_servers(get_env("textcraft"), servers)], capacity=16)
        groups = await play_items(
            envs, items, num_samples=4, latency_s=0.01, on_turn=kill_when_all_are_playing
        )
        assert [(t.item, t.sample_index) for group in groups for t in group] == [
            (item, sample_index) for item in items for sample_index in range(4)
        ]
        assert {(t.stop_reason, t.success) for group in groups for t in group} == {
            (StopReason.TERMINATED, True)
        }
        assert max(t.attempts for group in groups for t in group) > 1
        assert servers.live[dying.url] == 0
        await envs.close()
    finally:
        dying.stop()


@pytest.mark.heavy
async def test_instances_are_spread_and_a_dead_server_comes_back() -> None:
    spec = get_env("textcraft")
    async with listening(spec) as url, AsyncExitStack() as dying:
        second_url = await dying.enter_async_context(listening(spec))
        servers = Servers("textcraft", [url, second_url])
        envs = [servers.make() for _ in range(6)]
        for env in envs:
            await env.reset(make_item(1))
        assert servers.live == {url: 3, second_url: 3}
        await dying.aclose()
        with pytest.raises(EnvCrashed, match=second_url):
            await envs[1].step("inventory")
        for env in envs:
            await env.close()
        envs = [servers.make() for _ in range(3)]
        for env in envs:
            await env.reset(make_item(1))
        assert servers.live == {url: 3, second_url: 0}
        async with listening(spec, port=int(second_url.rpartition(":")[2])):

            async def is_back() -> bool:
                envs.append(servers.make())
                await envs[-1].reset(make_item(1))
                return servers.live[second_url] > 0

            await wait_until_async(is_back)
            for env in envs:
                await env.close()


@pytest.mark.parametrize("protocol", ["wingspan", pytest.param("agentgym", marks=pytest.mark.heavy)])
async def test_a_full_server_is_passed_by_and_waited_for(protocol: WireProtocol) -> None:
    spec = get_env("textcraft")
    async with listening(spec, limits=ServerLimits(max_sessions=1)) as small, listening(spec) as large:
        two_servers = Servers("textcraft", [small, large], protocol=protocol)
        envs = [two_servers.make() for _ in range(4)]
        for env in envs:
            await env.reset(make_item(1))
        assert two_servers.live == {small: 1, large: 3}
        impatient = Servers("textcraft", [small], protocol=protocol, patience_s=0.3).make()
        with pytest.raises(EnvCrashed, match=r"no server has room.*--max-sessions"):
            await impatient.reset(make_item(1))
        late = Servers("textcraft", [small], protocol=protocol).make()
        waiting = asyncio.create_task(late.reset(make_item(1)))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        for env in envs:
            await env.close()
        assert await waiting == await spec.make().reset(make_item(1))
        await late.close()


@pytest.mark.heavy
@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_a_session_that_expired_between_episodes_costs_nothing(protocol: WireProtocol) -> None:
    limits = ServerLimits(idle_s=0.2)
    async with listening(get_env("textcraft"), limits=limits, tokens=("secret",)) as url:
        env = Servers("textcraft", [url], protocol=protocol, token="secret").make()
        opening = await env.reset(make_item(1))
        await wait_for_metric(
            url, 'wingspan_sessions_ended_total{cause="idle",env="textcraft"}', 1, token="secret"
        )
        with pytest.raises(EnvCrashed, match=url):
            await env.step("inventory")  # in an episode it does
        assert await env.reset(make_item(1)) == opening
        await wait_for_metric(
            url, 'wingspan_sessions_ended_total{cause="idle",env="textcraft"}', 2, token="secret"
        )
        assert await env.reset(make_item(1)) == opening
        assert (await env.step("inventory")).observation.startswith("Inventory")
        await env.close()
        await env.close()

        for wrong in (None, "guess"):
            stranger = Servers("textcraft", [url], protocol=protocol, token=wrong).make()
            with pytest.raises(ConfigError, match=f"{url}.*401.*token"):
                await stranger.reset(make_item(1))


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_a_server_that_was_restarted_between_episodes_is_not_left_out(
    protocol: WireProtocol, caplog: pytest.LogCaptureFixture
) -> None:
    spec = get_env("textcraft")
    async with listening(spec) as url:
        env = Servers("textcraft", [url], protocol=protocol).make()
        opening = await env.reset(make_item(1))
    async with listening(spec, port=int(url.rpartition(":")[2])):
        assert await env.reset(make_item(1)) == opening
        assert (await env.step("inventory")).observation.startswith("Inventory")
        await env.close()
    assert not caplog.records


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_a_server_that_never_answers_is_left_out(protocol: WireProtocol) -> None:
    hung = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    silent = f"http://127.0.0.1:{hung.sockets[0].getsockname()[1]}"
    async with hung, listening(get_env("textcraft")) as url:
        servers = Servers("textcraft", [silent, url], protocol=protocol, request_timeout_s=0.5)
        envs = [servers.make() for _ in range(2)]
        for env in envs:
            await env.reset(make_item(1))
        assert servers.live == {silent: 0, url: 2}
        for env in envs:
            await env.close()


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_the_first_episode_does_not_wait_for_a_server_that_hangs(protocol: WireProtocol) -> None:
    """Nor does a cancelled one, whose session comes to nobody."""
    hung = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    silent = f"http://127.0.0.1:{hung.sockets[0].getsockname()[1]}"
    async with hung, listening(get_env("textcraft")) as url:
        servers = Servers("textcraft", [silent, url], protocol=protocol, request_timeout_s=600)
        env = servers.make()
        await env.reset(make_item(1))  # within the time of a test
        assert servers.live == {silent: 1, url: 1}
        cancelled = asyncio.create_task(servers.make().reset(make_item(1)))
        await wait_until_async(lambda: servers.live[silent] > 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert servers.live == {silent: 1, url: 1}
        await env.close()


async def test_slow_servers_open_no_more_sessions_than_there_are_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that come late are for the instances that wait: none is opened besides, to be closed again."""
    monkeypatch.setattr("envs.remote.servers.SLOW_S", 0.0)
    may_answer, numbers = asyncio.Event(), itertools.count(1)
    created: list[int] = []

    async def answer(request: Request) -> Response:
        if request.url.path != "/create":
            return JSONResponse(True)
        created.append(next(numbers))
        number = created[-1]
        await may_answer.wait()
        return JSONResponse({"id": number})

    app = Starlette(routes=[Route("/{name}", answer, methods=["POST"])])
    async with serving(app) as first, serving(app) as second:
        servers = Servers("sciworld", [first, second], protocol="agentgym")
        envs = [RemoteEnv(servers) for _ in range(4)]
        waiting = [asyncio.create_task(env.acquire()) for env in envs]
        await wait_until_async(lambda: len(created) >= len(envs))
        may_answer.set()
        await asyncio.gather(*waiting)
        assert servers.live == {first: 2, second: 2}
        for env in envs:
            await env.close()
    assert len(created) == len(envs)


async def test_a_server_whose_steps_hang_gets_no_new_episodes() -> None:
    """Whoever plays gives a step up long before `request_timeout_s`."""

    class Hangs:
        async def reset(self, item: Item) -> str:
            return "begun"

        async def step(self, action: str) -> StepResult:
            await asyncio.sleep(60)
            raise AssertionError

        def state_key(self) -> str | None:
            return None

        async def close(self) -> None: ...

    textcraft = get_env("textcraft")
    async with listening(replace(textcraft, make=Hangs)) as silent, listening(textcraft) as url:
        servers = Servers("textcraft", [silent, url], protocol="wingspan")
        first = servers.make()
        assert await first.reset(make_item(1)) == "begun"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.step("inventory"), 0.2)
        await first.close()
        second = servers.make()
        assert await second.reset(make_item(1)) != "begun"
        await second.close()


def cannot_be_made() -> Environment:
    raise RuntimeError("no browser")


class CannotBegin(ToyEnv):
    async def reset(self, item: Item) -> str:
        raise RuntimeError("no browser")


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
@pytest.mark.parametrize(("make", "num_failures"), [(cannot_be_made, 0), (CannotBegin, 1)])
async def test_a_server_on_which_no_episode_can_begin_gets_no_more(
    make: Callable[[], Environment],
    num_failures: int,
    protocol: WireProtocol,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the fewest sessions, so each attempt would go there."""
    monkeypatch.setattr("envs.remote.servers.FIRST_REST_S", 60.0)
    item = toy_item(1)
    async with listening(toy_spec(make)) as broken, listening(toy_spec()) as url:
        servers = Servers("toy", [broken, url], protocol=protocol)
        failures, envs = [], [servers.make() for _ in range(4)]
        for env in envs:
            try:
                await env.reset(item)
            except EnvCrashed as error:
                failures.append(str(error))
        assert len(failures) == num_failures
        assert all("no browser" in failure for failure in failures)
        assert servers.live == {broken: 0, url: 4 - num_failures}
        alone = Servers("toy", [broken], protocol=protocol, patience_s=0.1).make()
        with pytest.raises(EnvCrashed, match="no browser"):
            await alone.reset(item)
        for env in (*envs, alone):
            await env.close()


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_a_server_of_another_environment_is_refused(
    protocol: WireProtocol, textcraft: ServerProcess
) -> None:
    """Even if the other one has an item of the same number."""
    env = Servers("babyai", [textcraft.url], protocol=protocol).make()
    with pytest.raises(ConfigError, match=f"{textcraft.url}.*textcraft"):
        await env.reset(Item(item_id="babyai_1", env="babyai"))
    await env.close()


@pytest.mark.parametrize(
    ("answer", "is_accepted"),
    [
        ("This is environment ScienceWorld.", True),
        ("This is environment sciworld.", True),
        ("This is environment BabyAI.", False),
        ("This is environment babyai.", False),
        ("This is environment textworld.", False),
        ("This is environment gymnasium:Taxi-v4.", False),
        ("This is environment Chemistry.", True),  # as a server that is known to nobody here may say
        ("ok", True),  # as WebShop's says
        (None, True),
    ],
)
async def test_agentgyms_own_servers_are_known_by_their_own_names(
    answer: str | None, is_accepted: bool
) -> None:
    async def greet(request: Request) -> Response:
        return Response(status_code=404) if answer is None else JSONResponse(answer)

    async def begin(request: Request) -> Response:
        return JSONResponse({"id": 7, "task_description": "Boil water.", "observation": "A room."})

    routes = [Route("/", greet), Route("/{name}", begin, methods=["POST"])]
    async with serving(Starlette(routes=routes)) as url:
        env = Servers("sciworld", [url], protocol="agentgym").make()
        refusal = pytest.raises(ConfigError, match=f"{url} serves environment '.*', not 'sciworld'")
        with nullcontext() if is_accepted else refusal:
            assert await env.reset(Item("sciworld_3", env="sciworld")) == "Boil water.\nA room."
        await env.close()


@pytest.mark.parametrize("protocol", ["wingspan", "agentgym"])
async def test_what_no_retry_fixes_is_an_error_of_one_line(
    protocol: WireProtocol, textcraft: ServerProcess
) -> None:
    wrong_env = Servers("textcraft", [f"{textcraft.url}/nowhere"], protocol=protocol).make()
    with pytest.raises(ConfigError, match=r"/nowhere/.* answers 404"):
        await wrong_env.reset(make_item(1))
    dead = Servers("textcraft", ["http://127.0.0.1:9"], protocol=protocol, patience_s=0.1).make()
    with pytest.raises(EnvCrashed, match=r"no server has room.*127.0.0.1:9 .*Connect"):
        await dead.reset(make_item(1))
    for urls in (
        [],
        ["localhost:8000"],
        ["http://"],
        ["http://[::1"],
        ["http://host:99999"],
        ["http://a b"],
        ["ftp://host"],
    ):
        with pytest.raises(ConfigError, match="servers: "):
            Servers("textcraft", urls, protocol=protocol)


class EndsAtOnce(ToyEnv):
    """An episode of one step, whose action is its reward."""

    async def step(self, action: str) -> StepResult:
        return StepResult("The end.", float(action), terminated=True)


@pytest.mark.parametrize(
    ("env", "reward", "is_success"),
    [
        ("toy", 0.01, False),
        ("toy", 1.0, True),
        ("textworld:cooking", 0.75, False),
        ("babyai", 0.1, True),  # minigrid's: less for more steps, 0 for a failed mission
        ("babyai", 0.0, False),
        ("miniwob", 0.2, True),  # docs/environments.md: more than 0
        ("miniwob", -1.0, False),
    ],
)
async def test_agentgyms_rewards_tell_success(env: str, reward: float, is_success: bool) -> None:
    """Its protocol has no word for success: the full reward, where no environment says otherwise."""
    item = Item(item_id=f"{env}_0", env=env, metadata={"target": 1})
    spec = toy_spec(EndsAtOnce, name=env, split=lambda seed: Split(train=[item], test=[]))
    async with listening(spec) as url:
        remote = Servers(env, [url], protocol="agentgym").make()
        await remote.reset(item)
        end = await remote.step(str(reward))
        assert (end.reward, end.terminated, end.success) == (reward, True, is_success)
        await remote.close()


async def test_an_instance_whose_creation_was_cancelled_is_closed() -> None:
    """The server makes it regardless, as AgentGym's own do."""
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    closed: list[object] = []

    async def answer(request: Request) -> Response:
        if request.url.path == "/create":
            has_begun.set()
            await may_end.wait()
            return JSONResponse({"id": 7})
        closed.append((request.url.path, await request.json()))
        return JSONResponse(True)

    async with serving(Starlette(routes=[Route("/{name}", answer, methods=["POST"])])) as url:
        env = Servers("sciworld", [url], protocol="agentgym").make()
        reset = asyncio.create_task(env.reset(Item(item_id="sciworld_3", env="sciworld")))
        await has_begun.wait()
        reset.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await reset
        await env.close()
    assert closed == [("/close", {"id": 7})]


async def test_agentgyms_own_answers_are_read_as_its_clients_read_them() -> None:
    """A server that answers as AgentGym's SciWorld does: points to 100, one text in two, errors with 200."""
    steps = [
        {"observation": "good", "reward": 25, "score": 25, "done": False},
        {"observation": "lost", "reward": -125, "score": -100, "done": True},
        {"observation": "better", "reward": 40, "score": 40, "done": False},
        {"observation": "done", "reward": 60, "score": 100, "done": True},
        # an item that has 20 points at its reset: AgentGym's rewards add up to 80
        {"observation": "nothing", "reward": 0, "score": 20, "done": False},
        {"observation": "all", "reward": 80, "score": 100, "done": True},
        {"error": "The id 7 is not valid."},
    ]
    received_requests: list[object] = []

    async def answer(request: Request) -> Response:
        received_requests.append((request.url.path, await request.json()))
        match request.url.path:
            case "/create":
                return JSONResponse({"id": 7})
            case "/reset":
                return JSONResponse(
                    {
                        "task_name": "boil",
                        "var_num": 3,
                        "task_description": "Boil water.",
                        "observation": "A room.",
                    }
                )
            case "/step":
                return JSONResponse(steps.pop(0))
        return JSONResponse(True)

    async def play(env: Environment) -> None:
        item = Item(item_id="sciworld_3", env="sciworld")
        assert await env.reset(item) == "Boil water.\nA room."
        good, wrong_env = await env.step("look"), await env.step("focus on air")
        assert (good.reward, good.terminated, good.success) == (0.25, False, False)
        assert (wrong_env.reward, wrong_env.terminated, wrong_env.success) == (-0.25, True, False)
        await env.reset(item)
        better, done = await env.step("look"), await env.step("wait")
        assert (better.reward, done.reward, done.terminated, done.success) == (0.4, 0.6, True, True)
        await env.reset(item)
        nothing, last = await env.step("look"), await env.step("wait")
        assert (nothing.reward, last.reward, last.success) == (0.2, 0.8, True)
        with pytest.raises(EnvCrashed, match="The id 7 is not valid"):
            await env.step("look")
        await env.close()

    async with serving(Starlette(routes=[Route("/{name}", answer, methods=["POST"])])) as url:
        await play(Servers("sciworld", [url], protocol="agentgym").make())
    assert received_requests[:3] == [
        ("/create", {}),
        ("/reset", {"id": 7, "data_idx": 3}),
        ("/step", {"id": 7, "action": "look"}),
    ]
    assert received_requests[-1] == ("/close", {"id": 7})
