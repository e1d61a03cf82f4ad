"""Free ports, and the sockets that the processes of a test listen on."""

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

POLL_S = 0.3
TCP_LISTEN = "0A"
"""The state in /proc/net/tcp."""


class SocketWatch(threading.Thread):
    """A context in which every listening socket of this process and its descendants is noted."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listeners: dict[tuple[str, int], str] = {}
        """Program by (address, port)."""
        self._is_over = threading.Event()

    def run(self) -> None:
        known = set[str]()
        while not self._is_over.wait(POLL_S):
            # To ask whose they are takes ten times as long as to read the machine's sockets.
            if (inodes := open_sockets()) - known:
                self.note()
            known = inodes

    def note(self) -> None:
        """Note those that are there now, by the names that their processes have now: Ray names an actor's
        process after its sockets are open."""
        self.listeners |= {(address, port): name for name, address, port in listening()}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def has_seen(self, program: str) -> bool:
        """Whether an actor of Ray with this name, or a part of Ray, has listened."""
        names = " ".join(self.listeners.values())
        return f"ray::{program}" in names or f":{program}" in names

    @property
    def open_to_others(self) -> dict[tuple[str, int], str]:
        """Those that were not bound to loopback."""
        return {endpoint: name for endpoint, name in self.listeners.items() if not is_loopback(endpoint[0])}


def open_sockets() -> set[str]:
    """Inodes of this machine's TCP sockets that listen, and of its UDP sockets."""
    lines = [
        (name, line.split())
        for name in ("tcp", "tcp6", "udp", "udp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {fields[9] for name, fields in lines if name.startswith("udp") or fields[3] == TCP_LISTEN}


def listening() -> Iterator[tuple[str, str, int]]:
    """(program, address, port) of each TCP socket that listens, and of each open UDP socket."""
    this = psutil.Process()
    own = {process.pid: process for process in (this, *this.children(recursive=True))}
    for entry in psutil.net_connections(kind="inet"):
        if entry.pid not in own or not entry.laddr:
            continue
        if entry.status == psutil.CONN_LISTEN or entry.type == socket.SOCK_DGRAM:
            with suppress(psutil.Error):  # it has ended
                name = " ".join(own[entry.pid].cmdline()).strip()
                yield name, entry.laddr.ip, entry.laddr.port


def is_loopback(address: str) -> bool:
    bound_ip = ipaddress.ip_address(address)
    if isinstance(bound_ip, ipaddress.IPv6Address) and bound_ip.ipv4_mapped:
        return bound_ip.ipv4_mapped.is_loopback
    return bound_ip.is_loopback


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
