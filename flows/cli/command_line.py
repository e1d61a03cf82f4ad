"""The command line, `wingspan`: its commands, and errors that a user can fix as one line.

Nothing heavy is imported before a command needs it: `wingspan --help` answers within a second.
"""

import errno
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from envs.errors import WingspanError, to_line
from envs.redaction import clean_logs, redact
from flows.cli.data import data_app
from flows.cli.episodes import evaluate, fork, play, rollout
from flows.cli.exit_status import STOPPED
from flows.cli.export import export
from flows.cli.inspect import compare, doctor, envs, pipelines, runs
from flows.cli.lineage import lineage, reproduce
from flows.cli.run import base, deploy, plan_run, run, stage
from flows.cli.serve import serve_env, serve_policy, serve_retriever, serve_sites, view
from flows.cli.sweep import sweep

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(stage, base, pipelines, runs, export, deploy, envs, doctor, play, rollout, evaluate, fork, compare),
    *(sweep, lineage, reproduce, view, serve_env, serve_policy, serve_retriever, serve_sites),
)
app.command()(run)
app.command("plan")(plan_run)
for command in _COMMANDS:
    app.command()(command)
app.add_typer(data_app, name="data")


_TRACEBACK = "WINGSPAN_TRACEBACK"
"""The environment variable by which the option reaches the commands that this one starts."""


def _print_tracebacks(is_requested: bool) -> None:
    if is_requested:
        os.environ[_TRACEBACK] = "1"


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        from envs.requirements.detection import APPLICATION

        typer.echo(f"wingspan {version(APPLICATION)}")
        raise typer.Exit


@app.callback()
def wingspan(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    show_traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            callback=_print_tracebacks,
            help="Print the traceback of an error as well, for errors in your own code.",
        ),
    ] = False,
) -> None:
    """Train LLM agents by multi-turn reinforcement learning, as a pipeline."""


def one_line(error: BaseException) -> str | None:
    """The message for an `error` that the user can fix, else None."""
    if isinstance(error, WingspanError):
        return to_line(error)
    cause: BaseException | None = error
    while cause is not None:
        is_disk_full = getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        # Ray's processes, SQLite and torch report it in the text alone.
        if is_disk_full or any(sign in str(cause) for sign in ("No space left on device", "disk is full")):
            path = getattr(cause, "filename", None)
            location = f" at {path}" if path else ""
            return f"the disk is full{location}; free some space and run the same command again to resume"
        if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:
            return f"{str(cause.filename)[:40]}… is too long for the name of a file; give a shorter one"
        cause = cause.__cause__ or cause.__context__
    return None


def _leave_stopped() -> NoReturn:
    """End this process after Ctrl-C without exit handlers: taking down MLflow and pandas takes a second.

    A command with more to say than that it was stopped uses `Stoppable`, which ends the process itself.
    """
    from flows.endings.guardian import end_guarded
    from flows.endings.stopping import leave

    with suppress(OSError):  # the terminal may be closed
        sys.stdout.flush()
    end_guarded()
    line_start = "\r" if sys.stderr.isatty() else ""  # over the ^C that the terminal shows
    leave(f"{line_start}stopped", status=STOPPED)


def run_app() -> None:
    """Run the command line and end this process with its status."""
    # By default every 700 new objects are looked through: an eighth of a start, whose objects mostly stay.
    gc.set_threshold(100_000, 50, 100)
    # huggingface_hub reads this at import, here and in every process that a run starts; its progress bars
    # would overwrite the display.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Else Prefect's client prints a notice when it is first imported, and reports how it is used.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    clean_logs()
    # A terminal that is not UTF-8 lacks characters, which must not end a run; standard error has their codes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = app(standalone_mode=False)  # returns the status of typer.Exit, None otherwise
        if status == STOPPED:
            _leave_stopped()
        sys.exit(status)
    except KeyboardInterrupt:
        _leave_stopped()
    except Exception as error:
        usage = _usage(error)
        if usage == "":  # there were no arguments, and the help is printed
            sys.exit(2)
        line = usage or one_line(error)
        if line is None or (os.environ.get(_TRACEBACK) == "1" and not usage):
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
        if line is None:
            sys.exit(1)
        print(f"error: {redact(line)}", file=sys.stderr)
        sys.exit(2)


def _usage(error: Exception) -> str | None:
    """The message for a mistake in the command line itself, which typer's parser reports; else None."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    context = getattr(error, "ctx", None)
    command = "wingspan" if context is None else context.command_path
    message = format_message().rstrip(".")
    return message and f"{message}{' ' if message.endswith('?') else '; '}see {command} --help"
