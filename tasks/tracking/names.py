"""The names of a run's metrics in MLflow, and the addresses of its pages.

The files of a workspace have flat names (`train/metrics.jsonl`: `success`, `kl`, `seconds_update`). MLflow's
charts have a section per prefix, sections and charts in alphabetical order, so the prefix decides the order:

| prefix | metrics |
|---|---|
| `eval/quick` | the test split after each round |
| `eval/sampled`, `eval/greedy` | the test split before (step 0) and after training |
| `rollout` | the training episodes of a step |
| `time` | seconds by phase and by stage, tokens per second |
| `train` | the optimizer, and the schedules of horizon and temperature |
| `usage` | CPU time and peak memory by stage |
| `system` | environment instances; MLflow has a page of its own for these |

Counts of episodes, items and groups have a subsection, as in `rollout/counts/stop_max_turns`.
"""

import re
from pathlib import Path
from urllib.parse import urlsplit

from tasks.data.hashes import text_md5

MAX_KEY = 250
"""The most characters of a metric's or a parameter's name, MLflow's own limit."""
_TRAIN_KEYS = """
    loss grad_norm kl kl_reference observation_loss clip_fraction lr value_loss value_clip_fraction
    value_mean explained_variance critic_grad_norm critic_lr entropy entropy_exact alerts rewinds
    trained temperature policy_version horizon trained_tokens pairs rows rows_original chosen
    duplicates
    """
_TRAIN = set(_TRAIN_KEYS.split())
_TRAIN_PREFIXES = ("imitation_", "preference_", "horizon_", "rollout_probs_diff", "importance_", "distill/")
_SYSTEM_PREFIXES = ("envs_live/", "envs_created/", "envs_replaced/")
TOOL_SECONDS = "tool_seconds/"
"""Begins the metrics of `summarise` that measure the time of tools."""
_COUNTS = ("episodes", "dropped", "stop_", "dropped_", "items_", "replaced_groups", "added_")


def run_page(experiment_id: str, run_id: str, *, tab: str = "") -> str:
    """The address of a run's page in MLflow; without the query, MLflow opens its GenAI view."""
    return f"/#/experiments/{experiment_id}/runs/{run_id}{tab}?workflowType=machine_learning"


def absolute_store(uri: str) -> str:
    """`uri` with the whole path of a file or folder that it names relative to the working directory."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        return f"sqlite:///{Path(parts.path.removeprefix('/')).absolute()}"
    return uri if parts.scheme else str(Path(uri).absolute())


def step_metric(key: str) -> str:
    """Map the key of a training metric in `train/metrics.jsonl` to its name in MLflow."""
    if key in _TRAIN or key.startswith(_TRAIN_PREFIXES):
        name = f"train/{key}"
    elif key == "seconds":
        name = "time/step"
    elif key.startswith("seconds_"):
        name = f"time/{key.removeprefix('seconds_')}"
    elif key in ("tokens_per_s", "mfu", "idle_cores"):
        name = f"time/{key}"
    elif key.startswith("env_step_seconds/"):
        name = f"time/env_step/{key.removeprefix('env_step_seconds/')}"
    elif key.startswith(TOOL_SECONDS):
        name = f"time/tool/{key.removeprefix(TOOL_SECONDS)}"
    elif key.startswith(_SYSTEM_PREFIXES):
        name = f"system/{key}"
    else:
        return summary_metric(key, group="rollout")
    return metric_key(name)


def summary_metric(key: str, *, group: str) -> str:
    """Map a key of `tasks.data.trajectories.summarise` to its name in MLflow; `group`: e.g. `eval/quick`."""
    is_count = key in _COUNTS or key.startswith(tuple(c for c in _COUNTS if c.endswith("_")))
    return metric_key(f"{group}/counts/{key}" if is_count else f"{group}/{key}")


def metric_key(key: str) -> str:
    """Replace what MLflow does not allow: characters, as in `webshop-mini:text?actions=false`, parts of a
    path that name no file, as in `http://`, and, by the key's hash, the end of a key that is too long."""
    text = re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
    text = "/".join("_" if part in ("", ".", "..") else part for part in text.split("/"))
    return text if len(text) <= MAX_KEY else f"{text[: MAX_KEY - 9]}_{text_md5(key)[:8]}"
