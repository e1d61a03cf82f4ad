"""Fills the forge: for each project a Trac environment with tickets, milestones and a wiki, over a
repository."""

import random
from datetime import timedelta
from pathlib import Path

from time_machine import Traveller
from trac.admin.api import AdminCommandManager
from trac.env import Environment
from trac.perm import PermissionSystem
from trac.ticket.model import Component, Milestone, Ticket, Version
from trac.versioncontrol.api import RepositoryManager
from trac.wiki.model import WikiPage

from envs.builtin.webarena_local.sites.seed.people import COOKIES, EMMA, NOW, OTHER_PEOPLE, days_ago
from envs.builtin.webarena_local.sites.seed.projects import COMMENTS, DETAILS, PROJECTS, Project
from envs.builtin.webarena_local.sites.seed.repositories import DEVELOPERS, make_repository

FORGE = "forge"
"""Folder of the Trac environments, one per project."""
REPOSITORIES = "repositories"
PERMISSIONS = ("TICKET_CREATE", "TICKET_MODIFY", "TICKET_EDIT_DESCRIPTION", "WIKI_CREATE", "WIKI_MODIFY")
OPTIONS = (
    ("trac", "htdocs_location", "/static/trac"),  # Trac itself collects garbage after each file
    ("trac", "repository_sync_per_request", ""),
    ("trac", "authz_module_name", ""),
    ("trac", "default_timezone", "UTC"),
    ("trac", "default_date_format", "iso8601"),
    ("trac", "default_dateinfo_format", "absolute"),
    ("trac", "check_auth_ip", "disabled"),
    ("components", "tracopt.versioncontrol.git.*", "enabled"),
    ("components", "tracopt.versioncontrol.svn.*", "disabled"),
    ("git", "trac_user_rlookup", "enabled"),
    ("ticket", "restrict_owner", "true"),
    ("ticket", "default_type", "defect"),
    ("logging", "log_type", "none"),
    ("notification", "smtp_enabled", "disabled"),
)


def seed_forge(clock: Traveller, folder: Path) -> None:
    """Make the environments and repositories of all projects below `folder`."""
    (folder / FORGE).mkdir()
    for project in PROJECTS:
        make_repository(project, folder / REPOSITORIES / f"{project.name}.git")
        clock.move_to(days_ago(210))
        _environment(project, folder, clock)


def _environment(project: Project, folder: Path, clock: Traveller) -> None:
    rng = random.Random(f"webarena-local/forge/{project.name}")
    # Relative to the environment's folder, so that a copy of the sites finds its own repository.
    repository = f"../../{REPOSITORIES}/{project.name}.git"
    options = [
        *OPTIONS,
        ("project", "name", project.name),
        ("project", "descr", project.about),
        ("project", "footer", project.about),
        ("header_logo", "src", ""),
        ("header_logo", "alt", project.name),
        ("repositories", ".dir", repository),
        ("repositories", ".type", "git"),
        ("ticket", "default_component", project.components[0]),
    ]
    env = Environment(str(folder / FORGE / project.name), create=True, options=options)
    _milestones(env, project)
    _members(env)
    _wiki(env, project)
    for number, summary in enumerate(project.tickets):
        _ticket(env, project, summary, rng, clock, age_days=150.0 - 8 * number)
    clock.move_to(NOW)
    RepositoryManager(env).reload_repositories()
    AdminCommandManager(env).execute_command("repository", "resync", "(default)")
    env.shutdown()


def _milestones(env: Environment, project: Project) -> None:
    for name in ("component1", "component2"):
        Component(env, name).delete()
    for name in ("1.0", "2.0"):
        Version(env, name).delete()
    for name in ("milestone1", "milestone2", "milestone3", "milestone4"):
        Milestone(env, name).delete()
    for name, owner in zip(project.components, DEVELOPERS, strict=False):
        component = Component(env)
        component.name, component.owner = name, owner.username
        component.insert()
    for number, name in enumerate(project.milestones):
        milestone = Milestone(env)
        milestone.name = name
        milestone.due = NOW + timedelta(days=60 * number - 40)
        milestone.completed = days_ago(35) if number == 0 else None
        milestone.description = f"Release {name} of {project.name}."
        milestone.insert()
    version = Version(env)
    version.name, version.time = project.milestones[0], days_ago(35)
    version.insert()


def _members(env: Environment) -> None:
    permissions = PermissionSystem(env)
    for permission in PERMISSIONS:
        permissions.grant_permission(EMMA.username, permission)
    with env.db_transaction as database:
        database(
            "INSERT INTO auth_cookie (cookie, name, time) VALUES (%s, %s, %s)",
            (COOKIES["forge"].value, EMMA.username, int(NOW.timestamp())),
        )
        for person in (EMMA, *OTHER_PEOPLE):
            database(
                "INSERT INTO session (sid, authenticated, last_visit) VALUES (%s, 1, %s)",
                (person.username, int(days_ago(1).timestamp())),
            )
            for name, value in (("name", person.full_name), ("email", person.email)):
                database(
                    "INSERT INTO session_attribute (sid, authenticated, name, value) VALUES (%s, 1, %s, %s)",
                    (person.username, name, value),
                )


def _wiki(env: Environment, project: Project) -> None:
    with env.db_transaction as database:
        database("DELETE FROM wiki")
    maintainer = DEVELOPERS[len(project.name) % len(DEVELOPERS)]
    pages = {
        "WikiStart": f"= {project.name} =\n{project.about}.\n\n"
        " * [wiki:Contributing]\n * [wiki:ReleasePlan]\n",
        "Contributing": f"= Contributing =\nAsk {maintainer.full_name}, who maintains {project.name}, "
        "before you begin on anything large.\n\nEvery change needs a test.\n",
        "ReleasePlan": "= Release plan =\n"
        + "".join(f" * {name}\n" for name in project.milestones)
        + f"\nBranches are cut {len(project.name) + 3} days before a release.\n",
    }
    for name, text in pages.items():
        page = WikiPage(env, name)
        page.text = text
        page.save(maintainer.username, "First version")


def _ticket(
    env: Environment, project: Project, summary: str, rng: random.Random, clock: Traveller, *, age_days: float
) -> None:
    when = days_ago(age_days) + timedelta(minutes=rng.randint(0, 900))
    clock.move_to(when)
    owner, reporter = rng.choice(DEVELOPERS), rng.choice((EMMA, *OTHER_PEOPLE))
    is_done = rng.random() < 0.35
    ticket = Ticket(env)
    ticket.populate(
        {
            "summary": summary,
            "description": rng.choice(DETAILS),
            "reporter": reporter.username,
            "owner": owner.username,
            "type": rng.choice(("defect", "defect", "enhancement", "task")),
            "component": rng.choice(project.components),
            "milestone": project.milestones[0] if is_done else rng.choice(project.milestones[1:]),
            "priority": rng.choice(("blocker", "critical", "major", "major", "minor", "trivial")),
            "status": "new",
            "keywords": "",
            "cc": "",
        }
    )
    ticket.insert(when=when)
    for _ in range(rng.randint(0, 2)):
        when += timedelta(hours=rng.randint(3, 60))
        ticket.save_changes(rng.choice(OTHER_PEOPLE).username, rng.choice(COMMENTS), when=when)
    when += timedelta(hours=rng.randint(3, 60))
    if is_done:
        ticket["status"], ticket["resolution"] = (
            "closed",
            rng.choice(("fixed", "fixed", "worksforme", "wontfix")),
        )
        ticket.save_changes(owner.username, "", when=when)
    elif rng.random() < 0.4:
        ticket["status"] = "accepted"
        ticket.save_changes(owner.username, "", when=when)
