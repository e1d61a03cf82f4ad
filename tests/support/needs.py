"""Which tests a machine skips: those that need what it lacks."""

from functools import cache

import pytest

from envs.requirements.detection import Requirement


@cache
def needs(requirement: Requirement) -> pytest.MarkDecorator:
    """The mark of a test that is skipped where `requirement` is missing; it is probed once in a process."""
    remedy = requirement.find_remedy()
    return pytest.mark.skipif(remedy is not None, reason=str(remedy))
