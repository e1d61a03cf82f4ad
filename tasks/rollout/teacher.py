"""The teacher of an algorithm that distils: what it says of a step's episodes, token by token.

Its context is the policy's, token by token; where the algorithm gives a hint, the last message of each
segment's prompt ends with it. What was sampled and observed after that prompt is never encoded again.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agents.clients.endpoint import Endpoint, EndpointFailed
from agents.clients.prompt_log_probs import CHUNK, EndpointScorer
from agents.huggingface.files import load_tokenizer
from agents.prompting.renderer import Renderer
from agents.rollout.packing import pack, sampled_runs
from agents.samplers.scoring import LocalScorer, ScoredTokens, Scorer, read_max_length
from agents.types import Trajectory
from envs.errors import ConfigError
from envs.types import Message
from tasks.algorithms.builtin.self_distill import SelfDistill
from tasks.algorithms.distillation import Distillation, TeacherEndpoint
from tasks.config.pipelines import Pipeline
from tasks.data.items import split
from tasks.errors import TeacherFailed
from tasks.rollout.hints import HEADING, ExpertHints, FindHints, check_experts, sibling_hints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LOWEST = -9999.0
"""Log-prob that vLLM writes for a probability of 0."""


class Teacher:
    """Scores the episodes of training steps."""

    def __init__(
        self, scorer: Scorer, *, find_hints: FindHints | None = None, renderer: Renderer | None = None
    ) -> None:
        """`find_hints`, with the policy's `renderer`: what the teacher is told and the policy is not."""
        self._scorer = scorer
        self._find_hints = find_hints
        self._renderer = renderer

    def score(self, trajectories: Mapping[str, Trajectory], *, temperature: float) -> dict[str, list[float]]:
        """Score conversations by key: the log-prob of each sampled token of a conversation, in the order of
        its turns; without the conversations that there is no hint for, if there should be one, and those that
        are longer than the teacher's context.

        `temperature`: of the distributions, the one that the tokens were sampled at. Raises `TeacherFailed`
        if the teacher does not answer, and for a sampled token that it gives no probability.
        """
        contexts = self.contexts(trajectories)
        segments = [segment for parts in contexts.values() for segment in parts]
        try:
            scores = iter(self._scorer.score(segments, temperature=temperature))
        except EndpointFailed as error:
            raise TeacherFailed(
                f"the teacher failed: {error}; restore it and run the same command again"
            ) from error
        by_key: dict[str, list[float]] = {}
        for key in contexts:
            trajectory = trajectories[key]
            by_segment = [
                [
                    score
                    for score, is_sampled in zip(next(scores), segment.response_mask, strict=True)
                    if is_sampled
                ]
                for segment in pack(trajectory)
            ]
            by_key[key] = [
                score for number, run in sampled_runs(trajectory.turns) for score in by_segment[number][run]
            ]
            _check_finite(by_key[key], trajectory)
        return by_key

    def contexts(self, trajectories: Mapping[str, Trajectory]) -> dict[str, list[ScoredTokens]]:
        """What the teacher reads, by key: a sequence for each segment."""
        hints: Mapping[str, str] | None = None
        if self._find_hints is not None:
            hints = self._find_hints(trajectories)
        longest = self._scorer.max_length or math.inf
        contexts = {}
        for key, trajectory in trajectories.items():
            if hints is not None and key not in hints:
                continue
            segments = [
                ScoredTokens(
                    self._prompt(s.prompt_ids, None if hints is None else hints[key]), s.response_ids
                )
                for s in pack(trajectory)
            ]
            if all(len(s.prompt_ids) + len(s.response_ids) <= longest for s in segments):
                contexts[key] = segments
        return contexts

    def _prompt(self, prompt_ids: Sequence[int], hint: str | None) -> Sequence[int]:
        if hint is None:
            return prompt_ids
        assert self._renderer is not None
        return self._renderer.add_to_prompt(prompt_ids, hint)


def make_teacher(pipeline: Pipeline, *, model: str, tokenizer: "PreTrainedTokenizerBase") -> Teacher | None:
    """The teacher of `pipeline`'s algorithm; None for an algorithm without one.

    `model`: the policy that training starts from; `tokenizer`: its own. Raises `ConfigError` for a teacher
    that cannot be loaded or reached, reads less than `rollout.context_length`, or has another vocabulary, and
    for a chat template that a hint cannot be added to.
    """
    algorithm = pipeline.train.algorithm
    if not isinstance(algorithm, Distillation):
        return None
    endpoint = _check_source(pipeline, algorithm, tokenizer=tokenizer, policy=model)
    source = algorithm.teacher_source
    scorer = endpoint or LocalScorer(source if isinstance(source, Path) else Path(model))
    if not isinstance(algorithm, SelfDistill):
        return Teacher(scorer)
    find_hints = ExpertHints() if algorithm.hint == "expert" else sibling_hints
    return Teacher(scorer, find_hints=find_hints, renderer=_make_renderer(tokenizer))


def check_teacher(pipeline: Pipeline) -> None:
    """Raise `ConfigError`, before anything starts, for a teacher that `make_teacher` would refuse, or that
    has no hints to give.

    Leaves out what depends on the policy's tokenizer, where that is made by the warm-up or is on a hub.
    """
    algorithm = pipeline.train.algorithm
    if not isinstance(algorithm, Distillation):
        return
    if isinstance(algorithm, SelfDistill) and algorithm.hint == "expert":
        check_experts(split(pipeline.data).train, where=f"train.algorithm {algorithm.name}")
    tokenizer = None
    if Path(pipeline.model).is_dir() and not (pipeline.warmup is not None and pipeline.warmup.new_words):
        tokenizer = load_tokenizer(pipeline.model)
        if isinstance(algorithm, SelfDistill):
            _make_renderer(tokenizer)
    _check_source(pipeline, algorithm, tokenizer=tokenizer, policy=pipeline.model)


def _make_renderer(tokenizer: "PreTrainedTokenizerBase") -> Renderer:
    renderer = Renderer(tokenizer)
    renderer.add_to_prompt(renderer.prompt_ids([Message("user", "Hello.")]), HEADING)
    return renderer


def _check_source(
    pipeline: Pipeline, algorithm: Distillation, *, tokenizer: "PreTrainedTokenizerBase | None", policy: str
) -> EndpointScorer | None:
    """Check the teacher that the algorithm names, if it does; returns it, if it is an endpoint."""
    source = algorithm.teacher_source
    if source is None:
        return None
    try:
        if isinstance(source, TeacherEndpoint):
            return _connect(source, pipeline, tokenizer=tokenizer, policy=policy)
        if not (source / "config.json").exists():
            raise ConfigError(f"{source} has no config.json; give a folder in Hugging Face format")
        _check_length(read_max_length(source), pipeline)
        if tokenizer is not None:
            _check_vocabulary(source, tokenizer, policy=policy)
    except ConfigError as error:
        raise ConfigError(f"train.algorithm.teacher: {error}") from None
    return None


def _connect(
    source: TeacherEndpoint, pipeline: Pipeline, *, tokenizer: "PreTrainedTokenizerBase | None", policy: str
) -> EndpointScorer:
    scorer = EndpointScorer(Endpoint.from_settings(source))
    _check_length(scorer.max_length, pipeline)
    if tokenizer is not None:
        _check_texts(scorer, tokenizer, policy=policy)
    return scorer


def _check_length(max_length: int | None, pipeline: Pipeline) -> None:
    length = pipeline.rollout.context_length
    if max_length is not None and max_length < length:
        raise ConfigError(
            f"it reads prompts of {max_length} tokens, and rollout.context_length is {length}; lower that, "
            "choose another teacher, or raise --max-model-len of vLLM"
        )


def _check_vocabulary(folder: Path, tokenizer: "PreTrainedTokenizerBase", *, policy: str) -> None:
    """Raise `ConfigError` unless the tokenizer in `folder` has the tokens of `policy`'s, by the same ids."""
    ours = tokenizer.get_vocab()
    theirs = load_tokenizer(folder).get_vocab()
    differences = sorted({*ours.items()} ^ {*theirs.items()}, key=lambda entry: entry[1])
    if differences:
        token, _ = differences[0]
        raise ConfigError(
            f"the tokenizer of {folder} is not that of {policy}: token {token!r} is number "
            f"{theirs.get(token)} there and {ours.get(token)} here; choose a model with the same vocabulary"
        )


def _check_texts(scorer: EndpointScorer, tokenizer: "PreTrainedTokenizerBase", *, policy: str) -> None:
    """Raise `ConfigError` unless the endpoint decodes all of the policy's tokens as `tokenizer` does.

    White space is not compared: one and the same tokenizer may be set to clean it up, or not.
    """
    ids = sorted(tokenizer.get_vocab().values())
    try:
        texts = scorer.decode(ids)
    except EndpointFailed as error:
        raise ConfigError(f"{error}; serve the teacher by vLLM") from None
    for number, text in enumerate(texts):
        chunk = ids[number * CHUNK : (number + 1) * CHUNK]
        if "".join(text.split()) != "".join(tokenizer.decode(chunk).split()):
            raise ConfigError(
                f"the tokenizer of {scorer.endpoint.model} is not that of {policy}: tokens {chunk[0]} to "
                f"{chunk[-1]} are other texts there; choose a model with the same vocabulary"
            )


def _check_finite(log_probs: Sequence[float], trajectory: Trajectory) -> None:
    for place, value in enumerate(log_probs):
        if not LOWEST < value < math.inf:
            raise TeacherFailed(
                f"the teacher's log-prob of sampled token {place} of {trajectory.where}, is {value}, so that "
                "its KL has no bound; choose another teacher"
            )
