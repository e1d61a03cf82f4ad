"""The helpers that evaluations call by name (`func:…`), for facts that only a site's own interface has.

Shop: the latest order and review, from Magento's REST interface as its administrator. Forum: the address of
the post that a comment belongs to. Forge: a member's role in a project.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from envs.builtin.webarena.evaluators import Helper, Page
from envs.builtin.webarena.login import ACCOUNTS
from envs.builtin.webarena.sites import Sites
from envs.network.client import ask_json

ANSWER_S = 60.0

_ROLE = """(() => {
  const accounts = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const row = accounts.findIndex(account => account.outerText === "@" + %s);
  return document.querySelectorAll("td.col-max-role span")[row].outerText;
})()"""


async def shopping_get_latest_order_url(page: Page, sites: Sites, arguments: Sequence[str]) -> str:
    """The address of the latest order."""
    orders = await _request_shop(
        sites,
        "orders",
        {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": "1",
        },
    )
    return f"{sites.urls['shopping']}/sales/order/view/order_id/{int(orders['items'][0]['increment_id'])}/"


async def shopping_get_sku_latest_review_author(page: Page, sites: Sites, arguments: Sequence[str]) -> str:
    """The author of the last review of a product; empty if it has none."""
    reviews = await _request_shop(sites, f"products/{quote(arguments[0], safe='')}/reviews")
    return str(reviews[-1]["nickname"]) if reviews else ""


async def shopping_get_sku_latest_review_rating(page: Page, sites: Sites, arguments: Sequence[str]) -> str:
    """The rating of the last review of a product in per cent; empty if it has none."""
    reviews = await _request_shop(sites, f"products/{quote(arguments[0], safe='')}/reviews")
    return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""


async def reddit_get_post_url(page: Page, sites: Sites, arguments: Sequence[str]) -> str:
    """`http://site/f/<forum>/<post>/` of an address below it; any other address unchanged."""
    parts = urlsplit(arguments[0])
    folders = parts.path.split("/")
    if len(folders) < 4 or folders[1] != "f":
        return arguments[0]
    return f"{parts.scheme}://{parts.netloc}/f/{folders[2]}/{folders[3]}/"


async def gitlab_get_project_memeber_role(page: Page, sites: Sites, arguments: Sequence[str]) -> str:
    """A member's role, from the page of a project's members; empty for an unknown member."""
    try:
        return str(await page.evaluate(_ROLE % json.dumps(arguments[-1])))
    except ValueError:
        return ""


HELPERS: Mapping[str, Helper] = {
    helper.__name__: helper
    for helper in (
        shopping_get_latest_order_url,
        shopping_get_sku_latest_review_author,
        shopping_get_sku_latest_review_rating,
        reddit_get_post_url,
        gitlab_get_project_memeber_role,
    )
}
"""The helpers by the name that the tasks use."""


async def _request_shop(sites: Sites, path: str, parameters: Mapping[str, str] | None = None) -> Any:
    """A response of Magento's REST interface to its administrator."""
    base = f"{sites.urls['shopping']}/rest"
    login = f"{base}/default/V1/integration/admin/token"
    token = await ask_json("POST", login, timeout_s=ANSWER_S, json=ACCOUNTS["shopping_admin"])
    headers = {"Authorization": f"Bearer {token}"}
    return await ask_json("GET", f"{base}/V1/{path}", timeout_s=ANSWER_S, params=parameters, headers=headers)
