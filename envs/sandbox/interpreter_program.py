"""The program in the sandbox of `envs/sandbox/interpreter.py`; it imports only the standard library.

It reads one `{"number", "code", "is_separate", "output_chars", "timeout_s"}` per line, runs the code with
both standard streams redirected to a file, and answers `{"number", "output", "is_late"}`. If the code still
runs after `timeout_s` seconds, or when the owner sends SIGALRM, it answers with the output until then, and
its owner kills it. Its own pipes move to descriptors that code does not write to by default.
"""

import ast
import builtins
import os
import sys
import traceback
import types
from contextlib import suppress
from json import dumps, loads
from os import _exit, close, dup, dup2, fdopen, fstat, getpid, memfd_create, pread, write
from signal import ITIMER_REAL, SIGALRM, setitimer, signal

# Code that replaces `print` or `os.close` replaces it for itself, not for the functions below.
OWN_BUILTINS = dict(vars(builtins))
globals()["__builtins__"] = OWN_BUILTINS


def set_builtins(names: dict[str, object]) -> None:
    """Make `names` the built-in names of every module, the standard library's included."""
    for name in vars(builtins).keys() - names.keys():
        del vars(builtins)[name]
    vars(builtins).update(names)


def execute(code: str, names: dict[str, object], code_builtins: dict[str, object]) -> None:
    """Execute `code` as at a prompt: the value of a final expression is printed.

    `code_builtins`: the built-in names as earlier code has left them, and afterwards as this code does.
    """
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    set_builtins(code_builtins)
    try:
        exec(compile(tree, "<code>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                print(repr(value))
    finally:
        code_builtins.clear()
        code_builtins.update(vars(builtins))
        set_builtins(OWN_BUILTINS)


def shorten(text: str, limit: int) -> str:
    """Return the beginning and the end of a text longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def main() -> None:
    """Answer requests until the input ends."""
    requests = fdopen(dup(0), "r", encoding="utf-8")
    answers = fdopen(dup(1), "w", encoding="utf-8")
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        dup2(null, standard)
    module = types.ModuleType("__main__")  # pickle, unittest and others look names up there
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    process = getpid()
    code_builtins = dict(OWN_BUILTINS)

    def flush() -> None:
        for stream in (output, sys.stdout):  # code may have put another there
            with suppress(Exception):
                stream.flush()

    def answer(*, is_late: bool) -> None:
        limit = request["output_chars"]
        size = fstat(file).st_size
        head = pread(file, 4 * limit, 0)
        tail = pread(file, 4 * limit, max(len(head), size - 4 * limit))
        text = shorten((head + tail).decode("utf-8", errors="replace"), limit)
        answers.write(dumps({"number": request["number"], "output": text, "is_late": is_late}) + "\n")
        answers.flush()

    def answer_late(*_: object) -> None:
        if getpid() == process:  # not a fork that set an alarm
            set_builtins(OWN_BUILTINS)
            flush()
            answer(is_late=True)

    signal(SIGALRM, answer_late)  # once: code may have a handler for all of its runs
    answers.write("ready\n")
    answers.flush()
    for line in requests:
        request = loads(line)
        file = memfd_create("output")
        dup2(file, 1)
        dup2(file, 2)
        output = fdopen(dup(1), "w", encoding="utf-8", errors="replace")
        sys.stdout = sys.stderr = output
        setitimer(ITIMER_REAL, request["timeout_s"])
        try:
            if request["is_separate"]:
                execute(request["code"], {"__builtins__": builtins}, dict(OWN_BUILTINS))
            else:
                execute(request["code"], vars(module), code_builtins)
        except SystemExit:
            pass
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
                trace = trace.tb_next  # this program's own frames
            report = "".join(traceback.format_exception(type(error), error, trace))
            flush()
            with suppress(OSError):
                write(file, report.encode("utf-8", errors="replace"))
        flush()
        if getpid() != process:  # a fork that the code made: only its parent answers requests
            _exit(0)
        setitimer(ITIMER_REAL, 0)
        dup2(null, 1)
        dup2(null, 2)
        answer(is_late=False)
        close(file)


if __name__ == "__main__":
    main()
