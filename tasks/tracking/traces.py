"""Trajectories as MLflow traces: a few from each round of training and from the evaluations.

A trace is an episode: its name states the step and the item, its input is the task and the whole prompt. A
turn is two spans: the policy's completion (a chat model) and the environment's response (a tool), with their
durations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agents.rewards.types import PREFIX
from agents.rollout.packing import segment_numbers
from agents.types import Label, Trajectory, Turn
from tasks.config.agent import AgentSettings
from tasks.data.items import spread
from tasks.data.trajectories import read_trajectories, sampled_tokens
from tasks.tracking.names import metric_key
from tasks.tracking.search import all_pages

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LiveSpan

EVALUATION_ITEMS = 10
"""Items of the test split whose sampled episodes, before and after training, become traces."""
PER_STEP = 2
"""Items of the first and of the last step of a round, each with one of its episodes."""
MAX_SPANS = 2_048
"""Spans that MLflow writes at once; its queue holds no more and drops the rest."""
MAX_TASK = 500
"""Characters of the task, shown before the whole prompt."""

Decode = Callable[[Sequence[int]], str | None]
"""Tokens to text; None where there is no tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTrace:
    """An episode that becomes a trace."""

    name: str
    """The name of the trace, unique in a run."""
    tags: Mapping[str, str]
    trajectory: Trajectory
    ended_at_ns: int
    """Nanoseconds since the epoch: when the trajectory file was written, as episodes record no end."""


def round_traces(train: Path, *, number: int, first_step: int, last_step: int) -> list[EpisodeTrace]:
    """Choose the traces of round `number` from the trajectories in the folder `train`."""
    traces = []
    for step in sorted({first_step, last_step}):
        file = train / "trajectories" / f"step_{step:04d}.jsonl"
        if not file.exists():
            continue
        of_items = {t.item.item_id: t for t in reversed(read_trajectories(file))}  # the first of each
        traces += [
            EpisodeTrace(
                name=f"step {step}, {item_id}",
                tags={"phase": "training", "round": str(number), "step": str(step)},
                trajectory=trajectory,
                ended_at_ns=file.stat().st_mtime_ns,
            )
            for item_id, trajectory in sorted(of_items.items())[:PER_STEP]
        ]
    return traces


def evaluation_traces(file: Path) -> list[EpisodeTrace]:
    """Choose items spread over the test split; of each, the first sample before and after training."""
    first_samples: dict[tuple[str, Label], Trajectory] = {}
    for trajectory in read_trajectories(file):
        if trajectory.labels["mode"] == "sampled":
            first_samples.setdefault((trajectory.item.item_id, trajectory.labels["policy"]), trajectory)
    items = {trajectory.item.item_id: trajectory.item for trajectory in first_samples.values()}
    trace_ids = {item.item_id for item in spread(list(items.values()), EVALUATION_ITEMS)}
    return [
        EpisodeTrace(
            name=f"{t.labels['policy']} training, {t.item.item_id}",
            tags={"phase": "evaluation", "policy": str(t.labels["policy"])},
            trajectory=t,
            ended_at_ns=file.stat().st_mtime_ns,
        )
        for t in first_samples.values()
        if t.item.item_id in trace_ids
    ]


def judge_metrics(agent: AgentSettings) -> dict[str, tuple[str, str]]:
    """The metric of an episode that holds a judge's score → the judge's name and its model."""
    return {
        f"{PREFIX}{'score' if agent.reward == name else f'{name}/score'}": (name, judge.model)
        for name, judge in agent.judges.items()
    }


def log_traces(
    client: "MlflowClient",
    run_id: str,
    traces: Iterable[EpisodeTrace],
    *,
    decode: Decode,
    judges: Mapping[str, tuple[str, str]],
) -> None:
    """Record the `traces` whose names the run does not have yet; `judges`: of `judge_metrics`."""
    import mlflow

    experiment_id = client.get_run(run_id).info.experiment_id
    existing_names = {
        trace.info.tags.get("mlflow.traceName")
        for trace in all_pages(
            client.search_traces, locations=[experiment_id], run_id=run_id, include_spans=False
        )
    }
    for batch in _batches([trace for trace in traces if trace.name not in existing_names]):
        trace_ids = [
            _log(trace, run_id=run_id, experiment_id=experiment_id, decode=decode) for trace in batch
        ]
        mlflow.flush_trace_async_logging()
        for trace_id, trace in zip(trace_ids, batch, strict=True):
            _assess(trace_id, trace.trajectory, judges=judges)


def _batches(traces: Iterable[EpisodeTrace]) -> Iterator[list[EpisodeTrace]]:
    """`traces` in order, as many at a time as have `MAX_SPANS` spans; a longer episode is alone."""
    batch: list[EpisodeTrace] = []
    spans = 0
    for trace in traces:
        count = 1 + 2 * len(trace.trajectory.turns)
        if batch and spans + count > MAX_SPANS:
            yield batch
            batch, spans = [], 0
        batch.append(trace)
        spans += count
    if batch:
        yield batch


def _assess(trace_id: str, trajectory: Trajectory, *, judges: Mapping[str, tuple[str, str]]) -> None:
    """Record success, reward and judges' scores as assessments, by which MLflow sorts traces."""
    import mlflow
    from mlflow.entities import AssessmentSource

    of_code = AssessmentSource(source_type="CODE", source_id=trajectory.item.env)
    for name, value in {"success": trajectory.success, "reward": trajectory.reward}.items():
        mlflow.log_feedback(trace_id=trace_id, name=name, value=value, source=of_code)
    for metric, (name, model) in judges.items():
        if metric in trajectory.metrics:
            of_judge = AssessmentSource(source_type="LLM_JUDGE", source_id=model)
            mlflow.log_feedback(
                trace_id=trace_id, name=name, value=trajectory.metrics[metric], source=of_judge
            )


def _log(trace: EpisodeTrace, *, run_id: str, experiment_id: str, decode: Decode) -> str:
    """Record an episode; returns the id of its trace."""
    import mlflow

    trajectory = trace.trajectory
    facts = {"item": trajectory.item.item_id, "env": trajectory.item.env}
    facts |= {"stop_reason": str(trajectory.stop_reason), "success": str(trajectory.success).lower()}
    facts |= {
        metric_key(key): str(value) for key, value in trajectory.item.metadata.items() if _is_short(value)
    }
    prompt = decode(trajectory.prompt_ids) or ""
    episode = mlflow.start_span_no_context(
        trace.name,
        span_type="AGENT",
        inputs={"task": task_of(prompt), "prompt": prompt},
        metadata={"mlflow.sourceRun": run_id},
        tags={**facts, **trace.tags},
        experiment_id=experiment_id,
        start_time_ns=trace.ended_at_ns - round(trajectory.seconds * 1e9),
    )
    at_ns = episode.start_time_ns
    turns = _turns(trajectory, prompt=prompt, decode=decode)
    for number, (turn, message, context) in enumerate(turns, start=1):
        if number % (MAX_SPANS // 2) == 0:
            mlflow.flush_trace_async_logging()
        at_ns = _log_turn(turn, number=number, message=message, context=context, episode=episode, at_ns=at_ns)
    episode.end(
        outputs={
            "success": trajectory.success,
            "reward": trajectory.reward,
            "stop_reason": str(trajectory.stop_reason),
            "turns": len(trajectory.turns),
            "tokens": sampled_tokens(trajectory),
        },
        status="ERROR" if trajectory.has_failed else "OK",
        end_time_ns=trace.ended_at_ns,
    )
    trace_id: str = episode.trace_id
    return trace_id


def _log_turn(turn: Turn, *, number: int, message: str, context: int, episode: "LiveSpan", at_ns: int) -> int:
    """The two spans of a turn that begins at `at_ns`; returns when it ends."""
    import mlflow

    tokens = len(turn.completion.token_ids)
    chat = mlflow.start_span_no_context(
        f"turn {number}",
        span_type="CHAT_MODEL",
        parent_span=episode,
        inputs={"messages": [{"role": "user", "content": message}]},
        start_time_ns=at_ns,
    )
    at_ns += round(turn.sampling_s * 1e9)
    usage = {"input_tokens": context, "output_tokens": tokens, "total_tokens": context + tokens}
    chat.set_attributes(
        {
            "mlflow.chat.tokenUsage": usage,
            "finish_reason": str(turn.completion.finish_reason),
            "policy_version": turn.completion.policy_version,
            "is_parsed": not turn.is_malformed,
        }
    )
    answer = {"role": "assistant", "content": turn.text}
    chat.end(outputs={"choices": [{"message": answer}]}, end_time_ns=at_ns)
    tool = mlflow.start_span_no_context(
        "environment",
        span_type="TOOL",
        parent_span=episode,
        inputs={"action": turn.action},
        start_time_ns=at_ns,
    )
    tool.set_attributes({"reward": turn.reward})
    at_ns += round(turn.env_s * 1e9)
    tool.end(outputs=turn.observation, end_time_ns=at_ns)
    return at_ns


def _turns(trajectory: Trajectory, *, prompt: str, decode: Decode) -> Iterator[tuple[Turn, str, int]]:
    """Each turn with the text since the previous turn of its segment and the number of tokens in its
    context."""
    following = {0: (prompt, len(trajectory.prompt_ids))}  # of each segment: what its next turn is given
    for turn, segment in zip(trajectory.turns, segment_numbers(trajectory.turns), strict=True):
        if turn.prompt_ids is not None:
            following[segment] = decode(turn.prompt_ids) or "", len(turn.prompt_ids)
        message, context = following[segment]
        yield turn, message, context
        context += len(turn.completion.token_ids) + len(turn.observation_ids)
        following[segment] = turn.observation, context


def task_of(prompt: str) -> str:
    """The task: the last paragraph of `prompt`, where environments state the goal."""
    paragraphs: Sequence[str] = [part.strip() for part in prompt.split("\n\n") if part.strip()]
    return paragraphs[-1][-MAX_TASK:] if paragraphs else ""


def _is_short(value: object) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) <= 80
