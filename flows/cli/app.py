"""The entry point of `wingspan`: imports nothing at first, so that Ctrl-C then prints no traceback."""

STOPPED = 130
"""The exit status after Ctrl-C; typer returns it for a `KeyboardInterrupt` in a command."""


def main() -> None:
    """Run the command line. Ctrl-C ends this process with `STOPPED`, also while the commands are imported."""
    try:
        from flows.cli.command_line import run_app

        run_app()
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None
