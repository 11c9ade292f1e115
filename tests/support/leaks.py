"""Finds what a server has more of than before, by name: files, tasks and threads.

Threads of pools are no leak: a pool starts them as it needs them, up to its maximum, and keeps
them. `ThreadPoolExecutor` numbers the threads of each pool, so a name that occurs twice belongs to
a second pool, which is one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from tests.support.fault_server import FaultServer

# of the event loop, and of this package
POOL_THREAD = re.compile(r"(uvloop|dragoman-[a-z-]+)_\d+")

Held = dict[str, Counter[str]]  # kind -> name -> how many


def list_held(server: FaultServer) -> Held:
    """List what the process of a server holds, by kind and name."""
    activity = server.list_activity()
    return {
        "open files": Counter(list_open_files(server.process.pid)),
        "tasks": Counter(activity.tasks),
        "threads": Counter(activity.threads),
    }


def list_open_files(pid: int) -> list[str]:
    """List the open files of a process: paths, and `socket` or `pipe` for those without one."""
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(link).partition(":[")[0])
        except FileNotFoundError:  # closed meanwhile
            continue
    return targets


def find_leaks(before: Held, after: Held) -> Held:
    """Return what there is more of, by kind and name."""
    leaks = {kind: after[kind] - before[kind] for kind in after}
    pooled = {name for name in leaks["threads"] if POOL_THREAD.fullmatch(name)}
    leaks["threads"] -= Counter(dict.fromkeys(pooled - before["threads"].keys(), 1))
    return leaks
