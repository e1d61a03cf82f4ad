"""Loads the applications: importing this takes seconds, once for all processes forked afterwards."""
# ruff: noqa: E402 - the settings must be named before Django is imported

import os
import warnings
from wsgiref.types import WSGIApplication

os.environ["DJANGO_SETTINGS_MODULE"] = "envs.builtin.webarena_local.sites.project.settings"
warnings.filterwarnings("ignore", module=r"(oscar|machina|wagtail|trac|whoosh|django)")
warnings.filterwarnings("ignore", message="pkg_resources is deprecated")

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

from envs.builtin.webarena_local.sites.project.middleware import SITES

django_sites: WSGIApplication = StaticFilesHandler(get_wsgi_application())
"""The WSGI application of the shop, the forum and the CMS; `middleware.SITE_KEY` names a request's site."""

for _site in SITES:  # imports their views
    get_resolver(f"envs.builtin.webarena_local.sites.project.urls_{_site}").url_patterns  # noqa: B018

import trac.ticket.web_ui
import trac.timeline.web_ui
import trac.versioncontrol.web_ui
import trac.web.main as _trac
import trac.wiki.web_ui  # noqa: F401
import tracopt.versioncontrol.git.git_fs  # noqa: F401

forge: WSGIApplication = _trac.dispatch_request
"""The WSGI application of the forge; `trac.env_parent_dir` is the folder of its projects."""
