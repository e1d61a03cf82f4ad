"""Policy folders: what verl saves in Hugging Face format, made fit to be loaded anywhere."""

import json
import shutil
from pathlib import Path

from agents.huggingface.weights import read_header
from envs.files import replaced_folder

ADAPTER = "adapter"
"""The folder, in that of a policy that was trained with `train.lora`: the adapter alone, in peft's format."""
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def copy_policy(source: Path, target: Path) -> None:
    """Copy a policy that verl saved to `target`, replacing it at once.

    verl writes into `config.json` its own attention implementation, and `bfloat16` whatever the
    weights are: the first goes, the second is set right.
    """
    with replaced_folder(target) as fresh:
        shutil.copytree(source, fresh, dirs_exist_ok=True)
        dtype = next(iter(read_header(min(fresh.glob("*.safetensors"))).values()))["dtype"]
        path = fresh / "config.json"
        config = json.loads(path.read_text())
        config.pop("attn_implementation", None)
        path.write_text(json.dumps(config | {"dtype": _DTYPES[dtype]}, indent=2, sort_keys=True) + "\n")
