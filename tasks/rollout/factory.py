"""Chooses the runner of a pipeline's rollouts, by its agent and by where its model is."""

from functools import partial
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient
from agents.prompting.renderer import Renderer
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.context import ContextPolicy
from agents.rollout.conversation import TokenConversation
from agents.samplers.sampler import Sampler
from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline
from tasks.rollout.agent_runner import AgentRunner
from tasks.rollout.program_runner import ProgramRunner
from tasks.rollout.runner import RolloutRunner

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


def make_runner(
    pipeline: Pipeline,
    *,
    sampler: Sampler,
    tokenizer: "PreTrainedTokenizerBase",
    processor: "ProcessorMixin | None" = None,
) -> RolloutRunner:
    """A runner of `pipeline`'s agent or program with `sampler`, by tokens: training uses no other.

    `processor` is that of a vision-language model. Raises `ConfigError`.
    """
    if pipeline.agent.program is not None:
        return ProgramRunner(pipeline, sampler=sampler, tokenizer=tokenizer, processor=processor)
    renderer, context = Renderer(tokenizer, processor), pipeline.agent.context
    start = partial(TokenConversation, sampler=sampler, renderer=renderer, context=context)
    return AgentRunner(
        pipeline,
        converse=lambda sampling: partial(start, sampling=sampling),
        tokenizer=tokenizer,
        reads_images=processor is not None,
    )


def make_endpoint_runner(pipeline: Pipeline, *, client: ChatClient) -> RolloutRunner:
    """A runner of `pipeline`'s agent with the model of an endpoint, by messages.

    Raises `ConfigError` as `check_endpoint_agent`.
    """
    check_endpoint_agent(pipeline)
    return AgentRunner(
        pipeline,
        converse=lambda sampling: partial(ChatConversation, client=client, sampling=sampling),
        tokenizer=None,
        reads_images=True,
    )


def check_endpoint_agent(pipeline: Pipeline) -> None:
    """Raise `ConfigError` for a program and for a context policy, which need the tokens."""
    if pipeline.agent.program is not None:
        raise ConfigError(
            f"agent.program {pipeline.agent.program!r} runs through the gateway, in front of a policy "
            "whose tokens are known; give --policy FOLDER in place of --endpoint"
        )
    for key, value in pipeline.agent.context:
        if value != ContextPolicy.model_fields[key].default:
            raise ConfigError(
                f"agent.context.{key}={value}: an endpoint's model sees the whole conversation; leave "
                "agent.context out"
            )
