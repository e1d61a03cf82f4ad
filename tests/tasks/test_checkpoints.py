"""Which checkpoints count as whole, which are deleted, and where verl is told to resume."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from envs.errors import WingspanError
from tasks.verl import checkpoints
from tasks.verl.checkpoints import Resumption
from tasks.verl.policies import copy_policy

TRACKER = "latest_checkpointed_iteration.txt"


def write(folder: Path, step: int, *, complete: bool) -> None:
    actor = folder / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").write_bytes(bytes(10_000) + b"weights")
    (actor / "huggingface" / "config.json").write_text("{}")
    (folder / TRACKER).write_text(str(step))
    if complete:
        checkpoints.mark_complete(folder, step=step)


def test_only_the_newest_two_checkpoints_remain(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        write(tmp_path, step, complete=True)
    assert checkpoints.complete_steps(tmp_path) == [8, 12]
    assert not (tmp_path / "global_step_4").exists()


def test_one_that_is_being_deleted_no_longer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (4, 8):
        write(tmp_path, step, complete=True)

    def kill(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.delete_after(tmp_path, step=4)
    assert checkpoints.complete_steps(tmp_path) == [4]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        write(tmp_path, step, complete=True)
    assert checkpoints.complete_steps(tmp_path) == [10, 100]


def test_a_torn_checkpoint_is_deleted_and_the_one_before_it_resumed(tmp_path: Path) -> None:
    write(tmp_path, 4, complete=True)
    write(tmp_path, 8, complete=False)
    assert checkpoints.resume(tmp_path) == Resumption(4)
    assert (tmp_path / TRACKER).read_text() == "4"
    assert not (tmp_path / "global_step_8").exists()


def test_a_tracker_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, 4, complete=True)
    (tmp_path / TRACKER).write_text("")
    assert checkpoints.resume(tmp_path) == Resumption(4)
    assert (tmp_path / TRACKER).read_text() == "4"


def test_with_no_whole_checkpoint_training_starts_anew(tmp_path: Path) -> None:
    assert checkpoints.resume(tmp_path / "absent") == Resumption(0)
    write(tmp_path, 4, complete=False)
    assert checkpoints.resume(tmp_path) == Resumption(0)
    assert list(tmp_path.iterdir()) == []


def cut_short(checkpoint: Path) -> None:
    file = checkpoint / "actor" / "model_world_size_1_rank_0.pt"
    file.write_bytes(file.read_bytes()[:100])


def change_a_byte(checkpoint: Path) -> None:
    file = checkpoint / "actor" / "model_world_size_1_rank_0.pt"
    data = bytearray(file.read_bytes())
    data[5_000] ^= 1
    file.write_bytes(data)


def lose_a_file(checkpoint: Path) -> None:
    (checkpoint / "actor" / "huggingface" / "config.json").unlink()


def empty_all(checkpoint: Path) -> None:
    for file in checkpoint.rglob("*"):
        if file.is_file():
            file.write_bytes(b"")


DAMAGES = [
    (cut_short, "actor/model_world_size_1_rank_0.pt has 100 of 10,007 bytes"),
    (change_a_byte, "actor/model_world_size_1_rank_0.pt is not what was written"),
    (lose_a_file, "actor/huggingface/config.json is not there"),
    (empty_all, "complete is no record of its files"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_resumed(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    write(tmp_path, 4, complete=True)
    write(tmp_path, 8, complete=True)
    damage(tmp_path / "global_step_8")
    assert checkpoints.resume(tmp_path) == Resumption(4, (f"{tmp_path}/global_step_8/{message}",))
    assert (tmp_path / TRACKER).read_text() == "4"
    assert checkpoints.complete_steps(tmp_path) == [4]
    assert checkpoints.resume(tmp_path) == Resumption(4)


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_without_a_whole_checkpoint_nothing_is_deleted_and_the_error_has_the_remedy(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "train" / "checkpoints"
    write(folder, 4, complete=True)
    write(folder, 8, complete=True)
    for step in (4, 8):
        damage(folder / f"global_step_{step}")
    remedy = f"or delete {tmp_path / 'train'} to train from the start"
    with pytest.raises(WingspanError, match=rf"{re.escape(f'global_step_8/{message}')}.*{re.escape(remedy)}"):
        checkpoints.resume(folder)
    assert checkpoints.complete_steps(folder) == [4, 8]


def test_a_kill_while_a_policy_is_replaced_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"name": "{name}"}}')
        save_file({"weight": np.zeros(1, np.float32)}, tmp_path / name / "model.safetensors")
    copy_policy(tmp_path / "old", tmp_path / "policy")
    remove = shutil.rmtree

    def kill(folder: Path, ignore_errors: bool = False) -> None:
        is_kill = folder.exists()
        remove(folder, ignore_errors=ignore_errors)
        if is_kill:
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        copy_policy(tmp_path / "new", tmp_path / "policy")
    assert json.loads((tmp_path / "policy" / "config.json").read_text()) == {
        "name": "new",
        "dtype": "float32",
    }
    assert (tmp_path / "policy" / "model.safetensors").exists()
