"""One copy of the sites, served on loopback by the process that this runs in: the four applications over the
files in one folder. Nothing here is shared with another copy."""

import os
import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from envs.builtin.webarena_local.sites.seed.people import NOW

HOST = "127.0.0.1"
SITES = ("shop", "forum", "forge", "cms")
SITE_KEY = "wingspan.site"
"""In the WSGI environment of a request to the Django project: which site is asked."""
STATIC, KEPT_S = "/static/", 3600
"""Style sheets, scripts and pictures, and how long a browser may keep them."""
THREADS = 4
"""A page's style sheets and scripts are asked for at once."""
WRITTEN = ("django.sqlite3", "search", "forge")
"""What episodes change: copied. The Git repositories are only read: linked."""
LINKED = ("repositories",)

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]
"""By WSGI."""


def copy_of(data: Path, folder: Path) -> None:
    """Lay a fresh copy of the seeded `data` into the empty `folder`."""
    for name in WRITTEN:
        source = data / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    for name in LINKED:
        (folder / name).symlink_to(data / name)


def serve(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """Serve the copy in `folder` from threads of this process until it ends; returns each site's address.

    `ports`: of each site; 0 takes a free one. From here on the process lives in `folder` and in March 2026.
    """
    import time_machine
    from waitress.server import create_server

    from envs.builtin.webarena_local.sites.project import wsgi

    forge: Application = wsgi.forge
    django_sites: Application = wsgi.django_sites

    os.chdir(folder)
    listening = {site: _listen(ports[site]) for site in SITES}
    addresses = {site: f"http://{HOST}:{one.getsockname()[1]}" for site, one in listening.items()}
    _tell_cms(folder, port=listening["cms"].getsockname()[1])
    site_of = {str(one.getsockname()[1]): site for site, one in listening.items()}
    projects = str(folder / "forge")

    def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        site, path = site_of[environ["SERVER_PORT"]], environ["PATH_INFO"]
        if path.startswith(STATIC):
            return django_sites(environ, _kept(start_response))
        if site == "forge":
            environ["trac.env_parent_dir"] = projects
            return forge(environ, start_response)
        environ[SITE_KEY] = site
        return django_sites(environ, start_response)

    time_machine.travel(NOW, tick=True).start()
    server = create_server(application, sockets=list(listening.values()), threads=THREADS, ident=None)
    threading.Thread(target=server.run, name="sites", daemon=True).start()
    return addresses


def _kept(start_response: StartResponse) -> StartResponse:
    """Have the browser keep what it is given: it would ask for a dozen files again with each page."""

    def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        return start_response(status, [*headers, ("Cache-Control", f"max-age={KEPT_S}")], *rest)

    return started


def _listen(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((HOST, port))
    one.listen(64)
    return one


def _tell_cms(folder: Path, *, port: int) -> None:
    """Wagtail makes absolute addresses of what its database says of the site."""
    with closing(sqlite3.connect(folder / "django.sqlite3")) as database, database:
        database.execute("UPDATE wagtailcore_site SET hostname = ?, port = ?", (HOST, port))
