"""The event of Prefect for a sign of a collapse."""

from dataclasses import asdict
from pathlib import Path

import pytest
from prefect.events import Event
from prefect.events.clients import AssertingEventsClient
from prefect.events.worker import EventsWorker

from flows.orchestrator.events import COLLAPSE, emit
from tasks.data.collapse import Alert

ALERT = Alert(monitor="kl", step=3, value=0.3, limit=0.1, text="the KL is 0.3")


class KeepingWorker:
    """Keeps what Prefect's worker would send."""

    client_type = AssertingEventsClient

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        self.events.append(event)


def test_an_alert_is_an_event_about_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = KeepingWorker()
    monkeypatch.setattr(EventsWorker, "instance", lambda *_: worker)
    emit(COLLAPSE, asdict(ALERT), pipeline="toy", workspace=Path("runs/toy"))
    (event,) = worker.events
    assert event.event == "wingspan.collapse"
    assert event.resource.id == "wingspan.workspace.runs/toy"
    assert event.payload == {"pipeline": "toy", "workspace": "runs/toy", **asdict(ALERT)}
