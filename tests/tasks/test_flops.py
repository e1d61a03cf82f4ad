"""The FLOPs of an update, compared with a count by hand and with torch's own counter."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tasks.verl.cpu.flops import CpuSpeed, ModelFlops, Work, best_seconds, count_work
from tasks.verl.rows import TrainingRow, rows_of
from tests.support.sampler_toy import make_model
from tests.support.scored_episodes import episode_of, make_turn


def group(uid: str, prompt: tuple[int, ...], *responses: int) -> list[TrainingRow]:
    """Rows of one turn each, with responses of so many tokens."""
    turns = [make_turn([5] * count, [-1.0] * count, ()) for count in responses]
    return rows_of(uid, [episode_of(index, prompt, [turn]) for index, turn in enumerate(turns)])


def test_a_prompt_is_counted_once_a_group_and_each_token_attends_to_what_precedes_it() -> None:
    rows = [*group("a", (1, 2, 3), 2, 4), *group("b", (7,), 1)]
    # pairs: prompt 1 + 2 + 3; responses 4 + 5 and 4 + 5 + 6 + 7; then 1; 2
    assert count_work(rows) == Work(tokens=3 + 2 + 4 + 1 + 1, logits=7, pairs=6 + 9 + 22 + 1 + 2)


@pytest.mark.parametrize("kind", ["mha-tied", "gqa-untied", "qwen2"])
def test_the_matrices_are_those_that_torch_counts(kind: str, tmp_path: Path) -> None:
    """Attention apart: torch counts all pairs of it, masked or not."""
    model = make_model(kind)
    model.save_pretrained(tmp_path)
    flops = ModelFlops.of_folder(tmp_path)
    model.set_attn_implementation("eager")
    tokens = 11
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, tokens, dtype=torch.int64))
    expected = flops.forward(Work(tokens=tokens, logits=tokens, pairs=tokens * tokens))
    # the counter also has the product that makes the angles of the rotary embedding
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.002)


def test_utilization_is_the_share_of_what_could_have_been_done() -> None:
    model = ModelFlops(per_token=10.0, per_logit=100.0, per_pair=1.0)
    speed = CpuSpeed(model=model, flops_per_s=1000.0)
    # forward: 20 + 200 + 30; three times that, twice over, of 4 s at 1,000 a second
    share = speed.utilization(Work(tokens=2, logits=2, pairs=30), passes=2, seconds=4.0)
    assert share == pytest.approx(3 * 2 * 250 / 4000)


def test_the_machine_is_measured_in_one_thread() -> None:
    """With two, the CPU time of the second may not have been counted when a product ends."""
    before, thread_counts = torch.get_num_threads(), set[int]()
    torch.set_num_threads(2)
    try:
        best_seconds(lambda: thread_counts.add(torch.get_num_threads()))
        assert (thread_counts, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
