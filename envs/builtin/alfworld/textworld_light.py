"""TextWorld without what our games do not need; importing this module costs a second, and is worth
preloading.

Three things are done to it, none of which changes a word of what a game says (`tests/envs/test_alfworld.py`
holds it against TextWorld as it is):

- `jericho`, which plays Z-machine files and brings spaCy, need not be installed.
- The sentences and queries of a grammar are parsed once, not at every step: a step takes a third of the time.
- A game is translated from PDDL once where it is loaded, not four times, twice of these for the planner only.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

from envs.builtin.alfworld.upstream import package_folder

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # numpy's own threads would keep the fork server from forking
# Else importing alfworld makes a folder at home.
os.environ.setdefault("ALFWORLD_DATA", str(package_folder()))


class _UnsupportedGameWarning(UserWarning): ...


class _TruncatedInputActionWarning(UserWarning): ...


if importlib.util.find_spec("jericho") is None:
    _jericho = ModuleType("jericho")
    _jericho.UnsupportedGameWarning = _UnsupportedGameWarning  # type: ignore[attr-defined]
    _jericho.TruncatedInputActionWarning = _TruncatedInputActionWarning  # type: ignore[attr-defined]
    sys.modules["jericho"] = _jericho

import fast_downward  # noqa: E402
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # noqa: E402
from textworld import EnvInfos  # noqa: E402
from textworld.envs import PddlEnv  # noqa: E402
from textworld.envs.pddl import logic, textgen  # noqa: E402

_translate_game: Callable[..., tuple[Any, str]] = fast_downward.pddl2sas
_parse_sentence = textgen._parse_and_convert
_parse_query = textgen.Rule.parse_conjunctive_query


@lru_cache(maxsize=4096)
def _sentence(text: str, rule_name: str) -> Any:
    return _parse_sentence(text, rule_name=rule_name)


@lru_cache(maxsize=2)
def _translate(domain: str, problem: str, for_planner: bool) -> tuple[Any, str]:
    arguments = sys.argv
    try:
        return _translate_game(domain, problem, optimize=for_planner)
    finally:
        sys.argv = arguments  # the translator writes its own


def _light_sentence(text: str, rule_name: str, **_: Any) -> Any:
    return deepcopy(_sentence(text, rule_name))  # whoever derives from it writes into it


def _for_play(domain: str, problem: str, **_: Any) -> tuple[Any, str]:
    return _translate(domain, problem, False)


def _for_plans(domain: str, problem: str, optimize: bool = False, **_: Any) -> tuple[Any, str]:
    return _translate(domain, problem, optimize)


textgen._parse_and_convert = _light_sentence
textgen.Rule = SimpleNamespace(parse_conjunctive_query=cache(_parse_query))
logic.fast_downward = SimpleNamespace(**{**vars(fast_downward), "pddl2sas": _for_play})


@contextmanager
def planner() -> Iterator[Any]:
    """A game whose states tell the planner's plan (`policy_commands`); nothing else is to be loaded
    meanwhile."""
    logic.fast_downward.pddl2sas = _for_plans
    try:
        yield AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True, policy_commands=True)))
    finally:
        logic.fast_downward.pddl2sas = _for_play


def new_game() -> Any:
    """TextWorld's environment, with ALFWorld's names of objects."""
    return AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
