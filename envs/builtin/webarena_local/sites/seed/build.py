"""Makes the sites' data: `python -m envs.builtin.webarena_local.sites.seed.build FOLDER`.

This needs a process of its own, because Django is set up once per process and works in the current folder.
"""

import os
import random
import sys
import warnings
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from envs.builtin.webarena_local.sites.project.middleware import SITES
from envs.builtin.webarena_local.sites.seed.people import COOKIES, EDITOR, EMMA, NOW, OTHER_PEOPLE, PASSWORD

if TYPE_CHECKING:
    from time_machine import Traveller

SESSION = timedelta(days=365)
SALT = "webarenalocal"


def build(folder: Path) -> None:
    """Make everything in the empty `folder`."""
    warnings.filterwarnings("ignore")
    os.chdir(folder)
    os.environ["DJANGO_SETTINGS_MODULE"] = "envs.builtin.webarena_local.sites.project.settings"
    os.environ["TZ"] = "UTC"
    import time_machine

    random.seed("webarena-local")  # the applications generate keys
    with time_machine.travel(NOW, tick=False) as clock:
        import django

        django.setup()
        _build_in(folder, clock)


def _build_in(folder: Path, clock: "Traveller") -> None:
    from django.apps import apps
    from django.core.management import call_command
    from django.db import connection

    from envs.builtin.webarena_local.sites.seed.cms import seed_cms
    from envs.builtin.webarena_local.sites.seed.forge import seed_forge
    from envs.builtin.webarena_local.sites.seed.forum import seed_forum
    from envs.builtin.webarena_local.sites.seed.shop import seed_shop

    apps.get_app_config("haystack").signal_processor.teardown()  # indexed once, at the end
    call_command("migrate", run_syncdb=True, verbosity=0)
    _full_text_table()
    _users()
    seed_shop(clock)
    seed_forum(clock)
    seed_cms(clock)
    clock.move_to(NOW)
    _sessions()
    call_command("rebuild_index", interactive=False, verbosity=0)
    connection.close()
    seed_forge(clock, folder)


def _full_text_table() -> None:
    """Run the SQL of a migration of Wagtail's search: the only table that no model describes."""
    from django.db import connection

    migration = import_module("wagtail.search.migrations.0006_customise_indexentry").Migration
    (tables,) = [step for step in migration.operations if hasattr(step, "database_operations")]
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE wagtailsearch_indexentry_fts")
        for step in tables.database_operations:
            cursor.execute(step.sql)


def _users() -> None:
    from django.contrib.auth.hashers import make_password
    from django.contrib.auth.models import User

    for person in (EMMA, EDITOR, *OTHER_PEOPLE):
        User.objects.create(
            username=person.username,
            first_name=person.first_name,
            last_name=person.last_name,
            email=person.email,
            password=make_password(PASSWORD, salt=SALT),
        )


def _sessions() -> None:
    """Log the tasks' users in, so that a browser only needs their cookies."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session

    for site in SITES:
        user = User.objects.get(username=(EDITOR if site == "cms" else EMMA).username)
        session = {
            SESSION_KEY: str(user.pk),
            BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
        Session.objects.create(
            session_key=COOKIES[site].value,
            session_data=SessionStore().encode(session),
            expire_date=NOW + SESSION,
        )


if __name__ == "__main__":
    build(Path(sys.argv[1]))
