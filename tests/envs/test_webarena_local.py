"""webarena-local: what its tasks say is held against the databases by SQL, copies of the sites are spoken to
over HTTP and killed, and a task of each site is done in the browser. All of them:
`bench/webarena_local.py`."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from envs.builtin.webarena.evaluators import Page, score, url_matches
from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Task, read_tasks
from envs.builtin.webarena_local.env import (
    APPLICATIONS,
    SPEC,
    TASKS,
    expert,
    make,
    make_item,
    split,
    tasks,
    values,
)
from envs.builtin.webarena_local.sites.copies import LiveSites
from envs.builtin.webarena_local.sites.data import WEBARENA_LOCAL
from envs.builtin.webarena_local.sites.seed.people import COOKIES
from envs.errors import EnvCrashed
from tests.support.needs import needs
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [needs(requirement) for requirement in SPEC.needs]
KINDS = {"string_match", "url_match", "program_html"}
Ask = Callable[..., list[tuple[Any, ...]]]
"""An SQL query and its arguments: its rows."""
SAMPLE = (8, 37, 46, 69, 84)
"""Tasks of all four sites and all three kinds, with and without writing."""


@pytest.fixture(scope="module")
def data() -> Path:
    return WEBARENA_LOCAL.prepare()


@pytest.fixture(scope="module")
def ask(data: Path) -> Iterator[Ask]:
    database = sqlite3.connect(f"file:{data / 'django.sqlite3'}?mode=ro", uri=True)
    yield lambda query, *given: database.execute(query, given).fetchall()
    database.close()


def test_there_are_tasks_of_every_site_and_kind_and_both_splits_have_every_template() -> None:
    all_tasks = read_tasks(TASKS)
    assert list(all_tasks) == list(range(96))
    sides = split(0)
    ids = [{item.index for item in side} for side in (sides.train, sides.test)]
    assert ids[0] | ids[1] == set(all_tasks)
    assert not ids[0] & ids[1]
    for side in (sides.train, sides.test):
        assert {item.metadata["site"] for item in side} == set(APPLICATIONS)
        assert {item.metadata["evaluator"] for item in side} == KINDS
        assert len({item.metadata["template"] for item in side}) == 33
    assert split(0) == split(0)
    assert split(1).test != sides.test
    assert all(expert(make_item(number)) for number in all_tasks)


def test_the_sites_hold_enough(ask: Ask, data: Path) -> None:
    (counts,) = ask(
        "select (select count(*) from catalogue_product), (select count(*) from catalogue_category),"
        "(select count(*) from reviews_productreview), (select count(*) from forum_forum where type = 0),"
        "(select count(*) from forum_conversation_topic), (select count(*) from forum_conversation_post),"
        "(select count(*) from wagtailcore_page)"
    )
    references = (60, 8, 100, 6, 60, 300, 40)
    assert all(have >= want for have, want in zip(counts, references, strict=True)), counts
    projects = sorted(path.name for path in (data / "forge").iterdir())
    assert len(projects) == 4
    tickets = 0
    for project in projects:
        with sqlite3.connect(data / "forge" / project / "db" / "trac.db") as database:
            tickets += database.execute("select count(*) from ticket").fetchone()[0]
        repository = str(data / "repositories" / f"{project}.git")
        counting = ["git", "--git-dir", repository, "rev-list", "--count", "main"]
        assert int(subprocess.run(counting, capture_output=True, check=True).stdout) >= 20
    assert tickets >= 60


FACTS = {
    1: "select printf('%.2f', s.price) from partner_stockrecord s join catalogue_product p "
    "on p.id = s.product_id where p.title = :product",
    2: "select v.value_text from catalogue_productattributevalue v join catalogue_productattribute a on "
    "a.id = v.attribute_id join catalogue_product p on p.id = v.product_id "
    "where a.code = 'origin' and p.title = :product",
    3: "select printf('%.2f', total_incl_tax) from order_order where number = :order",
    20: "select u.username from forum_conversation_topic t join auth_user u on u.id = t.poster_id "
    "where t.subject = :thread",
    21: "select max(t.views_count) from forum_conversation_topic t join forum_forum f on f.id = t.forum_id "
    "where f.name = :forum",
    60: "select a.author from pages_articlepage a join wagtailcore_page p on p.id = a.page_ptr_id "
    "where p.title = :title",
}
"""Template → its answer, by SQL."""


def answers(task: Task) -> list[str]:
    references = task.eval.reference_answers
    assert references
    return [*references.must_include, *([references.exact_match] if references.exact_match else [])]


def test_the_answers_are_those_of_the_databases(data: Path) -> None:
    num_checked = Counter[int]()
    with sqlite3.connect(data / "django.sqlite3") as database:
        for number, task in tasks().items():
            if task.intent_template_id in FACTS:
                rows = database.execute(FACTS[task.intent_template_id], values()[number]).fetchall()
                assert [str(value) for (value,) in rows] == answers(task), number
                num_checked[task.intent_template_id] += 1
    assert num_checked.keys() == FACTS.keys()


def test_the_cheapest_of_a_category_is_the_one_that_is_asked_for(ask: Ask) -> None:
    for number, task in tasks().items():
        if task.intent_template_id == 4:
            ((slug, key),) = ask(
                "select p.slug, p.id from catalogue_product p "
                "join partner_stockrecord s on s.product_id = p.id join catalogue_productcategory pc "
                "on pc.product_id = p.id join catalogue_category c "
                "on c.id = pc.category_id where c.name = ? order by s.price limit 1",
                values()[number]["category"],
            )
            assert task.eval.reference_url == f"__SHOPPING__/catalogue/{slug}_{key}"


class NoPages:
    """No page is open."""

    url = ""

    async def content(self) -> str:
        raise AssertionError("no page is looked at")

    async def evaluate(self, expression: str) -> Any:
        raise AssertionError("no page is looked at")

    def open_tab(self, url: str) -> AbstractAsyncContextManager[Page]:
        raise AssertionError("no page is looked at")


def worth(task: Task, answer: str) -> float:
    """Of an answer alone."""
    nowhere = Sites({}, {})
    return asyncio.run(score(task, answer=answer, pages=NoPages(), sites=nowhere, judge=None, helpers={}))


def test_no_answer_no_wrong_answer_and_no_first_page_is_right() -> None:
    strings = [task for task in tasks().values() if "string_match" in task.eval.eval_types]
    for task in strings:
        other_answers = [
            a for other_task in strings if answers(other_task) != answers(task) for a in answers(other_task)
        ]
        all_answers = ", ".join([*other_answers, *answers(task)])
        for answer in ("", "I do not know", *other_answers, all_answers):
            assert worth(task, answer) == 0.0, (task.intent, answer)
        assert worth(task, answers(task)[0]) == 1.0
    for task in tasks().values():
        if "url_match" in task.eval.eval_types:
            assert task.eval.reference_url
            assert not url_matches(task.start_url, reference=task.eval.reference_url)


async def page(address: str, site: str, path: str) -> str:
    cookies = {COOKIES[site].name: COOKIES[site].value}
    async with httpx.AsyncClient(cookies=cookies, timeout=30, trust_env=False) as client:
        return (await client.get(address + path, follow_redirects=True)).raise_for_status().text


async def post(address: str, path: str, **form: str) -> None:
    """As our user of the forum."""
    cookies = {COOKIES["forum"].name: COOKIES["forum"].value}
    async with httpx.AsyncClient(cookies=cookies, timeout=30, trust_env=False) as client:
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', (await client.get(address + path)).text)
        assert token
        answer = await client.post(address + path, data={"csrfmiddlewaretoken": token[1], **form})
        assert answer.status_code == 302


WOODWORKING = "/forum/woodworking-6/"


async def test_what_is_written_on_one_copy_no_other_sees_and_a_restored_one_has_forgotten(data: Path) -> None:
    ours, theirs = LiveSites(data), LiveSites(data)
    here, there = await ours.restore(), await theirs.restore()
    pristine = await page(here["forum"], "forum", WOODWORKING)
    thread = {"subject": "Whose chisel is this?", "content": "Mine is missing.", "topic_type": "0"}
    await post(here["forum"], f"{WOODWORKING}topic/create/", **thread)
    assert "Whose chisel is this?" in await page(here["forum"], "forum", WOODWORKING)
    assert "Whose chisel is this?" not in await page(there["forum"], "forum", WOODWORKING)
    again = await ours.restore()
    assert await page(again["forum"], "forum", WOODWORKING) == pristine
    listening = [value for value in psutil.Process(ours.pid).net_connections() if value.status == "LISTEN"]
    assert {value.laddr.ip for value in listening} == {"127.0.0.1"}
    assert len(listening) == 4
    folder = Path(f"/proc/{ours.pid}/cwd").resolve()
    assert "logged in as" in await page(again["forge"], "forge", "/kelp/ticket/1")
    assert ours.pid
    os.kill(ours.pid, signal.SIGKILL)
    await wait_until_async(lambda: not ours.is_alive)
    assert theirs.is_alive
    assert "Kitchen" in await page((await ours.restore())["shop"], "shop", "/catalogue/")
    assert not folder.exists()
    await ours.close()
    await theirs.close()
    assert ours.pid is None


def test_copies_end_with_their_owner(data: Path) -> None:
    code = (
        "import asyncio, pathlib, sys, time; from envs.builtin.webarena_local.sites.copies import LiveSites; "
        "sites = LiveSites(pathlib.Path(sys.argv[1])); asyncio.run(sites.restore()); "
        "print(sites.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    copy = int(owner.stdout.readline())
    assert psutil.pid_exists(copy)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not psutil.pid_exists(copy))


async def test_players_do_their_tasks_and_to_change_nothing_is_worth_nothing() -> None:
    env = make()
    for number in SAMPLE:
        item = make_item(number)
        if item.metadata["evaluator"] == "program_html":  # of the others, see above
            await env.reset(item)
            assert (await env.step("stop []")).reward == 0.0, number
        observation = await env.reset(item)
        assert "127.0.0.1" not in observation
        for step in expert(item):
            result = await env.step(step.resolve(observation))
            observation = result.observation
        assert (result.reward, result.terminated, result.success) == (1.0, True, True), number
    await env.close()
    sample = [tasks()[number] for number in SAMPLE]
    assert {task.sites[0] for task in sample} == set(APPLICATIONS)
    assert {kind for task in sample for kind in task.eval.eval_types} == KINDS


async def test_a_killed_copy_is_a_fault_and_never_a_reward() -> None:
    env: Any = make()
    observation = await env.reset(make_item(8))
    os.kill(env.provider.pid, signal.SIGKILL)
    with pytest.raises(EnvCrashed):
        await env.step(expert(make_item(8))[0].resolve(observation))
    assert not env.is_alive
    await env.close()
