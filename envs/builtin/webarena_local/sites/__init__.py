"""The web applications: what they hold, and how copies of them are served."""
