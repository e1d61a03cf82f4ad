"""The cost of a sweep in time, disk space and memory, for `wingspan sweep --plan`: that of its unfinished
runs, each as `wingspan plan` has it."""

from collections.abc import Sequence
from heapq import heapreplace

from flows.commands.costs import EarlierRun, estimate_seconds, find_earlier_runs, name_sources, unknown_time
from flows.commands.preview import forecast_stages
from flows.plan import find_disk_need
from flows.sweep.plan import SweepPlan, largest_memory_need, plan_run
from tasks.reporting.pages import duration, format_count


def list_sweep_costs(plan: SweepPlan) -> list[tuple[str, str, str]]:
    """Time, disk and memory of the unfinished runs, at least one, by `COST_COLUMNS`; without the memory if
    the sizes of all models are unknown."""
    return [_time(plan), _disk(plan), *_memory(plan)]


def total_seconds(seconds: Sequence[float], *, at_once: int) -> float:
    """How long runs of these `seconds` take in all if each starts, in this order, when one of `at_once`
    places is free."""
    ends = [0.0] * at_once
    for run_seconds in seconds:
        heapreplace(ends, ends[0] + run_seconds)
    return max(ends)


def _time(plan: SweepPlan) -> tuple[str, str, str]:
    seconds: list[float] = []
    sources: list[EarlierRun] = []
    for run in plan.unfinished:
        run_plan = plan_run(plan, run)
        earlier_runs = find_earlier_runs(run_plan)
        if not earlier_runs:
            return unknown_time(plan.name)
        stages = [forecast.stage for forecast in forecast_stages(run_plan) if forecast.runs]
        estimate = estimate_seconds(run_plan, stages, earlier_runs=earlier_runs) if stages else {}
        seconds.append(sum(estimate.values()))
        sources += earlier_runs
    least, most = duration(min(seconds)), duration(max(seconds))
    each = least if least == most else f"{least} to {most}"
    total = duration(total_seconds(seconds, at_once=plan.at_once))
    about = f"{format_count(len(seconds), 'run')} of {each}{_places(plan)}; {name_sources(sources)}"
    return "time", total, about


def _disk(plan: SweepPlan) -> tuple[str, str, str]:
    needs = [find_disk_need(run.workspace, run.pipeline) for run in plan.unfinished]
    total = sum(need.needed_bytes for need in needs)
    most = max(need.needed_bytes for need in needs)
    amount = f"{total / 1e9:.1f} GB of {needs[0].free_bytes / 1e9:.1f} free"
    return "disk", amount, f"{format_count(len(needs), 'run')} of {most / 1e9:.1f} GB at most"


def _memory(plan: SweepPlan) -> list[tuple[str, str, str]]:
    need = largest_memory_need(plan)
    if need is None:
        return []
    count = min(plan.at_once, len(plan.unfinished))
    room = f" of {need.room / 1e9:.1f}" if need.room else ""
    about = f"{need.room_name}; the largest run has {need.total / 1e9:.1f} GB{_places(plan)}"
    return [("memory", f"{count * need.total / 1e9:.1f} GB{room}", about)]


def _places(plan: SweepPlan) -> str:
    return f", {plan.at_once} at a time" if plan.at_once > 1 else ""
