"""The entry point of `wingspan`: imports nearly nothing at first, so that Ctrl-C then prints no traceback."""

from flows.cli.exit_status import STOPPED


def main() -> None:
    """Run the command line. Ctrl-C ends this process with `STOPPED`, also while the commands are imported."""
    try:
        from flows.cli.command_line import run_app

        run_app()
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None
