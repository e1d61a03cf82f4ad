"""The judges that a pipeline names under `agent.judges`, as rewards."""

from functools import lru_cache

from agents.clients.endpoint import Endpoint
from agents.rewards import REWARDS, LLMJudge
from agents.rewards.judge.reward import PROMPT
from envs.errors import ConfigError, describe
from envs.runtime.concurrency import run_blocking
from tasks.config.agent import AgentSettings, JudgeBlock


def judge_of(name: str, settings: JudgeBlock) -> LLMJudge:
    """The judge called `name`. Within a process, equal settings give the same judge, with its replies and
    budget. Raises `ConfigError` for a prompt that cannot be read, or an invalid endpoint."""
    prompt = PROMPT
    if settings.prompt is not None:
        try:
            prompt = settings.prompt.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"agent.judges.{name}.prompt: cannot read {settings.prompt}: {describe(error)}; name another"
            ) from None
    try:
        return _make_judge(name, settings, prompt)
    except ConfigError as error:
        raise ConfigError(f"agent.judges.{name}: {error}") from None


def check_judges(settings: AgentSettings, *, names: list[str]) -> None:
    """Check, before anything starts, that the judges of `settings` answer; `names`: those of the rewards.

    Asks each endpoint for its list of models, which costs nothing. Raises `ConfigError` for a name that
    another reward has, a judge that no reward names, a missing or rejected key, or a server that does not
    answer.
    """
    for name in settings.judges:
        if name in REWARDS or ":" in name:
            raise ConfigError(f"agent.judges: {name!r} is another reward's name; choose a different one")
        if name not in names:
            raise ConfigError(f"agent.judges: {name!r} judges nothing; name it in agent.reward, or remove it")
    for name, block in settings.judges.items():
        judge = judge_of(name, block)
        try:
            _check_endpoint(judge)
        except ConfigError as error:
            raise ConfigError(f"agent.judges.{name}: {error}") from None


@lru_cache(maxsize=64)  # once in a process: the command and its flow make the same plan
def _check_endpoint(judge: LLMJudge) -> None:
    run_blocking(judge.check_endpoint())


@lru_cache(maxsize=64)
def _make_judge(name: str, settings: JudgeBlock, prompt: str) -> LLMJudge:
    return LLMJudge(Endpoint.from_settings(settings), settings, name=name, prompt=prompt)
