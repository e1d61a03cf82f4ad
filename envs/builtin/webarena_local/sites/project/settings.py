"""Settings of the Django project.

All paths that are written to are relative: a process that serves or seeds a copy of the sites works in that
copy's folder. Nothing here is secret: the sites hold invented data and listen on loopback only, and their key
is the same everywhere so that a seeded login is valid on every machine.
"""

from pathlib import Path

import machina
import trac
from oscar import INSTALLED_APPS as OSCAR_APPS
from oscar.defaults import *  # noqa: F403
from oscar.defaults import OSCAR_SEARCH_FACETS as FACETS

PROJECT = "envs.builtin.webarena_local.sites.project"
DATABASE = "django.sqlite3"
SEARCH_INDEX = "search"

SECRET_KEY = "webarena-local: invented data, loopback only"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English")]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
SILENCED_SYSTEM_CHECKS = ["security.W001", "fields.W342"]

INSTALLED_APPS = [
    *OSCAR_APPS,
    "mptt",
    "machina",
    "machina.apps.forum",
    "machina.apps.forum_conversation",
    "machina.apps.forum_conversation.forum_attachments",
    "machina.apps.forum_conversation.forum_polls",
    "machina.apps.forum_feeds",
    "machina.apps.forum_moderation",
    "machina.apps.forum_search",
    "machina.apps.forum_tracking",
    "machina.apps.forum_member",
    "machina.apps.forum_permission",
    f"{PROJECT}.pages",
    "wagtail.contrib.redirects",
    "wagtail.embeds",
    "wagtail.sites",
    "wagtail.users",
    "wagtail.snippets",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.search",
    "wagtail.admin",
    "wagtail",
    "modelcluster",
    "taggit",
    "django_filters",
]
INSTALLED_APPS.remove("django.contrib.admin")

MIDDLEWARE = [
    f"{PROJECT}.middleware.route_site",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    f"{PROJECT}.middleware.SiteMiddleware",
]
ROOT_URLCONF = f"{PROJECT}.urls_shop"
AUTHENTICATION_BACKENDS = [
    "oscar.apps.customer.auth_backends.EmailBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS: list[dict[str, object]] = []
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
"""Fast: a login may be part of an episode, and there is nothing to protect."""

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).parent / "templates", Path(machina.MACHINA_MAIN_TEMPLATE_DIR)],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.template.context_processors.i18n",
                "django.contrib.messages.context_processors.messages",
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
                "machina.core.context_processors.metadata",
            ]
        },
    }
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE,
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            # No write waits for the disk: a copy that crashes is thrown away.
            "init_command": "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF;",
        },
    }
}


class _NoMigrations(dict[str, None]):
    """Has tables made from the models: that takes seconds, and hundreds of migrations take a minute."""

    def __contains__(self, app: object) -> bool:
        return True

    def __getitem__(self, app: str) -> None:
        return None


MIGRATION_MODULES = _NoMigrations()
HAYSTACK_CONNECTIONS = {
    "default": {"ENGINE": "haystack.backends.whoosh_backend.WhooshEngine", "PATH": SEARCH_INDEX}
}
_NO_CACHE = {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}
CACHES = {
    "default": _NO_CACHE,
    "machina_attachments": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {
        "django.request": {"level": "ERROR", "handlers": ["stderr"], "propagate": False},
        "waitress.queue": {"level": "ERROR"},  # a browser sends more than four requests at once
    },
}

STATIC_URL = "/static/"
STATICFILES_DIRS = [Path(machina.MACHINA_MAIN_STATIC_DIR), ("trac", Path(trac.__path__[0]) / "htdocs")]
MEDIA_ROOT = ""
MEDIA_URL = "/media/"

SITE_ID = 1
OSCAR_SHOP_NAME = "Harbour & Pine"
OSCAR_SHOP_TAGLINE = "Goods for house and trail"
OSCAR_DEFAULT_CURRENCY = "USD"
OSCAR_PRODUCTS_PER_PAGE = 12
OSCAR_SEND_REGISTRATION_EMAIL = False
OSCAR_ALLOW_ANON_REVIEWS = False
OSCAR_THUMBNAILER = f"{PROJECT}.thumbnails.NoThumbnails"
OSCAR_SEARCH_FACETS = {**FACETS, "queries": {}}
OSCAR_INITIAL_ORDER_STATUS = "Pending"
OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Being processed", "Cancelled"),
    "Being processed": ("Complete", "Cancelled"),
    "Cancelled": (),
    "Complete": (),
}

MACHINA_FORUM_NAME = "Lantern Board"
MACHINA_MARKUP_WIDGET = "django.forms.Textarea"
MACHINA_DEFAULT_AUTHENTICATED_USER_FORUM_PERMISSIONS = [
    "can_see_forum",
    "can_read_forum",
    "can_start_new_topics",
    "can_reply_to_topics",
    "can_post_without_approval",
    "can_edit_own_posts",
    "can_delete_own_posts",
    "can_vote_in_polls",
]

WAGTAIL_SITE_NAME = "Harbour & Pine Journal"
WAGTAILADMIN_BASE_URL = "http://localhost"
WAGTAIL_AUTOSAVE_INTERVAL = 0
WAGTAIL_ENABLE_UPDATE_CHECK = False
WAGTAIL_ENABLE_WHATS_NEW_BANNER = False
WAGTAIL_GRAVATAR_PROVIDER_URL = None
WAGTAILSEARCH_BACKENDS = {"default": {"BACKEND": "wagtail.search.backends.database"}}
