"""WebArena's evaluation of an episode: by its answer, its last address, and the content of pages.

The rules are those of WebArena's `evaluation_harness/evaluators.py`; the reward is 1 if an episode meets all
of its task's rules, else 0. As in libwebarena, a page is checked in another tab of the policy's browser,
which is logged in: the policy's tab stays where it is, for `last` and for rules that judge its address later.
"""

import ast
import asyncio
import html
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Answers, RequiredContents, Target, Task
from envs.errors import ConfigError, EnvCrashed, describe

MAX_WAIT_S = 3.0
"""Seconds that a checked page may take to show the required contents, as in WebArena."""
_POLL_S = 0.25


class Judge(Protocol):
    """A language model that judges answers."""

    async def same_answer(self, *, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` means the same as `reference`."""

    async def same_reason(self, *, task: str, reason: str, answer: str) -> bool:
        """Whether `answer` gives `reason` for a task that cannot be done."""


class Page(Protocol):
    """A tab of a browser that is checked (`envs/builtin/browser/session.py`)."""

    @property
    def url(self) -> str:
        """The address of the page."""

    async def content(self) -> str:
        """The page as HTML."""

    async def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression; raises `ValueError` if it throws."""


class Pages(Page, Protocol):
    """The tab in front, which can open others."""

    def open_tab(self, url: str) -> AbstractAsyncContextManager[Page]:
        """A tab at `url`; the context manager closes it on exit."""


@dataclass(frozen=True, slots=True)
class HelperCall:
    """A helper and its arguments; a bare name among them, such as `__page__`, is taken as a text."""

    name: str
    arguments: tuple[str, ...]


def read_call(text: str) -> HelperCall | None:
    """Parse `func:name('argument', …)` without running it; None if `text` is not a call. Raises `ConfigError`
    if it cannot be parsed."""
    if not text.startswith("func:"):
        return None
    try:
        node = ast.parse(text.removeprefix("func:"), mode="eval").body
    except SyntaxError:
        node = None
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords):
        raise ConfigError(f"{text!r} is not a call; write func:name('argument', …)")
    return HelperCall(node.func.id, tuple(_read_argument(argument, text) for argument in node.args))


def _read_argument(node: ast.expr, text: str) -> str:
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.Name(id=name):
            return name
    raise ConfigError(f"{text!r}: {ast.unparse(node)} is not a text")


Helper = Callable[[Page, Sites, Sequence[str]], Awaitable[str]]
"""Implements `func:name(…)`; its arguments are texts."""


async def score(
    task: Task, *, answer: str, pages: Pages, sites: Sites, judge: Judge | None, helpers: Mapping[str, Helper]
) -> float:
    """1.0 if the episode of `task` that ended with `answer` meets all rules, else 0.0."""
    rules = task.eval
    for kind in rules.eval_types:
        match kind:
            case "string_match":
                is_met = await _is_answer_right(task, clean(answer), judge)
            case "url_match":
                reference = sites.fill_in(rules.reference_url or "")
                is_met = url_matches(pages.url, reference=reference, note=rules.url_note)
            case "program_html":
                is_met = True
                for target in rules.program_html:
                    is_met = is_met and await _check_target(target, pages, sites, helpers)
        if not is_met:
            return 0.0
    return 1.0


def clean(answer: str) -> str:
    """Lower-case `answer`, and strip the space around it and one pair of quotes."""
    answer = answer.strip()
    if answer[:1] in ("'", '"') and answer.endswith(answer[:1]):
        answer = answer[1:-1]
    return answer.lower()


def exact_match(reference: str, answer: str) -> bool:
    """Whether both are the same, apart from case and quotes."""
    return clean(answer) == clean(reference)


def must_include(reference: str, answer: str, *, as_word: bool = False) -> bool:
    """Whether `answer` contains `reference`; with `as_word`, a single character must be a word: `0` is not in
    `10`."""
    reference, answer = clean(reference), clean(answer)
    return is_word(reference, answer) if as_word and len(reference) == 1 else reference in answer


def is_word(character: str, text: str) -> bool:
    """Whether a letter or digit is a word of `text`, by the rules of NLTK's `word_tokenize`, which WebArena
    uses (it takes two seconds to import, and needs a model from the network)."""
    before = _CUT_BEFORE if character.isdigit() else _CUT_BEFORE_LETTER
    return re.search(f"{before}{re.escape(character)}{_CUT_AFTER}", text) is not None


_MARKS = r"\s\[\](){}<>;@#$%&?!*`«»“”\u2018\u2019„\u2012-\u2015" + '"'
_CUT_BEFORE = rf"(?:^|(?<=[{_MARKS}])|(?<=(?<!\w)')|(?<=--)|(?<=\.\.))"
_CUT_BEFORE_LETTER = rf"(?:{_CUT_BEFORE}|(?<=[:,]))"
_CUT_AFTER = rf"(?=$|[{_MARKS}]|--|\.\.|[:,](?!\d)|\.[\])}}>\"'»”\u2019]*(?:\s|$)|'(?:s|m|d|ll|re|ve)?(?!\w))"


def url_matches(url: str, *, reference: str, note: str = "GOLD in PRED") -> bool:
    """Whether `url` is below one of the references (separated by ` |OR| `) and has one of their values for
    each of their parameters."""
    if note != "GOLD in PRED":
        raise ConfigError(f"url_note {note!r} is unknown; WebArena has 'GOLD in PRED'")
    bases, parameters = [], defaultdict[str, set[str]](set)
    for alternative in reference.split(" |OR| "):
        base, query = _split_url(alternative)
        bases.append(base)
        for name, values in query.items():
            parameters[name].update(values)
    url_base, query = _split_url(url)
    is_below = any(base in url_base for base in bases)
    return is_below and all(values & set(query.get(name, ())) for name, values in parameters.items())


def _split_url(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(url.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)


async def _is_answer_right(task: Task, answer: str, judge: Judge | None) -> bool:
    references = task.eval.reference_answers or Answers()
    if references.exact_match is not None and not exact_match(references.exact_match, answer):
        return False
    as_word = len(references.must_include) == 1
    if not all(must_include(part, answer, as_word=as_word) for part in references.must_include):
        return False
    if not references.fuzzy_match:
        return True
    if references.fuzzy_match == "N/A" and exact_match("N/A", answer):
        return True
    if judge is None:
        raise ConfigError(f"task {task.task_id} needs a judge (docs/webarena.md)")
    if references.fuzzy_match == "N/A":
        return await judge.same_reason(task=task.intent, reason=task.eval.string_note, answer=answer)
    for reference in references.fuzzy_match:
        if not await judge.same_answer(question=task.intent, reference=reference, answer=answer):
            return False
    return True


async def _check_target(target: Target, pages: Pages, sites: Sites, helpers: Mapping[str, Helper]) -> bool:
    url = sites.fill_in(target.url)
    if call := read_call(url):
        url = await _call_helper(call, pages, sites, helpers)
    if url == "last":
        return await _check_page(target, pages, sites, helpers, wait_s=0.0)
    async with pages.open_tab(url) as page:
        return await _check_page(target, page, sites, helpers, wait_s=MAX_WAIT_S)


async def _check_page(
    target: Target, page: Page, sites: Sites, helpers: Mapping[str, Helper], *, wait_s: float
) -> bool:
    """Whether `page` has the contents that `target` requires, at the latest after `wait_s` seconds."""
    locator = sites.fill_in(target.locator)
    with suppress(ValueError):  # as in WebArena, the first failure skips the others
        for action in target.prep_actions:
            await page.evaluate(action)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while not contains(await _locate(locator, page, sites, helpers), target.required_contents):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def contains(part: str, contents: RequiredContents) -> bool:
    """Whether a part of a page, as HTML or text, has the required contents."""
    part = html.unescape(part)
    if contents.exact_match is not None:
        return exact_match(contents.exact_match, part)
    return all(
        any(must_include(alternative, part) for alternative in alternatives.split(" |OR| "))
        for alternatives in contents.must_include
    )


async def _locate(locator: str, page: Page, sites: Sites, helpers: Mapping[str, Helper]) -> str:
    if not locator.strip():
        return await page.content()
    if call := read_call(locator):
        return await _call_helper(call, page, sites, helpers)
    if not locator.startswith(("document.", "[...document.")):
        raise ConfigError(f"locator {locator!r} is unknown; write JavaScript on `document`, or func:…")
    try:
        return str(await page.evaluate(locator))  # the references were written for Python's `str`
    except ValueError:  # another page
        return ""


async def _call_helper(call: HelperCall, page: Page, sites: Sites, helpers: Mapping[str, Helper]) -> str:
    if call.name not in helpers:
        raise ConfigError(f"func:{call.name} is unknown; there are {', '.join(sorted(helpers))}")
    arguments = [page.url if argument == "__last_url__" else argument for argument in call.arguments]
    try:
        return await helpers[call.name](page, sites, arguments)
    except (OSError, KeyError, IndexError) as error:
        raise EnvCrashed(f"func:{call.name} failed: {describe(error)}") from error
