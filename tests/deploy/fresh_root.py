"""Runs the steps of a Dockerfile without Docker, in a root file system made by debootstrap.

The base image is imitated: Debian with its own Python under the names that the image has. `RUN`
steps run with chroot. A container is a process in mount and PID namespaces of its own, whose root
is mounted read-only, with the volumes and a /tmp on top, as `docker run --read-only --tmpfs /tmp`
does. All of this needs root.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.dockerfile import ImageConfig, Stage

START_SECONDS = 180  # the model is downloaded first
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,python3,python3-venv"
SCRIPTS = Path("/usr/share/debootstrap/scripts")
# settings of this machine that a step needs to reach a package index
NETWORK_FILES = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt")
NETWORK_VARIABLES = ("PIP_INDEX_URL", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def make_base(folder: Path, suite: str, extra_packages: str = "") -> Path:
    """Make the root of the base image, unless it is there."""
    base = folder / f"base-{suite}"
    if (base / "done").exists():
        return base
    shutil.rmtree(base, ignore_errors=True)
    packages = f"{PACKAGES},{extra_packages}".rstrip(",")
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(base)]
    # a suite that is newer than debootstrap is like sid
    script = suite if (SCRIPTS / suite).exists() else "sid"
    subprocess.run([*command, MIRROR, str(SCRIPTS / script)], check=True)
    (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    (base / "done").touch()
    return base


class FreshRoot:
    """The file system of one stage."""

    def __init__(self, base: Path, path: Path) -> None:
        self.path = path
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(path)], check=True)
        for name in NETWORK_FILES:
            if Path("/", name).exists():
                shutil.copy(Path("/", name), path / name)

    def run_stage(self, stage: Stage, context: Path, others: dict[str, FreshRoot]) -> ImageConfig:
        """Run every instruction, and return how the image runs."""
        config = ImageConfig()
        for instruction in stage.instructions:
            if instruction.name == "RUN":
                self.run(instruction.command, config)
            elif instruction.name == "COPY":
                source = context
                if "from" in instruction.flags:
                    source = others[instruction.flags["from"]].path
                *names, target = instruction.words
                for name in names:
                    self._copy(source / name.lstrip("/"), self._locate(target, config))
            else:
                config.apply(instruction)
                if instruction.name == "WORKDIR":
                    self._locate(".", config).mkdir(parents=True, exist_ok=True)
        return config

    def _locate(self, name: str, config: ImageConfig) -> Path:
        return self.path / os.path.join(config.workdir, name).lstrip("/")

    def _copy(self, source: Path, target: Path) -> None:
        """Copy a directory's content, or a file into a directory, as `COPY` does."""
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

    def run(self, command: list[str], config: ImageConfig) -> None:
        print("RUN", *command[-1:], flush=True)
        script = f"mount -t proc proc {self.path}/proc; mount --rbind /dev {self.path}/dev; exec "
        script += self.make_chroot_command(command, config)
        unshare = ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", script]
        result = subprocess.run(unshare, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    def make_chroot_command(
        self, command: list[str], config: ImageConfig, extra: dict[str, str] | None = None
    ) -> str:
        """Return the shell command that runs a command in the root, with the image's settings."""
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        variables |= {name: os.environ[name] for name in NETWORK_VARIABLES if name in os.environ}
        variables |= config.environment | (extra or {})
        settings = [f"{name}={value}" for name, value in variables.items()]
        inside = f"cd {shlex.quote(config.workdir)} && exec {shlex.join(command)}"
        chroot = ["chroot", f"--userspec={config.user}", str(self.path)]
        return shlex.join([*chroot, "/usr/bin/env", "-i", *settings, "/bin/sh", "-c", inside])


class Container:
    """A process in a read-only root."""

    def __init__(self, root: FreshRoot, config: ImageConfig, process: subprocess.Popen[str]):
        self._root = root
        self._config = config
        self.process = process
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.output.extend(self.process.stdout)

    @property
    def pid(self) -> int:
        """The process that has PID 1 inside."""
        parent = self.process.pid
        while self.process.poll() is None:
            if children := Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                return int(children[0])
        raise AssertionError("the container has ended")

    def execute(
        self, command: list[str], extra: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run another command inside, as `docker exec` does."""
        inside = self._root.make_chroot_command(command, self._config, extra)
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "sh", "-c", inside]
        return subprocess.run(enter, capture_output=True, text=True, check=False)

    def wait_until_healthy(self, extra: dict[str, str]) -> str:
        """Run the health check until it succeeds, and return its output."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, "".join(self.output)
            check = self.execute(self._config.health, extra)
            if check.returncode == 0:
                return check.stdout
            assert time.monotonic() < deadline, "".join([check.stderr, *self.output])
            time.sleep(1)

    def stop(self) -> int:
        """Send the stop signal to PID 1 and return the exit status."""
        os.kill(self.pid, signal.Signals[self._config.stop_signal])
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process and of its output."""
        code = self.process.wait(60)
        self._reader.join()
        return code


@contextmanager
def run_container(
    root: FreshRoot, config: ImageConfig, volumes: Path, extra: dict[str, str]
) -> Iterator[Container]:
    """Run the entry point and command of an image."""
    path = root.path
    script = f"mount --bind {path} {path}; mount -o remount,ro,bind {path}; "
    script += f"mount -t tmpfs -o mode=1777 tmpfs {path}/tmp; "
    script += f"mount -t proc proc {path}/proc; mount --rbind /dev {path}/dev; "
    for volume in config.volumes:
        inside, outside = path / volume.lstrip("/"), volumes / volume.strip("/").replace("/", "-")
        if not outside.exists():  # a new volume starts as a copy of the directory in the image
            subprocess.run(["cp", "-a", str(inside), str(outside)], check=True)
        script += f"mount --bind {outside} {inside}; "
    command = [*config.entrypoint, *config.command]
    script += "exec " + root.make_chroot_command(command, config, extra)
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script]
    with subprocess.Popen(
        unshare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield Container(root, config, process)
        finally:
            process.kill()
