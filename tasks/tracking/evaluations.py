"""The MLflow record of an evaluation outside of a run: `wingspan evaluate --track`.

Evaluations are in an experiment of their own: `wingspan runs` lists trainings.
"""

import time
from contextlib import suppress
from pathlib import Path

from envs.redaction import redact
from tasks.config.parameters import flat
from tasks.evaluation.record import EvaluationRecord
from tasks.runs.folders import RECORD, UNRECORDED
from tasks.tracking.batches import log_metrics, log_params, metrics_of
from tasks.tracking.connection import connect, experiment_of
from tasks.tracking.names import metric_key, run_page

EXPERIMENT = "wingspan-evaluations"


def record_evaluation(record: EvaluationRecord, folder: Path) -> str:
    """Record `record`, written to `folder`, as a finished run; returns the path of its page.

    Metrics are `eval/<rate>` with `_low` and `_high`, and `eval/<key>_<value>/<rate>` for the items of one
    environment or metadata value. Raises what MLflow raises; the run has then failed.
    """
    client = connect()
    experiment_id = experiment_of(client, name=EXPERIMENT)
    run = client.create_run(experiment_id, run_name=folder.name, tags=dict(record.provenance))
    run_id: str = run.info.run_id
    try:
        values = record.model_dump(mode="json", exclude={"outcomes", "results", "provenance"})
        log_params(client, run_id, flat(values, sep="."))
        at_ms = round(1000 * time.time())
        series = metrics_of(evaluation_metrics(record), step=0, at_ms=at_ms, name=lambda key: metric_key(key))
        log_metrics(client, run_id, series)
        client.log_text(run_id, redact((folder / RECORD).read_text(encoding="utf-8")), RECORD)
        client.set_terminated(run_id, status="FINISHED")
    except BaseException:  # a stop as well: the next call records it in another run
        with suppress(Exception):
            client.set_terminated(run_id, status="FAILED")
        raise
    (folder / UNRECORDED).unlink(missing_ok=True)
    return run_page(experiment_id, run_id)


def evaluation_metrics(record: EvaluationRecord) -> dict[str, float]:
    """The rates of `record` by name, with their intervals, and the numbers of episodes."""
    metrics: dict[str, float] = {}
    for key, groups in record.results.items():
        for value, result in groups.items():
            place = "eval" if key == "all" else f"eval/{key}_{value}"
            metrics |= {f"{place}/episodes": result.episodes, f"{place}/failed": result.failed}
            for name, rate in result.rates.items():
                metrics[f"{place}/{name}"] = rate.mean
                metrics |= {f"{place}/{name}_low": rate.low, f"{place}/{name}_high": rate.high}
    return metrics
