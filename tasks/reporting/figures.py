"""The plots of a report, each with alternative text for readers who cannot see it."""

import math
from collections.abc import Sequence

from agents.types import StopReason
from tasks.evaluation.outcomes import POLICIES
from tasks.reporting import charts
from tasks.reporting.chart_style import Plot, make_drawable, render_plot
from tasks.reporting.charts import Stages
from tasks.reporting.pages import percent
from tasks.reporting.results import Grouping, Results, phases

STOPS = (StopReason.TERMINATED, StopReason.MAX_TURNS, StopReason.MAX_CONTEXT, StopReason.TRUNCATED)
"""The reasons to stop, in the order of their colors."""
MAX_LABEL = 18
"""Characters of a group's name."""

LINES = {
    "imitation_loss": ("loss (nats per token)", "Negative log-likelihood of the imitated tokens."),
    "preference_loss": ("preference loss (nats)", "Loss of direct preference optimization, per pair."),
    "preference_accuracy": ("pairs in order", "Share of pairs whose better episode became more likely."),
    "preference_margin": ("margin", "Mean difference of the implicit rewards of a pair, β included."),
    "reward": ("reward per episode", "Mean reward of the training episodes."),
    "turns": ("turns per episode", "Mean turns per training episode, under the horizon."),
    "tokens_per_episode": ("tokens per episode", "Mean tokens that the policy sampled per training episode."),
    "tokens_per_turn": ("tokens per turn", "Mean tokens that the policy sampled per turn."),
    "repetition": ("repetition", "Share of token 4-grams that repeat one of the same completion."),
    "informative_groups": ("informative groups", "Share of groups whose rewards differ."),
    "entropy": ("entropy (nats per token)", "Entropy of the policy's tokens."),
    "entropy_exact": ("exact entropy (nats)", "Entropy of the policy's whole distributions, by the trainer."),
    "kl": ("KL to the sampler (nats)", "KL divergence of the trained policy from the one that sampled."),
    "kl_reference": ("KL to the reference", "KL divergence of the trained policy from the reference."),
    "clip_fraction": ("clip fraction", "Share of tokens whose probability ratio was clipped."),
    "grad_norm": ("gradient norm", "Norm of the gradient before it is clipped."),
    "lr": ("learning rate", "Learning rate."),
    "value_loss": ("critic's loss", "Half the mean squared error of the critic's values."),
    "explained_variance": ("explained variance", "Share of the returns' variance that the values explain."),
    "value_mean": ("mean value", "Mean of the critic's values."),
    "rollout_probs_diff_mean": (
        "sampler to trainer",
        "Mean absolute difference of a token's probability between sampler and trainer.",
    ),
}
"""Key of a training step → axis label and alternative text."""


def all_plots(
    results: Results, *, stages: Stages, groupings: Sequence[Grouping], final_step: int
) -> list[Plot]:
    """Every plot that `results` has data for. `final_step`: the training steps of the final policy."""
    plots = []
    if results.steps or results.evaluation:
        plots += [
            _success(results, stages, final_step=final_step, name="success", width=11.0, height=3.8),
            _success(results, stages, final_step=final_step, name="success_narrow", width=4.6, height=3.4),
        ]
    plots += [_by_group(grouping) for grouping in groupings]
    if results.steps:
        plots += _dynamics(results, stages=stages)
    return plots


def _success(
    results: Results, stages: Stages, *, final_step: int, name: str, width: float, height: float
) -> Plot:
    quick = [
        (float(done.last_step), done.evaluation["success"], int(done.evaluation["episodes"]))
        for done in results.counted_rounds
    ]
    evaluations = "; ".join(f"step {step:.0f}: {rate:.0%}" for step, rate, _ in quick)
    turns = ", then ".join(f"{turns} turns from step {first}" for first, _, turns in stages)
    return render_plot(
        name,
        charts.success_over_steps(
            training=_series(results, "success"),
            quick=quick,
            before=results.rate("before", "sampled"),
            after=results.rate("after", "sampled"),
            final_step=final_step,
            stages=stages,
            narrow=width < 6,
        ),
        alt=f"Success against training steps. Horizon: {turns}. Quick evaluations: {evaluations or 'none'}.",
        width=width,
        height=height,
    )


def _by_group(grouping: Grouping) -> Plot:
    rates = {policy: [group.rates[policy, "sampled"] for group in grouping.groups] for policy in POLICIES}
    return render_plot(
        grouping.plot_name,
        charts.paired_bars(
            key=shorten(grouping.key),
            labels=[
                shorten(str(group.value)) + "\n"
                f"{percent(was, digits=0)} → {percent(now, digits=0)}\n"
                f"{group.items} items"
                for group, was, now in zip(grouping.groups, rates["before"], rates["after"], strict=True)
            ],
            before=rates["before"],
            after=rates["after"],
            intervals=(
                [group.intervals["before", "sampled"] for group in grouping.groups],
                [group.intervals["after", "sampled"] for group in grouping.groups],
            ),
        ),
        alt=f"Success by {grouping.key}, before and after training; the table has the numbers.",
        width=5.0,
        height=3.1,
    )


def _dynamics(results: Results, *, stages: Stages) -> list[Plot]:
    steps = [int(step["step"]) for step in results.steps]
    ends = {
        reason.replace("_", " "): [
            step.get(f"stop_{reason}", 0.0) / max(1.0, step["episodes"]) for step in results.steps
        ]
        for reason in STOPS
    }
    plots = [
        render_plot(
            key,
            charts.line_over_steps(
                _series(results, key),
                label=label,
                stages=stages,
                percent=key in ("informative_groups", "preference_accuracy", "repetition"),
                ceiling=key == "turns",
            ),
            alt=alt,
        )
        for key, (label, alt) in LINES.items()
        if _series(results, key)
    ]
    return [
        *plots,
        render_plot(
            "stop_reasons",
            charts.stacked_over_steps(ends, steps=steps, label="episodes", percent=True),
            alt="How training episodes ended, as shares, over steps.",
        ),
        render_plot(
            "seconds",
            charts.stacked_over_steps(
                {name.replace("_", " "): parts for name, parts in phases(results).items()},
                steps=steps,
                label="seconds per step",
            ),
            alt="Seconds of each training step by phase; the table has the sums.",
        ),
    ]


def shorten(label: str) -> str:
    """A label that can be drawn and leaves room for the plot."""
    label = make_drawable(label)
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"


def _series(results: Results, key: str) -> list[tuple[float, float]]:
    """(step, value) of the steps that have a finite value of `key`: no axis ends at infinity."""
    if key == "tokens_per_episode":
        return [(s["step"], s["tokens"] / s["episodes"]) for s in results.steps if s.get("tokens")]
    return [(step["step"], step[key]) for step in results.steps if math.isfinite(step.get(key, math.nan))]
