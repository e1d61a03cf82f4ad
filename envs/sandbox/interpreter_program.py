"""The program inside the sandbox of `envs/sandbox/interpreter.py`; it imports nothing but the standard
library.

Reads `{"code", "output_chars"}` a line, runs the code with both standard streams in a file, and answers
`{"output"}`. Its own pipes are moved away from the numbers that code writes to.
"""

import ast
import contextlib
import json
import os
import sys
import traceback


def execute(code: str, names: dict[str, object]) -> None:
    """As at a prompt: the value of a last expression is printed."""
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, "<code>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            print(repr(value))


def shorten(text: str, most: int) -> str:
    """The beginning and the end of what is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def main() -> None:
    """Serve until the requests end."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    names: dict[str, object] = {"__name__": "__main__"}
    print("ready", file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        file = os.memfd_create("output")
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        sys.stderr = sys.stdout
        try:
            execute(request["code"], names)
        except SystemExit:
            pass
        except BaseException:
            kind, error, trace = sys.exc_info()
            while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
                trace = trace.tb_next  # this program's own frames
            traceback.print_exception(kind, error, trace, file=sys.stdout)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        size = os.fstat(file).st_size
        most = request["output_chars"]
        head = os.pread(file, 4 * most, 0)
        tail = os.pread(file, 4 * most, max(len(head), size - 4 * most))
        os.close(file)
        text = (head + tail).decode("utf-8", errors="replace")
        print(json.dumps({"output": shorten(text, most)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
