"""One Django project with the shop (django-oscar), the forum (django-machina) and the CMS (wagtail)."""
