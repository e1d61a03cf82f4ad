"""A process whose output nobody reads any more goes on without it.

The worker that started a deployed flow run reads what the run prints. If the worker is killed, the run lives
on in its own session, but the next line that it printed would end it: Rich answers a broken pipe with
`SystemExit`.
"""

import os
import select
import threading

_OUTPUT = (1, 2)
"""Standard output and standard error, also of what this process starts later."""


def outlive_reader() -> None:
    """From now on, print to nowhere what nobody can read.

    Processes that have started before the reader dies keep the broken pipe.
    """
    threading.Thread(target=_watch, name="output", daemon=True).start()


def _watch() -> None:
    poll, descriptors = select.poll(), set(_OUTPUT)
    for descriptor in descriptors:
        poll.register(descriptor, 0)  # a pipe without a reader is reported in any case
    with open(os.devnull, "wb") as nowhere:
        while descriptors:
            for descriptor, _ in poll.poll():
                os.dup2(nowhere.fileno(), descriptor)
                poll.unregister(descriptor)
                descriptors.remove(descriptor)
