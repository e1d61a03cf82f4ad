"""`func:name('argument', …)` in a task's evaluation, read without being run."""

import ast
from dataclasses import dataclass

from envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Call:
    """A helper and its arguments; a bare name among them, such as `__page__`, stands as a text."""

    name: str
    arguments: tuple[str, ...]


def read_call(text: str) -> Call | None:
    """The call; None if `text` is none. Raises `ConfigError` for one that cannot be read."""
    if not text.startswith("func:"):
        return None
    try:
        node = ast.parse(text.removeprefix("func:"), mode="eval").body
    except SyntaxError:
        node = None
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords):
        raise ConfigError(f"{text!r} is no call; write func:name('argument', …)")
    return Call(node.func.id, tuple(_argument(one, text) for one in node.args))


def _argument(node: ast.expr, text: str) -> str:
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.Name(id=name):
            return name
    raise ConfigError(f"{text!r}: {ast.unparse(node)} is no text")
