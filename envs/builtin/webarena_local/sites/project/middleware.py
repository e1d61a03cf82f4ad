"""Routes each request to its site, and keeps the sites of the one Django project apart."""

from collections.abc import Callable
from http.cookies import Morsel

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from envs.builtin.webarena_local.sites.seed.people import COOKIES

SITES = ("shop", "forum", "cms")
SITE_KEY = "wingspan.site"
"""The key of the WSGI environment under which the server names a request's site."""

Respond = Callable[[HttpRequest], HttpResponse]


def route_site(get_response: Respond) -> Respond:
    """Route by site, and translate between the site's session cookie and Django's name for it."""

    def middleware(request: HttpRequest) -> HttpResponse:
        site = request.META[SITE_KEY]
        request.urlconf = f"envs.builtin.webarena_local.sites.project.urls_{site}"
        site_cookie, django_cookie = COOKIES[site].name, settings.SESSION_COOKIE_NAME
        request.COOKIES.pop(django_cookie, None)
        if site_cookie in request.COOKIES:
            request.COOKIES[django_cookie] = request.COOKIES[site_cookie]
        response = get_response(request)
        if django_cookie in response.cookies:
            morsel: Morsel[str] = response.cookies.pop(django_cookie)
            response.set_cookie(
                site_cookie,
                morsel.value,
                max_age=morsel["max-age"] if morsel["max-age"] != "" else None,
                path=morsel["path"],
                httponly=bool(morsel["httponly"]),
                samesite=morsel["samesite"] or None,
            )
        return response

    return middleware


class SiteMiddleware:
    """Applies the middleware that only one of the applications needs."""

    def __init__(self, get_response: Respond) -> None:
        from machina.apps.forum_permission.middleware import ForumPermissionMiddleware
        from oscar.apps.basket.middleware import BasketMiddleware
        from wagtail.contrib.redirects.middleware import RedirectMiddleware

        self._by_site: dict[str, Respond] = {
            "shop": BasketMiddleware(get_response),
            "forum": ForumPermissionMiddleware(get_response),
            "cms": RedirectMiddleware(get_response),
        }

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._by_site[request.META[SITE_KEY]](request)

    def process_template_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Pass the call on: Django only calls it on middleware that its settings name."""
        hook = getattr(self._by_site[request.META[SITE_KEY]], "process_template_response", None)
        return response if hook is None else hook(request, response)
