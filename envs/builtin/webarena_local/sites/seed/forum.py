"""Fills the forum: forums with what may be done in them, threads, posts and a poll."""

import random
from datetime import timedelta

from django.contrib.auth.models import User
from machina.core.db.models import get_model
from time_machine import Traveller

from envs.builtin.webarena_local.sites.seed.people import EMMA, OTHER_PEOPLE, days_ago
from envs.builtin.webarena_local.sites.seed.talk import ANSWERS, FORUMS, OPENINGS, SHOPS, STREETS, THREADS

MODERATED_FORUM = "Woodworking"
"""The forum that our user moderates."""
MODERATION = (
    "can_lock_topics",
    "can_move_topics",
    "can_edit_posts",
    "can_delete_posts",
    "can_post_stickies",
    "can_post_announcements",
)
POLL = (
    "Film club votes on its next season",
    "What should we watch?",
    ("Silent comedies", "Sea films", "New animation"),
)


def seed_forum(clock: Traveller) -> None:
    """Fill the forum in a database that has users and machina's permissions."""
    rng = random.Random("webarena-local/forum")
    Forum = get_model("forum", "Forum")
    clock.move_to(days_ago(500))
    forums = {}
    for category, rooms in FORUMS.items():
        parent = Forum.objects.create(name=category, type=Forum.FORUM_CAT)
        for name, description in rooms:
            forums[name] = Forum.objects.create(
                name=name, description=description, parent=parent, type=Forum.FORUM_POST
            )
    _permissions(forums[MODERATED_FORUM])
    threads = [(name, subject) for name, subjects in THREADS.items() for subject in subjects]
    rng.shuffle(threads)
    for number, (name, subject) in enumerate(threads):
        _thread(rng, clock, forums[name], subject, age_days=3.0 * (len(threads) - number))


def _permissions(own_forum: object) -> None:
    ForumPermission = get_model("forum_permission", "ForumPermission")
    UserForumPermission = get_model("forum_permission", "UserForumPermission")
    emma = User.objects.get(username=EMMA.username)
    for codename in ("can_see_forum", "can_read_forum"):
        permission = ForumPermission.objects.get(codename=codename)
        UserForumPermission.objects.create(permission=permission, anonymous_user=True, has_perm=True)
    for codename in MODERATION:
        permission = ForumPermission.objects.get(codename=codename)
        UserForumPermission.objects.create(permission=permission, user=emma, forum=own_forum, has_perm=True)


def _thread(rng: random.Random, clock: Traveller, forum: object, subject: str, *, age_days: float) -> None:
    Topic, Post = get_model("forum_conversation", "Topic"), get_model("forum_conversation", "Post")
    users = {user.username: user for user in User.objects.all()}
    people = [person.username for person in (EMMA, *OTHER_PEOPLE)]
    when = days_ago(age_days)
    writer = users[rng.choice(people)]
    clock.move_to(when)
    topic = Topic.objects.create(
        forum=forum,
        subject=subject,
        poster=writer,
        type=Topic.TOPIC_STICKY if rng.random() < 0.06 else Topic.TOPIC_POST,
        status=Topic.TOPIC_LOCKED if rng.random() < 0.06 else Topic.TOPIC_UNLOCKED,
        approved=True,
    )
    opening = rng.choice(OPENINGS).format(subject=subject[0].lower() + subject[1:])
    Post.objects.create(topic=topic, poster=writer, subject=subject, content=opening, approved=True)
    for _ in range(rng.randint(2, 8)):
        when += timedelta(hours=rng.randint(1, 8), minutes=rng.randint(0, 59))
        clock.move_to(when)
        answer = rng.choice(ANSWERS).format(
            place=rng.choice(SHOPS), street=rng.choice(STREETS), number=rng.randint(2, 60)
        )
        answerer = users[rng.choice(people)]
        Post.objects.create(
            topic=topic, poster=answerer, subject=f"Re: {subject}", content=answer, approved=True
        )
    if subject == POLL[0]:
        _poll(topic)
    Topic.objects.filter(pk=topic.pk).update(views_count=rng.randint(20, 900))


def _poll(topic: object) -> None:
    TopicPoll = get_model("forum_polls", "TopicPoll")
    Option, Vote = get_model("forum_polls", "TopicPollOption"), get_model("forum_polls", "TopicPollVote")
    poll = TopicPoll.objects.create(topic=topic, question=POLL[1], max_options=1)
    options = [Option.objects.create(poll=poll, text=text) for text in POLL[2]]
    for number, person in enumerate(OTHER_PEOPLE[:9]):
        voter = User.objects.get(username=person.username)
        Vote.objects.create(poll_option=options[(number * number) % 3], voter=voter)
