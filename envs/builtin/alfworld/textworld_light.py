"""TextWorld without what ALFWorld does not need. Importing this module takes a second: preload it.

Five changes, none of which changes a word of a game's text (`tests/envs/test_alfworld.py` compares with the
original TextWorld):

- `jericho`, which plays Z-machine files and brings spaCy, need not be installed.
- The sentences and queries of a grammar are parsed once, not at every step: a step takes a third of the time.
- What a sentence is derived from is copied no deeper than a derivation modifies it: a step takes a fifth.
- The part of a grammar that all games share is parsed once: a game in a small room loads in a third of the
  time.
- A game is translated from PDDL once, instead of four times whenever it is loaded. Translating takes three
  quarters of the loading time, so the result is cached in a file next to the data sets.
"""

import hashlib
import importlib.util
import json
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, lru_cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from envs.builtin.alfworld.upstream import PACKAGES, package_folder
from envs.builtin.textworld.upstream import stand_in_for_jericho
from envs.files import write_atomically
from envs.requirements.data_sets import data_root
from envs.requirements.plugins import replace_attribute

# numpy's threads would keep the fork server from forking.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Otherwise, importing alfworld creates a folder in the user's home.
os.environ.setdefault("ALFWORLD_DATA", str(package_folder()))


if importlib.util.find_spec("jericho") is None:
    sys.modules["jericho"] = stand_in_for_jericho()

import fast_downward
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs import PddlEnv
from textworld.envs.pddl import logic, textgen

TRANSLATIONS = ".alfworld-translations"
"""The folder, in that of the data sets, with a file for each game that was loaded, of some 50 kB."""

END_OF_SENTENCES = '""";'
"""Ends the first block of a game's grammar, which has the task; the others are the same in all games."""

_translate_game: Callable[..., tuple[object, str]] = fast_downward.pddl2sas
_TRANSLATOR = [version(package) for package in PACKAGES]
_parse_sentence = textgen._parse_and_convert
_parse_logic = logic._parse_and_convert
_parse_query = textgen.Rule.parse_conjunctive_query


@lru_cache(maxsize=4096)
def _sentence(text: str, rule_name: str) -> object:
    return _parse_sentence(text, rule_name=rule_name)


@lru_cache(maxsize=2)
def _translate(domain: str, problem: str) -> tuple[object, str]:
    """The result of `_translate_now`, cached in a file."""
    facts = json.dumps([domain, problem, _TRANSLATOR])
    file = data_root() / TRANSLATIONS / hashlib.md5(facts.encode(), usedforsecurity=False).hexdigest()
    with suppress(OSError, zlib.error, EOFError, pickle.UnpicklingError):  # absent, or damaged
        translation: tuple[object, str] = pickle.loads(zlib.decompress(file.read_bytes()))
        return translation
    translation = _translate_now(domain, problem, for_planner=False)
    with suppress(OSError):  # a folder that cannot be written to
        write_atomically(file, zlib.compress(pickle.dumps(translation)))
    return translation


@lru_cache(maxsize=2)
def _translate_now(domain: str, problem: str, *, for_planner: bool) -> tuple[object, str]:
    """(the problem, what the planner's library reads)"""
    arguments = sys.argv
    try:
        return _translate_game(domain, problem, optimize=for_planner)
    finally:
        sys.argv = arguments  # the translator overwrites it


def _light_sentence(text: str, rule_name: str, **_: object) -> object:
    return _copy(_sentence(text, rule_name))  # a derivation modifies it


def _copy(value: Any) -> Any:
    """A copy that a derivation may modify: it sets the contexts of symbols and adds to dictionaries, and
    changes none of their values."""
    if isinstance(value, list):
        return [_copy(symbol) for symbol in value]
    if isinstance(value, dict):
        return value.copy()
    symbol = copy(value)
    if isinstance(symbol, textgen.ListSymbol):
        symbol.symbol = copy(symbol.symbol)
    return symbol


def _for_play(domain: str, problem: str, **_: object) -> tuple[object, str]:
    return _translate(domain, problem)


def _for_plans(domain: str, problem: str, optimize: bool = False, **_: object) -> tuple[object, str]:
    return _translate_now(domain, problem, for_planner=optimize)


@lru_cache(maxsize=8)
def _parse_part(text: str, rule_name: str) -> tuple[dict[str, Any], Any]:
    actions, grammar = _parse_logic(text, rule_name=rule_name)
    return actions, grammar


def _light_logic(text: str, rule_name: str) -> tuple[dict[str, Any], Any]:
    """(actions by name, the sentences)"""
    head, end, rest = text.partition(END_OF_SENTENCES)
    parts = [head + end, rest] if end and rest.strip() else [text]
    actions: dict[str, Any] = {}
    sentences = textgen.ContextSensitiveGrammar()
    for part in parts:
        part_actions, part_sentences = _parse_part(part, rule_name)
        if sentences._rules.keys() & part_sentences._rules.keys():  # the later one replaces the earlier one
            return _parse_part(text, rule_name)
        actions |= part_actions
        sentences.update(part_sentences)
    return actions, sentences


textgen._parse_and_convert = _light_sentence
textgen.deepcopy = _copy
logic._parse_and_convert = _light_logic
textgen.Rule = SimpleNamespace(parse_conjunctive_query=cache(_parse_query))
logic.fast_downward = SimpleNamespace(**{**vars(fast_downward), "pddl2sas": _for_play})


@contextmanager
def planner() -> Iterator[AlfredDemangler]:
    """A game whose states contain the planner's plan (`policy_commands`). Load no other game meanwhile."""
    with replace_attribute(logic.fast_downward, "pddl2sas", _for_plans):
        yield AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True, policy_commands=True)))


def new_game() -> AlfredDemangler:
    """A TextWorld environment with ALFWorld's names of objects."""
    return AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
