"""Scripted experts for the task templates of `tasks.json`."""

from envs.builtin.webarena_local.experts import cms, forge, forum, shop

EXPERTS = {**shop.EXPERTS, **forum.EXPERTS, **forge.EXPERTS, **cms.EXPERTS}
"""`intent_template_id` → function from the values of a task's template to the steps that solve the task."""
