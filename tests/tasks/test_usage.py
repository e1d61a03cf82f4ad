"""What the processes of a run use, against what the kernel says of a process that has ended."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tasks.runs.usage import ProcessUsage, Usage, read_usage, write_usage

# A child of a child, so that descendants count; it waits to be looked at, then ends.
WORK = """
import resource, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, __file__, "child"]))
held = bytearray(b"x") * 200_000_000
while resource.getrusage(resource.RUSAGE_SELF).ru_utime < 0.5:
    sum(range(10_000))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.heavy
def test_cpu_time_and_memory_of_descendants_are_those_of_the_kernel(tmp_path: Path) -> None:
    program = tmp_path / "work.py"
    program.write_text(WORK)
    before = os.times()
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        usage = ProcessUsage(psutil.Process(process.pid))
        assert process.stdout.readline() == "ready\n"
        usage.begin()
        process.stdin.close()
    after = os.times()
    spent_s = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    assert 0.5 <= usage.cpu_s <= spent_s + 0.02  # the kernel counts in hundredths
    assert 200e6 < usage.peak_memory < 260e6
    usage.look()  # after the end: what was counted stays
    assert usage.cpu_s >= 0.5
    usage.begin()
    assert usage.peak_memory == 0


def test_a_resumed_stage_adds_to_its_earlier_attempts(tmp_path: Path) -> None:
    assert read_usage(tmp_path) == {}
    write_usage(tmp_path, "train", Usage(cpu_s=10.0, peak_memory_bytes=5), is_resumed=False)
    write_usage(tmp_path, "train", Usage(cpu_s=2.0, peak_memory_bytes=3), is_resumed=True)
    write_usage(tmp_path, "evaluate", Usage(cpu_s=1.0, peak_memory_bytes=7), is_resumed=True)
    assert read_usage(tmp_path) == {
        "train": Usage(cpu_s=12.0, peak_memory_bytes=5),
        "evaluate": Usage(cpu_s=1.0, peak_memory_bytes=7),
    }
    write_usage(tmp_path, "train", Usage(cpu_s=4.0, peak_memory_bytes=1), is_resumed=False)
    assert read_usage(tmp_path)["train"] == Usage(cpu_s=4.0, peak_memory_bytes=1)
