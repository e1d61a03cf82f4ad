"""A home page, sections, plain pages, and articles with an author, a date and a topic."""

from typing import ClassVar

from django.db import models
from wagtail.admin.panels import FieldPanel
from wagtail.fields import RichTextField
from wagtail.models import Page
from wagtail.search import index

TEMPLATE = "pages/page.html"


class HomePage(Page):
    """The top of the site."""

    intro = models.CharField(max_length=250, blank=True)
    content_panels: ClassVar = [*Page.content_panels, FieldPanel("intro")]
    template = TEMPLATE


class SectionPage(Page):
    """Lists the pages below it."""

    intro = models.CharField(max_length=250, blank=True)
    content_panels: ClassVar = [*Page.content_panels, FieldPanel("intro")]
    template = TEMPLATE


class InfoPage(Page):
    """A summary and a text."""

    summary = models.CharField(max_length=250, blank=True)
    body = RichTextField(blank=True)
    content_panels: ClassVar = [*Page.content_panels, FieldPanel("summary"), FieldPanel("body")]
    search_fields: ClassVar = [*Page.search_fields, index.SearchField("body")]
    template = TEMPLATE


class ArticlePage(Page):
    """An article of the journal."""

    author = models.CharField(max_length=80)
    topic = models.CharField(max_length=40)
    date = models.DateField("Published on")
    summary = models.CharField(max_length=250, blank=True)
    body = RichTextField(blank=True)
    content_panels: ClassVar = [
        *Page.content_panels,
        FieldPanel("author"),
        FieldPanel("topic"),
        FieldPanel("date"),
        FieldPanel("summary"),
        FieldPanel("body"),
    ]
    search_fields: ClassVar = [*Page.search_fields, index.SearchField("body"), index.FilterField("topic")]
    template = TEMPLATE
