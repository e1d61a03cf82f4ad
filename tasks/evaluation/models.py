"""Which model an evaluation asks: a checkpoint of a run, a folder, a model on a hub, or an endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.clients.endpoint import Endpoint
from agents.huggingface import hub
from agents.samplers.local import LocalModel
from agents.settings import Settings
from envs.errors import ConfigError
from envs.redaction import without_password
from tasks.data.hashes import path_md5
from tasks.verl import checkpoints

_WORKSPACE_FILES = ("parameters.json", "train", "policy")
"""Any of these makes a folder the workspace of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """A policy in Hugging Face format on this machine."""

    name: str
    """The name as it was asked for."""
    folder: Path
    workspace: Path | None = None
    """The workspace of the run that trained it; None if it is of no run."""
    step: int | None = None
    """The step of the checkpoint; None for a policy that is not a checkpoint."""

    def read_context_length(self) -> int:
        """Tokens that the model was made for. Raises `ConfigError`."""
        return LocalModel(self.folder).read_context_length()

    def identify(self) -> dict[str, object]:
        """Name, place and content: `md5` is the folder's as in `dvc.lock`, the same for the same files."""
        values = {"name": self.name, "folder": str(self.folder), "step": self.step}
        given_values = {key: value for key, value in values.items() if value is not None}
        return {**given_values, "md5": path_md5(self.folder)}


class NamedPolicy(Settings):
    """A policy as a user names it."""

    policy: str
    """An address (`http…`) is an endpoint. A folder is a policy, a checkpoint or the workspace of a run: its
    checkpoint of `step`, or else its trained policy, or else its last checkpoint. Anything else is the name
    of a model on a hub."""
    step: int | None = None
    model: str | None = None
    """The name of the endpoint's model; required of an endpoint."""
    api_key_from: str | None = None
    """The environment variable that holds the endpoint's key."""


def find_policy(named: NamedPolicy) -> SavedPolicy | Endpoint:
    """The policy; a model on a hub is downloaded unless it was before.

    Raises `ConfigError`, in one line, for what is not there and for options that do not belong together.
    """
    name, step = named.policy, named.step
    if is_address(name):
        if step is not None:
            raise ConfigError(f"--step {step}: an endpoint ({name}) has no checkpoints; leave it out")
        return make_endpoint(name, model=named.model, api_key_from=named.api_key_from)
    for option, value in (("--model", named.model), ("--api-key-from", named.api_key_from)):
        if value is not None:
            raise ConfigError(f"{option} {value} is for endpoints, and {name!r} is none; leave it out")
    folder = Path(name)
    if step is not None and not _is_workspace(folder):
        raise ConfigError(f"--step {step}: {name!r} is not the folder of a run; give one, or no --step")
    if not folder.is_dir():
        return SavedPolicy(name=name, folder=_download(name))
    if (folder / "config.json").exists() and step is None:
        return _policy_in(folder, name=name)
    return _policy_of_run(folder, name=name, step=step)


def is_address(policy: str) -> bool:
    """Whether `policy` names an endpoint."""
    return policy.startswith(("http://", "https://"))


def make_endpoint(url: str, *, model: str | None, api_key_from: str | None) -> Endpoint:
    """The endpoint at `url`; raises `ConfigError` without a model, or for a key that is not set."""
    if model is None:
        raise ConfigError(f"endpoint {url}: which of its models? Give --model NAME")
    endpoint = Endpoint(url, model, api_key_variable=api_key_from)
    endpoint.headers()  # raises for a missing key
    return endpoint


def identify_endpoint(endpoint: Endpoint) -> Mapping[str, object]:
    """Address and model: all that can be known of it."""
    return {"name": endpoint.model, "endpoint": without_password(endpoint.url)}


def _policy_in(folder: Path, *, name: str) -> SavedPolicy:
    for parent in folder.absolute().parents:
        if (checkpoint := _find_checkpoint(parent)) is not None:
            run, step = checkpoint
            return SavedPolicy(name=name, folder=folder, workspace=run, step=step)
    # `policy` and `warmup` are in the workspace, `train/best` is one folder deeper.
    workspace = next((parent for parent in folder.absolute().parents[:2] if _is_workspace(parent)), None)
    return SavedPolicy(name=name, folder=folder, workspace=workspace)


def _policy_of_run(folder: Path, *, name: str, step: int | None) -> SavedPolicy:
    """`folder` is a workspace, or one of its checkpoints."""
    checkpoint = _find_checkpoint(folder.absolute())
    if checkpoint is not None and step is None:
        folder, step = checkpoint
    if not _is_workspace(folder):
        raise ConfigError(
            f"no policy in {name!r}: it has no config.json, and is no folder of a run; give a folder in "
            "Hugging Face format, a run, the name of a model on a hub, or the address of an endpoint"
        )
    trained_policy, checkpoints_folder = folder / "policy", folder / "train" / "checkpoints"
    steps = checkpoints.complete_steps(checkpoints_folder)
    if step is None and (trained_policy / "config.json").exists():
        return SavedPolicy(name=name, folder=trained_policy, workspace=folder)
    if not steps:
        raise ConfigError(
            f"run {name!r} has no policy yet and no complete checkpoint; run its training first"
        )
    if step is not None and step not in steps:
        raise ConfigError(
            f"--step {step}: run {name!r} has complete checkpoints of the steps "
            f"{', '.join(map(str, steps))}; give one of them"
        )
    chosen_step = steps[-1] if step is None else step
    return SavedPolicy(
        name=name,
        folder=checkpoints.policy_folder(checkpoints_folder, step=chosen_step),
        workspace=folder,
        step=chosen_step,
    )


def _find_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """The workspace and the step of the checkpoint `folder`, an absolute path; None if it is of no run, as
    that of another program may be."""
    step = checkpoints.step_of(folder)
    if step is None or folder.parts[-3:-1] != ("train", "checkpoints"):
        return None
    return folder.parents[2], step


def _is_workspace(folder: Path) -> bool:
    return any((folder / name).exists() for name in _WORKSPACE_FILES)


def _download(name: str) -> Path:
    if not hub.is_name(name):
        raise ConfigError(
            f"no policy {name!r}: there is no such folder; give one, the name of a model on a hub "
            "(OWNER/NAME), or the address of an endpoint (http…)"
        )
    return hub.download_model(name)
