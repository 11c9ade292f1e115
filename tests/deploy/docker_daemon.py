"""A Docker daemon of our own, so that the commands of the docs run as they are written.

It has its own images, volumes and socket, and is gone with its folder; nothing of a daemon that
runs here is touched. Registries of images cannot be reached from every machine, so the images that
the files in deploy/ name are made here: the base image from debootstrap, that of PostgreSQL from
Debian's package. All of this needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.fresh_root import NETWORK_VARIABLES, make_base
from tests.support.paths import ROOT

CACHE = ROOT / ".deploy"
IMAGES = ROOT / "tests" / "deploy" / "images"
BASE_IMAGE = "python:3.13-slim-trixie"
SUITE = "trixie"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
START_SECONDS = 60
# what systemd needs beyond the usual capabilities of containers
CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_NICE", "IPC_LOCK", "DAC_READ_SEARCH")


class DockerDaemon:
    """The daemon, and the environment in which `docker` uses it."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            "HOME": str(folder),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
        }

    def run(self, *arguments: str, check: bool = True, stdin: int | None = None) -> str:
        """Run `docker` with these arguments and return its output."""
        result = subprocess.run(
            ["docker", *arguments],
            env=self.environment,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0 or not check, result.stdout
        return result.stdout

    def is_ready(self) -> bool:
        return "Server Version" in self.run("info", check=False)

    def import_base(self, base: Path) -> None:
        """Import the root of the base image, with the settings that a package index needs here."""
        if AUTHORITIES.exists():
            shutil.copy(AUTHORITIES, base / str(AUTHORITIES).lstrip("/"))
        changes = [f"ENV PIP_CERT={AUTHORITIES}"]
        variables = [name for name in NETWORK_VARIABLES if name in os.environ]
        changes += [f"ENV {name}={os.environ[name]}" for name in variables]
        mounts = [f"--exclude=./{name}/*" for name in ("proc", "sys", "dev")]
        with subprocess.Popen(
            ["tar", "-C", str(base), "-c", *mounts, "."], stdout=subprocess.PIPE
        ) as archive:
            assert archive.stdout is not None
            flags = [word for change in changes for word in ("--change", change)]
            self.run("import", *flags, "-", BASE_IMAGE, stdin=archive.stdout.fileno())

    def build_image(self, name: str, tag: str) -> None:
        self.run("build", "--quiet", "--tag", tag, str(IMAGES / name))

    def start_systemd(self, repository: Path) -> str:
        """Start a container whose first process is systemd, and return its name."""
        unified = Path("/sys/fs/cgroup/unified")  # beside the first version of control groups
        groups = unified if unified.exists() else unified.parent
        self.build_image("systemd", "systemd")
        self.run(
            *("run", "--detach", "--name", "machine", "--cgroupns=host"),
            *(word for name in CAPABILITIES for word in ("--cap-add", name)),
            *(f"--security-opt={name}=unconfined" for name in ("seccomp", "systempaths")),
            *("--tmpfs", "/run", "--tmpfs", "/tmp:exec", "-v", f"{groups}:/sys/fs/cgroup"),
            *("-v", f"{repository}:/repository", "--workdir", "/repository", "systemd"),
        )
        wait_until(lambda: self._is_running("machine"))
        return "machine"

    def _is_running(self, name: str) -> bool:
        return self.run("exec", name, "systemctl", "is-system-running", check=False) == "running\n"


@contextmanager
def start_daemon(folder: Path) -> Iterator[DockerDaemon]:
    """Start a daemon with the images that the docs need, and remove everything of it at the end."""
    daemon = DockerDaemon(folder)
    add_compose(folder / "config" / "cli-plugins")
    base = make_base(CACHE, SUITE)
    command = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    command += ["--host", daemon.environment["DOCKER_HOST"], "--pidfile", str(folder / "pid")]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env=daemon.environment, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(daemon.is_ready)
            daemon.import_base(base)
            yield daemon
        finally:
            containers = daemon.run("ps", "--all", "--quiet", check=False).split()
            daemon.run("rm", "--force", *containers, check=False)
            process.terminate()
            process.wait(START_SECONDS)
            subprocess.run(["rm", "-rf", str(folder)], check=False)


def wait_until(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Wait for something that only asking tells."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.5)


def add_compose(folder: Path) -> None:
    """Add the Compose plugin of Debian; older releases have only its first version."""
    plugin = CACHE / "docker-compose"
    if not plugin.exists():
        root = make_base(CACHE, SUITE)
        shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
        script = "apt-get update && cd /tmp && apt-get download docker-compose"
        subprocess.run(["chroot", str(root), "sh", "-ec", script], check=True)
        [package] = (root / "tmp").glob("docker-compose_*.deb")
        unpacked = CACHE / "compose-package"
        subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked)], check=True)
        shutil.copy(unpacked / "usr/libexec/docker/cli-plugins/docker-compose", plugin)
    folder.mkdir(parents=True)
    shutil.copy(plugin, folder / "docker-compose")
