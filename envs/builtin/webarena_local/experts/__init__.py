"""A scripted player for each template of `tasks.json`: steps that find what they need on the page they
follow."""

from collections.abc import Callable, Mapping, Sequence

from envs.builtin.webarena.tasks import Task
from envs.builtin.webarena_local.experts import cms, forge, forum, shop
from envs.registry import ExpertStep

_OF_TEMPLATE: Mapping[int, Callable[[Mapping[str, str]], Sequence[ExpertStep]]] = {
    **shop.PLAYERS,
    **forum.PLAYERS,
    **forge.PLAYERS,
    **cms.PLAYERS,
}
"""By `intent_template_id`; a player is given what the template was filled with."""


def solution(task: Task, values: Mapping[str, str]) -> Sequence[ExpertStep]:
    """The turns that do `task`."""
    return _OF_TEMPLATE[task.intent_template_id](values)
