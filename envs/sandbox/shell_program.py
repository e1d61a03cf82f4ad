"""The program with which a `Workspace` runs a command in its sandbox; it imports only the standard library.

It reads one request from standard input; the command writes to its standard output.
"""

import json
import os
import signal
import subprocess
import sys


def main() -> None:
    """Run one command."""
    request = json.load(sys.stdin)
    word = request.get("word")  # the only output, printed if the command succeeds
    output = None if word is None else subprocess.DEVNULL
    child = subprocess.Popen(
        ["/bin/sh", "-c", request["command"]],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd="/work",
        start_new_session=True,
    )
    try:
        status = child.wait(request["seconds"])
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if word is None:
            print(f"\n[ended: it took longer than {request['seconds']:g} s]")
        return
    if word is not None:
        print("" if status else word)
    elif status:
        print(f"\n[exit status {status}]")


if __name__ == "__main__":
    main()
