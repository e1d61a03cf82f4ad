"""Links into the viewer lead where they say, in Chromium: the form of addresses is that of `links.js`."""

from pathlib import Path

import pytest

from envs.builtin.browser.program import CHROMIUM
from envs.types import Item
from tasks.data.trajectories import write_trajectories
from tasks.reporting.links import PORT, RunPages, view_command
from tests.support.needs import needs
from tests.support.report_toy import make_trajectory, write_workspace
from tests.support.viewer_page import open_viewer

ODD = 'x/y ?q="1"&a=%41#ü+:'
"""An item whose name needs every kind of escape."""


def test_addresses_by_hand() -> None:
    pages = RunPages("a b/c")
    start = f"http://127.0.0.1:{PORT}/#/run/a%20b%2Fc"
    assert pages.trajectory(12) == f"{start}/at/evaluation:12"
    assert pages.item("toy_1") == f"{start}/item?item=toy_1"
    assert pages.trajectories("policy:after success:false") == (
        f"{start}/trajectories?q=policy:after+success:false"
    )
    assert view_command([Path("runs/a"), Path("runs/b c")]) == "wingspan view runs/a 'runs/b c'"


@pytest.mark.browser
@needs(CHROMIUM)
async def test_links_lead_to_the_pages_that_they_name(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a b+c%d"
    items = [Item(item_id=name, env="textcraft", metadata={"depth": 1}) for name in ("toy_0", ODD, "z", "w")]
    write_workspace(run, items=items)
    pages = RunPages(run.name)
    expected_texts = {
        pages.trajectory(11): f"{ODD} sample 0",
        pages.item(ODD): ODD,
        pages.trajectories("policy:after mode:sampled success:true"): "2 trajectories",
    }
    async with open_viewer(run.parent) as (page, url):
        for link, text in expected_texts.items():
            await page.goto(url + link.partition(str(PORT))[2])
            await page.locator("#view", has_text=text).wait_for()
            assert await page.get_by_role("alert").count() == 0


@pytest.mark.browser
@needs(CHROMIUM)
async def test_a_filter_selects_as_many_trajectories_as_it_says(tmp_path: Path) -> None:
    """Whatever its key and its value hold."""
    values = ['say "hi"', 'say "hi"', "a, b", "1..3", "-x:>=<", "a*", "", "red dye"]
    items = [
        Item(
            item_id=f"toy_{number}", env="textcraft", metadata={'kind of "word"': value, "turns": number % 2}
        )
        for number, value in enumerate(values)
    ]
    trajectories = [make_trajectory(item, success=True) for item in items]
    write_trajectories(tmp_path / "run" / "train" / "trajectories" / "step_0001.jsonl", trajectories)
    async with open_viewer(tmp_path / "run") as (page, url):
        for name, count in {"say": 2, "a, b": 1, "1..3": 1, "-x": 1, "a*": 1, "red dye": 1, "0": 4}.items():
            await page.goto(f"{url}/#/run/run/trajectories")
            await page.locator(".total", has_text="8 trajectories").wait_for()
            await page.locator(".facet", has=page.locator(".name", has_text=name)).click()
            noun = "trajectory" if count == 1 else "trajectories"
            await page.locator(".total").get_by_text(f"{count} {noun}", exact=True).wait_for()
            assert await page.get_by_role("alert").count() == 0
