"""The sandboxed interpreter: ordinary code, and every escape that we could think of.

Every test runs on every backend that works on this machine.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from envs.sandbox.backend import Backend, SandboxLimits
from envs.sandbox.interpreter import Execution, Interpreter
from envs.sandbox.sandbox import BACKENDS
from envs.sandbox.seccomp import forbidden_numbers
from tests.support.sandboxes import working_sandboxes
from tests.support.waiting import wait_until, wait_until_async

LIMITS = SandboxLimits(memory_mb=256, disk_mb=16, shm_mb=4)
LATER_CODES = [f"print({i})" for i in range(5)]
LATER_OUTPUTS = [f"{i}\n" for i in range(5)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox" in metafunc.fixturenames:
        names = [backend.name for backend in working_sandboxes(metafunc.config)]
        metafunc.parametrize("sandbox", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


def runs(
    sandbox: Backend,
    *codes: str,
    timeout_s: float = 10.0,
    limits: SandboxLimits = LIMITS,
    output_chars: int = 4000,
) -> list[Execution]:
    async def main() -> list[Execution]:
        interpreter = Interpreter(sandbox, limits=limits, run_timeout_s=timeout_s, output_chars=output_chars)
        try:
            return [await interpreter.run(code) for code in codes]
        finally:
            await interpreter.close()

    return asyncio.run(main())


def test_variables_live_from_run_to_run_and_a_last_expression_is_shown(sandbox: Backend) -> None:
    assert [
        run.output
        for run in runs(sandbox, "x = 20\nprint('hi')", "x + 1", "None", "def f(): return 'ä'\nf()")
    ] == ["hi\n", "21\n", "", "'ä'\n"]


def test_libraries_find_what_the_code_defines_in_its_main_module(sandbox: Backend) -> None:
    [pickled, tested, shared] = runs(
        sandbox,
        "import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A",
        "import doctest\ndef f():\n    '''\n    >>> 1 + 1\n    2\n    '''\ndoctest.testmod()",
        "from multiprocessing import Pool\ndef square(x): return x * x\n"
        "with Pool(2) as pool: print(pool.map(square, [2, 3]))",
    )
    assert pickled.output == "True\n"
    assert tested.output == "TestResults(failed=0, attempted=1)\n"
    assert shared.output == "[4, 9]\n"


def test_errors_have_pythons_text(sandbox: Backend) -> None:
    [division, syntax, leaving, after] = runs(
        sandbox, "1\n1/0", "def f(:", "import sys; sys.exit(3)", "'still here'"
    )
    assert division.output == (
        "Traceback (most recent call last):\n"
        '  File "<code>", line 2, in <module>\nZeroDivisionError: division by zero\n'
    )
    assert syntax.output.endswith("SyntaxError: invalid syntax\n")
    assert "interpreter" not in syntax.output
    assert (leaving.output, after.output) == ("", "'still here'\n")


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import builtins\nbuiltins.print = lambda *_, **__: None\n'kept'", "'kept'\n"),
        ("import builtins\nshown = []\nbuiltins.print = shown.append\nprint(1)\nshown", "[1]\n"),
        ("import builtins\nfor name in ('print', 'max', 'repr', 'eval'): delattr(builtins, name)", ""),
        ("import builtins\ndel builtins.len, builtins.isinstance", ""),
        ("import builtins\nvars(builtins).clear()", ""),
        ("import os, json\nos.getpid = os.pread = os.close = json.dumps = lambda *_: 0", ""),
        ("import sys\nprint('a')\nsys.stdout = None", "a\n"),
        ("import sys\nprint('a')\nsys.stdout.close()", "a\n"),
        ("import io, sys\nprint(1)\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint(2)", "1\n2\n"),
    ],
)
def test_code_that_replaces_what_the_interpreter_uses_is_answered(
    sandbox: Backend, code: str, output: str
) -> None:
    executions = runs(sandbox, f"x = 1\n{code}", "x")
    assert executions == [Execution(output, end_reason=None), Execution("1\n", end_reason=None)]


def test_built_in_names_stay_as_the_code_has_left_them(sandbox: Backend) -> None:
    codes = (
        "import builtins as b\nb.input = lambda: 'typed'\nb.twice = lambda x: 2 * x\ndel b.len",
        "1/0",
        "twice(input())",
        "len([])",
    )
    [_, error, later, deleted] = runs(sandbox, *codes)
    assert error.output.endswith("ZeroDivisionError: division by zero\n")
    assert later.output == "'typedtyped'\n"
    assert deleted.output.splitlines()[-1].startswith("NameError: name 'len' is not defined")


def test_an_error_is_reported_where_standard_output_is_not_the_interpreters(sandbox: Backend) -> None:
    code = "import io, sys\nprint('a')\nsys.stdout = io.StringIO()\nprint('hidden')\n1/0"
    [run] = runs(sandbox, code)
    assert run.output.startswith("a\nTraceback")
    assert run.output.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    "wait",
    ["while True: pass", "import time; time.sleep(60)", "import subprocess; subprocess.run(['sleep', '60'])"],
)
def test_a_run_that_takes_too_long_keeps_its_output(sandbox: Backend, wait: str) -> None:
    [run] = runs(sandbox, f"print('step 1')\n{wait}", timeout_s=1)
    assert run == Execution("step 1\n", end_reason="it took longer than 1 s")


def test_a_late_run_keeps_its_output_without_the_built_in_names_of_libraries(sandbox: Backend) -> None:
    code = "import builtins\nprint('step 1')\ndel builtins.isinstance, builtins.len\nwhile True: pass"
    [run] = runs(sandbox, code, timeout_s=1)
    assert run == Execution("step 1\n", end_reason="it took longer than 1 s")


TIME_LIMIT = SandboxLimits(memory_mb=256, cpu_s=0.6)
MEMORY_LIMIT = SandboxLimits(memory_mb=256, cpu_s=60)


@pytest.mark.parametrize(
    ("use", "limits", "limit"),
    [
        ("while True: pass", TIME_LIMIT, "0.6 s of CPU time"),
        ("if os.fork() == 0:\n    while True: pass\nos.wait()", TIME_LIMIT, "0.6 s of CPU time"),
        ("os.system('while true; do true; done')", TIME_LIMIT, "0.6 s of CPU time"),
        (
            "while True:\n    f = os.memfd_create('m')\n    for _ in range(15): os.write(f, bytes(1 << 20))",
            MEMORY_LIMIT,
            "256 MB of memory",
        ),
        (
            "for _ in range(4):\n    if os.fork() == 0:\n        a = b'x' * (100 << 20)\n"
            "        time.sleep(60)\nos.wait()",
            MEMORY_LIMIT,
            "256 MB of memory",
        ),
    ],
)
def test_a_run_that_uses_too_much_keeps_its_output(
    sandbox: Backend, use: str, limits: SandboxLimits, limit: str
) -> None:
    [run, after] = runs(sandbox, f"import os, time\nprint('step 1')\n{use}", "1", limits=limits, timeout_s=60)
    assert run == Execution("step 1\n", end_reason=f"it took more than {limit}")
    assert after == Execution("1\n", end_reason=None)


def test_code_may_have_its_own_alarm(sandbox: Backend) -> None:
    define = "import signal\ndef stop(*_): raise TimeoutError\n_ = signal.signal(signal.SIGALRM, stop)"
    use = "signal.alarm(1)\ntry: signal.pause()\nexcept TimeoutError: print('late')"
    [_, own, later] = runs(sandbox, define, use, "'alive'")
    assert (own.output, later.output) == ("late\n", "'alive'\n")


def test_threads_and_processes_run(sandbox: Backend) -> None:
    code = """
import subprocess, threading
from concurrent.futures import ProcessPoolExecutor
threads = [threading.Thread(target=print, args=('thread',)) for _ in range(3)]
[t.start() for t in threads], [t.join() for t in threads]
print(subprocess.run(['sh', '-c', 'echo child | cat'], capture_output=True, text=True).stdout)
with ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, -2])))"""
    assert runs(sandbox, code)[0].output.split() == ["thread"] * 3 + ["child", "[1,", "2]"]


def test_output_of_child_processes_is_caught_in_order(sandbox: Backend) -> None:
    code = "import os, sys\nprint('a', flush=True)\nos.system('echo b')\nprint('c', file=sys.stderr)"
    assert runs(sandbox, code)[0].output == "a\nb\nc\n"


def test_a_fork_ends_with_its_run(sandbox: Backend) -> None:
    """POSIX: the child goes on behind `fork`, so that both print; it must not read later requests."""
    [both, *later_runs] = runs(sandbox, "import os\npid = os.fork()\nprint('one')", *LATER_CODES)
    assert both.output in ("one\n", "one\none\n")  # the child's line may come after the answer
    assert [run.output for run in later_runs] == LATER_OUTPUTS


def test_a_fork_that_raises_or_exits_ends_with_its_run(sandbox: Backend) -> None:
    code = "import os\nif os.fork() == 0: {}\nprint(os.wait()[0] > 0)"
    raising, exiting = code.format("1/0"), code.format("raise SystemExit")
    [raised, exited, *later_runs] = runs(sandbox, raising, exiting, *LATER_CODES)
    assert raised.output.endswith("ZeroDivisionError: division by zero\nTrue\n")
    assert exited.output == "True\n"
    assert [run.output for run in later_runs] == LATER_OUTPUTS


def test_an_answer_to_another_run_is_skipped(sandbox: Backend) -> None:
    """A line that code writes into the interpreter's own pipe, here for the run before, is no answer."""
    forged_line = json.dumps({"number": 0, "output": "forged"})
    code = f"""
import os, stat
for entry in os.listdir('/proc/self/fd'):
    if int(entry) > 2 and os.path.exists('/proc/self/fd/' + entry):
        status = os.fstat(int(entry))
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            try: os.write(int(entry), {forged_line.encode() + bytes([10])!r})
            except OSError: pass  # the pipe of requests
print('done')"""
    assert [run.output for run in runs(sandbox, code, *LATER_CODES)] == ["done\n", *LATER_OUTPUTS]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "longer than 1 s"),
        ("import os; os.kill(os.getpid(), 9)", "died"),
        ("import os; os._exit(0)", "died"),
    ],
)
def test_the_end_of_the_interpreter_has_a_reason_and_the_next_run_begins_afresh(
    sandbox: Backend, code: str, reason: str
) -> None:
    [_, run, fresh] = runs(sandbox, "x = 1", code, "'x' in globals()", timeout_s=1)
    assert reason in (run.end_reason or "")
    assert fresh == Execution("False\n", end_reason=None)


async def test_an_interpreter_that_died_between_two_runs_says_so_and_begins_nothing(sandbox: Backend) -> None:
    interpreter = Interpreter(sandbox, limits=SandboxLimits(memory_mb=256))
    try:
        before = {*psutil.Process().children()}
        await interpreter.run("x = 1")
        (process,) = {*psutil.Process().children()} - before
        os.killpg(process.pid, signal.SIGKILL)
        await wait_until_async(lambda: interpreter.has_died)
        report = await interpreter.run("print('begun')")
        assert (report.output, "died since the last run" in (report.end_reason or "")) == ("", True)
        assert (await interpreter.run("'x' in globals()")).output == "False\n"
    finally:
        await interpreter.close()


@pytest.mark.heavy
def test_cpu_time_is_counted_run_by_run(sandbox: Backend) -> None:
    """The limit is for each run, not for all together; a run that spins, also in a child, ends."""
    limits = SandboxLimits(memory_mb=256, cpu_s=0.6)
    work = "import time\nuntil = time.process_time() + 0.25\nwhile time.process_time() < until: pass"
    spin = "import os\nif os.fork() == 0:\n    while True: pass\nos.wait()"
    *work_runs, spun = runs(sandbox, *[work] * 4, spin, limits=limits, timeout_s=60)
    assert [run.end_reason for run in work_runs] == [None] * 4
    assert spun.end_reason == "it took more than 0.6 s of CPU time"


def test_endless_output_is_cut_in_the_middle(sandbox: Backend) -> None:
    [run] = runs(sandbox, "print('head')\nfor i in range(10**6): print('x' * 100)\n", output_chars=1000)
    assert run.output.startswith("head\n")
    assert "characters left out" in run.output
    assert len(run.output) < 1100


WAYS_OUT = yaml.safe_load((Path(__file__).parent / "ways_out.yaml").read_text())
MACHINE = {
    path: (os.stat(path).st_size, os.stat(path).st_mtime_ns)
    for path in (
        "/etc/shadow",
        "/etc/passwd",
        "/etc/hostname",
        "/root",
        "/home",
        "/var",
        "/opt",
        "/srv",
        "/etc",
    )
    if os.path.exists(path)
}
CALLS = f"""\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
CALLS = {forbidden_numbers()}
def theirs(path, at=None):
    try: about = os.stat(at or path)
    except OSError: return False
    return ({MACHINE}).get(path) == (about.st_size, about.st_mtime_ns)
"""
"""`theirs`: whether the file at a path is this machine's, not one of the same name in an image."""


@pytest.fixture(scope="module")
def outputs(sandbox: Backend) -> dict[str, str]:
    """The output of each escape attempt, made one after the other in one sandbox."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET", "SECRET")
        results = runs(sandbox, *(CALLS + way for way in WAYS_OUT.values()))
    return {way: result.output for way, result in zip(WAYS_OUT, results, strict=True)}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_there_is_no_way_out(outputs: dict[str, str], way: str) -> None:
    assert "ESCAPED" not in outputs[way], outputs[way]


def test_services_of_this_machine_are_out_of_reach(sandbox: Backend) -> None:
    """By address, and by a socket with a name but no file."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("\0wingspan-test")
        nameless.listen()
        port = server.getsockname()[1]
        results = runs(
            sandbox,
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('ESCAPED')",
            "import socket; socket.socket(socket.AF_UNIX).connect('\\0wingspan-test'); print('ESCAPED')",
        )
    assert [run.output.splitlines()[-1].split(":")[0] for run in results] == [
        "ConnectionRefusedError",
        "ConnectionRefusedError",
    ]


def test_files_of_this_machine_are_out_of_reach(sandbox: Backend, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    tmp_path.chmod(0o777)
    [run] = runs(sandbox, f"print(open({str(tmp_path / 'secret')!r}).read())")
    assert "FileNotFoundError" in run.output


@pytest.mark.parametrize("folder", ["/work", "/tmp", "/dev/shm"])
def test_files_have_a_size(sandbox: Backend, folder: str) -> None:
    code = (
        "written = 0\ntry:\n"
        f"    for i in range(64):\n        f = open('{folder}/f%d' % i, 'wb', buffering=0)\n"
        "        while f.tell() < 8 << 20: written += f.write(bytes(1 << 20))\n"
        "except OSError: pass\nwritten >> 20"
    )
    [run] = runs(sandbox, code)
    assert int(run.output) <= (4 if folder == "/dev/shm" else 16)


MEMORY_HOGS = {
    "one process": "a = [bytes(1 << 20) for _ in range(10000)]",
    "many processes": """
import os, time
for _ in range(20):
    if os.fork() == 0:
        a = [bytearray(b'x') * (1 << 20) for _ in range(400)]
        time.sleep(60)
time.sleep(60)""",
    "processes that go on": """
import os, signal, time
signal.signal(signal.SIGALRM, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            a = b'x' * (200 << 20)
            time.sleep(60)
    except OSError: pass""",
    "nameless files": """
import os
while True:
    f = os.memfd_create('m')
    for _ in range(15):
        os.write(f, bytes(1 << 20))""",
}


@pytest.mark.heavy
@pytest.mark.parametrize("code", MEMORY_HOGS.values(), ids=MEMORY_HOGS)
def test_memory_has_an_end(sandbox: Backend, code: str) -> None:
    with memory_of_the_machine() as memory_samples:
        [run, after] = runs(sandbox, code, "'alive'", timeout_s=20)
    # A container's limit may kill the process before the interpreter sees the memory.
    is_killed = bool(sandbox.end("")) and run.end_reason == "its process died"
    assert is_killed or "MemoryError" in run.output or "memory" in (run.end_reason or ""), run
    assert after.output == "'alive'\n"
    assert max(memory_samples()) < 4e9  # a gigabyte, and what other programs take meanwhile


@contextmanager
def memory_of_the_machine() -> Iterator[Callable[[], list[float]]]:
    """Yield a function that returns samples of the bytes allocated since the start."""
    import threading

    before, samples, stop = psutil.virtual_memory().available, [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            samples.append(before - psutil.virtual_memory().available)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: samples
    finally:
        stop.set()
        thread.join()


def test_a_fork_bomb_stops_and_leaves_nothing(sandbox: Backend) -> None:
    before = len(psutil.pids())
    code = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.05)"
    [run] = runs(sandbox, code, timeout_s=1)
    assert "longer than 1 s" in (run.end_reason or "")
    wait_until(lambda: len(psutil.pids()) < before + 10)


def test_a_child_that_hides_from_its_parent_dies_with_the_sandbox(sandbox: Backend) -> None:
    marker = "31" + str(os.getpid())
    code = (
        "import os\nif os.fork() == 0:\n    os.setsid()\n"
        f"    if os.fork() == 0: os.execv('/usr/bin/sleep', ['sleep', '{marker}'])\n    os._exit(0)\n"
        "import time; time.sleep(0.5)"
    )
    runs(sandbox, code)
    wait_until(lambda: not subprocess.run(["pgrep", "-f", f"sleep {marker}"], capture_output=True).stdout)


@pytest.mark.heavy
def test_the_sandbox_dies_with_its_user(sandbox: Backend) -> None:
    """The user is killed without cleaning up; a container ends only when its program reads its input."""
    marker = "32" + str(os.getpid())
    code = "1" if sandbox.end("") else f"import os; os.execv('/usr/bin/sleep', ['sleep', '{marker}'])"
    program = (
        "import asyncio, os\n"
        "from envs.sandbox.interpreter import Interpreter\nfrom envs.sandbox.sandbox import BACKENDS\n"
        "from envs.sandbox.backend import SandboxLimits as Limits\n"
        "async def main():\n"
        f"    interpreter = Interpreter(BACKENDS[{sandbox.name!r}], limits=Limits(), run_timeout_s=60)\n"
        "    await interpreter.run('1')\n"
        "    asyncio.get_running_loop().call_later(1, os.kill, os.getpid(), 9)\n"
        f"    await interpreter.run({code!r})\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    root = Path(__file__).parents[2]
    user = subprocess.Popen([sys.executable, "-c", program], cwd=root)
    assert user.wait(timeout=60) == -signal.SIGKILL
    if sandbox.end(""):
        seek = [sandbox.name, "ps", "--quiet", f"--filter=name=wingspan-{user.pid}-"]
    else:
        seek = ["pgrep", "-f", f"sleep {marker}"]
    wait_until(lambda: not subprocess.run(seek, capture_output=True).stdout)


def test_a_forged_answer_spoils_only_the_forgers_own_run(sandbox: Backend) -> None:
    forgery = """
import os
for f in range(3, 20):
    try: os.write(f, b'{"output": "forged"}\\n')
    except OSError: pass"""
    results = runs(sandbox, forgery, "6 * 7", "6 * 7")
    assert results[-1].output in ("42\n", "forged")
