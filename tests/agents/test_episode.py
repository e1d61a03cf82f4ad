"""One episode: what is trained is what was sampled, and every way to end."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from agents.agent import Agent, FormatAgent
from agents.prompting.renderer import Renderer
from agents.rollout.conversation import TokenConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.rollout.packing import pack
from agents.samplers.sampler import Sampler, ScriptedSampler
from agents.tools.episode import act
from agents.tools.toolbox import Toolbox
from agents.types import (
    MIN_COMPLETION,
    Completion,
    EpisodeLimits,
    FinishReason,
    SamplingParams,
    StopReason,
    Trajectory,
)
from envs.errors import EnvCrashed, EpisodeTimeout, MissingDependency, SamplerFailed
from envs.types import Environment, Image, Item, StepResult
from tests.support.toy import CHATML, PIPES, ToyEnv, encode, token_id, toy_item, toy_tokenizer

LIMITS = EpisodeLimits(
    max_turns=4, max_tokens_per_turn=40, context_length=400, episode_timeout_s=5, step_timeout_s=5
)
STOP = token_id("<|im_end|>")


def says(*texts: str) -> ScriptedSampler:
    return ScriptedSampler(texts, encode=encode, policy_version=3)


def play_one(
    sampler: Sampler,
    *,
    env: Environment | None = None,
    limits: EpisodeLimits = LIMITS,
    item: Item | None = None,
    agent: Agent | None = None,
    template: str = CHATML,
    stop_token_ids: tuple[int, ...] = (),
) -> Trajectory:
    return asyncio.run(
        run_episode(
            env or ToyEnv(),
            item or toy_item(),
            sample_index=0,
            conversation=partial(
                TokenConversation,
                sampler=sampler,
                renderer=Renderer(toy_tokenizer(template)),
                sampling=SamplingParams(max_tokens=1, stop_token_ids=stop_token_ids),
            )("e", where="toy_0", limits=limits),
            config=EpisodeConfig(agent=agent or FormatAgent("action"), limits=limits),
        )
    )


def test_a_whole_episode_by_hand() -> None:
    trajectory = play_one(says("Action: add 1", "Thought: two more\nAction: add 2"))
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert (trajectory.reward, trajectory.success, trajectory.attempts, trajectory.error) == (
        1.0,
        True,
        1,
        None,
    )
    assert [t.action for t in trajectory.turns] == ["add 1", "add 2"]
    assert [t.observation for t in trajectory.turns] == ["The total is 1.", "The total is 3."]
    assert [t.reward for t in trajectory.turns] == [0.0, 1.0]
    assert [t.completion.policy_version for t in trajectory.turns] == [3, 3]
    assert toy_tokenizer().decode(trajectory.prompt_ids) == (
        "<|im_start|>user\nGoal: reach 3.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert toy_tokenizer().decode(pack(trajectory)[0].response_ids) == (
        "Action: add 1<|im_end|>\n<|im_start|>user\nThe total is 1.<|im_end|>\n<|im_start|>assistant\n"
        "Thought: two more\nAction: add 2<|im_end|>"
    )


def test_instructions_open_the_first_message() -> None:
    trajectory = play_one(says("Action: add 3"), agent=FormatAgent("action", instructions="Play."))
    form = "Answer in this form, the action on one line:\nThought: your reasoning\nAction: your next action"
    prompt = toy_tokenizer().decode(trajectory.prompt_ids)
    assert f"user\nPlay. {form}\n\nGoal: reach 3.<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("texts", "max_steps", "reason"),
    [
        (["Action: add 3"], 9, StopReason.TERMINATED),
        (["Action: add 9"], 9, StopReason.TERMINATED),
        (["Action: add 1", "Action: add 1"], 2, StopReason.TRUNCATED),
        (["Action: add 0"] * 4, 9, StopReason.MAX_TURNS),
        (["Action: add 0"] * 3 + ["Action: add 3"], 9, StopReason.TERMINATED),  # on the last turn allowed
    ],
)
def test_stop_reasons(texts: list[str], max_steps: int, reason: StopReason) -> None:
    trajectory = play_one(says(*texts), env=ToyEnv(max_steps=max_steps))
    assert trajectory.stop_reason is reason
    assert len(trajectory.turns) == len(texts)
    assert trajectory.turns[-1].observation_ids == ()
    assert all(turn.observation_ids for turn in trajectory.turns[:-1])


@pytest.mark.parametrize(
    ("texts", "states", "final_state"),
    [
        (["Action: add 1", "Action: add 2"], ["0", "1"], None),  # solved
        (["Action: add 1", "nothing", "Action: add 9"], ["0", "1", "1"], None),  # lost
        (["Action: add 0", "Action: add 1", "Action: look", "Action: add 1"], ["0", "0", "1", "1"], "2"),
    ],
)
def test_a_turn_knows_the_state_in_which_it_was_taken(
    texts: list[str], states: list[str], final_state: str | None
) -> None:
    trajectory = play_one(says(*texts))
    assert [turn.state for turn in trajectory.turns] == states
    assert trajectory.final_state == final_state


def test_an_answer_leads_to_no_state() -> None:
    """Nothing can be done after it, though the environment could go on."""
    agent = FormatAgent("hermes", schemas=Toolbox([act]).schemas)
    trajectory = play_one(says("I give up."), agent=agent)
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert [turn.state for turn in trajectory.turns] == ["0"]
    assert trajectory.final_state is None


def test_a_key_that_cannot_be_computed_is_the_environments_fault() -> None:
    class CrashingEnv(ToyEnv):
        def state_key(self) -> str | None:
            raise KeyError("lost")

    with pytest.raises(EnvCrashed, match="toy_0: state_key raised KeyError"):
        play_one(says("Action: add 3"), env=CrashingEnv())


def test_no_room_for_another_turn_is_max_context() -> None:
    texts = ["Thought: the total is now 0, so\nAction: add 0"] * 4
    full = play_one(says(*texts))
    first = full.turns[0]
    min_length = (
        len(full.prompt_ids) + len(first.completion.token_ids) + len(first.observation_ids) + MIN_COMPLETION
    )

    just_fits = play_one(says(*texts), limits=replace(LIMITS, context_length=min_length))
    assert len(just_fits.turns) == 2
    assert len(just_fits.turns[1].completion.token_ids) <= MIN_COMPLETION
    assert just_fits.turns[1].completion.finish_reason is FinishReason.LENGTH

    one_less = play_one(says(*texts), limits=replace(LIMITS, context_length=min_length - 1))
    assert one_less.stop_reason is StopReason.MAX_CONTEXT
    assert len(one_less.turns) == 1
    assert one_less.turns[0].observation_ids == ()


@pytest.mark.parametrize("context_length", range(20, 200, 9))
def test_an_episode_never_outgrows_its_context(context_length: int) -> None:
    limits = replace(LIMITS, max_turns=50, context_length=context_length)
    trajectory = play_one(says(*["Thought: the total is now\nAction: add 0"] * 50), limits=limits)
    assert trajectory.stop_reason is StopReason.MAX_CONTEXT
    if trajectory.turns:
        [segment] = pack(trajectory)
        assert len(segment.prompt_ids) + len(segment.response_ids) <= context_length


def test_a_prompt_without_room_for_a_turn_ends_at_once() -> None:
    trajectory = play_one(says(), limits=replace(LIMITS, context_length=20))
    assert (trajectory.stop_reason, trajectory.turns) == (StopReason.MAX_CONTEXT, ())


def test_what_is_no_action_goes_to_the_environment_and_is_counted() -> None:
    trajectory = play_one(says("I add 3", "Action: add 1\nAction: add 2", "Action: add 3"))
    assert [t.action for t in trajectory.turns] == ["I add 3", "Action: add 1\nAction: add 2", "add 3"]
    assert [t.observation for t in trajectory.turns][:2] == [
        "Could not execute I add 3",
        "Could not execute Action: add 1\nAction: add 2",
    ]
    assert trajectory.metrics == {"parse_failures": 2, "segments": 1}
    assert trajectory.success


class CountingEnv(ToyEnv):
    """Tells how far it has come."""

    async def step(self, action: str) -> StepResult:
        result = await super().step(action)
        return replace(result, metrics={"came": result.reward, action: 1.0})


def test_the_last_of_the_environments_own_numbers_are_the_episodes() -> None:
    trajectory = play_one(says("Action: add 1", "Action: add 2"), env=CountingEnv())
    env_metrics = {
        name: value for name, value in trajectory.metrics.items() if name.startswith("env_metrics/")
    }
    assert env_metrics == {"env_metrics/came": 1.0, "env_metrics/add 1": 1.0, "env_metrics/add 2": 1.0}


class RandomSampler:
    """Draws tokens at random, so that decoding and encoding them would not give them back."""

    def __init__(self, vocabulary: int, *, stop: int | None) -> None:
        self.rng = random.Random(0)
        self.vocabulary = vocabulary
        self.stop = stop
        self.answers: list[Completion] = []
        self.prompts: list[list[int]] = []

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.prompts.append(list(prompt_ids))
        ids = [self.rng.randrange(10, self.vocabulary) for _ in range(self.rng.randint(1, 12))]
        if self.stop is not None:
            ids.append(self.stop)
        answer = Completion(
            token_ids=tuple(ids),
            logprobs=tuple(-self.rng.random() for _ in ids),
            finish_reason=FinishReason.LENGTH if self.stop is None else FinishReason.STOP,
            policy_version=len(self.answers),
        )
        self.answers.append(answer)
        return answer


@pytest.mark.parametrize("template", [CHATML, PIPES])
@pytest.mark.parametrize("stops", [True, False])
def test_trained_tokens_are_the_sampled_ones(template: str, stops: bool) -> None:
    tokenizer = toy_tokenizer(template)
    renderer = Renderer(tokenizer)
    stop = renderer.stop_token_ids[0]
    sampler = RandomSampler(len(tokenizer), stop=stop if stops else None)
    limits = replace(LIMITS, max_turns=60, context_length=100_000)
    trajectory = play_one(sampler, limits=limits, template=template)

    turns_with_drift = [
        answer
        for answer in sampler.answers
        if tokenizer.encode(tokenizer.decode(answer.token_ids), add_special_tokens=False) != answer.token_ids
    ]
    assert len(turns_with_drift) > 30  # otherwise the rest would show nothing

    [segment] = pack(trajectory)
    sampled_tokens = [
        (token, logprob, version)
        for token, mask, logprob, version in zip(
            segment.response_ids,
            segment.response_mask,
            segment.logprobs,
            segment.policy_versions,
            strict=True,
        )
        if mask
    ]
    assert sampled_tokens == [
        (token, logprob, answer.policy_version)
        for answer in sampler.answers
        for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
    # what the policy was shown at each turn is a prefix of what is trained
    sequence = [*segment.prompt_ids, *segment.response_ids]
    for prompt in sampler.prompts:
        assert sequence[: len(prompt)] == prompt
    # an end of turn that was not sampled is in the sequence once a turn, and never trains
    other_ids = [i for i, m in zip(segment.response_ids, segment.response_mask, strict=True) if not m]
    ends_of_user_turns = 59
    assert other_ids.count(stop) == ends_of_user_turns + (0 if stops else 59)


def test_another_stop_token_does_not_end_the_turn() -> None:
    newline = encode("\n")[0]
    trajectory = play_one(says("Action: add 1", "Action: add 2"), stop_token_ids=(newline,))
    first = trajectory.turns[0]
    assert first.completion.token_ids[-1] == newline
    assert first.observation_ids[0] == STOP


class Faulty:
    """A sampler that answers with what it is given, or raises it."""

    def __init__(self, answer: Completion | Exception) -> None:
        self.answer = answer

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def a_completion(tokens: int, logprobs: int) -> Completion:
    return Completion(
        token_ids=(20,) * tokens,
        logprobs=(0.0,) * logprobs,
        finish_reason=FinishReason.LENGTH,
        policy_version=0,
    )


@pytest.mark.parametrize(
    ("answer", "says_why"),
    [
        (ConnectionError("gone\naway"), "toy_0: the sampler raised ConnectionError: gone away"),
        (TimeoutError(), "TimeoutError"),
        (SamplerFailed("out of memory"), "out of memory"),
        (a_completion(0, 0), "0 tokens"),
        (a_completion(3, 2), "3 tokens and 2 log-probs"),
        (a_completion(41, 41), "41 tokens .* 1 to 40"),
    ],
)
def test_a_sampler_that_fails(answer: Completion | Exception, says_why: str) -> None:
    with pytest.raises(SamplerFailed, match=says_why):
        play_one(Faulty(answer))


@pytest.mark.parametrize(("step", "where"), [(0, "reset"), (2, "step")])
def test_an_environment_that_raises(step: int, where: str) -> None:
    with pytest.raises(EnvCrashed, match=rf"toy_0: {where} raised KeyError: 'the toy broke'"):
        play_one(says(*["Action: add 0"] * 4), env=ToyEnv(crash_at=step))


def test_a_missing_package_is_not_the_episodes_fault() -> None:
    class SilentEnv(ToyEnv):
        async def step(self, action: str) -> StepResult:
            raise MissingDependency("install java")

    with pytest.raises(MissingDependency, match="install java"):
        play_one(says("Action: add 0"), env=SilentEnv())


def test_a_timeout_of_the_environments_own_is_a_crash() -> None:
    class Slow(ToyEnv):
        async def step(self, action: str) -> StepResult:
            raise TimeoutError("the site did not answer")

    with pytest.raises(EnvCrashed, match="TimeoutError: the site did not answer"):
        play_one(says("Action: add 0"), env=Slow())


def test_a_step_that_hangs() -> None:
    with pytest.raises(EpisodeTimeout, match=r"step 2 took longer than 0.02 s; raise rollout.step_timeout_s"):
        play_one(
            says(*["Action: add 0"] * 4), env=ToyEnv(hang_at=2), limits=replace(LIMITS, step_timeout_s=0.02)
        )


@pytest.mark.parametrize("hang_at", [0, 1])
def test_an_episode_that_hangs(hang_at: int) -> None:
    with pytest.raises(EpisodeTimeout, match=r"0.02 s, at turn 1; raise rollout.episode_timeout_s"):
        play_one(
            says("Action: add 0"), env=ToyEnv(hang_at=hang_at), limits=replace(LIMITS, episode_timeout_s=0.02)
        )


def test_a_sampler_that_hangs() -> None:
    slow = ScriptedSampler(["Action: add 0"], encode=encode, latency_s=30)
    with pytest.raises(EpisodeTimeout, match="at turn 1"):
        play_one(slow, limits=replace(LIMITS, episode_timeout_s=0.02))


def test_time_passes_for_those_that_never_suspend_too() -> None:
    class Eager(RandomSampler):
        """Answers without giving the loop a turn, as an in-process model might."""

    limits = replace(LIMITS, max_turns=10**9, context_length=10**9, episode_timeout_s=0.05)
    with pytest.raises(EpisodeTimeout, match=r"rollout\.episode_timeout_s"):
        play_one(Eager(300, stop=STOP), env=ToyEnv(max_steps=10**9), limits=limits)


def test_the_script_says_which_text_it_lacks() -> None:
    with pytest.raises(SamplerFailed, match="e: the script has 1 texts; add one for turn 2"):
        play_one(says("Action: add 0"))


def test_a_script_may_be_a_function_of_episode_and_turn() -> None:
    requests: list[tuple[str, int]] = []

    def script(episode_id: str, turn: int) -> str:
        requests.append((episode_id, turn))
        return f"Action: add {turn}"

    trajectory = play_one(ScriptedSampler(script, encode=encode))
    assert requests == [("e", 0), ("e", 1), ("e", 2)]
    assert trajectory.reward == 1.0
