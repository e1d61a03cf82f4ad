"""What is handed to verl's trainer: which episodes, laid out how, and what its client is asked."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agents.huggingface.files import load_tokenizer
from agents.samplers.sampler import ScriptedSampler
from agents.types import Completion, FinishReason, SamplingParams, StopReason, Trajectory, Turn
from envs.errors import ConfigError, SamplerFailed
from envs.types import Item
from tasks.cluster.session import disconnect_ray, start_local_ray
from tasks.config.pipelines import load_pipeline
from tasks.data.trajectories import is_informative
from tasks.errors import Diverged, SamplerDied
from tasks.rollout.history import History
from tasks.verl.config import verl_config
from tasks.verl.queue import start_queue
from tasks.verl.rollout import RolloutManager, VerlSampler, check_log_probs, check_uncut, why_none
from tasks.verl.rows import fields_of, rows_of, trainable
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import register, toy_items, toy_pipeline, write_sample_ahead


def trajectory(
    reward: float = 0.0, *, sample_index: int = 0, stop: StopReason = StopReason.TERMINATED, turns: int = 2
) -> Trajectory:
    def turn(last: bool) -> Turn:
        completion = Completion(
            token_ids=(4, 5), logprobs=(-0.5, -1.5), finish_reason=FinishReason.STOP, policy_version=7
        )
        return Turn(
            completion=completion,
            text="",
            action="",
            observation="",
            reward=reward if last else 0.0,
            observation_ids=(6,),
        )

    return Trajectory(
        item=Item(item_id="x_1", env="x"),
        sample_index=sample_index,
        prompt_ids=(1, 2, 3),
        turns=tuple(turn(i == turns - 1) for i in range(turns)),
        stop_reason=stop,
        reward=reward,
        success=reward > 0,
        seconds=0.1,
    )


FAILURE = trajectory(stop=StopReason.ERROR, turns=0)
NO_ROOM = trajectory(stop=StopReason.MAX_CONTEXT, turns=0)
WIN, LOSS = trajectory(1.0), trajectory(0.0, sample_index=1)
LONG_LOSS = trajectory(0.0, sample_index=1, turns=3)
KL = {"train__kl": {"coef": 0.1}}
OVERLONG = {"train__algorithm": {"name": "grpo", "overlong": {"buffer": 0.25}}}


@pytest.mark.parametrize(
    ("group", "options", "trained_on"),
    [
        ([WIN, LOSS], {}, [WIN, LOSS]),
        ([WIN, FAILURE, LOSS], {}, [WIN, LOSS]),
        ([WIN, FAILURE], {}, []),  # compared with nothing
        ([WIN, FAILURE, FAILURE], KL, []),
        ([WIN, FAILURE, FAILURE], {"train__algorithm": "reinforce_plus_plus"}, [WIN]),
        ([WIN, NO_ROOM, LOSS], {}, [WIN, LOSS]),
        ([LOSS, LOSS], {}, []),  # no advantage, no gradient
        ([LOSS, LOSS], KL, [LOSS, LOSS]),  # but with a KL term there is one
        ([LOSS, LOSS], {"train__algorithm": "reinforce_plus_plus"}, [LOSS, LOSS]),
        ([LOSS, LONG_LOSS], {}, []),
        ([LOSS, LONG_LOSS], OVERLONG, [LOSS, LONG_LOSS]),  # the penalty makes their scores differ
        ([FAILURE, FAILURE], KL, []),
    ],
)
def test_which_episodes_are_trained_on(
    group: list[Trajectory], options: dict[str, Any], trained_on: list[Trajectory]
) -> None:
    settings = toy_pipeline(Path("model"), **options).train
    assert trainable(group, settings, context_length=9) == trained_on


def test_a_failed_episode_does_not_make_a_group_informative() -> None:
    assert is_informative([WIN, LOSS])
    assert not is_informative([WIN, FAILURE])  # its reward of 0 is none
    assert not is_informative([FAILURE, FAILURE])


def test_a_step_without_episodes_is_explained_by_a_real_failure_or_by_the_room_that_is_missing() -> None:
    """The first episode's error was told, which is none where another one failed."""
    no_turn = trajectory(stop=StopReason.MAX_CONTEXT, turns=0)
    failure = replace(trajectory(stop=StopReason.ERROR, turns=0), error="EnvCrashed: the world ended")
    assert why_none([no_turn, failure, failure]) == (
        "no episode was played to its end; 2 failed, the first of them by EnvCrashed: the world ended"
    )
    assert why_none([no_turn, no_turn]) == (
        "the policy had no turn in any of 2 episodes (max_context): their prompts have 3 tokens or more; "
        "raise rollout.context_length"
    )


def test_a_conversation_that_was_cut_is_refused_at_its_step_where_a_loss_needs_the_whole() -> None:
    first, second = trajectory(1.0).turns
    cut = replace(trajectory(1.0, sample_index=3), turns=(first, replace(second, prompt_ids=(1, 9))))
    check_uncut(rows_of("a", [WIN, LOSS]), loss="gspo")
    with pytest.raises(ConfigError, match=r"loss gspo: .*, and that of x_1, sample 3, was cut .*; leave out"):
        check_uncut(rows_of("a", [WIN, cut]), loss="gspo")


def test_rows_carry_exactly_what_was_sampled() -> None:
    fields = fields_of([*rows_of("a", [WIN]), *rows_of("b", [trajectory(1.0, turns=1)])])
    long, short = fields[0], fields[1]
    assert long["prompts"].tolist() == [1, 2, 3]
    assert long["responses"].tolist() == [4, 5, 6, 4, 5]  # no observation at the end
    assert long["input_ids"].tolist() == [1, 2, 3, 4, 5, 6, 4, 5]
    assert long["position_ids"].tolist() == list(range(8))
    assert long["response_mask"].tolist() == long["loss_mask"].tolist() == [1, 1, 0, 1, 1]
    assert long["rollout_log_probs"].tolist() == [-0.5, -1.5, 0.0, -0.5, -1.5]
    assert short["responses"].tolist() == [4, 5]
    assert [long["uid"], short["uid"]] == ["a", "b"]


def test_each_segment_carries_the_tokens_of_its_whole_trajectory() -> None:
    first, second = trajectory(1.0).turns
    two_segments = replace(trajectory(1.0), turns=(first, replace(second, prompt_ids=(1, 9))))
    fields = fields_of([*rows_of("a", [two_segments]), *rows_of("b", [trajectory(1.0, turns=1)])])
    assert [row["responses"].tolist() for row in fields] == [[4, 5], [4, 5], [4, 5]]
    assert fields["conversation_tokens"].tolist() == [4, 4, 2]
    assert fields["conversation"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_log_probs_that_are_not_numbers_are_found(value: float) -> None:
    first, second = trajectory(1.0).turns
    completion = replace(second.completion, logprobs=(-0.5, value))
    nan_trajectory = replace(
        trajectory(1.0, sample_index=1), turns=(first, replace(second, completion=completion))
    )
    check_log_probs([[WIN, LOSS], [FAILURE, WIN]], step=3, lr=0.5)
    with pytest.raises(Diverged, match=rf"^step 3: .* {value} \(x_1, sample 1\); lower train\.lr \(0\.5\)$"):
        check_log_probs([[WIN, LOSS], [FAILURE, nan_trajectory]], step=3, lr=0.5)


class Client:
    """verl's client as far as it is used: answers what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.request: tuple[Any, ...] = ()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], image_data: None
    ) -> Any:
        self.request = (request_id, prompt_ids, sampling_params)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def sample(client: Client, **params: Any) -> Completion:
    request = SamplingParams(max_tokens=9, stop_token_ids=(2,), **params)
    return asyncio.run(VerlSampler(client).sample((1, 2), params=request, episode_id="e"))


@pytest.mark.parametrize(("ids", "reason"), [([8, 2], FinishReason.STOP), ([8, 9], FinishReason.LENGTH)])
def test_verls_answer_becomes_a_completion(ids: list[int], reason: FinishReason) -> None:
    client = Client(
        SimpleNamespace(
            token_ids=ids, log_probs=[-0.1, -0.2], stop_reason="x", extra_fields={"global_steps": 3}
        )
    )
    assert sample(client, temperature=0.5) == Completion(
        token_ids=tuple(ids), logprobs=(-0.1, -0.2), finish_reason=reason, policy_version=3
    )
    request_id, prompt_ids, request = client.request
    assert (request_id, prompt_ids) == ("e", [1, 2])
    assert request["temperature"] == 0.5
    assert request["top_k"] == -1  # verl's "all"
    assert request["stop_token_ids"] == [2]
    assert request["logprobs"] is True


def test_an_empty_answer_is_a_fault_and_a_dead_server_is_not() -> None:
    from ray.exceptions import ActorDiedError

    empty = SimpleNamespace(token_ids=[], log_probs=[], stop_reason="aborted", extra_fields={})
    with pytest.raises(SamplerFailed, match="aborted"):
        sample(Client(empty))
    with pytest.raises(SamplerDied):
        sample(Client(ActorDiedError()))


@pytest.fixture
def queue(verl: ModuleType) -> Iterator[None]:
    """TransferQueue, in a Ray of this test."""
    import transfer_queue as tq

    start_local_ray(num_cpus=4)
    config = verl_config(load_pipeline("textcraft-cpu"), model="m", checkpoints=Path())
    watch = start_queue(config.transfer_queue)
    yield
    watch.stop()
    tq.close()
    disconnect_ray()


def with_versions(sample_index: int, *versions: int) -> Trajectory:
    """An episode with a turn of each of these versions of the policy, and its own reward."""
    episode = trajectory(float(sample_index), sample_index=sample_index, turns=len(versions))
    turns = [
        replace(turn, completion=replace(turn.completion, policy_version=version))
        for turn, version in zip(episode.turns, versions, strict=True)
    ]
    return replace(episode, turns=tuple(turns))


@pytest.mark.slow
@pytest.mark.usefixtures("queue")
def test_an_episode_with_a_token_of_an_older_policy_is_never_trained_on(tmp_path: Path) -> None:
    """Step 3 updates the policy of version 2, and with a staleness of 1, version 1 may have sampled."""
    import transfer_queue as tq

    register()
    model = save_tiny_model(tmp_path / "model")
    pipeline = toy_pipeline(
        model, train__async={"staleness": 1}, train__steps=3, train__algorithm={"name": "reinforce_plus_plus"}
    )
    group = [
        with_versions(0, 0, 0),
        with_versions(1, 1, 1),
        with_versions(2, 2, 2),
        with_versions(3, 1, 2),
        with_versions(4, 0, 1),  # the policy was updated while it was played
        with_versions(5, 2, 0),
    ]
    write_sample_ahead(tmp_path, pipeline, step=3, groups=[group])
    manager = RolloutManager(
        pipeline,
        items=toy_items(12),
        sampler=ScriptedSampler([], encode=str.encode),
        tokenizer=load_tokenizer(model),
        history=History(),
    )
    manager.restore_ahead(tmp_path)
    manager.generate_sequences({"uid": ["u"], "global_steps": 3})
    assert manager.last is not None
    assert [t.sample_index for t in manager.last.trained.values()] == [1, 2, 3]
    keys = list(tq.kv_list("train")["train"])
    assert len(keys) == 3 + 1, "the rows that verl trains on, and their prompt"
    manager.close()
