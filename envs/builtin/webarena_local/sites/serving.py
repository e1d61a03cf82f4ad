"""Serves one copy of the sites on loopback, from this process: the four applications over the files of one
folder. Copies share nothing."""

import os
import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from wsgiref.types import StartResponse, WSGIEnvironment

from envs.builtin.webarena_local.sites.seed.people import NOW

if TYPE_CHECKING:
    from _typeshed import OptExcInfo

HOST = "127.0.0.1"
SITES = ("shop", "forum", "forge", "cms")
STATIC, STATIC_MAX_AGE_S = "/static/", 3600
"""The path of style sheets, scripts and images, and how long a browser may cache them."""
THREADS = 4
"""A browser requests a page's style sheets and scripts at once."""


def copy_data(data: Path, folder: Path) -> None:
    """Copy the seeded `data` into the empty `folder`."""
    shutil.copyfile(data / "django.sqlite3", folder / "django.sqlite3")
    for name in ("search", "forge"):
        shutil.copytree(data / name, folder / name)
    (folder / "repositories").symlink_to(data / "repositories")  # episodes do not write to them


def serve(folder: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """Serve the copy in `folder` from threads of this process until it ends; returns each site's address.

    `ports`: by site; 0 takes a free one. The process changes to `folder`, and its clock to March 2026.
    """
    import time_machine
    from waitress.server import create_server

    from envs.builtin.webarena_local.sites.project import middleware, wsgi

    os.chdir(folder)
    sockets = {site: _listen(ports[site]) for site in SITES}
    bound_ports = {site: listener.getsockname()[1] for site, listener in sockets.items()}
    _set_cms_address(folder, port=bound_ports["cms"])
    sites = {str(port): site for site, port in bound_ports.items()}
    projects = str(folder / "forge")

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        site, path = sites[environ["SERVER_PORT"]], environ["PATH_INFO"]
        if path.startswith(STATIC):
            return wsgi.django_sites(environ, _with_caching(start_response))
        if site == "forge":
            environ["trac.env_parent_dir"] = projects
            return wsgi.forge(environ, start_response)
        environ[middleware.SITE_KEY] = site
        return wsgi.django_sites(environ, start_response)

    time_machine.travel(NOW, tick=True).start()
    server = create_server(application, sockets=list(sockets.values()), threads=THREADS, ident=None)
    threading.Thread(target=server.run, name="sites", daemon=True).start()
    return {site: f"http://{HOST}:{port}" for site, port in bound_ports.items()}


def _with_caching(start_response: StartResponse) -> StartResponse:
    """Allow the browser to cache: otherwise it requests a dozen files again with each page."""

    def start_with_caching(
        status: str, headers: list[tuple[str, str]], exc_info: "OptExcInfo | None" = None, /
    ) -> Callable[[bytes], object]:
        headers = [*headers, ("Cache-Control", f"max-age={STATIC_MAX_AGE_S}")]
        return start_response(status, headers, exc_info)

    return start_with_caching


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(64)
    return listener


def _set_cms_address(folder: Path, *, port: int) -> None:
    """Write the CMS's address into its database, from which Wagtail makes absolute URLs."""
    with closing(sqlite3.connect(folder / "django.sqlite3")) as database, database:
        database.execute("UPDATE wagtailcore_site SET hostname = ?, port = ?", (HOST, port))
