"""Which of the sites a request is for, and how they are kept apart although one project serves them."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from envs.builtin.webarena_local.sites.logins import COOKIES
from envs.builtin.webarena_local.sites.serving import SITE_KEY

SITES = ("shop", "forum", "cms")

Respond = Callable[[HttpRequest], HttpResponse]


def site_of_port(get_response: Respond) -> Respond:
    """Route by site, and call the site's session cookie what Django calls it."""

    def middleware(request: HttpRequest) -> HttpResponse:
        site = request.META[SITE_KEY]
        request.urlconf = f"envs.builtin.webarena_local.sites.project.urls_{site}"
        ours, djangos = COOKIES[site].name, settings.SESSION_COOKIE_NAME
        request.COOKIES.pop(djangos, None)
        if ours in request.COOKIES:
            request.COOKIES[djangos] = request.COOKIES[ours]
        response = get_response(request)
        if djangos in response.cookies:
            morsel: Any = response.cookies.pop(djangos)
            response.set_cookie(
                ours,
                morsel.value,
                max_age=morsel["max-age"] if morsel["max-age"] != "" else None,
                path=morsel["path"],
                httponly=bool(morsel["httponly"]),
                samesite=morsel["samesite"] or None,
            )
        return response

    return middleware


class RulesOfSite:
    """The middlewares that only one of the applications wants."""

    def __init__(self, get_response: Respond) -> None:
        from machina.apps.forum_permission.middleware import ForumPermissionMiddleware
        from oscar.apps.basket.middleware import BasketMiddleware
        from wagtail.contrib.redirects.middleware import RedirectMiddleware

        self._of_site: dict[str, Any] = {
            "shop": BasketMiddleware(get_response),
            "forum": ForumPermissionMiddleware(get_response),
            "cms": RedirectMiddleware(get_response),
        }

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response: HttpResponse = self._of_site[request.META[SITE_KEY]](request)
        return response

    def process_template_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Django calls it of what stands in its settings alone: pass it on."""
        hook = getattr(self._of_site[request.META[SITE_KEY]], "process_template_response", None)
        return response if hook is None else hook(request, response)
