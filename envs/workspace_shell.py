"""The program by which a `Workspace` runs a command, in its sandbox; only the standard library is imported.

Reads one request from standard input; the command's output is its own.
"""

import json
import os
import signal
import subprocess
import sys


def main() -> None:
    """Run one command."""
    request = json.load(sys.stdin)
    child = subprocess.Popen(
        ["/bin/sh", "-c", request["command"]], stdin=subprocess.DEVNULL, cwd="/work", start_new_session=True
    )
    try:
        status = child.wait(request["seconds"])
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        print(f"\n[ended: it took longer than {request['seconds']:g} s]")
        return
    if status:
        print(f"\n[exit status {status}]")


if __name__ == "__main__":
    main()
