"""The GPUs that the installed build of the library can use, and the memory of this machine.

As a program, this module prints the free memory of each GPU as JSON. The server asks that in a
process of its own: the library, and a driver that may crash, stay out of it.
"""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
from concurrent.futures import Future
from threading import Thread
from types import ModuleType

from dragoman.engines.llamacpp.loading.memory_plan import Machine
from dragoman.engines.system_memory import read_available_memory

log = logging.getLogger("dragoman.llamacpp")

PROBE_TIMEOUT = 30.0  # seconds; the first use of a GPU may take several


def list_gpu_memory(lib: ModuleType) -> list[int]:
    """Return the free bytes of each GPU."""
    cpu = lib.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    return [int(device["memory_free"]) for device in lib.get_device_info() if device["type"] != cpu]


@functools.cache
def start_gpu_probe() -> Future[int]:
    """Start to look for GPUs in the background."""
    found: Future[int] = Future()
    Thread(target=lambda: found.set_result(_find_gpu_memory()), daemon=True).start()
    return found


def probe_gpu_memory() -> int:
    """Return the free bytes of all GPUs, as they were when this process first asked."""
    return start_gpu_probe().result()


def _find_gpu_memory() -> int:
    command = [sys.executable, "-m", "dragoman.engines.llamacpp.loading.devices"]
    try:
        result = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT, check=True)
        return sum(json.loads(result.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as error:
        log.debug("cannot list the GPUs: %r", error)
        return 0


def make_machine(limit: int, gpu_memory: int) -> Machine:
    """Return the memory for models: the operator's limit, or what is available."""
    if limit:
        return Machine(memory=limit, gpu_memory=min(gpu_memory, limit), is_limit=True)
    return Machine(memory=read_available_memory() + gpu_memory, gpu_memory=gpu_memory)


if __name__ == "__main__":
    import xllamacpp

    sys.stdout.write(json.dumps(list_gpu_memory(xllamacpp)) + "\n")
