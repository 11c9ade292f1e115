"""The tables, as queries see them. `migrations` makes them; a test holds the two together.

What changes often is narrow: the state of a response is in `responses`, its large texts in
`bodies`, so that a change of state does not rewrite them.
"""

from __future__ import annotations

import re
import time
from typing import Any

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

ODD = re.compile("[\0%\ud800-\udfff]")
ESCAPED = re.compile("%([0-9a-f]{4})")


class Name(TypeDecorator[str]):
    """Any text, also what PostgreSQL cannot hold: zeroes and lone surrogates are escaped."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value and ODD.sub(lambda odd: f"%{ord(odd[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value and ESCAPED.sub(lambda code: chr(int(code[1], 16)), value)


METADATA = MetaData()

responses = Table(
    "responses",
    METADATA,
    Column("id", Name, primary_key=True),
    Column("owner", Name),
    Column("status", Text),
    Column("created", BigInteger),
    Column("touched", Float),  # when it was written, or gone on from
    Column("ended", Float),  # null while it runs
    Column("server", Text),  # who runs it
    Column("previous", Name),
    Column("conversation", Name),
    Column("background", Boolean),
    Column("hidden", Boolean),  # of no use any more
    Column("cancel", Boolean),  # somebody asked for it to end
    Column("size", BigInteger),  # with its texts, its events and what it is held by
)
bodies = Table(
    "bodies",
    METADATA,
    Column("response", Name, primary_key=True),
    Column("body", LargeBinary),
    Column("input", LargeBinary),
)
frames = Table(
    "frames",
    METADATA,
    Column("response", Name, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("data", LargeBinary),
)
holders = Table(
    "holders",
    METADATA,
    Column("owner", Name, primary_key=True),
    Column("item", Name, primary_key=True),
    Column("response", Name),
)
conversations = Table(
    "conversations",
    METADATA,
    Column("id", Name, primary_key=True),
    Column("owner", Name),
    Column("created", BigInteger),
    Column("touched", Float),
    Column("size", BigInteger),  # with its items
    Column("metadata", LargeBinary),
)
completions = Table(
    "completions",
    METADATA,
    Column("id", Name, primary_key=True),
    Column("owner", Name),
    Column("created", BigInteger),
    Column("size", BigInteger),
    Column("body", LargeBinary),
    Column("messages", LargeBinary),
)
items = Table(
    "items",
    METADATA,
    Column("conversation", Name, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("id", Name),
    Column("body", LargeBinary),
)
memories = Table(
    "memories",
    METADATA,
    Column("owner", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("model", Name),
    Column("source", Name),  # null where an older server wrote it
    Column("touched", Float),
    Column("size", BigInteger),
    Column("data", LargeBinary),
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


def upsert(connection: Connection, table: Table) -> Any:
    """An INSERT that knows ON CONFLICT, in the words of this database."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def clock(connection: Connection) -> ColumnElement[float]:
    """Now. Hosts that share a database go by its clock, not by theirs."""
    if connection.dialect.name == "postgresql":
        return cast(func.extract("epoch", func.clock_timestamp()), Float)
    return literal(time.time(), Float)
