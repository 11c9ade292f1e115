"""Entries of keys: what a file may say, and what each mistake is answered with."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.keys import KeyFileError
from dragoman.keys.digests import format_hash, make_key, make_key_owner
from dragoman.keys.entries import KeyEntry, LimitOptions
from dragoman.keys.key_file import read_key_file
from dragoman.keys.key_settings import KeySettings
from dragoman.keys.key_store import KeyStore
from dragoman.options.units import parse_tokens
from dragoman.types.limits import KeyLimits
from tests.support.work_counter import count_lines

SECRET = "sk-canary-0123456789-abcdefghij"
HASH = format_hash(SECRET)


def read(path: Path, text: str) -> list[KeyEntry]:
    path.write_text(text)
    return read_key_file(path)


def test_an_entry_has_name_scopes_expiry_and_limits(tmp_path: Path) -> None:
    [alice, bob] = read(
        tmp_path / "keys.yaml",
        f"""
entries:
  - name: alice
    hash: {HASH}
    routes: [chat, embeddings, models]
    models: [small-*]
    expires: 2099-01-31
    limits:
      requests_per_minute: 60
      tokens_per_minute: 100k
      concurrent_requests: 4
      queue_share: 2
      stored_bytes: 10MB
      media_bytes: 1MiB
  - {{name: bob, key: [{SECRET}-1, {SECRET}-2], hash: "{format_hash("third")}", admin: true}}
""",
    )
    assert (alice.name, alice.is_admin, bob.name, bob.is_admin) == ("alice", False, "bob", True)
    assert alice.scope.routes == ("chat", "embeddings", "models")
    assert alice.scope.models == ("small-*",)
    assert alice.expires == datetime(2099, 2, 1, tzinfo=UTC).timestamp()
    limits = alice.limits
    assert (limits.requests_per_minute, limits.concurrent_requests) == (60, 4)
    assert limits.tokens_per_minute == parse_tokens("100k")
    assert (limits.queue_share, limits.stored_bytes, limits.media_bytes) == (2.0, 10**7, 2**20)
    assert len(bob.digests) == 3
    assert alice.owner != bob.owner
    assert SECRET not in repr([alice, bob])


MISTAKES = [
    ("- hash: HASH", 2, "needs a `name`"),
    ("- name: a b\n    hash: HASH", 2, "`name` must be at most 64 letters"),
    ("- name: a", 2, "`a` needs a `hash` or a `key`"),
    ("- name: a\n    hash: sha256:12", 3, "expected `sha256:` and 64 hexadecimal digits"),
    ("- name: a\n    hahs: HASH", 3, "there is no option `hahs`. Did you mean `hash`?"),
    ("- name: a\n    limit: {}", 3, "there is no option `limit`. Did you mean `limits`?"),
    ("- name: a\n    hash: HASH\n    limits: 7", 4, "`limits` must be a mapping"),
    (
        "- name: a\n    hash: HASH\n    limits:\n      request_per_minute: 3",
        5,
        "Did you mean `requests_per_minute`?",
    ),
    (
        "- name: a\n    hash: HASH\n    limits:\n      concurrent_requests: 0",
        5,
        "`concurrent_requests`: must be at least 1",
    ),
    ("- name: a\n    hash: HASH\n    expires: soon", 4, "expected a date such as 2027-01-31"),
    ("- name: a\n    hash: HASH\n    admin: perhaps", 4, "`admin`: expected true or false"),
    ("- name: a\n    hash: HASH\n    routes: [admin]", 4, "admin routes also need `admin: true`"),
    ("- name: a\n    hash: HASH\n    owner: me", 4, "what `dragoman keys hash` printed"),
    ("- name: a\n    key: 12345", 3, "put it in quotes"),
    (f"- {SECRET}", 2, "an entry is a mapping"),
    (f"- name: a\n    {SECRET}: true", 2, "a field of this entry does not exist"),
]


@pytest.mark.parametrize(("text", "line", "problem"), MISTAKES)
def test_a_mistake_names_file_and_line_and_shows_no_key(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    file = tmp_path / "keys.yaml"
    with pytest.raises(KeyFileError) as raised:
        read(file, "entries:\n  " + text.replace("HASH", HASH))
    message = str(raised.value)
    assert message.startswith(f"{file}:{line}: ")
    assert problem in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("entry: []", ":1: this setting does not exist. Did you mean `entries`?"),
        (f"{SECRET}", "expected a mapping"),
        (f"{SECRET}: 1", "Write the keys under `entries:`"),
        ("entries: {name: a}", ":1: `entries` must be a list"),
        ("entries: [", ":1: invalid YAML"),
    ],
)
def test_a_file_that_is_no_list_of_entries_is_rejected(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(KeyFileError, match=re.escape(problem)) as raised:
        read(tmp_path / "keys.yml", text)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("form", "hours", "is_valid"),
    [
        ("%Y-%m-%d", 0, True),  # to the end of the day
        ("%Y-%m-%d", -24, False),
        ("%Y-%m-%dT%H:%M:%SZ", 1, True),
        ("%Y-%m-%d %H:%M:%S", -1, False),
        ('"2001-02-03"', 0, False),
        ("9999-12-31", 0, True),
        ('"9999-12-31T23:59:59-12:00"', 0, True),
        ('"0001-01-01T00:00:00+12:00"', 0, False),
    ],
)
def test_a_key_expires_at_a_time_or_at_the_end_of_a_day(
    tmp_path: Path, form: str, hours: int, is_valid: bool
) -> None:
    text = f"{datetime.now(UTC) + timedelta(hours=hours):{form}}"
    if time.gmtime().tm_hour == 23 and time.gmtime().tm_min == 59:
        pytest.skip("the day ends while the test runs")
    text = f"entries: [{{name: a, hash: '{HASH}', expires: {text}}}]"
    [entry] = read(tmp_path / "k.yaml", text)
    assert entry.has_expired is not is_valid


def test_one_key_per_line_is_still_a_file_of_keys(tmp_path: Path) -> None:
    entries = read(tmp_path / "keys", f"# comment\n{SECRET}\n\n  other  \n")
    assert [entry.owner for entry in entries] == [
        make_key_owner(SECRET.encode()),
        make_key_owner(b"other"),
    ]
    assert [entry.is_weak for entry in entries] == [False, True]


@pytest.mark.parametrize("line", ["entries:", "- name: alice", "  hash: sha256:12", "limits: {}"])
def test_lines_of_yaml_never_become_keys(tmp_path: Path, line: str) -> None:
    with pytest.raises(KeyFileError, match=r"keys:2: this looks like YAML"):
        read(tmp_path / "keys", f"# keys\n{line}\n")


def test_random_keys_are_long_and_never_the_same() -> None:
    keys = {make_key() for _ in range(100)}
    assert len(keys) == 100
    assert min(map(len, keys)) > 50


DEFAULTS = {"requests_per_minute": 60, "tokens_per_minute": "10k", "queue_share": 2}


def read_limits(tmp_path: Path, **settings: Any) -> dict[str, KeyLimits]:
    """Return the limits of all keys, by name; those without a name under their keys."""
    entries = f"""
entries:
  - {{name: own, hash: "{format_hash("own")}", limits: {{requests_per_minute: 5}}}}
  - {{name: free, hash: "{format_hash("free")}", limits: {{requests_per_minute: null}}}}
  - {{name: none, hash: "{format_hash("none")}"}}
  - {{name: boss, hash: "{format_hash("boss")}", admin: true}}
"""
    (tmp_path / "keys.yaml").write_text(entries)
    store = KeyStore(
        KeySettings(api=["plain"], admin=["root"], file=tmp_path / "keys.yaml", **settings)
    )
    keys = ("plain", "root", "own", "free", "none", "boss")
    found = {key: store.find(key.encode()) for key in keys}
    return {key: entry.limits for key, entry in found.items() if entry is not None}


def test_keys_without_limits_have_the_default_ones(tmp_path: Path) -> None:
    limits = read_limits(tmp_path, limits=DEFAULTS)
    plain = limits["plain"]
    assert (plain.requests_per_minute, plain.tokens_per_minute) == (60, 10 * 1024)
    assert (plain.queue_share, plain.concurrent_requests) == (2.0, None)
    assert limits["none"] == plain
    assert limits["own"] == replace(plain, requests_per_minute=5)
    assert limits["free"] == replace(plain, requests_per_minute=None)
    assert (limits["root"], limits["boss"]) == (KeyLimits(), LimitOptions())


def test_there_are_no_default_limits_unless_they_are_set(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    assert limits["plain"] == limits["none"] == LimitOptions()


def test_plain_keys_of_a_file_have_them_too(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("one\ntwo\n")
    store = KeyStore(KeySettings(file=file, limits={"concurrent_requests": 3}))
    assert [entry.limits.concurrent_requests for entry in store.entries] == [3, 3]


def test_each_entry_is_read_in_few_steps(tmp_path: Path) -> None:
    """Most of the work is that of the YAML parser: the one in Python takes five times as long."""
    count = 100
    text = "".join(
        f"  - name: user{number}\n    hash: {format_hash(str(number))}\n    routes: [chat]\n"
        for number in range(count)
    )
    (tmp_path / "keys.yaml").write_text(f"entries:\n{text}")
    lines = count_lines(lambda: read_key_file(tmp_path / "keys.yaml"))
    print(f"{lines / count:.0f} lines for an entry")
    assert lines < 1000 * count
