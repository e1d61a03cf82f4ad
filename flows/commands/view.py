"""`wingspan view`: runs and their trajectories in a browser."""

from collections.abc import Callable, Sequence
from pathlib import Path

from envs.network.server import listening, stop_event
from tasks.reporting.pages import format_count
from tasks.runs.folders import find_runs
from tasks.viewer.app import viewer_app
from tasks.viewer.index import cache_folder
from tasks.viewer.viewer import Viewer

GRACE_S = 0.2
"""Time for answers under way when the viewer is stopped: they change nothing."""


async def view(
    paths: Sequence[Path], *, host: str, port: int, token: str | None, say: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM; `say` gets the address. Raises `ConfigError`."""
    runs = find_runs(paths)
    app = viewer_app(Viewer(paths, cache=cache_folder()), host=host, token=token)
    stop = stop_event()
    async with listening(app, host, port, grace_s=GRACE_S) as bound_port:
        address = f"http://{host}:{bound_port}" + ("/?token=TOKEN" if token is not None else "")
        say(f"{format_count(len(runs), 'run')} at {address}; stop with Ctrl-C")
        await stop.wait()
