"""How much memory this process can still use.

That is what the kernel calls available, or less if the process has a limit, its own (`ulimit`) or
that of a control group (a container, a systemd unit). The page cache counts as available.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# the files with limit and usage, and the statistics that are the page cache
V2_FILES = ("memory.max", "memory.current", ("inactive_file", "active_file"))
V1_FILES = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
NO_LIMIT = 1 << 60  # a limit this high is none
FALLBACK_SHARE = 0.75  # of the physical memory, where the kernel does not say what is available


def read_available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that are available; `root` is where /proc and /sys are."""
    limits = [_read_kernel_memory(root), *_read_group_limits(root), *_read_process_limits()]
    return max(0, min(limits))


def _read_kernel_memory(root: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * FALLBACK_SHARE)


def _read_process_limits() -> Iterator[int]:
    """Return the limits of this process, for its address space and for its data."""
    if sys.platform != "win32":
        import resource

        for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
            limit = resource.getrlimit(kind)[0]
            if limit != resource.RLIM_INFINITY:
                yield limit


def _read_group_limits(root: Path) -> Iterator[int]:
    """Return what is left in each control group that this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            yield from _walk_groups(root / "sys/fs/cgroup", group, V2_FILES)
        elif "memory" in controllers.split(","):
            yield from _walk_groups(root / "sys/fs/cgroup/memory", group, V1_FILES)


def _walk_groups(mount: Path, group: str, files: tuple[str, str, tuple[str, str]]) -> Iterator[int]:
    """Return what is left in a group and in those around it.

    In a container the path of the group may be that of the host, while the mount shows only the
    container's own group, at its root.
    """
    limit_name, usage_name, cache_names = files
    folder = mount / group.lstrip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(mount):
            return
        with contextlib.suppress(OSError, ValueError):  # no such file, or the limit is "max"
            limit = int((place / limit_name).read_text())
            if limit < NO_LIMIT:
                usage = int((place / usage_name).read_text())
                yield limit - usage + _sum_statistics(place / "memory.stat", cache_names)


def _sum_statistics(file: Path, names: tuple[str, str]) -> int:
    pairs = (line.partition(" ") for line in file.read_text().splitlines())
    return sum(int(value) for name, _, value in pairs if name in names)


def format_memory(size: int) -> str:
    """Write a size for people, in the units of `--memory`: 755 MB, 4.2 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 999_500_000 else f"{size / 1e6:.0f} MB"
