"""How a process allocates: settings of glibc's malloc, and imports without garbage collection.

The settings are for processes that allocate and free tensors all the time. By default glibc returns large
blocks to the kernel and faults them in again, page by page, at the next allocation; a thread's arena is
unmapped whenever it is empty for a moment. Measured in this project, that takes a third of a small model's
training step, and half of the time of a sampler in its own thread.
"""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_KEEP = 1 << 30
_MMAP_LIMIT = 32 << 20  # the largest that glibc accepts
_PARAMETERS = {  # name in the environment: (number in <malloc.h>, value)
    "MALLOC_ARENA_MAX": (-8, 1),
    "MALLOC_MMAP_THRESHOLD_": (-3, _MMAP_LIMIT),
    "MALLOC_TRIM_THRESHOLD_": (-1, _KEEP),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
}

ENVIRONMENT = {name: str(value) for name, (_, value) in _PARAMETERS.items()}
"""Environment variables for processes that are about to start: the settings then hold before the first thread
exists."""


def keep_freed_memory() -> None:
    """Make the C library of this process reuse freed blocks, where it is glibc.

    Threads that have already allocated memory keep their arenas.
    """
    libc = ctypes.CDLL(None)
    if sys.platform.startswith("linux") and hasattr(libc, "mallopt"):
        for number, value in _PARAMETERS.values():
            libc.mallopt(number, value)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: for long imports, a fifth of whose time goes into collections that find
    none. What there is at the end stays, and is not looked through before `gc.unfreeze`."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if is_enabled:
            gc.enable()
