"""The tables as queries use them. `migrations` creates them; a test compares the two.

Rows that change often are narrow: the status of a response is in `responses`, its large texts are
in `bodies`, so that a change of status does not rewrite them.
"""

from __future__ import annotations

import re
import time
from typing import TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    cast,
    func,
    literal,
)
from sqlalchemy.dialects import postgresql, sqlite

IDS_PER_QUERY = 500  # values in one `IN (…)`

Upsert: TypeAlias = postgresql.Insert | sqlite.Insert
AgeColumn: TypeAlias = Column[float] | Column[int]

_UNSTORABLE = re.compile("[\0%\ud800-\udfff]")
_ESCAPE = re.compile("%([0-9a-f]{4})")


class EscapedText(TypeDecorator[str]):
    """Any text. NUL characters and lone surrogates, which PostgreSQL rejects, are escaped."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value and _UNSTORABLE.sub(lambda match: f"%{ord(match[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value and _ESCAPE.sub(lambda match: chr(int(match[1], 16)), value)


METADATA = MetaData()

responses = Table(
    "responses",
    METADATA,
    Column("id", EscapedText, primary_key=True),
    Column("owner", EscapedText),
    Column("status", Text),
    Column("created", BigInteger),
    Column("touched", Float),  # when it was last written or continued
    Column("ended", Float),  # null while it is running
    Column("server", Text),  # the server that runs it
    Column("previous", EscapedText),
    Column("conversation", EscapedText),
    Column("background", Boolean),
    Column("hidden", Boolean),  # unused
    Column("cancel", Boolean),  # a client asked to cancel it
    Column("size", BigInteger),  # with its rows in bodies, frames and holders
)
bodies = Table(
    "bodies",
    METADATA,
    Column("response", EscapedText, primary_key=True),
    Column("body", LargeBinary),
    Column("input", LargeBinary),
)
frames = Table(
    "frames",
    METADATA,
    Column("response", EscapedText, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("data", LargeBinary),
)
holders = Table(
    "holders",
    METADATA,
    Column("owner", EscapedText, primary_key=True),
    Column("item", EscapedText, primary_key=True),
    Column("response", EscapedText),
)
conversations = Table(
    "conversations",
    METADATA,
    Column("id", EscapedText, primary_key=True),
    Column("owner", EscapedText),
    Column("created", BigInteger),
    Column("touched", Float),
    Column("size", BigInteger),  # with its rows in items
    Column("metadata", LargeBinary),
)
completions = Table(
    "completions",
    METADATA,
    Column("id", EscapedText, primary_key=True),
    Column("owner", EscapedText),
    Column("created", BigInteger),
    Column("size", BigInteger),
    Column("body", LargeBinary),
    Column("messages", LargeBinary),
)
items = Table(
    "items",
    METADATA,
    Column("conversation", EscapedText, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("id", EscapedText),
    Column("body", LargeBinary),
)
replay_turns = Table(
    "memories",
    METADATA,
    Column("owner", EscapedText, primary_key=True),
    Column("key", EscapedText, primary_key=True),
    Column("model", EscapedText),
    Column("source", EscapedText),  # null in rows of versions before 4
    Column("touched", Float),
    Column("size", BigInteger),
    Column("data", LargeBinary),
)
files = Table(
    "files",
    METADATA,
    Column("id", EscapedText, primary_key=True),
    Column("owner", EscapedText),
    Column("purpose", Text),
    Column("filename", EscapedText),
    Column("created", BigInteger),
    Column("expires", Float),
    Column("bytes", BigInteger),  # of its content
    Column("size", BigInteger),  # with its rows in chunks
    Column("complete", Boolean),  # false while it is uploaded, or written by a batch
    Column("batch", EscapedText),  # the batch that writes it
)
chunks = Table(
    "chunks",
    METADATA,
    Column("file", EscapedText, primary_key=True),
    Column("number", BigInteger, primary_key=True),  # of the line, in a file that a batch writes
    Column("length", Integer),
    Column("data", LargeBinary),
)
batches = Table(
    "batches",
    METADATA,
    Column("id", EscapedText, primary_key=True),
    Column("owner", EscapedText),
    Column("status", Text),
    Column("endpoint", Text),
    Column("completion_window", Text),
    Column("input_file", EscapedText),
    Column("output_file", EscapedText),
    Column("error_file", EscapedText),
    Column("output_ttl", Float),  # seconds; null is the default
    Column("model", EscapedText),  # null if its lines name several
    Column("server", Text),  # the server that runs it; null is none
    Column("created", BigInteger),
    Column("touched", Float),
    Column("ended", Float),  # null until its status is final
    Column("in_progress_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expires_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("total", BigInteger),  # lines
    Column("completed", BigInteger),
    Column("failed", BigInteger),
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("size", BigInteger),
    Column("metadata", LargeBinary),
    Column("errors", LargeBinary),
)
secrets = Table(
    "secrets",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("data", LargeBinary),
)
servers = Table(
    "servers",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("host", Text),
    Column("place", Text),
    Column("pid", Integer),
    Column("started", Text),
    Column("beat", Float),
)
# The tables whose rows belong to owners, each with the column of a row's age. Rows that expire, or
# that are too many for their owner, are deleted (`maintenance`).
OWNED_TABLES: tuple[tuple[Table, AgeColumn], ...] = (
    (responses, responses.c.touched),
    (conversations, conversations.c.touched),
    (replay_turns, replay_turns.c.touched),
    (completions, completions.c.created),
    (files, files.c.created),
    (batches, batches.c.touched),
)


def upsert(connection: Connection, table: Table) -> Upsert:
    """Return an INSERT with ON CONFLICT, in the SQL dialect of this database."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def get_current_time(connection: Connection) -> ColumnElement[float]:
    """Return the time of the database, because the clocks of hosts that share it may differ."""
    if connection.dialect.name == "postgresql":
        return cast(func.extract("epoch", func.clock_timestamp()), Float)
    return literal(time.time(), Float)
