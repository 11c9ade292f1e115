"""How a server process keeps and returns memory.

glibc's allocator has several heaps per core, and raises the size above which it maps a block on its
own to that of the largest block that was freed. So after some large request bodies, later bodies
are allocated in the heaps, and leave holes there that are never returned to the system. A server
has bodies of megabytes, and threads that usually wait for the interpreter's lock: few heaps and a
fixed limit suit it.

The garbage collector need not examine objects that exist when the server starts. Objects of a
request are freed with it, with few exceptions, so collections can be rare; but garbage that
survives one collection must not wait for hours until the next.
"""

from __future__ import annotations

import ctypes
import gc

# options of mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MAPPED_SIZE = 256 << 10  # bytes; larger blocks are mapped on their own
TRIMMED_SIZE = 1 << 20  # bytes at the end of a heap that are returned
HEAPS = 2
COLLECTOR_THRESHOLDS = 10_000, 10, 10


def limit_fragmentation() -> None:
    """Have glibc return what large requests have used. Other C libraries have no such options."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(M_ARENA_MAX, HEAPS)
        set_option(M_MMAP_THRESHOLD, MAPPED_SIZE)
        set_option(M_TRIM_THRESHOLD, TRIMMED_SIZE)


def tune_garbage_collector() -> None:
    """Exclude existing objects from garbage collection, and collect seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
