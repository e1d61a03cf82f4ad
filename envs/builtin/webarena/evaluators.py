"""How WebArena judges an episode: by the answer, by where the policy is, by what pages hold.

The rules are those of WebArena's `evaluation_harness/evaluators.py`; an episode is worth 1 if all of them are
met, else 0. A page that is looked at is opened in another tab of the policy's browser, which is logged in, as
libwebarena does: the policy's tab stays where it is, for `last` and for an address that is judged later.
"""

import asyncio
import html
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from envs.builtin.webarena.calls import Call, read_call
from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Answers, Required, Target, Task
from envs.errors import ConfigError, EnvCrashed, describe

LATE_S = 3.0
"""How long a page that is looked at may take to show what it must hold, as in WebArena."""
_AGAIN_S = 0.25


class Judge(Protocol):
    """A language model that compares answers."""

    async def same_answer(self, *, question: str, reference: str, answer: str) -> bool:
        """Whether `answer` means the same as `reference`."""
        ...

    async def same_reason(self, *, task: str, reason: str, answer: str) -> bool:
        """Whether `answer` gives `reason` for a task that cannot be done."""
        ...


class Page(Protocol):
    """What is looked at: a tab of a browser (`envs/browser/session.py`)."""

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    async def content(self) -> str:
        """The page as HTML."""
        ...

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; raises `ValueError` where it has none."""
        ...


class Pages(Page, Protocol):
    """The tab in front, from which others can be opened."""

    def another(self, url: str) -> AbstractAsyncContextManager[Page]:
        """A tab at `url`, which is closed on leaving."""
        ...


Helper = Callable[[Page, Sites, Sequence[str]], Awaitable[str]]
"""What `func:name(…)` stands for; its arguments are texts."""


async def score(
    task: Task,
    *,
    answer: str,
    pages: Pages,
    sites: Sites,
    judge: Judge | None,
    helpers: Mapping[str, Helper],
) -> float:
    """1.0 if the episode of `task` that ended with `answer` meets all that is asked, else 0.0."""
    how = task.eval
    for kind in how.eval_types:
        match kind:
            case "string_match":
                met = await _string_match(task, clean(answer), judge)
            case "url_match":
                met = url_matches(
                    pages.url, reference=sites.filled(how.reference_url or ""), note=how.url_note
                )
            case "program_html":
                met = True
                for target in how.program_html:
                    met = met and await _target_met(target, pages, sites, helpers)
        if not met:
            return 0.0
    return 1.0


def clean(answer: str) -> str:
    """In lower case, without spaces around it and without one pair of quotes."""
    answer = answer.strip()
    if answer[:1] in ("'", '"') and answer.endswith(answer[:1]):
        answer = answer[1:-1]
    return answer.lower()


def exact_match(reference: str, answer: str) -> bool:
    """Whether they are the same, but for case and quotes."""
    return clean(answer) == clean(reference)


def must_include(reference: str, answer: str, *, as_word: bool = False) -> bool:
    """Whether `answer` holds `reference`; `as_word`: a single character counts as a word of its own only, so
    that `0` is not in `10`."""
    wanted, said = clean(reference), clean(answer)
    return stands_alone(wanted, said) if as_word and len(wanted) == 1 else wanted in said


def stands_alone(character: str, text: str) -> bool:
    """Whether a letter or digit is a word of its own: where NLTK's `word_tokenize`, which WebArena uses, cuts
    on both sides of it. That takes two seconds to import, and a model from the network."""
    before = _CUT_BEFORE if character.isdigit() else _CUT_BEFORE_LETTER
    return re.search(f"{before}{re.escape(character)}{_CUT_AFTER}", text) is not None


_MARKS = r"\s\[\](){}<>;@#$%&?!*`«»“”\u2018\u2019„\u2012-\u2015" + '"'
_CUT_BEFORE = rf"(?:^|(?<=[{_MARKS}])|(?<=(?<!\w)')|(?<=--)|(?<=\.\.))"
_CUT_BEFORE_LETTER = rf"(?:{_CUT_BEFORE}|(?<=[:,]))"
_CUT_AFTER = rf"(?=$|[{_MARKS}]|--|\.\.|[:,](?!\d)|\.[\])}}>\"'»”\u2019]*(?:\s|$)|'(?:s|m|d|ll|re|ve)?(?!\w))"


def url_matches(url: str, *, reference: str, note: str = "GOLD in PRED") -> bool:
    """Whether `url` lies under one of the references (` |OR| ` between them) and has, of each parameter of
    theirs, one of their values."""
    if note != "GOLD in PRED":
        raise ConfigError(f"url_note {note!r} is unknown; WebArena has 'GOLD in PRED'")
    bases, wanted = [], defaultdict[str, set[str]](set)
    for one in reference.split(" |OR| "):
        base, query = _parts(one)
        bases.append(base)
        for name, values in query.items():
            wanted[name].update(values)
    base, query = _parts(url)
    under = any(one in base for one in bases)
    return under and all(values & set(query.get(name, ())) for name, values in wanted.items())


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(url.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)


async def _string_match(task: Task, answer: str, judge: Judge | None) -> bool:
    wanted = task.eval.reference_answers or Answers()
    if wanted.exact_match is not None and not exact_match(wanted.exact_match, answer):
        return False
    one = len(wanted.must_include) == 1
    if not all(must_include(part, answer, as_word=one) for part in wanted.must_include):
        return False
    if not wanted.fuzzy_match:
        return True
    if wanted.fuzzy_match == "N/A" and exact_match("N/A", answer):
        return True
    if judge is None:
        raise ConfigError(f"task {task.task_id} needs a judge (docs/webarena.md)")
    if wanted.fuzzy_match == "N/A":
        return await judge.same_reason(task=task.intent, reason=task.eval.string_note, answer=answer)
    for reference in wanted.fuzzy_match:
        if not await judge.same_answer(question=task.intent, reference=reference, answer=answer):
            return False
    return True


async def _target_met(target: Target, pages: Pages, sites: Sites, helpers: Mapping[str, Helper]) -> bool:
    url = sites.filled(target.url)
    if call := read_call(url):
        url = await _called(call, pages, sites, helpers)
    if url == "last":
        return await _page_met(target, pages, sites, helpers, wait_s=0.0)
    async with pages.another(url) as page:
        return await _page_met(target, page, sites, helpers, wait_s=LATE_S)


async def _page_met(
    target: Target, page: Page, sites: Sites, helpers: Mapping[str, Helper], *, wait_s: float
) -> bool:
    """Whether `page` holds what `target` asks for, or does so within `wait_s` seconds."""
    locator, wanted = sites.filled(target.locator), target.required_contents
    with suppress(ValueError):  # as in WebArena, the first that fails is the last
        for action in target.prep_actions:
            await page.evaluate(action)
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while not (met := contains(await _located(locator, page, sites, helpers), wanted)):
        if loop.time() >= until:
            break
        await asyncio.sleep(_AGAIN_S)
    return met


def contains(part: str, wanted: Required) -> bool:
    """Whether a part of a page, as HTML or text, holds what is wanted."""
    part = html.unescape(part)
    if wanted.exact_match is not None:
        return exact_match(wanted.exact_match, part)
    return all(
        any(must_include(one, part) for one in either.split(" |OR| ")) for either in wanted.must_include
    )


async def _located(locator: str, page: Page, sites: Sites, helpers: Mapping[str, Helper]) -> str:
    if not locator.strip():
        return await page.content()
    if call := read_call(locator):
        return await _called(call, page, sites, helpers)
    if not locator.startswith(("document.", "[...document.")):
        raise ConfigError(f"locator {locator!r} is unknown; it is JavaScript on `document`, or func:…")
    try:
        return str(await page.evaluate(locator))  # references were written against Python's texts
    except ValueError:  # the page is another one
        return ""


async def _called(call: Call, page: Page, sites: Sites, helpers: Mapping[str, Helper]) -> str:
    if call.name not in helpers:
        raise ConfigError(f"func:{call.name} is unknown; there are {', '.join(sorted(helpers))}")
    arguments = [page.url if one == "__last_url__" else one for one in call.arguments]
    try:
        return await helpers[call.name](page, sites, arguments)
    except (OSError, KeyError, IndexError) as error:
        raise EnvCrashed(f"func:{call.name} failed: {describe(error)}") from error
