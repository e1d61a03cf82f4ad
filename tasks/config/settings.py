"""The parameters of a pipeline: what `pipelines.yaml` may say, checked before anything starts.

Every parameter is declared once here and given once in `pipelines.yaml`, under `pipelines.<name>`.
A value is refused with its place (`pipelines.textcraft-cpu.rollout.group_size`) and a remedy.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from envs.types import Item
from tasks.data.sources import checked_source

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""What every generator of random numbers here takes; steps are added to it."""
LearningRate = Annotated[float, Field(gt=0, le=1)]
"""Each step of the optimizer changes a weight by about so much, and weights are below 1."""
Seconds = Annotated[float, Field(gt=0)]
Source = Annotated[str, AfterValidator(checked_source)]


def _known_algorithm(name: Any) -> Any:
    if name != "grpo":
        raise ValueError(f"{name!r} is no algorithm that is implemented; grpo is the only one")
    return name


def _comparable(count: Any) -> Any:
    if isinstance(count, int) and count < 2:
        raise ValueError(f"GRPO compares the samples of an item with each other: give 2 or more, not {count}")
    return count


def _reward(value: Any) -> Any:
    weights = value.values() if isinstance(value, dict) else ()
    has_weights = bool(weights) and all(isinstance(weight, int | float) for weight in weights)
    if value is not None and not isinstance(value, str) and not has_weights:
        raise ValueError(
            f"{value!r} is neither the name of a reward nor several with weights, such as "
            "{qa_exact_match: 1.0, think_format: 0.2}"
        )
    return value


Algorithm = Annotated[Literal["grpo"], BeforeValidator(_known_algorithm)]
IMPORTANCE_CAP = 2.0
"""`train.importance_cap` on GPUs, where a pipeline does not say it."""


class Section(BaseModel):
    """A block of parameters: unknown keys and infinite numbers are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ContextSettings(Section):
    """What the policy sees of its own past (`agents/rollout/context.py`)."""

    when_full: Literal["stop", "fold", "drop"] = "stop"
    fold_at: Annotated[float, Field(gt=0, lt=1)] = 0.75
    keep_thoughts: bool = True
    max_observation: Annotated[int, Field(ge=100)] | None = None
    show_budget: bool = False


class JudgeSettings(Section):
    """A language model that judges episodes (`agents/rewards/judge/reward.py`)."""

    url: str
    """Of an OpenAI-compatible endpoint, up to the version, e.g. `http://127.0.0.1:8000/v1`."""
    model: str
    key_from: str | None = None
    """Name of the environment variable that holds the key; a key itself is in no file."""
    prompt: Path | None = None
    """A file with the prompt, which names in braces what it is filled with; None is the judge's own."""
    lowest: float = 0.0
    highest: float = 10.0
    """The range of scores; the reward is from 0 to 1."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    reply_tokens: Positive = 1024
    max_requests: Positive | None = None
    max_tokens: Positive | None = None
    """What may be spent, by each process or, with `store`, by all; beyond, the run ends."""
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    concurrent: Positive = 16
    request_timeout_s: Seconds = 60.0
    tries: Positive = 5
    store: Path | None = None
    """A file in which replies and what was spent are kept, for all processes and later runs."""


class AgentSettings(Section):
    """How a conversation is put to the model, what its answers mean, and what judges them."""

    program: str | None = None
    """Somebody's agent, `module:name`, which speaks to the policy by OpenAI's protocol (docs/gateway.md). It
    puts the task to the model itself: of all else here it goes with `reward` alone."""
    format: str = "action"
    """One of `agents/formats` (`action`: `Thought: …`, optional, then `Action: …`), or an `Agent` of your
    own, `module:Class`, which is made with the JSON schemas of the tools."""
    instructions: bool
    """Whether the conversation opens with the environment's instructions. A model that was made
    for one environment does without: every prompt token costs time."""
    prompt: Path | None = None
    """A file with what the model is told before all else."""
    tools: list[str] = []
    """Prebuilt tools by name, and others as `module:name`."""
    reward: Annotated[str | dict[str, float] | None, BeforeValidator(_reward)] = None
    """What judges an episode: a prebuilt reward, one of `judges`, or one as `module:name`, or several with
    weights. None is the environment's own, or the program's. Beside a program it judges where that returns
    None."""
    judges: dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")], JudgeSettings] = {}
    """Language models that judge, by the names that `reward` has for them."""
    context: ContextSettings = ContextSettings()

    @model_validator(mode="before")
    @classmethod
    def _programs_instruct_themselves(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("program") is not None:
            return {"instructions": False} | values
        return values


class WarmupSettings(Section):
    """Supervised warm-up on the environment's scripted expert."""

    demonstrations: Positive
    noise: Annotated[float, Field(ge=0, lt=1)]
    """Probability that a turn of a demonstration is preceded by a careless, useless one."""
    imitate_noise: bool = False
    """Whether the careless turns are imitated, too. The policy then starts as one who has learnt from
    players of mixed skill, and RL has the rest to do; else it learns only to go on after them."""
    new_words: Annotated[int, Field(ge=0)] = 0
    """How many words of the demonstrations, of those that `model` spells, get a token each: for a small
    model that was made for another environment."""
    whole_words: tuple[str, ...] = ()
    """Regular expressions (Oniguruma's) of texts that are one of these words although the tokenizer of
    `model` cuts them: `" ?\\[SEP\\]"`."""
    steps: Positive
    batch_size: Positive
    lr: LearningRate

    @model_validator(mode="after")
    def _whole_words_are_new(self) -> "WarmupSettings":
        if self.whole_words and not self.new_words:
            raise ValueError(
                f"whole_words {list(self.whole_words)} need new_words, which is 0: they get no tokens"
            )
        return self


class RolloutSettings(Section):
    """How episodes are played, in training."""

    items_per_step: Positive
    group_size: Annotated[Positive, BeforeValidator(_comparable)]
    """Samples per item; their rewards are compared with each other."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """At the first training step."""
    final_temperature: Annotated[float, Field(gt=0)] | None = None
    """At the last one, reached in equal parts; None keeps `temperature`."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    max_tokens_per_turn: Positive
    context_length: Positive
    """Tokens of a whole episode, prompt included."""
    episode_timeout_s: Seconds
    step_timeout_s: Seconds
    max_attempts: Positive = 3
    """Tries of an episode that fails for a reason other than the policy's, the first included."""
    max_live_envs: Positive
    """Episodes at once: environments, or programs."""


class TrainSettings(Section):
    """What verl's trainer is told."""

    algorithm: Algorithm
    steps: Positive
    steps_per_round: Positive
    """A round ends with a checkpoint, a quick evaluation and an MLflow run of its own."""
    save_every: Positive
    """Steps between checkpoints within a round."""
    lr: LearningRate
    clip_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.2
    mini_batches: Positive
    """Optimizer steps per training step and epoch."""
    epochs: Positive = 1
    """Passes over each step's trajectories."""
    kl_loss_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the low-variance KL to the warm-up policy; 0 loads no reference model."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the policy's entropy (nats, mean over tokens), which is then kept up: without it, a policy
    may grow certain of what it says before it has found what is right."""
    micro_batch_tokens: Positive
    """Padded tokens of one forward and backward pass."""
    importance_cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Token-level truncated importance sampling: a token's loss is multiplied by the trainer's probability
    of it over the sampler's, at most by this. vLLM in bf16 and FSDP differ in the third digit, so left out
    it is 2.0 on cuda; null switches it off. On a CPU both compute the same, and a value is refused."""


class HorizonSettings(Section):
    """How many turns an episode may have at each training step (`agents/horizon.py`)."""

    type: Literal["fixed", "scaling_inter_stepwise"]
    max_turns: Annotated[list[Positive], Field(min_length=1)]
    """Of each curriculum stage."""
    steps_per_stage: Positive | None = None
    """Training steps of each curriculum stage; only for `scaling_inter_stepwise`."""

    @model_validator(mode="after")
    def _stages_fit_type(self) -> "HorizonSettings":
        if any(b < a for a, b in zip(self.max_turns, self.max_turns[1:], strict=False)):
            raise ValueError(f"max_turns {self.max_turns} must not fall: a stage never shortens the horizon")
        if self.type == "fixed" and (len(self.max_turns) != 1 or self.steps_per_stage is not None):
            raise ValueError(
                "a fixed horizon takes one value in max_turns and no steps_per_stage; "
                "use type: scaling_inter_stepwise for stages"
            )
        if self.type == "scaling_inter_stepwise" and self.steps_per_stage is None:
            raise ValueError("scaling_inter_stepwise needs steps_per_stage: training steps per stage")
        return self


class PartSettings(Section):
    """Items of one environment, how much of the training they get, and how long they may be played."""

    env: str
    """Name in `envs/registry.py`; the part's own name, where it is left out."""
    train: Source | None = None
    """Your data, in the place of the environment's own items (docs/data.md): a JSON, JSONL, Parquet or CSV
    file below `data/`, or `hf://NAME[@CONFIG]#SPLIT`."""
    test: Source | None = None
    """The same for the held-out items."""
    columns: dict[str, str] = {}
    """Of `train` and `test`: the name that a column has in docs/data.md → its name in the rows, e.g.
    `{question: problem}`."""
    where: dict[str, Annotated[list[str | int | float], Field(min_length=1)]] = {}
    """Metadata key → the values that are wanted, e.g. `{depth: [1, 2]}`; other items are left out."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of the training's draws, as compared with the other parts' weights."""
    horizon: HorizonSettings | None = None
    """In the place of the pipeline's."""
    max_turns: Positive | None = None
    """In the place of `evaluate.max_turns`."""

    @model_validator(mode="after")
    def _both_or_none(self) -> "PartSettings":
        if (self.train is None) != (self.test is None):
            missing = "test" if self.test is None else "train"
            raise ValueError(f"{missing} is missing; give train and test, or neither")
        if self.columns and self.train is None:
            raise ValueError(f"columns {self.columns} are those of train and test; give these, too")
        return self

    def has(self, item: Item) -> bool:
        """Whether `item` is one of these."""
        return item.env == self.env and all(
            item.metadata.get(key) in wanted for key, wanted in self.where.items()
        )


class DataSettings(Section):
    """Which items are trained and tested on: a mixture of parts, of one or several environments."""

    parts: Annotated[dict[str, PartSettings], Field(min_length=1)]
    split_seed: Seed = 0
    """Chooses the held-out items; the same seed gives the same split for ever."""

    @field_validator("parts", mode="before")
    @classmethod
    def _named_after_their_env(cls, parts: Any) -> Any:
        if not isinstance(parts, dict):
            return parts
        return {
            name: {"env": name} | (part or {}) if part is None or isinstance(part, dict) else part
            for name, part in parts.items()
        }

    @property
    def envs(self) -> list[str]:
        """The environments, in the order of the parts."""
        return list(dict.fromkeys(part.env for part in self.parts.values()))

    def part_of(self, item: Item) -> str | None:
        """Name of the part that `item` belongs to; None if it is in none.

        Items of a user's data know it themselves; environments' own are told apart by `where`.
        """
        if item.part:
            part = self.parts.get(item.part)
            return item.part if part is not None and part.train is not None and part.has(item) else None
        return next(
            (name for name, part in self.parts.items() if part.train is None and part.has(item)), None
        )


class ServerSettings(Section):
    """Where the instances of an environment live, if not on this machine (docs/serving.md)."""

    urls: Annotated[list[str], Field(min_length=1)]
    """The least busy one gets the next episode; one that is dead is left out."""
    protocol: Literal["openenv", "agentgym"] = "openenv"
    token_from: str | None = None
    """Name of the environment variable that holds the servers' token; a token itself is in no file."""


class EvaluateSettings(Section):
    """The final evaluation on the test split, and the quick one after each round."""

    max_turns: Positive
    samples_per_item: Positive
    """Samples per item at `temperature`; a greedy one is played beside them."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of the sampled episodes; `rollout.temperature` is training's own."""
    quick_items: Positive
    """Test items of the evaluation after each round, one sampled episode each; all of them where the
    split has fewer."""


class BackendSettings(Section):
    """Where the model runs. Everything else is the same on a laptop and on a cluster."""

    device: Literal["cpu", "cuda"]
    rollout: Literal["cpu", "vllm"]
    workers: Positive = 1
    """Training processes (FSDP ranks); on GPUs one per GPU."""
    tensor_parallel: Positive = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.6
    max_sequences: Positive = 256
    """Episodes that one sampler decodes side by side."""
    samplers: Positive = 1
    """CPU samplers for each training process, a core each; while they decode, training waits."""


class BaseCycle(Section):
    """One cycle of the base model's learning rate, which falls to zero at its end."""

    tokens: Positive
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The peak of the learning rates, as a share of `muon_lr` and `adamw_lr`."""
    misreads: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the games in which the expert reads recipes wrong, is refused, and reads again."""
    families: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sequences that drill families of recipes which one word alone tells apart; where there are
    any, most families of the games are such, too."""


class BaseSettings(Section):
    """How the shipped base model was made (`tasks/base_model/train.py`)."""

    seed: int
    cycles: Annotated[list[BaseCycle], Field(min_length=1)]
    processes: Positive
    """That share the work, one core each; they change its speed, not its result."""
    layers: Positive
    width: Annotated[int, Field(ge=128, multiple_of=32)]
    batch_tokens: Positive
    muon_lr: Annotated[float, Field(gt=0)]
    adamw_lr: Annotated[float, Field(gt=0)]


class Pipeline(Section):
    """One pipeline of `pipelines.yaml`, complete."""

    description: str = ""
    """One line for `wingspan pipelines` and for Prefect's deployments."""
    seed: Seed = 0
    model: str
    """Folder of a model in Hugging Face format, or a name on a model hub."""
    data: DataSettings
    agent: AgentSettings
    warmup: WarmupSettings | None
    """None starts RL from `model` itself."""
    servers: dict[str, ServerSettings] = {}
    """By environment; those that are not named here live on this machine."""
    rollout: RolloutSettings
    train: TrainSettings
    horizon: HorizonSettings
    evaluate: EvaluateSettings
    backend: BackendSettings

    @model_validator(mode="before")
    @classmethod
    def _gpus_correct_for_the_sampler(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        train, backend = values.get("train"), values.get("backend")
        if isinstance(train, dict) and isinstance(backend, dict) and backend.get("device") == "cuda":
            return values | {"train": {"importance_cap": IMPORTANCE_CAP} | train}
        return values
