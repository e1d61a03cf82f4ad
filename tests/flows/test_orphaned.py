"""A process whose output loses its reader, as that of a deployed run does when its worker is killed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRINTS = """
import os, sys, time
from rich.console import Console
from flows.endings.orphaned import outlive_reader
outlive_reader()
consoles = [Console(), Console(stderr=True)]
for console in consoles:
    console.print("begins")
sys.stdin.read()  # until the test has closed the pipes
deadline = time.monotonic() + 60
while time.monotonic() < deadline and any(
    os.readlink(f"/proc/self/fd/{number}") != os.devnull for number in (1, 2)
):
    time.sleep(0.01)
for console in consoles:
    console.print("goes on")
os._exit(7)  # a broken pipe has another status
"""


def test_output_that_nobody_reads_ends_no_process() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PRINTS], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdin is not None
        for output in (process.stdout, process.stderr):
            assert output is not None
            assert output.readline() == b"begins\n"
            output.close()
        process.stdin.close()
        assert process.wait(timeout=90) == 7
