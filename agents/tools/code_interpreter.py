"""Python for an agent, in a sandbox: by itself, or in the episode's, where variables and files stay."""

from agents.tools.calling import Tool
from agents.tools.sandboxed import get_workspace, read_reply
from agents.tools.tool import tool
from agents.tools.types import ToolError
from envs.base import Environment
from envs.sandbox.backend import Backend, SandboxLimits
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.sandbox import choose_backend

MAX_LENGTH = 4096
MAX_CONCURRENCY = 32
"""Sandboxes at once in this process, each of up to `SandboxLimits.memory_mb`."""


def code_interpreter(
    *, backend: Backend | None = None, limits: SandboxLimits | None = None, run_timeout_s: float = 10.0
) -> Tool:
    """A tool `code_interpreter` that runs each code in a sandbox of its own, and needs no environment.

    `backend`: else the one that this machine has. Raises `MissingDependency` where there is none.
    """
    sandbox = backend or choose_backend()

    # The sandbox keeps the time: what hangs is ended by it, and starting is no part of a run.
    @tool(keeps_time=True, max_length=MAX_LENGTH, max_concurrency=MAX_CONCURRENCY)
    async def code_interpreter(code: str) -> str:
        """Run Python code and see what it prints, and the value of its last expression.

        Each code starts afresh: nothing is left of earlier ones. There is no network.

        Args:
            code: Python, as in a file.
        """
        interpreter = Interpreter(
            sandbox, limits=limits or SandboxLimits(), run_timeout_s=run_timeout_s, output_chars=MAX_LENGTH
        )
        try:
            run = await interpreter.run(code)
        finally:
            await interpreter.close()
        if run.end_reason is not None:
            raise ToolError(f"{run.output}[the code was ended: {run.end_reason}]")
        return run.output or "(no output)"

    return code_interpreter


@tool(stateful=True, keeps_time=True, max_length=MAX_LENGTH)
async def code_session(code: str, env: Environment) -> str:
    """Run Python code and see what it prints, and the value of its last expression.

    Variables and files stay from code to code. There is no network.

    Args:
        code: Python, as at a prompt.
    """
    return read_reply(await get_workspace(env).python(code))
