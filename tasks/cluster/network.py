"""Secures a Ray cluster that this machine starts: it listens on loopback only and demands a token.

A cluster that `RAY_ADDRESS` names (`tasks/cluster/address.py`) keeps the addresses and the token that its
owner chose. In both cases the keys of TransferQueue are derived from the token.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Where Ray looks for its token, before `~/.ray/auth_token`."""
_CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray uses 127.0.0.1 as this machine's address, as it does on macOS, and binds to nothing else."""


@contextmanager
def loopback_and_token() -> Iterator[None]:
    """A local Ray that starts within the context listens on loopback only and demands a token.

    The token is random, unless the environment names one; Ray's own default is a file that every user of
    the machine may read. All processes that Ray starts inherit the token in their environment. This process
    keeps it only in memory, so that processes it starts later do not inherit it.
    """
    from ray._private import ray_constants

    variables = {"RAY_AUTH_MODE": "token", _CLUSTER_VARIABLE: "0"}
    if not any(os.environ.get(name) for name in TOKEN_VARIABLES):
        variables[TOKEN_VARIABLES[0]] = secrets.token_hex(32)
    before = {name: os.environ.get(name) for name in variables}
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    os.environ |= variables
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray read the variable when it was imported
    try:
        read_token()
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def read_token() -> None:
    """Make Ray read the authentication mode and the token again; it caches what it read first."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def queue_keys() -> tuple[bytes, bytes] | None:
    """The CURVE key pair (public, secret) that all sockets of TransferQueue share; None without a token.

    A CURVE client proves that it knows the server's public key, which is never sent. Both keys are derived
    from the token, so only its holders can connect.
    """
    import zmq
    from ray._raylet import AuthenticationMode, AuthenticationTokenLoader, get_authentication_mode  # type: ignore[attr-defined]
    from zmq.utils import z85

    if get_authentication_mode() != AuthenticationMode.TOKEN:
        return None
    token = AuthenticationTokenLoader.instance().get_raw_token().encode()
    secret = z85.encode(hashlib.blake2b(token, digest_size=32, person=b"transfer-queue").digest())
    return zmq.curve_public(secret), secret
