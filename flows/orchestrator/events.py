"""Events of a run in Prefect, on which automations act; `flows/automations/` has two of these.

| event | when | payload |
|---|---|---|
| `wingspan.round` | a round ends, with its quick evaluation | `RoundResult`, number and count of rounds |
| `wingspan.collapse` | a sign of a collapse appears | `Alert` |
| `wingspan.promoted` | the run's policy becomes the champion | `Promotion`, the policy's folder |

The resource is the workspace, `wingspan.workspace.runs/NAME`, with the label `wingspan.pipeline`; Prefect
adds the flow run. Secrets are removed.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from envs.redaction import redact_values

if TYPE_CHECKING:
    from tasks.tracking.model import Promotion

ROUND, COLLAPSE, PROMOTED = "wingspan.round", "wingspan.collapse", "wingspan.promoted"


def emit_promoted(promotion: "Promotion", *, pipeline: str, envs: list[str], workspace: Path) -> None:
    """Send `wingspan.promoted`; `envs`: what the policy was trained and tested on."""
    policy = str((workspace / "policy").resolve())
    facts = {**asdict(promotion), "policy": policy, "envs": envs}
    emit(PROMOTED, facts, pipeline=pipeline, workspace=workspace)


def emit(event: str, facts: Mapping[str, object], *, pipeline: str, workspace: Path) -> None:
    """Hand the event to Prefect's thread, which sends it. A server that has died does not stop the run."""
    from prefect.events import emit_event

    with suppress(Exception):
        payload = {"pipeline": pipeline, "workspace": str(workspace), **facts}
        emit_event(
            event,
            resource={
                "prefect.resource.id": f"wingspan.workspace.{workspace}",
                "prefect.resource.name": str(workspace),
                "wingspan.pipeline": pipeline,
            },
            payload=redact_values(payload),
        )
