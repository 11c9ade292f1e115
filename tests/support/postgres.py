"""A throw-away PostgreSQL for tests: a cluster in a temporary directory, behind a socket in it.

    python -m tests.support.postgres pytest tests/test_store.py

runs a command with `DRAGOMAN_TEST_POSTGRES` set to the address of such a cluster.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

VARIABLE = "DRAGOMAN_TEST_POSTGRES"
USER = "postgres"
NUMBERS = count()


class Cluster:
    """A cluster that can be stopped and started again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = f"postgresql+psycopg://{USER}@/postgres?host={root}"
        # it refuses to run as root
        self._who = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        if self._who:
            entry = pwd.getpwnam(USER)
            os.chown(root, entry.pw_uid, entry.pw_gid)
        self._call("initdb", "-D", str(root / "data"), "-U", USER, "-A", "trust", "--no-sync")

    def start(self) -> None:
        options = f"-c listen_addresses='' -c fsync=off -k {self._root}"
        log = str(self._root / "log")
        self._call(
            "pg_ctl", "-D", str(self._root / "data"), "-w", "-l", log, "-o", options, "start"
        )

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self._root / "data"), "-w", "-m", "immediate", "stop")

    def _call(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [*self._who, str(programs() / program), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._root,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")


def programs() -> Path:
    """Where the newest version's programs are; Debian keeps them out of the path."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max(installed, key=lambda path: int(path.parent.parent.name)).parent


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A running cluster."""
    with tempfile.TemporaryDirectory(prefix="dragoman-pg-", ignore_cleanup_errors=True) as root:
        made = Cluster(Path(root))
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextmanager
def schema(server: str) -> Iterator[str]:
    """The address of an empty place of its own, which is made faster than a database."""
    name = f"test_{os.getpid()}_{next(NUMBERS)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
        here = make_url(server).update_query_dict({"options": f"-csearch_path={name}"})
        yield here.render_as_string(hide_password=False)
        with engine.connect() as connection:
            connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    finally:
        engine.dispose()


def main() -> int:
    with cluster() as running:
        environment = os.environ | {VARIABLE: running.url}
        return subprocess.run(sys.argv[1:], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
