"""Mathematics: what is equal, what is too large to tell, and all of it off the main thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from agents.rewards import REWARDS, RewardResult
from agents.rewards.math.process import MathProcesses
from envs.errors import RewardFailed
from tests.support.reward_toy import make_reward_input
from tests.support.waiting import wait_until


def value_of(name: str, *texts: str, answer: object, metrics: dict[str, Any] | None = None) -> RewardResult:
    reward_input = make_reward_input(*texts, fields={"answer": answer}, metrics=metrics)
    return asyncio.run(REWARDS[name].score(reward_input))


@pytest.mark.parametrize(
    ("text", "answer", "equal"),
    [
        ("so it is \\boxed{\\frac{1}{2}}", "0.5", True),
        ("The answer is $x = 3$.", "3", True),
        ("1 and 2 give \\boxed{3}", 3, True),
        ("\\boxed{1,234}", "1234", True),
        ("$\\{2, 1\\}$", "\\{1,2\\}", True),
        ("\\boxed{\\sqrt{8}}", "$2\\sqrt{2}$", True),
        ("\\boxed{4}", ["5", "4"], True),
        ("\\boxed{18.90}", "\\$18.90", True),
        ("\\boxed{\\$18.90}", "\\$18.90", True),
        ("\\boxed{50\\%}", "50%", True),
        ("\\boxed{0.00001}", 0.00001, True),
        ("\\boxed{-2.5 \\times 10^{16}}", -2.5e16, True),
        ("\\boxed{e-5}", 0.00001, False),
        ("\\boxed{0.00002}", "1e-5", False),
        ("\\boxed{19}", "\\$18.90", False),
        ("\\boxed{41}", "42", False),
        ("$(1, 2)$", "(2,1)", False),
        ("no idea", "42", False),
    ],
)
def test_equal_as_mathematics(text: str, answer: object, equal: bool) -> None:
    result = value_of("math_equal", text, answer=answer)
    assert (result.reward, result.success) == (float(equal), equal)
    assert result.metrics == {"found": float(text != "no idea"), "undecided": 0.0}


def test_with_a_tool() -> None:
    assert value_of("math_equal_with_tool", "\\boxed{4}", answer="4").reward == 0.0
    program = {"other_sampling": 0}
    right = value_of("math_equal_with_tool", "call", "\\boxed{4}", answer="4", metrics=program)
    assert right.reward == 1.0
    wrong = value_of("math_equal_with_tool", "call", "\\boxed{5}", answer="4", metrics=program)
    assert (wrong.reward, wrong.success) == (0.1, False)


def test_with_think() -> None:
    assert value_of("math_equal_with_think", "<think>4?</think>\\boxed{5}", answer="5").reward == 1.0
    assert value_of("math_equal_with_think", "<think>5?</think>\\boxed{4}", answer="5").reward == 0.0
    bare = value_of("math_equal_with_think", "\\boxed{5}", answer="5")
    assert (bare.reward, bare.metrics["format"]) == (0.0, 0.0)


def test_an_accepted_answer_that_is_no_mathematics_is_the_items_fault() -> None:
    with pytest.raises(RewardFailed, match="the accepted answer '' is not mathematics"):
        value_of("math_equal", "\\boxed{5}", answer="")


@pytest.mark.heavy
def test_an_answer_too_large_is_ended_by_its_cpu_time_and_the_next_one_is_compared() -> None:
    processes = MathProcesses(1, cpu_s=1.0)
    try:
        assert processes.compare(["4"], "\\boxed{4}").is_correct
        for answer in ("\\boxed{9^{9^{9^{9}}}}", "\\boxed{1000000000!}"):
            verdict = processes.compare(["4"], answer)
            assert (verdict.is_correct, verdict.is_decided) == (False, False)
        assert processes.compare(["4"], "\\boxed{4}").is_correct
    finally:
        processes.close()


def test_threads_share_the_processes() -> None:
    processes = MathProcesses(1)
    try:
        with ThreadPoolExecutor(4) as threads:
            verdicts = list(threads.map(lambda i: processes.compare([str(i % 2)], f"${i}$"), range(8)))
        assert [verdict.is_correct for verdict in verdicts] == [True, True] + [False] * 6
    finally:
        processes.close()


@pytest.mark.heavy
def test_a_process_that_was_killed_is_a_failure_and_then_replaced() -> None:
    before = {*psutil.Process().children()}
    processes = MathProcesses(1)
    try:
        assert processes.compare(["4"], "$4$").is_correct
        [worker] = {*psutil.Process().children()} - before
        worker.kill()
        wait_until(lambda: worker.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(RuntimeError, match="ended with status -9"):
            processes.compare(["4"], "$4$")
        assert processes.compare(["4"], "$4$").is_correct
    finally:
        processes.close()
