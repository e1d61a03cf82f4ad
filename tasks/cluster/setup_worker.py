"""The program that a local Ray runs for each worker: it sets the worker's environment variables and becomes
the worker.

Ray's own, `ray/_private/workers/setup_worker.py`, imports Ray for this, which takes half a CPU-second, and a
training starts some ten workers, most of them one after another. What is rare (another language, a container,
another entry point) is left to Ray's. It is run by its path and imports only the standard library.
"""

import argparse
import json
import os
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_HANDLED = {"env_vars", "py_executable"}


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    options, arguments = parser.parse_known_args()
    context: dict[str, Any] = json.loads(options.serialized_runtime_env_context)
    if options.language != "PYTHON" or any(context[key] for key in context.keys() - _HANDLED):
        os.execv(sys.executable, [sys.executable, str(rays_program()), *sys.argv[1:]])
    for name, value in (context.get("env_vars") or {}).items():
        # As Ray: a variable in braces that is not set is empty.
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    # A command, with arguments, as a shell reads it.
    program = context.get("py_executable") or sys.executable
    os.execvp("bash", ["bash", "-c", f"exec {program} {shlex.join(arguments)}"])


def rays_program() -> Path:
    """Ray's own program for this."""
    spec = find_spec("ray")  # does not import it
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "_private" / "workers" / "setup_worker.py"


if __name__ == "__main__":
    _main()
