"""The text of a run's artifacts in Prefect."""

from math import inf, nan
from pathlib import Path

from prefect.client.schemas.actions import ArtifactCreate

from flows.orchestrator.artifacts import artifact_key, sparkline


def test_a_key_has_only_what_prefect_allows() -> None:
    assert artifact_key(Path("runs/textcraft-qwen2.5-3b"), "progress") == "textcraft-qwen2-5-3b-progress"
    assert artifact_key(Path("/data/My runs/a_b"), "links") == "data-my-runs-a-b-links"


def test_workspaces_of_different_names_have_different_keys() -> None:
    names = ["lr=1e-3", "lr=1e+3", "lr=0.5", "lr=-0.5", "größe", "grösse", "gr\udcffe"]
    keys = [artifact_key(Path("sweeps/s") / name, "progress") for name in names]
    assert len(set(keys)) == len(names)
    for key in keys:
        assert ArtifactCreate(key=key, type="progress", data=1.0).key == key
        assert key.endswith("-progress")
    assert keys == [artifact_key(Path("sweeps/s") / name, "progress") for name in names]


def test_a_curve_is_as_high_as_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"  # rates: from 0 to 1
    assert sparkline([0.5, 0.5]) == "▅▅"
    assert sparkline([-3, 5]) == "▁█"
    assert sparkline([7, 7]) == "▁▁"
    assert sparkline(range(120), bars=8) == "▁▂▃▄▅▆▇█"


def test_a_value_that_is_no_number_leaves_a_gap_in_the_curve() -> None:
    assert sparkline([0.0, nan, 0.5, inf, 1.0]) == "▁ ▅ █"
    assert sparkline([-3, -inf, inf, 5], bars=4) == "▁  █"
    assert sparkline([1, 3, nan, inf, -inf, 9], bars=3) == "▁  "
    assert sparkline([nan, nan]) == "  "
