"""The parameters of a pipeline: what `pipelines.yaml` may say, checked before anything starts.

Every parameter is declared once and given once in `pipelines.yaml`, under `pipelines.<name>`. A block that
code below `tasks` is given as it stands is declared there (`agents.horizon.Horizon`,
`agents.rollout.context.ContextPolicy`, `agents.judging.JudgeSettings`).
A value is refused with its place (`pipelines.textcraft-cpu.rollout.group_size`) and a remedy.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agents.horizon import Horizon
from agents.settings import Seed, Settings
from tasks.config.agent import AgentSettings
from tasks.config.data import DataSettings
from tasks.config.training import (
    IMPORTANCE_CAP,
    BackendSettings,
    EvaluateSettings,
    RolloutSettings,
    TrainSettings,
    WarmupSettings,
)


class ServerSettings(Settings):
    """Where the instances of an environment live, if not on this machine (docs/serving.md)."""

    urls: Annotated[list[str], Field(min_length=1)]
    """The least busy one gets the next episode; one that is dead is left out."""
    protocol: Literal["openenv", "agentgym"] = "openenv"
    token_from: str | None = None
    """Name of the environment variable that holds the servers' token; no file holds the token itself."""


class Pipeline(Settings):
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
    servers: dict[str, ServerSettings] = Field(default={})
    """By environment; those that are not named here live on this machine."""
    rollout: RolloutSettings
    train: TrainSettings
    horizon: Horizon
    evaluate: EvaluateSettings
    backend: BackendSettings

    @model_validator(mode="before")
    @classmethod
    def _cap_importance_on_gpus(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        train, backend = values.get("train"), values.get("backend")
        if isinstance(train, dict) and isinstance(backend, dict) and backend.get("device") == "cuda":
            return values | {"train": {"importance_cap": IMPORTANCE_CAP} | train}
        return values
