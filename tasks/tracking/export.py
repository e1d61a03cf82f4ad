"""A trained policy for others: its folder with a model card, or that of its adapter, and the way to a model
hub."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from envs.errors import ConfigError, to_line
from envs.files import check_writable, replaced_folder
from tasks.data.hashes import path_md5
from tasks.evaluation.outcomes import read_evaluation
from tasks.runs.parameters import read_parameters
from tasks.runs.provenance import PACKAGES, dirty_tag
from tasks.runs.rounds import BEST
from tasks.tracking import facts
from tasks.tracking.lineage_record import LINEAGE, read_lineage
from tasks.verl.policies import ADAPTER

PolicyChoice = Literal["final", "best", "start"]
"""`final`: the run's result; `best`: of the round with the best quick evaluation; `start`: before RL."""
_FOLDERS: Mapping[PolicyChoice, Path] = {
    "final": Path("policy"),
    "best": Path("train", BEST),
    "start": Path("warmup"),
}
_STAGES: Mapping[PolicyChoice, str] = {"final": "train", "best": "train", "start": "warmup"}
"""The stage that wrote the policy."""
CARD = "README.md"


def policy_of(workspace: Path, policy: PolicyChoice) -> Path:
    """The folder of a policy in `workspace`. Raises `ConfigError` where there is none."""
    folder = workspace / _FOLDERS[policy]
    if not (folder / "config.json").exists():
        present = [name for name, path in _FOLDERS.items() if (workspace / path / "config.json").exists()]
        raise ConfigError(
            f"{workspace} has no {policy} policy ({folder} is not there); "
            f"it has: {', '.join(present) or 'none'}"
        )
    return folder


def export_policy(workspace: Path, *, policy: PolicyChoice, target: Path, is_adapter: bool = False) -> None:
    """Copy a policy of the run in `workspace` to the new folder `target`, with a model card, completely or
    not at all.

    `is_adapter`: the adapter alone, in peft's format, instead of the whole model, into which it is merged.
    Raises `ConfigError` where there is no such policy or adapter, and for a `target` that exists or cannot be
    written.
    """
    source = policy_of(workspace, policy)
    if target.exists():
        raise ConfigError(f"{target} exists; give a folder that does not")
    if is_adapter:
        source /= ADAPTER
        if not source.is_dir():
            raise ConfigError(
                f"{source} is not there: the {policy} policy was trained in full; leave out --adapter"
            )
    check_writable(target, remedy="choose another --output")
    card = make_card(workspace, policy=policy, is_adapter=is_adapter)
    with replaced_folder(target) as folder:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(ADAPTER), dirs_exist_ok=True)
        (folder / CARD).write_text(card, encoding="utf-8")


def make_card(workspace: Path, *, policy: PolicyChoice, is_adapter: bool) -> str:
    """The model card: what was trained on what, what it scored, its code, its data and its parameters."""
    parameters = read_parameters(workspace)
    metadata: dict[str, object] = {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["wingspan", "agent", "reinforcement-learning"],
    }
    model = parameters.get("model")
    if model is not None and not Path(model).exists():
        metadata["base_model"] = model
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in metadata.items()), "---", ""]
    lines += [f"# {workspace.name}: {policy} policy{', its adapter' if is_adapter else ''}", ""]
    if is_adapter and (workspace / _FOLDERS["start"]).exists():
        lines += ["The adapter belongs to the policy of the warm-up (`--policy start`), not to `model`.", ""]
    if policy != "best" and (evaluation := read_evaluation(workspace)):
        lines += [facts.result(evaluation), ""]
    origins = _origins(workspace, stage=_STAGES[policy])
    lines += ["## Source", "", *(f"- {key}: `{value}`" for key, value in origins.items())]
    lines += [f"- {name}: `{path_md5}`" for name, path_md5 in _data_sums(workspace).items()]
    if parameters:
        lines += ["", "## Parameters", "", "| parameter | value |", "| --- | --- |"]
        lines += [f"| `{key}` | `{json.dumps(value)}` |" for key, value in parameters.items()]
    return "\n".join(lines) + "\n"


def _origins(workspace: Path, *, stage: str) -> dict[str, str]:
    """The commit by which `stage` ran, and the versions of the run; they may differ from the present ones.
    Empty if the run recorded none."""
    if not (workspace / LINEAGE).exists():
        return {}
    lineage = read_lineage(workspace / LINEAGE)
    # Later stages, such as a new report, may have run on other code.
    code = lineage.stages[stage].code if stage in lineage.stages else lineage.code
    versions = {f"version.{name}": lineage.packages[name] for name in PACKAGES if name in lineage.packages}
    return {
        "git.commit": code.commit or "none",
        "git.dirty": dirty_tag(code.uncommitted),
        "python": lineage.python,
        **versions,
    }


def _data_sums(workspace: Path) -> dict[str, str]:
    """MD5 of the files of items, as DVC writes them."""
    files = [workspace / "data" / f"{split}.jsonl" for split in ("train", "test")]
    return {f"md5.data/{file.name}": path_md5(file) for file in files if file.exists()}


def push(folder: Path, *, repository: str, is_private: bool) -> str:
    """Upload an exported policy to the hub as `NAMESPACE/NAME`; returns the URL of the commit.

    The hub and the token are those of `huggingface_hub` (`HF_ENDPOINT`, `HF_TOKEN`). The repository is made
    if there is none. Raises `ConfigError` where the hub refuses or does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = HfApi()
    try:
        api.create_repo(repository, private=is_private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"{folder.name}, by Wingspan"
        )
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise ConfigError(
            f"{repository} was not pushed to {api.endpoint}: {to_line(error, limit=200)}; {folder} is "
            "complete; check the name and HF_TOKEN"
        ) from error
    return str(commit.commit_url)
