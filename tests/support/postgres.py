"""A temporary PostgreSQL for tests: a cluster in a temporary directory, with a socket in it.

    python -m tests.support.postgres pytest tests/store

runs a command with `DRAGOMAN_TEST_POSTGRES` set to the URL of such a cluster.
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
SCHEMA_NUMBERS = count()


class Cluster:
    """A cluster that can be stopped and restarted."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = f"postgresql+psycopg://{USER}@/postgres?host={root}"
        # PostgreSQL refuses to run as root
        self._run_as = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        if self._run_as:
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
        result = subprocess.run(
            [*self._run_as, str(find_programs() / program), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._root,
        )
        if result.returncode:
            raise RuntimeError(f"{program}: {result.stderr}")


def find_programs() -> Path:
    """The folder of the newest version's programs; on Debian it is not in the path."""
    initdb = shutil.which("initdb")
    if initdb:
        return Path(initdb).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max(installed, key=lambda path: int(path.parent.parent.name)).parent


@contextmanager
def start_cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="dragoman-pg-", ignore_cleanup_errors=True) as root:
        cluster = Cluster(Path(root))
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def create_schema(server: str) -> Iterator[str]:
    """The URL of a new, empty schema; creating one is faster than creating a database."""
    name = f"test_{os.getpid()}_{next(SCHEMA_NUMBERS)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE SCHEMA {name}"))
        url = make_url(server).update_query_dict({"options": f"-csearch_path={name}"})
        yield url.render_as_string(hide_password=False)
        with engine.connect() as connection:
            connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
    finally:
        engine.dispose()


def main() -> int:
    with start_cluster() as cluster:
        environment = os.environ | {VARIABLE: cluster.url}
        return subprocess.run(sys.argv[1:], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
