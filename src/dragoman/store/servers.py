"""Who runs what: the processes that use one database, and which of them are dead.

Every open store is a server. A response that runs belongs to the server that added it, and ends
with it: when the server is found dead, whoever finds it marks its responses as failed. A server
in the same place, which is one boot of one machine seen from one process namespace, is dead if its
process is; of any other only its heartbeat is known.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, delete, select

from dragoman.store.responses import ResponseRepository
from dragoman.store.rows import StoredResponse
from dragoman.store.tables import clock, responses, servers, upsert

log = logging.getLogger("dragoman.store")

SILENCE = 60.0  # seconds without a heartbeat after which a server elsewhere is dead
BATCH = 10  # responses failed in one transaction

Rewrite = Callable[[bytes], bytes]


class ServerProcess(Struct, frozen=True):
    """A process that has the store open."""

    id: str
    host: str  # for people who look
    place: str  # boot and process namespace, where these can be known
    pid: int
    started: str
    beat: float = 0.0


def this_server() -> ServerProcess:
    pid = os.getpid()
    host = socket.gethostname()
    return ServerProcess(uuid.uuid4().hex, host, _place() or host, pid, _started(pid) or "")


class ServerRepository:
    """The register of servers, on behalf of one of them."""

    def __init__(self, connection: Connection, here: ServerProcess) -> None:
        self._connection = connection
        self._here = here

    def register(self) -> None:
        """Be known, if this is not so already."""
        self._connection.execute(self._row().on_conflict_do_nothing())

    def beat(self) -> None:
        """Say that this server lives. One that was taken for dead is there again."""
        now = {"beat": clock(self._connection)}
        row = self._row().on_conflict_do_update(index_elements=["id"], set_=now)
        self._connection.execute(row)

    def leave(self) -> ServerProcess:
        """Be known no more, except by what is left."""
        self._connection.execute(delete(servers).where(servers.c.id == self._here.id))
        return _unknown(self._here.id)

    def dead(self) -> list[ServerProcess]:
        """Servers that are gone, also those that are only known by what they left."""
        now = self._connection.execute(select(clock(self._connection))).scalar_one()
        known = [
            ServerProcess(row.id, row.host, row.place, row.pid, row.started, row.beat)
            for row in self._connection.execute(select(servers))
        ]
        gone = [server for server in known if not self._alive(server, now)]
        ids = {server.id for server in known} | {self._here.id}
        left = select(responses.c.server).where(responses.c.ended.is_(None)).distinct()
        names = self._connection.execute(left).scalars()
        return gone + [_unknown(name) for name in names if name not in ids]

    def bury(self, server: ServerProcess, rewrite: Rewrite) -> tuple[int, bool]:
        """Fail some responses of a dead server: how many, and whether these were all."""
        if not self._still_dead(server):
            return 0, True
        left = ResponseRepository(self._connection, self._here.id).running(server.id, BATCH)
        done = sum(self._fail(row, rewrite) for row in left)
        if len(left) == BATCH:
            return done, False
        self._connection.execute(delete(servers).where(servers.c.id == server.id))
        return done, True

    def _fail(self, row: StoredResponse, rewrite: Rewrite) -> bool:
        try:
            body = rewrite(row.body)
        except Exception:
            log.exception("the body of a response that failed could not be rewritten")
            body = row.body
        work = ResponseRepository(self._connection, self._here.id)
        return work.update(row.owner, row.id, "failed", body)

    def _still_dead(self, server: ServerProcess) -> bool:
        """It was not heard of since, and will not be while this transaction lasts."""
        asked = select(servers.c.beat).where(servers.c.id == server.id).with_for_update()
        beat = self._connection.execute(asked).scalar()
        return beat == server.beat if server.pid else beat is None

    def _alive(self, server: ServerProcess, now: float) -> bool:
        here = self._here
        if server.id == here.id:
            return True
        if server.place == here.place:
            return _runs(server.pid, server.started)
        # a file is used by processes of one machine: what ran before it was booted is gone
        rebooted = server.place.split()[0] != here.place.split()[0]
        if rebooted and self._connection.dialect.name == "sqlite":
            return False
        return now - server.beat < SILENCE

    def _row(self) -> Any:
        here = self._here
        return upsert(self._connection, servers).values(
            id=here.id,
            host=here.host,
            place=here.place,
            pid=here.pid,
            started=here.started,
            beat=clock(self._connection),
        )


def _unknown(name: str) -> ServerProcess:
    return ServerProcess(name, "", "", 0, "")


def _place() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _runs(pid: int, started: str) -> bool:
    if started:
        return _started(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _started(pid: int) -> str | None:
    """When a process began, in a form that no later one shares; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]
