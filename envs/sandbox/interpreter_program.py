"""The program in the sandbox of `envs/sandbox/interpreter.py`; it imports only the standard library.

It reads one `{"number", "code", "output_chars"}` per line, runs the code with both standard streams
redirected to a file, and answers `{"number", "output"}`. Its own pipes move to descriptors that code does not
write to by default.
"""

import ast
import contextlib
import json
import os
import sys
import traceback
import types


def execute(code: str, names: dict[str, object]) -> None:
    """Execute `code` as at a prompt: the value of a final expression is printed."""
    tree = ast.parse(code, "<code>")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, "<code>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            print(repr(value))


def shorten(text: str, limit: int) -> str:
    """Return the beginning and the end of a text longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def main() -> None:
    """Answer requests until the input ends."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    module = types.ModuleType("__main__")  # pickle, unittest and others look names up there
    sys.modules["__main__"] = module
    process = os.getpid()
    print("ready", file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        file = os.memfd_create("output")
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        sys.stderr = sys.stdout
        try:
            execute(request["code"], vars(module))
        except SystemExit:
            pass
        except BaseException:
            kind, error, trace = sys.exc_info()
            while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
                trace = trace.tb_next  # this program's own frames
            traceback.print_exception(kind, error, trace, file=sys.stdout)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        if os.getpid() != process:  # a fork that the code made: only its parent answers requests
            os._exit(0)
        os.dup2(null, 1)
        os.dup2(null, 2)
        size = os.fstat(file).st_size
        limit = request["output_chars"]
        head = os.pread(file, 4 * limit, 0)
        tail = os.pread(file, 4 * limit, max(len(head), size - 4 * limit))
        os.close(file)
        text = (head + tail).decode("utf-8", errors="replace")
        answer = {"number": request["number"], "output": shorten(text, limit)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
