"""The blocks `warmup`, `rollout`, `train`, `evaluate` and `backend`: how a policy is trained, and where."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from agents.settings import Positive, Seconds, Settings
from agents.types import EpisodeLimits, SamplingParams
from tasks.algorithms.algorithm import ActorCritic, Algorithm, OnlineAlgorithm
from tasks.algorithms.registry import parse_algorithm
from tasks.config.curriculum import CurriculumSettings
from tasks.config.lora import LoraSettings
from tasks.config.optimizer import OptimizerSettings
from tasks.config.watch import WatchSettings

LearningRate = Annotated[float, Field(gt=0, le=1)]
"""Each step of the optimizer changes a weight by about so much, and weights are below 1."""


class WarmupSettings(Settings):
    """Supervised warm-up on the environment's scripted expert."""

    demonstrations: Positive
    noise: Annotated[float, Field(ge=0, lt=1)]
    """Probability that a turn of a demonstration is preceded by a careless, uninformative one."""
    imitate_noise: bool = False
    """Whether the careless turns are imitated, too. The policy then starts with a mixed skill, and RL has
    the rest to do; otherwise it learns only to recover from them."""
    new_words: Annotated[int, Field(ge=0)] = 0
    """How many words of the demonstrations, of those that `model` spells, get a token each: for a small
    model that was made for another environment."""
    whole_words: tuple[str, ...] = ()
    """Regular expressions (Oniguruma's) of texts that count as one word although the tokenizer of `model`
    splits them: `" ?\\[SEP\\]"`."""
    rename_words: bool = False
    """Whether new words that are names (rare ones, and those with a capital letter) are exchanged for each
    other each time that a demonstration is shown, the same in the whole conversation: a small model then
    learns to read them, not to know them. The words of test items get tokens, too, as a large model's
    tokenizer has for any text; nothing else of them is used."""
    steps: Positive
    batch_size: Positive
    lr: LearningRate

    @model_validator(mode="after")
    def _has_noise_to_imitate(self) -> "WarmupSettings":
        if self.imitate_noise and not self.noise:
            raise ValueError(
                "imitate_noise imitates the careless turns of noise, which is 0; set it to false"
            )
        return self

    @field_validator("whole_words")
    @classmethod
    def _are_expressions(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        if patterns:
            from tokenizers import Regex
        for pattern in patterns:
            try:
                Regex(f"(?:{pattern})")  # as one of several
            except Exception as error:  # tokenizers raises no other
                raise ValueError(f"the regular expression {pattern!r} is invalid ({error})") from None
        return patterns

    @model_validator(mode="after")
    def _words_are_new(self) -> "WarmupSettings":
        if self.whole_words and not self.new_words:
            raise ValueError(
                f"whole_words {list(self.whole_words)} need new_words, which is 0: they get no tokens"
            )
        if self.rename_words and not self.new_words:
            raise ValueError("rename_words needs new_words, which is 0: only these are renamed")
        return self


class RolloutSettings(Settings):
    """How episodes are sampled: in training, and but for the temperature in evaluation."""

    items_per_step: Positive
    group_size: Positive
    """Samples per item; most algorithms compare their rewards with each other."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """The temperature at the first training step."""
    final_temperature: Annotated[float, Field(gt=0)] | None = None
    """The temperature at the last training step, reached in equal steps; None keeps `temperature`."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    max_tokens_per_turn: Positive
    context_length: Positive
    """Tokens of a whole episode, prompt included."""
    episode_timeout_s: Seconds
    step_timeout_s: Seconds
    max_attempts: Positive = 3
    """Attempts at an episode that fails for a reason other than the policy's, the first included."""
    max_live_envs: Positive
    """Episodes at once: environments, or programs."""
    curriculum: CurriculumSettings | None = None
    """Draws the items of a training step by their past success; None takes all items in turn."""

    def limits(self, *, max_turns: int) -> EpisodeLimits:
        """The limits of an episode of `max_turns`."""
        return EpisodeLimits(
            max_turns=max_turns,
            max_tokens_per_turn=self.max_tokens_per_turn,
            context_length=self.context_length,
            episode_timeout_s=self.episode_timeout_s,
            step_timeout_s=self.step_timeout_s,
        )

    def sampling(self, *, temperature: float) -> SamplingParams:
        """How a turn is sampled at `temperature`; 0 is greedy."""
        return SamplingParams(
            max_tokens=self.max_tokens_per_turn, temperature=temperature, top_p=self.top_p, top_k=self.top_k
        )


class KlSettings(Settings):
    """The KL divergence from the policy that training starts from, the reference."""

    coef: Annotated[float, Field(gt=0)]
    place: Literal["loss", "reward"] = "loss"
    """`loss` adds it to the loss (GRPO's way); `reward` takes it from each token's reward (PPO's way)."""
    estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = "k3"
    """verl's names, after Schulman's note (joschu.net/blog/kl-approx.html); `+` has the gradient of k2, which
    alone is unbiased, and is for `loss` only."""

    @model_validator(mode="after")
    def _plus_is_for_the_loss(self) -> "KlSettings":
        if self.place == "reward" and self.estimator.endswith("+"):
            raise ValueError(
                f"estimator {self.estimator!r} changes a gradient, and a reward has none; leave the + out"
            )
        return self


class AsyncSettings(Settings):
    """Sampling goes on while the trainer updates."""

    staleness: Literal[1] = 1
    """Training steps by which the policy that sampled a step's episodes is behind the one that is updated by
    them. The episodes of the next step are sampled during an update, with the policy from before it."""


class RolloutCorrectionSettings(Settings):
    """Importance weights for what was sampled by other probabilities than the trainer's.

    A token's policy loss is multiplied by the ratio of the two. The ratio is cut (truncated importance
    sampling, fengyao.notion.site/off-policy-rl), or must lie in a band (IcePop, masked importance sampling).
    KL, entropy and observations count as always.
    """

    level: Literal["token", "sequence"] = "token"
    """Whether the ratio is that of a token, or that of a whole conversation, the product over its sampled
    tokens."""
    cap: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = 2.0
    """A higher ratio is set to this; null leaves it, and needs `reject_above`."""
    reject_below: Annotated[float, Field(gt=0, lt=1)] | None = None
    """A lower ratio is set to 0: the token, or the conversation, is not learned from."""
    reject_above: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """A higher ratio is set to 0."""

    @model_validator(mode="after")
    def _has_one_upper_bound_that_acts(self) -> "RolloutCorrectionSettings":
        if self.cap is None and self.reject_above is None:
            raise ValueError("cap null leaves the ratio without an upper bound; give cap or reject_above")
        if self.cap is not None and self.reject_above is not None and self.reject_above <= self.cap:
            raise ValueError(
                f"cap {self.cap} has no effect below reject_above {self.reject_above}; set cap: null, or "
                "raise reject_above"
            )
        return self


class TrainSettings(Settings):
    """The algorithm, its optimizer steps and its checkpoints."""

    algorithm: Annotated[SerializeAsAny[Algorithm], BeforeValidator(parse_algorithm)]
    """The algorithm's name, or a block with its name and parameters (docs/algorithms.md)."""
    steps: Positive
    steps_per_round: Positive
    """A round ends with a checkpoint, a quick evaluation and its own MLflow run."""
    save_every: Positive
    """Steps between checkpoints within a round; the last two are kept."""
    final_policy: Literal["last", "best"] = "last"
    """Which policy the run hands on to evaluation and registry: that of the last step, or the best by the
    quick evaluations after the rounds. The best one is kept in either case, in `train/best`."""
    lr: LearningRate
    lora: LoraSettings | None = None
    """Trains adapters of the policy; None trains all of its weights. A critic is trained in full."""
    optimizer: OptimizerSettings = OptimizerSettings()
    mini_batches: Positive
    """Optimizer steps per training step and epoch; fewer where one would have nothing to train on."""
    epochs: Positive = 1
    """Passes over each step's trajectories."""
    async_: Annotated[AsyncSettings | None, Field(alias="async")] = None
    """Overlaps sampling with the update, one step off-policy; None samples each step with its own policy."""
    kl: KlSettings | None = None
    """Holds the policy near the one that training starts from; None loads no reference model."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of a bonus for the policy's entropy (nats, mean over tokens): without it, a policy may become
    certain before it has found what is right."""
    observation_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of a loss on what the environment answered: the mean cross-entropy of those tokens (nats), for
    the policy learns what its actions do (ECHO, arXiv 2605.24517, with weights of 0.05 to 0.25)."""
    micro_batch_tokens: Positive
    """The most tokens of one forward and backward pass."""
    watch: Annotated[WatchSettings, Field(validate_default=True)] = WatchSettings()
    """Looks for signs of a collapse after each step."""
    rollout_correction: RolloutCorrectionSettings | None = None
    """vLLM's log-probs are not the trainer's: in bf16 they differ in the third digit. With vLLM the block is
    therefore there by default, null switches it off, and old log-probs are the trainer's in either case. The
    CPU engine computes the same as the trainer: with it, the block is for `async` alone."""

    @property
    def num_rounds(self) -> int:
        """The last one may have fewer steps."""
        return -(-self.steps // self.steps_per_round)

    @property
    def policy_steps(self) -> int:
        """Training steps that train the policy: those after the critic's warm-up."""
        algorithm = self.algorithm
        return self.steps - (algorithm.critic.warmup_steps if isinstance(algorithm, ActorCritic) else 0)

    @property
    def online_algorithm(self) -> OnlineAlgorithm:
        """`algorithm`, of a training that is online; raises `TypeError` for one that learns offline."""
        if not isinstance(self.algorithm, OnlineAlgorithm):
            raise TypeError(f"{self.algorithm.name} learns offline: it has no advantages")
        return self.algorithm

    @field_validator("watch", mode="after")
    @classmethod
    def _watch_what_there_is(cls, watch: WatchSettings, info: ValidationInfo) -> WatchSettings:
        """The limits that apply: where an algorithm compares no groups, none of them is informative."""
        algorithm = info.data.get("algorithm")
        if watch.max_kl_reference is not None and "kl" in info.data and info.data["kl"] is None:
            raise ValueError("max_kl_reference limits what train.kl measures; give train.kl as well")
        if algorithm is None or watch.min_informative_groups is None:
            return watch
        if isinstance(algorithm, OnlineAlgorithm) and algorithm.compares_group:
            return watch
        if "min_informative_groups" in watch.model_fields_set:
            raise ValueError(f"min_informative_groups: {algorithm.name} compares no groups; leave it out")
        return watch.model_copy(update={"min_informative_groups": None})


class EvaluateSettings(Settings):
    """The final evaluation on the test split, and the quick one after each round."""

    max_turns: Positive
    samples_per_item: Positive
    """Samples per item at `temperature`, besides a greedy one."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """`rollout.temperature` is for training only."""
    quick_items: Positive
    """Test items of the evaluation after each round, one sample each; all of them where the split has
    fewer."""


class BackendSettings(Settings):
    """Where the model runs. Everything else is the same on a laptop and on a cluster."""

    device: Literal["cpu", "cuda"]
    rollout: Literal["cpu", "vllm-cpu", "vllm"]
    """The CPU engine; vLLM on a CPU, from its own Python environment (docs/gpus.md); vLLM on GPUs."""
    workers: Positive = 1
    """Training processes (FSDP ranks); on GPUs one per GPU."""
    tensor_parallel: Positive = 1
    """GPUs of one vLLM engine."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """vLLM's share of the memory of a GPU."""
    max_sequences: Positive = 256
    """Episodes that one sampler decodes at the same time."""
    samplers: Positive = 1
    """CPU samplers for each training process, a core each; training waits while they decode."""
