"""The trained policy in MLflow's model registry: one version per run, with its scores and sources, and the
aliases of the best version and of the newest that is not better."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from envs.errors import WingspanError
from tasks.evaluation.outcomes import OUTCOMES, Samples, compare_samples, read_outcomes
from tasks.evaluation.paired import PairedTest
from tasks.tracking.connection import MISSING, connect
from tasks.tracking.facts import UNCHANGED
from tasks.tracking.record import read_record, record_candidate

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
"""Alias of the version that beat the champion before it in a paired test: `models:/<name>@champion`."""
CHALLENGER = "challenger"
"""Alias of the newest version that has not beaten the champion."""
COMPARABLE = ("md5.data/test.jsonl", "evaluate.max_turns", "evaluate.temperature")
"""Two versions are comparable if these tags are equal: the same items, limits and temperature."""
MAX_P_VALUE = 0.05
BEFORE = "the policy before training"
"""What the first version is tested against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A version of a registered model that has become its champion."""

    model: str
    version: str
    test: Mapping[str, str]
    """What it was tested against, and the result, as in the version's tags `test.…`."""


def register(
    client: "MlflowClient",
    run_id: str,
    *,
    name: str,
    model_id: str,
    tags: Mapping[str, str],
    description: str,
    outcomes: Path,
    is_candidate: bool,
) -> Promotion | None:
    """Make the logged model `model_id` the newest version of the registered model `name`, and promote it if
    it is better and a candidate. A run gets one version at most. Returns the promotion, if there is one.

    The folder is in Hugging Face format and loads from what
    `mlflow.artifacts.download_artifacts("models:/<name>/<version>")` returns. `outcomes`: of the run's
    evaluation, `evaluation_outcomes.json`, which is also an artifact of the run.
    """
    if not client.search_registered_models(f"name = '{name}'"):
        about = (
            f"Policies that `wingspan run {name}` has trained. `{CHAMPION}` is the best on the test split."
        )
        client.create_registered_model(name, description=about)
    version = _find_version(client, run_id, name=name)
    if version is None:
        version = client.create_model_version(
            name,
            source=f"models:/{model_id}",
            run_id=run_id,
            tags=dict(tags),
            description=description,
            model_id=model_id,
        )
    has_alias = version.aliases  # the last thing that a version gets
    return _promote(client, version, outcomes=outcomes) if is_candidate and not has_alias else None


def promote_best(workspace: Path, *, name: str, num_candidates: int) -> Promotion | None:
    """Promote the policy of the recorded run in `workspace`, the one with the highest success of so many, if
    it beats the champion of model `name`.

    The best of many is also the luckiest: p is multiplied by their number (Bonferroni, which for the
    best is the first step of Holm's method). Returns the promotion, if this call made one. Raises
    `WingspanError` for a run without a version.
    """
    client = connect()
    version = _recorded_version(client, workspace, name=name)
    if CHAMPION in version.aliases:
        return None
    return _promote(client, version, outcomes=workspace / OUTCOMES, num_candidates=num_candidates)


def promote_recorded(workspace: Path, *, name: str) -> Promotion | None:
    """Promote the policy of the finished run in `workspace`, which was no candidate, if it beats the champion
    of model `name`; a version that a sweep has tested is not tested again.

    Returns the promotion, if this call made one. Raises `WingspanError` for a run without a version.
    """
    client = connect()
    version = _recorded_version(client, workspace, name=name)
    promotion = None if version.aliases else _promote(client, version, outcomes=workspace / OUTCOMES)
    record_candidate(workspace)
    return promotion


def _recorded_version(client: "MlflowClient", workspace: Path, *, name: str) -> "ModelVersion":
    run_id = str(read_record(workspace)["run_id"])
    version = _find_version(client, run_id, name=name)
    if version is None:
        raise WingspanError(
            f"MLflow has no version of the model {name} of run {run_id}; run it again, in another workspace"
        )
    return version


def _find_version(client: "MlflowClient", run_id: str, *, name: str) -> "ModelVersion | None":
    """The version of model `name` that was made from the run. A copy in another model (MLflow's "Promote
    model") has the same run."""
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    # A search does not return aliases.
    return client.get_model_version(name, versions[0].version) if versions else None


def is_better(test: PairedTest, *, num_candidates: int = 1) -> bool:
    """Whether the second series of `test` is better than the first beyond chance: p times `num_candidates`
    < .05, and the 95% interval of the difference is above 0."""
    return test.mean > 0 and test.low > 0 and test.p_value * num_candidates < MAX_P_VALUE


def _promote(
    client: "MlflowClient", version: "ModelVersion", *, outcomes: Path, num_candidates: int = 1
) -> Promotion | None:
    """Test `version` against the champion, or without one against the policy before training, and set its
    alias; tags of the version say what the test found. A policy that training did not change gets neither."""
    if UNCHANGED in version.tags:
        return None
    evaluation = read_outcomes(outcomes)
    champion = client.get_registered_model(version.name).aliases.get(CHAMPION)
    opponent = BEFORE
    first: Samples | None = evaluation["before"]["sampled"]
    if champion is not None:
        opponent, first = f"version {champion}", _successes(client, version, champion=champion)
    test = None if first is None else compare_samples(first, evaluation["after"]["sampled"])
    if test is None:
        tags = {"test.against": f"{opponent}, which is not comparable"}
    else:
        tags = {
            "test.against": opponent,
            "test.difference": f"{test.mean:+.4f}",
            "test.interval": f"{test.low:+.4f} to {test.high:+.4f}",
            "test.p_value": f"{test.p_value:.2g}",
            "test.items": str(test.items),
            "test.candidates": str(num_candidates),
        }
    for key, value in tags.items():
        client.set_model_version_tag(version.name, version.version, key, value)
    is_champion = test is not None and is_better(test, num_candidates=num_candidates)
    if is_champion:
        client.delete_registered_model_alias(version.name, CHALLENGER)  # of the champion before, if any
    alias = CHAMPION if is_champion else CHALLENGER
    client.set_registered_model_alias(version.name, alias, version.version)
    if not is_champion:
        return None
    test_facts = {key.removeprefix("test."): value for key, value in tags.items()}
    return Promotion(model=version.name, version=str(version.version), test=test_facts)


def _successes(client: "MlflowClient", version: "ModelVersion", *, champion: str) -> Samples | None:
    """The successes of the version `champion`; None if it is not comparable with `version`."""
    best = client.get_model_version(version.name, champion)
    if best.run_id is None or any(best.tags.get(key) != version.tags.get(key) for key in COMPARABLE):
        return None
    if not _has_outcomes(client, best.run_id):
        return None
    with TemporaryDirectory() as folder:
        return read_outcomes(Path(client.download_artifacts(best.run_id, OUTCOMES, folder)))["after"][
            "sampled"
        ]


def _has_outcomes(client: "MlflowClient", run_id: str) -> bool:
    """Whether the run is still there, with its outcomes among its artifacts."""
    from mlflow.exceptions import MlflowException

    try:
        return OUTCOMES in {file.path for file in client.list_artifacts(run_id)}
    except MlflowException as error:
        if error.error_code != MISSING:
            raise
        return False
