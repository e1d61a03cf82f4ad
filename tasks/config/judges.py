"""The judges that a pipeline names under `agent.judges`, as rewards."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from agents.clients.endpoint import Endpoint
from agents.rewards import REWARDS, llm_judge
from agents.rewards.judge.reward import PROMPT, LLMJudge
from envs.errors import ConfigError, describe
from tasks.config.settings import AgentSettings, JudgeSettings


def judge_of(name: str, settings: JudgeSettings) -> LLMJudge:
    """The judge called `name`: for the same settings the same one in this process, with what it remembers
    and has spent. Raises `ConfigError` for a prompt that cannot be read, or values that cannot be."""
    prompt = PROMPT
    if settings.prompt is not None:
        try:
            prompt = settings.prompt.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"agent.judges.{name}.prompt: cannot read {settings.prompt}: {describe(error)}; name another"
            ) from None
    try:
        return _made(name, settings.model_dump_json(), prompt)
    except ConfigError as error:
        raise ConfigError(f"agent.judges.{name}: {error}") from None


def check_judges(settings: AgentSettings, *, names: list[str]) -> None:
    """Find out, before anything starts, whether the judges of `settings` can be asked; `names`: the rewards.

    Asks each endpoint for its models, which costs nothing. Raises `ConfigError` for a name that is another
    reward's, a judge that no reward names, a key that is missing or refused, a server that does not answer.
    """
    for name in settings.judges:
        if name in REWARDS or ":" in name:
            raise ConfigError(f"agent.judges: {name!r} is another reward's name; choose one of its own")
        if name not in names:
            raise ConfigError(
                f"agent.judges: {name!r} judges nothing; name it in agent.reward, or take it out"
            )
    for name, judge in settings.judges.items():
        try:
            _ask(judge_of(name, judge))
        except ConfigError as error:
            raise ConfigError(f"agent.judges.{name}: {error}") from None


@lru_cache(maxsize=64)  # a process asks once: the command and its flow make the same plan
def _ask(judge: LLMJudge) -> None:
    # In a thread, for the caller may have an event loop of its own.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, judge.check_endpoint()).result()


@lru_cache(maxsize=64)
def _made(name: str, settings: str, prompt: str) -> LLMJudge:
    given = JudgeSettings.model_validate_json(settings)
    endpoint = Endpoint(
        url=given.url,
        model=given.model,
        api_key_variable=given.key_from,
        request_timeout_s=given.request_timeout_s,
        tries=given.tries,
        requests_per_s=given.requests_per_s,
        concurrent=given.concurrent,
    )
    return llm_judge(
        endpoint,
        name=name,
        prompt=prompt,
        lowest=given.lowest,
        highest=given.highest,
        temperature=given.temperature,
        reply_tokens=given.reply_tokens,
        max_requests=given.max_requests,
        max_tokens=given.max_tokens,
        store=given.store,
    )
