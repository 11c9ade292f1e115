"""The migrations of the database: numbered steps, each applied once. They are never edited again.

A step and the new version number are written in one transaction, which begins by locking out every
other process that migrates. So processes that start at once take turns, and a process that dies
leaves a step either applied or not applied at all.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from dragoman.store.rows import StoreError

LOCK = 0x6472_6167  # key of the PostgreSQL advisory lock

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE servers (
            id TEXT PRIMARY KEY, host TEXT NOT NULL, place TEXT NOT NULL, pid INTEGER NOT NULL,
            started TEXT NOT NULL, beat {real} NOT NULL)""",
        """CREATE TABLE secrets (name TEXT PRIMARY KEY, data {blob} NOT NULL)""",
        """CREATE TABLE responses (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL,
            created BIGINT NOT NULL, ended {real}, server TEXT NOT NULL, previous TEXT,
            background BOOLEAN NOT NULL, hidden BOOLEAN NOT NULL, cancel BOOLEAN NOT NULL)""",
        """CREATE TABLE bodies (
            response TEXT PRIMARY KEY REFERENCES responses (id) ON DELETE CASCADE,
            body {blob} NOT NULL, input {blob} NOT NULL)""",
        """CREATE TABLE frames (
            response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
            number BIGINT NOT NULL, data {blob} NOT NULL, PRIMARY KEY (response, number))""",
        """CREATE INDEX running ON responses (server) WHERE ended IS NULL""",
        """CREATE INDEX hidden ON responses (ended) WHERE hidden""",
    ),
    (
        """ALTER TABLE responses ADD COLUMN conversation TEXT""",
        """ALTER TABLE responses ADD COLUMN size BIGINT NOT NULL DEFAULT 0""",
        """UPDATE responses SET size =
            (SELECT length(body) + length(input) FROM bodies WHERE response = id) +
            (SELECT coalesce(sum(length(data)), 0) FROM frames WHERE response = id)""",
        """CREATE INDEX responses_by_age ON responses (created, size) WHERE ended IS NOT NULL""",
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, created BIGINT NOT NULL,
            touched {real} NOT NULL, size BIGINT NOT NULL, metadata {blob} NOT NULL)""",
        """CREATE INDEX conversations_by_age ON conversations (touched, size)""",
        """CREATE TABLE items (
            conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
            position BIGINT NOT NULL, id TEXT NOT NULL, body {blob} NOT NULL,
            PRIMARY KEY (conversation, position), UNIQUE (conversation, id))""",
        """CREATE TABLE memories (
            owner TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, touched {real} NOT NULL,
            size BIGINT NOT NULL, data {blob} NOT NULL, PRIMARY KEY (owner, key))""",
        """CREATE INDEX memories_by_age ON memories (touched, size)""",
    ),
    (
        """CREATE TABLE holders (
            owner TEXT NOT NULL, item TEXT NOT NULL,
            response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
            PRIMARY KEY (owner, item))""",
        """CREATE INDEX holders_by_response ON holders (response)""",
        """CREATE TABLE completions (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, created BIGINT NOT NULL,
            size BIGINT NOT NULL, body {blob} NOT NULL, messages {blob} NOT NULL)""",
        """CREATE INDEX completions_by_age ON completions (created, size)""",
        """CREATE INDEX completions_by_owner ON completions (owner, created, id)""",
    ),
    (
        """ALTER TABLE memories ADD COLUMN source TEXT""",
        """CREATE INDEX memories_by_source ON memories (source) WHERE source IS NOT NULL""",
        """ALTER TABLE responses ADD COLUMN touched {real} NOT NULL DEFAULT 0""",
        """UPDATE responses SET touched = created, size = 600 +
            (SELECT length(body) + length(input) FROM bodies WHERE response = responses.id) +
            (SELECT coalesce(sum(length(data) + 300), 0) FROM frames
                WHERE response = responses.id) +
            300 * (SELECT count(*) FROM holders WHERE response = responses.id)""",
        """DROP INDEX hidden""",
        """DROP INDEX responses_by_age""",
        """CREATE INDEX responses_by_age ON responses (touched, size) WHERE ended IS NOT NULL""",
        """CREATE INDEX responses_by_conversation ON responses (conversation)
            WHERE conversation IS NOT NULL""",
        """UPDATE conversations SET size = size + 300 +
            300 * (SELECT count(*) FROM items WHERE conversation = conversations.id)""",
        """UPDATE memories SET size = size + 300""",
        """UPDATE completions SET size = 300 + length(body) + length(messages)""",
    ),
    (
        """CREATE INDEX responses_by_owner ON responses (owner, touched, size)""",
        """CREATE INDEX conversations_by_owner ON conversations (owner, touched, size)""",
        """CREATE INDEX memories_by_owner ON memories (owner, touched, size)""",
        """CREATE INDEX completions_by_owner_and_age ON completions (owner, created, size)""",
    ),
    (
        """CREATE TABLE files (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, purpose TEXT NOT NULL,
            filename TEXT NOT NULL, created BIGINT NOT NULL, expires {real} NOT NULL,
            bytes BIGINT NOT NULL, size BIGINT NOT NULL, complete BOOLEAN NOT NULL, batch TEXT)""",
        """CREATE INDEX files_by_owner ON files (owner, created, id)""",
        """CREATE INDEX files_by_owner_and_size ON files (owner, created, size, bytes)""",
        """CREATE INDEX files_by_expiry ON files (expires)""",
        """CREATE TABLE chunks (
            file TEXT NOT NULL REFERENCES files (id) ON DELETE CASCADE,
            number BIGINT NOT NULL, length INTEGER NOT NULL, data {blob} NOT NULL,
            PRIMARY KEY (file, number))""",
        """CREATE TABLE batches (
            id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL,
            endpoint TEXT NOT NULL, completion_window TEXT NOT NULL, input_file TEXT NOT NULL,
            output_file TEXT, error_file TEXT, output_ttl {real}, model TEXT, server TEXT,
            created BIGINT NOT NULL, touched {real} NOT NULL, ended {real},
            in_progress_at BIGINT, finalizing_at BIGINT, completed_at BIGINT, failed_at BIGINT,
            expires_at BIGINT NOT NULL, expired_at BIGINT, cancelling_at BIGINT,
            cancelled_at BIGINT, total BIGINT NOT NULL, completed BIGINT NOT NULL,
            failed BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL,
            completion_tokens BIGINT NOT NULL, reasoning_tokens BIGINT NOT NULL,
            size BIGINT NOT NULL, metadata {blob} NOT NULL, errors {blob})""",
        """CREATE INDEX batches_by_owner ON batches (owner, created, id)""",
        """CREATE INDEX batches_by_age ON batches (touched, size)""",
        """CREATE INDEX unfinished_batches ON batches (input_file) WHERE ended IS NULL""",
    ),
    # the only secret of earlier versions is the key of signatures, under another name
    ("""UPDATE secrets SET name = 'signing_key'""",),
)
NEWEST = len(STEPS)

TYPES = {
    "sqlite": {"blob": "BLOB", "real": "REAL"},
    "postgresql": {"blob": "BYTEA", "real": "DOUBLE PRECISION"},
}


def apply_next(connection: Connection, newest: int = NEWEST) -> bool:
    """Apply the next step in this transaction; False when the database is up to date."""
    if connection.dialect.name == "postgresql":
        for setting in ("lock_timeout", "statement_timeout"):
            connection.execute(text(f"SET LOCAL {setting} = 0"))  # a step may take long
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    version = _read_version(connection)
    if version > NEWEST:
        raise StoreError(
            f"The database has version {version}, but this server supports versions up to "
            f"{NEWEST}. A newer server has used it: run that one, or use another database."
        )
    if version >= newest:
        return False
    types = TYPES[connection.dialect.name]
    for statement in STEPS[version]:
        connection.execute(text(statement.format_map(types)))
    connection.execute(text("UPDATE dragoman SET version = :new"), {"new": version + 1})
    return True


def _read_version(connection: Connection) -> int:
    connection.execute(text("CREATE TABLE IF NOT EXISTS dragoman (version INTEGER NOT NULL)"))
    version = connection.execute(text("SELECT version FROM dragoman")).scalar()
    if version is None:
        connection.execute(text("INSERT INTO dragoman VALUES (0)"))
    return version or 0
