"""The exit statuses of `wingspan` that several modules know; imports nothing, as `flows.cli.app` needs it."""

STOPPED = 130
"""The exit status after Ctrl-C; typer returns it for a `KeyboardInterrupt` in a command."""
