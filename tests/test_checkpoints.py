"""Which checkpoints count as whole, which are deleted, and where verl is told to resume."""

from pathlib import Path

from tasks import checkpoints

TRACKER = "latest_checkpointed_iteration.txt"


def write(folder: Path, step: int, *, complete: bool) -> None:
    (folder / f"global_step_{step}" / "actor").mkdir(parents=True)
    (folder / TRACKER).write_text(str(step))
    if complete:
        checkpoints.mark_complete(folder, step=step)


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        write(tmp_path, step, complete=True)
    assert checkpoints.complete_steps(tmp_path) == [8, 12]
    assert not (tmp_path / "global_step_4").exists()


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        write(tmp_path, step, complete=True)
    assert checkpoints.complete_steps(tmp_path) == [10, 100]


def test_a_torn_checkpoint_is_deleted_and_the_one_before_it_resumed(tmp_path: Path) -> None:
    write(tmp_path, 4, complete=True)
    write(tmp_path, 8, complete=False)
    assert checkpoints.repair(tmp_path) == 4
    assert (tmp_path / TRACKER).read_text() == "4"
    assert not (tmp_path / "global_step_8").exists()


def test_a_tracker_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, 4, complete=True)
    (tmp_path / TRACKER).write_text("")
    assert checkpoints.repair(tmp_path) == 4
    assert (tmp_path / TRACKER).read_text() == "4"


def test_with_no_whole_checkpoint_training_starts_anew(tmp_path: Path) -> None:
    assert checkpoints.repair(tmp_path / "absent") == 0
    write(tmp_path, 4, complete=False)
    assert checkpoints.repair(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
