"""Writes metrics, parameters and data sets to an MLflow run, in batches of the sizes that MLflow allows."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from envs.redaction import redact
from tasks.config.data import DataSettings
from tasks.config.parameters import flat
from tasks.tracking.names import metric_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

MAX_METRICS = 1000
"""The most metrics per call, MLflow's own limit."""
MAX_PARAMS = 100
"""The most parameters per call, MLflow's own limit."""


def metrics_of(
    values: Mapping[str, object], *, step: int, at_ms: int, name: Callable[[str], str]
) -> list["Metric"]:
    """The numeric leaves of `values` except `step`, each named by `name` of its key."""
    from mlflow.entities import Metric

    return [
        Metric(name(key), float(value), timestamp=at_ms, step=step)
        for key, value in flat(values, sep="/")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "step"
    ]


def log_metrics(client: "MlflowClient", run_id: str, metrics: Sequence["Metric"]) -> None:
    """Write `metrics`; MLflow keeps equal ones once."""
    for start in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])


def log_params(client: "MlflowClient", run_id: str, params: Iterable[tuple[str, object]]) -> None:
    """Write parameters, as text, with secrets redacted."""
    from mlflow.entities import Param

    all_params = [Param(metric_key(key), redact(str(value))) for key, value in params]
    for start in range(0, len(all_params), MAX_PARAMS):
        client.log_batch(run_id, params=all_params[start : start + MAX_PARAMS])


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFile:
    """A file of items as a data set of MLflow."""

    name: str
    """The environments whose items it has, and the split: runs on the same items name it the same."""
    digest: str
    """MD5 of the file, as in `dvc.lock`."""
    items: int
    context: Literal["training", "evaluation"]
    path: Path

    @classmethod
    def read(cls, path: Path, *, data: DataSettings) -> "ItemFile":
        """Read `data/train.jsonl` or `data/test.jsonl`, which were made by `data`."""
        lines = path.read_bytes()
        envs = data.envs if path.stem == "train" else data.evaluated_envs
        return cls(
            name=f"{' + '.join(envs)} {path.stem}",
            digest=hashlib.md5(lines, usedforsecurity=False).hexdigest(),
            items=lines.count(b"\n"),
            context="training" if path.stem == "train" else "evaluation",
            path=path,
        )


def log_item_files(client: "MlflowClient", run_id: str, files: Iterable[ItemFile]) -> None:
    """Record `files` as inputs of the run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(
                name=file.name,
                digest=file.digest,
                source_type="local",
                source=json.dumps({"uri": str(file.path)}),
                profile=json.dumps({"num_rows": file.items}),
            ),
            [InputTag("mlflow.data.context", file.context)],
        )
        for file in files
    ]
    if inputs:
        client.log_inputs(run_id, inputs)
