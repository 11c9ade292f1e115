"""Machines of one network, made of Linux name spaces; needs root and `ip`.

Each machine has its own network, processes and shared memory, so that a program on one reaches
those of another through the network alone. They have the file system of this machine, as machines
do that hold the same files under the same paths; only `PRIVATE_FOLDERS` differ. When the context
ends, so do all their processes, also those that have become daemons.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

SPACES = ("--net", "--mount", "--ipc", "--uts")
DEVICE = "eth0"
# shared memory, and where Ray keeps the sockets and the address of the machine it runs on
PRIVATE_FOLDERS = (Path("/dev/shm"), Path("/tmp/ray"))
READY = "ready"
HOSTS = Path("/etc/hosts")
# the first process of the machine, which waits for those whose parents are gone
FIRST_PROCESS = f"hostname $0; echo {READY}; sleep infinity & wait"


class LinkedMachine(NamedTuple):
    """A machine, and how a command is run on it."""

    address: str
    holder: int  # the process that holds its name spaces

    def make_command(self, command: Sequence[str], directory: Path = Path("/")) -> list[str]:
        """Return the command that runs another one on this machine, in a directory."""
        processes = f"--pid=/proc/{self.holder}/ns/pid_for_children"
        enter = ["nsenter", "--target", str(self.holder), *SPACES, processes]
        return [*enter, f"--wdns={directory}", "--", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.make_command(command), check=True)


def name_machine(address: str) -> str:
    return f"machine-{address.replace('.', '-')}"


@contextmanager
def run_machines(first: str, second: str) -> Iterator[dict[str, LinkedMachine]]:
    """Run two machines with these addresses, which reach each other; yield them by address."""
    with ExitStack() as stack:
        hosts = Path(stack.enter_context(TemporaryDirectory())) / HOSTS.name
        names = [f"{address} {name_machine(address)}\n" for address in (first, second)]
        hosts.write_text("127.0.0.1 localhost\n" + "".join(names))
        machines = [stack.enter_context(_run_machine(address)) for address in (first, second)]
        ends = [["name", DEVICE, "netns", str(machine.holder)] for machine in machines]
        subprocess.run(
            ["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]], check=True
        )
        for machine in machines:
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                machine.run("ip", "link", "set", device, "up")
            # programs learn their own address from the route to the Internet
            machine.run("ip", "route", "add", "default", "dev", DEVICE)
            machine.run("mount", "--bind", str(hosts), str(HOSTS))
        yield {machine.address: machine for machine in machines}


@contextmanager
def _run_machine(address: str) -> Iterator[LinkedMachine]:
    command = ["unshare", *SPACES, "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["bash", "-c", FIRST_PROCESS, name_machine(address)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == f"{READY}\n", "needs root"
            machine = LinkedMachine(address, holder.pid)
            for folder in PRIVATE_FOLDERS:
                folder.mkdir(exist_ok=True)
                machine.run("mount", "-t", "tmpfs", "tmpfs", str(folder))
            yield machine
        finally:
            holder.kill()
