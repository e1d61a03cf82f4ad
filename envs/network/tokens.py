"""The token that a server of ours requires."""

import os

from envs.errors import ConfigError

TOKEN_VARIABLE = "WINGSPAN_TOKEN"


def read_token(option: str | None = None) -> str | None:
    """The value of the option `--token`, else of `WINGSPAN_TOKEN`; None requires no token.

    Raises `ConfigError` for an empty one, such as that of a variable which is not set.
    """
    token = os.environ.get(TOKEN_VARIABLE) if option is None else option
    if token is not None and not token.strip():
        source, remedy = (TOKEN_VARIABLE, "unset it") if option is None else ("--token", "leave it out")
        raise ConfigError(
            f"{source} is empty, and the server would be open to all; give a token, or {remedy}"
        )
    return token
