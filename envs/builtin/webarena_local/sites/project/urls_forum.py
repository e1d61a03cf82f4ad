"""URLs of the forum; machina leaves the login to the project."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

urlpatterns = [
    path("login/", LoginView.as_view(template_name="forum_login.html", next_page="/"), name="login"),
    path("logout/", LogoutView.as_view(next_page="/"), name="logout"),
    path("", include("machina.urls")),
]
