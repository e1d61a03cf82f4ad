"""What a run was made from: `lineage.json` in its workspace, and as an artifact of its MLflow run.

`flows/recorder.py` writes it while stages run; `wingspan lineage` shows it, and `wingspan reproduce`
makes the run again from it. Paths are relative to the project; hashes are MD5s as DVC writes them.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from agents.settings import Settings, describe_invalid
from envs.errors import ConfigError
from envs.files import write_atomically
from envs.redaction import REDACTION, redact

LINEAGE = "lineage.json"
PATCH = "code.patch"
"""Beside it, if the code had changes that were not committed: the changes, for `git apply`."""
OF_HUB = "hub:"
"""Begins what stands for the hash of a model or a data set that a hub holds."""


class CodeVersion(Settings):
    """The project's code at a moment."""

    commit: str | None
    """None outside of a Git repository, and before its first commit."""
    uncommitted: tuple[str, ...] | None = ()
    """Files that differed from the commit, without data that is recorded by its hash; None if Git did not
    say."""
    changes_md5: str | None = None
    """The MD5 of the patch of these files, written or not; None without one, as of large files."""


class StageRecord(Settings):
    """The last run of a stage."""

    key: str = ""
    """Hash of its inputs; the same key gives the same outputs."""
    code: CodeVersion
    resumed: tuple[CodeVersion, ...] = ()
    """Code of earlier attempts that were resumed, where it was other code."""
    params: tuple[str, ...]
    """Dotted keys, within the pipeline, of the blocks that it uses."""
    reads: dict[str, str]
    """File or folder → hash."""
    writes: dict[str, str] = Field(default={})
    """The same, relative to the workspace; empty until the stage has finished."""
    servers: dict[str, tuple[str, ...]] = Field(default={})
    """URLs without passwords, by environment, of the servers on which it ran episodes; of a stage that was
    resumed, those of all its attempts. An environment that is not named ran on the run's own machines."""


class EnvironmentRecord(Settings):
    """An environment of the pipeline."""

    packages: dict[str, str]
    """Version of each distribution that it needs."""
    data_sets: dict[str, str] = Field(default={})
    """Data set → MD5 of its receipt, which has the checksums of its files."""
    code: dict[str, str] = Field(default={})
    """File or folder → hash; empty for an environment of this project."""


class LineageRecord(Settings):
    """All that the outputs of a workspace depend on."""

    pipeline: str
    workspace: str
    overrides: dict[str, object]
    """Parameters by dotted key that were set besides `pipelines.yaml`."""
    parameters: dict[str, Any]
    """All of them, resolved."""
    code: CodeVersion
    patch_md5: str | None = None
    """The MD5 of `code.patch`; None if nothing was uncommitted, or if there is no patch of all of it."""
    python: str
    machine: str
    packages: dict[str, str]
    """Version of every installed distribution."""
    environments: dict[str, EnvironmentRecord]
    data: dict[str, str]
    """Files and folders that the pipeline names and no stage writes → hash: rows, models, trajectories."""
    prompts: dict[str, str]
    """Files of prompts → hash."""
    items: dict[str, int] = Field(default={})
    """Items of `train` and `test`."""
    stages: dict[str, StageRecord] = Field(default={})

    @property
    def seed(self) -> int:
        """The seed of every random number generator of the run."""
        return int(self.parameters["seed"])

    @property
    def has_secrets(self) -> bool:
        """Whether a parameter held a secret, which is not recorded."""
        return REDACTION in json.dumps(self.overrides)

    def write(self, workspace: Path) -> None:
        """Write it to `workspace`, without secrets."""
        write_atomically(workspace / LINEAGE, redact(self.model_dump_json(indent=1)) + "\n")


def read_lineage(file: Path) -> LineageRecord:
    """The record in `file`. Raises `ConfigError`."""
    try:
        return LineageRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read ({error.strerror}); `wingspan run` writes it as soon as a stage works"
        ) from None
    except ValidationError as error:
        reason = describe_invalid(error, LineageRecord)
        raise ConfigError(f"{file} is no record of a run's lineage: {reason}") from None
