"""`dragoman keys`: make API keys, and the entries that a server reads them from."""

from __future__ import annotations

import argparse
import getpass
import sys

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import add_usage
from dragoman.config import Settings

NEW, HASH = "new", "hash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "{new,hash} NAME [--admin]",
        examples=("dragoman keys new alice", "dragoman keys hash alice < key.txt"),
    )
    parser.add_argument(
        "action",
        choices=(NEW, HASH),
        metavar=f"{NEW} or {HASH}",
        help="new: make a random key and print it once, with its entry for dragoman.yaml; "
        "hash: read a key from standard input and print its entry",
    )
    parser.add_argument("name", metavar="NAME", help="whose key it is, in logs and metrics")
    parser.add_argument("--admin", action="store_true", help="allow the admin routes")


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.keys.digests import is_weak, make_key

    key = make_key() if arguments.action == NEW else read_key()
    if is_weak(key):
        print(
            "dragoman: this key can be guessed; `dragoman keys new` makes one that cannot.",
            file=sys.stderr,
        )
    entry = format_entry(arguments.name, key, arguments.admin, keeps_data=arguments.action == HASH)
    if arguments.action == NEW:
        print(key)
        print(
            "\nThe key is not stored: copy it now. Add its entry to `keys:` in dragoman.yaml:\n",
            file=sys.stderr,
        )
    print(entry)


def read_key() -> str:
    """Read a key without showing it."""
    try:
        text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
        text.encode()
    except UnicodeError:
        raise CommandFailed("The key on standard input is not UTF-8 text.") from None
    if not text.strip():
        raise CommandFailed("Send the key on standard input.")
    return text.strip()


def format_entry(name: str, key: str, is_admin: bool, *, keeps_data: bool) -> str:
    """Write the entry of a key as dragoman.yaml has it, and check it."""
    from dragoman.keys.digests import format_hash, make_key_owner
    from dragoman.keys.entries import KeyFileError, parse_entries

    fields: dict[str, object] = {"name": name, "hash": format_hash(key)}
    if is_admin:
        fields["admin"] = True
    if keeps_data:
        fields["owner"] = make_key_owner(key.encode())
    try:
        parse_entries([fields], lambda *_: "NAME")
    except KeyFileError as error:
        raise CommandFailed(f"{error}.") from None
    lines = [f"{field}: {'true' if value is True else value}" for field, value in fields.items()]
    if keeps_data:
        lines[-1] += "  # keeps what the key stored before it had a name"
    return "entries:\n  - " + "\n    ".join(lines)
