"""How much memory is available, in a machine, a container and a control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.engines.system_memory import format_memory, read_available_memory

MEMINFO = "MemTotal: 16000 kB\nMemFree: 100 kB\nMemAvailable: 8000 kB\n"
V2 = {
    "proc/self/cgroup": "0::/app/web\n",
    "sys/fs/cgroup/app/web/memory.max": "max\n",
    "sys/fs/cgroup/app/memory.max": "5000000\n",
    "sys/fs/cgroup/app/memory.current": "4000000\n",
    "sys/fs/cgroup/app/memory.stat": "anon 5\ninactive_file 700000\nactive_file 300000\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000\n",
    "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100000\n",
}
NO_LIMIT = {
    "proc/self/cgroup": "4:memory:/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8000 * 1024),
        (V2, 2000000),  # the limit of the group around it
        (V2 | {"sys/fs/cgroup/app/web/memory.max": "4200000\n"}, 2000000),  # usage is unknown
        (V2 | {"sys/fs/cgroup/app/memory.current": "9000000\n"}, 0),
        (V2 | {"sys/fs/cgroup/app/memory.max": "90000000\n"}, 8000 * 1024),
        (V1, 2600000),  # a container sees its own group at the root
        (NO_LIMIT, 8000 * 1024),
        ({"proc/self/cgroup": "nonsense\n"}, 8000 * 1024),
    ],
)
def test_available_memory_is_the_least_of_all_limits(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, content in {"proc/meminfo": MEMINFO, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert read_available_memory(tmp_path) == expected


def test_a_system_without_proc_has_a_share_of_its_memory(tmp_path: Path) -> None:
    assert read_available_memory(tmp_path) > 1 << 28


@pytest.mark.parametrize(
    ("size", "text"), [(755_000_000, "755 MB"), (999_900_000, "1.0 GB"), (4_230_000_000, "4.2 GB")]
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert format_memory(size) == text
