"""A terminal for programs under test: tmux, which draws what they write as any terminal would."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until


class Terminal:
    """One program in a terminal."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        """Give tmux a command; returns what it prints."""
        command = ["tmux", "-S", str(self._socket), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def screen(self, *, with_styles: bool = False) -> list[str]:
        """The lines of the screen, without the empty ones at its end."""
        return self.tmux("capture-pane", "-p", *(["-e"] if with_styles else [])).rstrip("\n").split("\n")

    def wait_for(self, *texts: str) -> list[str]:
        """The screen, as soon as it holds all of `texts`."""
        lines: list[str] = []

        def holds_all() -> bool:
            lines[:] = self.screen()
            return all(text in "\n".join(lines) for text in texts)

        wait_until(holds_all, timeout_s=30, poll_s=0.05)
        return lines

    def resize(self, *, columns: int, lines: int) -> None:
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def press(self, key: str) -> None:
        self.tmux("send-keys", key)

    def ask(self, variable: str) -> str:
        """A variable of tmux's, e.g. `cursor_flag`: whether the cursor is visible."""
        return self.tmux("display-message", "-p", f"#{{{variable}}}").strip()


@contextmanager
def open_terminal(
    arguments: Sequence[str],
    *,
    folder: Path,
    columns: int,
    lines: int,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    """Run Python with `arguments` in a terminal, which stays open until the block is left.

    Skips the test if there is no tmux.
    """
    terminal = Terminal(folder / "tmux")
    settings = [f"{name}={value}" for name, value in (variables or {}).items()]
    program = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", *settings, sys.executable, *arguments])
    size = ["-x", str(columns), "-y", str(lines)]
    try:
        terminal.tmux("-f", "/dev/null", "new-session", "-d", *size, f"{program}; echo status $?; sleep 600")
    except FileNotFoundError:
        pytest.skip("needs tmux")
    try:
        yield terminal
    finally:
        terminal.tmux("kill-server")
