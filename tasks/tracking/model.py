"""The trained policy in MLflow's model registry: one version per run, with its scores and sources."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

BEST = "champion"
"""Alias of the most successful of the comparable versions: `models:/<name>@champion`."""
COMPARABLE = ("md5.data/test.jsonl", "evaluate.max_turns", "evaluate.temperature")
"""Two versions are comparable if these tags are equal: the same items, limits and temperature."""


def register(
    client: "MlflowClient",
    run_id: str,
    *,
    name: str,
    policy: Path,
    tags: Mapping[str, str],
    description: str,
) -> None:
    """Store the policy's folder and make it the newest version of the registered model `name`.

    The folder is in Hugging Face format and loads from what
    `mlflow.artifacts.download_artifacts("models:/<name>/<version>")` returns. A run gets one version at most.
    """
    if client.search_model_versions(f"run_id = '{run_id}'"):
        return
    if not client.search_registered_models(f"name = '{name}'"):
        about = f"Policies that `wingspan run {name}` has trained. `{BEST}` is the best on the test split."
        client.create_registered_model(name, description=about)
    client.log_artifacts(run_id, str(policy), "policy")
    version = client.create_model_version(
        name,
        source=f"runs:/{run_id}/policy",
        run_id=run_id,
        tags=dict(tags),
        description=description,
    )
    if _is_best(client, version):
        client.set_registered_model_alias(name, BEST, version.version)


def _is_best(client: "MlflowClient", version: "ModelVersion") -> bool:
    """Whether `version` takes the alias; a version that is not comparable does not."""
    model = client.get_registered_model(version.name)
    if BEST not in model.aliases:
        return True
    best = client.get_model_version(version.name, model.aliases[BEST])
    if any(best.tags.get(key) != version.tags.get(key) for key in COMPARABLE):
        return False
    return float(version.tags.get("success", 0)) > float(best.tags.get("success", 0))
