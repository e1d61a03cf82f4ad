"""transformers' auto classes, imported without scikit-learn and SciPy.

Whichever of them is used first, transformers imports its assisted decoding and its losses for detectors, and
with them scikit-learn and SciPy where these are installed, as MLflow does. That takes more than a second of
each process's start, and nothing here uses either.
"""

import sys
from importlib import import_module

from agents.process_memory import no_garbage_collection

with no_garbage_collection():
    from transformers.utils import import_utils

    # transformers remembers the answers, and verl may have asked before.
    import_utils.is_scipy_available.cache_clear()
    import_utils.is_sklearn_available.cache_clear()
    _hidden = {name: sys.modules.get(name) for name in ("sklearn", "scipy")}  # numba imports a part of SciPy
    # Python's way to say that there is no such package.
    sys.modules.update(dict.fromkeys(_hidden))  # type: ignore[arg-type]
    try:
        import_module("transformers.generation.candidate_generator")
        import_module("transformers.modeling_utils")
    finally:
        for _name, _module in _hidden.items():
            if _module is None:
                del sys.modules[_name]
            else:
                sys.modules[_name] = _module

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForTokenClassification",
    "AutoTokenizer",
]
