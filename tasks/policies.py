"""Policy folders: what verl saves in Hugging Face format, made fit to be loaded anywhere."""

import json
import shutil
from pathlib import Path

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def copy_policy(source: Path, target: Path) -> None:
    """Copy a policy that verl saved to `target`, replacing it at once.

    verl writes into `config.json` its own attention implementation, and `bfloat16` whatever the
    weights are: the first goes, the second is set right.
    """
    from safetensors import safe_open

    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh)
    with safe_open(next(iter(sorted(fresh.glob("*.safetensors")))), framework="pt") as weights:
        dtype = weights.get_slice(next(iter(weights.keys()))).get_dtype()
    path = fresh / "config.json"
    config = json.loads(path.read_text())
    config.pop("attn_implementation", None)
    path.write_text(json.dumps(config | {"dtype": _DTYPES[dtype]}, indent=2, sort_keys=True) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
