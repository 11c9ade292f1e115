"""What vLLM for the CPU needs to run commands for machines with eight GPUs each, unchanged.

It is the real vLLM with two packages beside it. Its distribution has another name, and its command
`vllm` does not find its own version: one package has the ordinary name. vLLM asks its platform how
many devices a machine has, and what Ray calls them; that of the CPU has one, without a name. The
other package is a plugin of vLLM with a platform that has eight and the name of GPUs, takes less
memory, and inherits everything else. Workers on the CPU share memory if their process group has one
address, which is that of a machine, but with Ray that of the cluster; so this platform compares the
names of the machines, too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.engines.vllm.installation import NAME, get_python
from dragoman.models.environments.install import VERSION

DEVICES = 8
# each of sixteen workers would take memory for the logits of 2048 sequences, and a GiB of KV cache
SEQUENCES = 4
CACHE_BYTES = 1 << 26
# what `ray start` cannot find out here, as the machines share one memory
RESOURCES = {"GPU": DEVICES, "CPU": 1, "object_store_memory": 100 << 20}
RAY_VARIABLES = {
    "RAY_OVERRIDE_RESOURCES": json.dumps(RESOURCES),
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PLATFORM = f"""
from vllm.platforms.cpu import CpuPlatform


class EightDevices(CpuPlatform):
    ray_device_key = "GPU"

    @classmethod
    def device_count(cls):
        return {DEVICES}

    @classmethod
    def check_and_update_config(cls, vllm_config):
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.max_num_seqs = {SEQUENCES}
        vllm_config.cache_config.kv_cache_memory_bytes = {CACHE_BYTES}

    @classmethod
    def get_device_communicator_cls(cls):
        return "eight_devices_communicator.MachineCommunicator"


def find_platform():
    return "eight_devices.EightDevices"
"""
COMMUNICATOR = """
import socket

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class MachineCommunicator(CpuCommunicator):
    def _all_group_ranks_share_shm_group_name(self):
        names = [""] * self.world_size
        torch.distributed.all_gather_object(names, socket.gethostname(), group=self.device_group)
        return super()._all_group_ranks_share_shm_group_name() and len(set(names)) == 1
"""
FILES = {
    "eight_devices.py": PLATFORM,
    "eight_devices_communicator.py": COMMUNICATOR,
    "eight_devices-1.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: eight_devices\nVersion: 1\n"
    ),
    "eight_devices-1.dist-info/entry_points.txt": (
        "[vllm.platform_plugins]\neight_devices = eight_devices:find_platform\n"
    ),
    "vllm-0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n",
}
FIND_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


@contextmanager
def add_packages(engines: Path, folder: Path) -> Iterator[None]:
    """Write the packages to a folder of the caller, where the environment of vLLM finds them."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [str(get_python(engines / NAME)), "-c", FIND_PACKAGES]
    packages = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    path = Path(packages) / "additions.pth"
    path.write_text(f"{folder}\n")
    try:
        yield
    finally:
        path.unlink()
