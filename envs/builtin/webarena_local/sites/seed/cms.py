"""Fills the CMS: pages, drafts, and the group whose members edit them."""

import random
from datetime import timedelta

from django.contrib.auth.models import Group, Permission, User
from time_machine import Traveller
from wagtail.models import Collection, GroupPagePermission, Locale, Page, Site

from envs.builtin.webarena_local.sites.project.pages.models import (
    ArticlePage,
    HomePage,
    InfoPage,
    SectionPage,
)
from envs.builtin.webarena_local.sites.seed.people import EDITOR, days_ago
from envs.builtin.webarena_local.sites.seed.prose import ARTICLES, AUTHORS, DRAFTS, PARAGRAPHS, SECTIONS

PAGE_PERMISSIONS = ("add_page", "change_page", "publish_page", "lock_page", "unlock_page", "bulk_delete_page")


def seed_cms(clock: Traveller) -> None:
    """Fill the CMS in a database that has only users."""
    rng = random.Random("webarena-local/cms")
    clock.move_to(days_ago(420))
    Locale.objects.create(language_code="en")
    Collection.add_root(name="Root")
    root = Page.add_root(instance=Page(title="Root", slug="root"))
    home = HomePage(title="Journal of Harbour & Pine", slug="home", intro="Notes from a shop by the water.")
    root.add_child(instance=home)
    Site.objects.create(
        hostname="localhost", port=80, root_page=home, is_default_site=True, site_name=home.title
    )
    editor = User.objects.get(username=EDITOR.username)
    editor.groups.add(_editors(root))
    for title, (intro, pages) in SECTIONS.items():
        section = SectionPage(title=title, intro=intro)
        _publish(home, section, editor)
        for name, summary in pages:
            clock.shift(timedelta(days=3, hours=2))
            page = InfoPage(title=name, summary=summary, body=_text(rng))
            _publish(section, page, editor)
    journal = SectionPage(title="Journal", intro="Articles, new ones first.")
    _publish(home, journal, editor)
    for number, (title, topic) in enumerate((*ARTICLES, *DRAFTS)):
        clock.move_to(days_ago(300 - 10 * number))
        article = ArticlePage(
            title=title,
            topic=topic,
            author=rng.choice(AUTHORS),
            date=days_ago(300 - 10 * number).date(),
            summary=rng.choice(PARAGRAPHS).format(number=rng.randint(3, 90)),
            body=_text(rng),
        )
        if (title, topic) in DRAFTS:
            article.live = False
            journal.add_child(instance=article)
            article.save_revision(user=editor, log_action=True)
        else:
            _publish(journal, article, editor)


def _publish(parent: Page, page: Page, editor: User) -> None:
    parent.add_child(instance=page)
    page.save_revision(user=editor).publish(user=editor)
    page.refresh_from_db()


def _text(rng: random.Random) -> str:
    paragraphs = rng.sample(PARAGRAPHS, 3)
    return "".join(f"<p>{paragraph.format(number=rng.randint(3, 90))}</p>" for paragraph in paragraphs)


def _editors(root: Page) -> Group:
    group = Group.objects.create(name="Moderators")
    group.permissions.add(Permission.objects.get(codename="access_admin"))
    for codename in PAGE_PERMISSIONS:
        permission = Permission.objects.get(content_type__app_label="wagtailcore", codename=codename)
        GroupPagePermission.objects.create(group=group, page=root, permission=permission)
    return group
