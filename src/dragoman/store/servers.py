"""Registers the servers that use one database, and finds those that are dead.

Every open store registers as a server. A running response belongs to the server that added it: when
another server notices that this one is dead, it marks those responses as failed. A batch belongs to
the server that has claimed it, and is claimed by another one when that is dead. A server with the
same boot id and process namespace is dead if its process is gone; any other server can only be
judged by its heartbeat.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from pathlib import Path

from msgspec import Struct
from sqlalchemy import Connection, delete, select

from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.responses import ResponseRepository
from dragoman.store.rows import RewriteBody, StoredResponse, StoreLimits
from dragoman.store.tables import Upsert, get_current_time, responses, servers, upsert

log = logging.getLogger("dragoman.store")

HEARTBEAT_TIMEOUT = 60.0  # seconds after which a server on another host counts as dead
BATCH = 10  # responses failed in one transaction


class ServerProcess(Struct, frozen=True):
    """A process that has the store open."""

    id: str
    host: str  # for an operator who looks into the table
    namespace: str  # boot id and process namespace, where these are known
    pid: int
    start_time: str
    heartbeat: float = 0.0


def describe_this_process() -> ServerProcess:
    pid = os.getpid()
    host = socket.gethostname()
    return ServerProcess(
        uuid.uuid4().hex, host, _read_namespace() or host, pid, _read_start_time(pid) or ""
    )


class ServerRepository:
    """The table of servers, on behalf of one of them."""

    def __init__(self, connection: Connection, this: ServerProcess) -> None:
        self._connection = connection
        self._this = this
        # the size limits are for what clients send; a dead server's response is failed in any case
        unlimited = WriteMeter(StoreLimits(row=sys.maxsize))
        self._responses = ResponseRepository(connection, this.id, unlimited)

    def register(self) -> None:
        """Add this server, if it is not in the table."""
        self._connection.execute(self._upsert().on_conflict_do_nothing())

    def record_heartbeat(self) -> None:
        """Record that this server is alive; register it again if it was taken for dead."""
        now = {"beat": get_current_time(self._connection)}
        statement = self._upsert().on_conflict_do_update(index_elements=["id"], set_=now)
        self._connection.execute(statement)

    def unregister(self) -> ServerProcess:
        """Remove this server; return the entry under which its running responses can be failed."""
        self._connection.execute(delete(servers).where(servers.c.id == self._this.id))
        return _make_unregistered(self._this.id)

    def list_dead(self) -> list[ServerProcess]:
        """Return dead servers, including unregistered ones that left running responses behind."""
        now, registered = self._list_registered()
        dead = [server for server in registered if not self._is_alive(server, now)]
        ids = {server.id for server in registered} | {self._this.id}
        running = select(responses.c.server).where(responses.c.ended.is_(None)).distinct()
        owners = self._connection.execute(running).scalars()
        return dead + [_make_unregistered(owner) for owner in owners if owner not in ids]

    def list_alive(self) -> list[str]:
        """Return the ids of the servers that are alive."""
        now, registered = self._list_registered()
        return [server.id for server in registered if self._is_alive(server, now)]

    def _list_registered(self) -> tuple[float, list[ServerProcess]]:
        """Return the time by the clock of the database, and all servers in the table."""
        now = self._connection.execute(select(get_current_time(self._connection))).scalar_one()
        return now, [
            ServerProcess(row.id, row.host, row.place, row.pid, row.started, row.beat)
            for row in self._connection.execute(select(servers))
        ]

    def fail_responses(self, server: ServerProcess, rewrite: RewriteBody) -> tuple[int, bool]:
        """Fail some responses of a dead server; return how many, and whether none is left."""
        if not self._is_still_dead(server):
            return 0, True
        abandoned = self._responses.lock_running(server.id, BATCH)
        count = sum(self._fail(row, rewrite) for row in abandoned)
        if len(abandoned) == BATCH:
            return count, False
        self._connection.execute(delete(servers).where(servers.c.id == server.id))
        return count, True

    def _fail(self, row: StoredResponse, rewrite: RewriteBody) -> bool:
        try:
            body = rewrite(row.body)
        except Exception:
            log.exception("the body of a failed response could not be rewritten")
            body = row.body
        return self._responses.update(row.owner, row.id, "failed", body)

    def _is_still_dead(self, server: ServerProcess) -> bool:
        """Whether it sent no heartbeat since; locks its row, so that it cannot until we commit."""
        query = select(servers.c.beat).where(servers.c.id == server.id).with_for_update()
        heartbeat = self._connection.execute(query).scalar()
        return heartbeat == server.heartbeat if server.pid else heartbeat is None

    def _is_alive(self, server: ServerProcess, now: float) -> bool:
        this = self._this
        if server.id == this.id:
            return True
        if server.namespace == this.namespace:
            return _is_running(server.pid, server.start_time)
        # a SQLite file is used on one machine: processes from before its last boot are gone
        rebooted = server.namespace.split()[0] != this.namespace.split()[0]
        if rebooted and self._connection.dialect.name == "sqlite":
            return False
        return now - server.heartbeat < HEARTBEAT_TIMEOUT

    def _upsert(self) -> Upsert:
        this = self._this
        return upsert(self._connection, servers).values(
            id=this.id,
            host=this.host,
            place=this.namespace,
            pid=this.pid,
            started=this.start_time,
            beat=get_current_time(self._connection),
        )


def _make_unregistered(server_id: str) -> ServerProcess:
    return ServerProcess(server_id, "", "", 0, "")


def _read_namespace() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_running(pid: int, start_time: str) -> bool:
    if start_time:
        return _read_start_time(pid) == start_time
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read_start_time(pid: int) -> str | None:
    """Return when a process started, to tell it from a later one with its pid; None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the process name before it may contain anything
    return None if fields[0] in "ZX" else fields[19]
