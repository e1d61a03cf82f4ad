"""A server of SSH's file transfer on loopback, which asks for one password."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh


class _Server(asyncssh.SSHServer):
    def __init__(self, password: str) -> None:
        self._password = password

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == self._password


@contextmanager
def ssh_server(*, password: str, key_file: Path) -> Iterator[int]:
    """Its port; it serves the files of this machine. Its new host key is written to `key_file`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key_file)

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=lambda: _Server(password),
            server_host_keys=[key_file],
            sftp_factory=True,
        )

    acceptor = asyncio.run_coroutine_threadsafe(listen(), loop).result(30)
    try:
        yield acceptor.get_port()
    finally:
        loop.call_soon_threadsafe(acceptor.close)
        asyncio.run_coroutine_threadsafe(acceptor.wait_closed(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
