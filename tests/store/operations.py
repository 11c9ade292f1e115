"""Calls of every method of a transaction and its repositories."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dragoman.store.rows import Page, StoredItem, StoreLimits
from dragoman.store.servers import ServerProcess
from dragoman.store.transaction import Transaction

Operation = Callable[[Transaction, str], Any]
PAGE = Page(limit=9, newest_first=False)

# every method that takes an owner: a call of it, and what it returns for another owner
OWNED: dict[str, tuple[Operation, Any]] = {
    "responses.get": (lambda tx, owner: tx.responses.get(owner, "r"), None),
    "responses.update": (
        lambda tx, owner: tx.responses.update(owner, "r", "in_progress", b"new"),
        False,
    ),
    "responses.get_conversation": (
        lambda tx, owner: tx.responses.get_conversation(owner, "r"),
        None,
    ),
    "responses.list_ids": (lambda tx, owner: tx.responses.list_ids(owner, "c"), []),
    "responses.get_history": (lambda tx, owner: tx.responses.get_history(owner, "r"), None),
    "responses.find_by_output_items": (
        lambda tx, owner: tx.responses.find_by_output_items(owner, ["i0"]),
        [],
    ),
    "responses.get_last_frame": (lambda tx, owner: tx.responses.get_last_frame(owner, "r"), None),
    "responses.list_frames": (lambda tx, owner: tx.responses.list_frames(owner, "r", -1), []),
    "responses.request_cancel": (lambda tx, owner: tx.responses.request_cancel(owner, "r"), False),
    "responses.delete": (lambda tx, owner: tx.responses.delete(owner, "r"), False),
    "delete_response": (lambda tx, owner: tx.delete_response(owner, "r"), False),
    "conversations.get": (lambda tx, owner: tx.conversations.get(owner, "c"), None),
    "conversations.update": (lambda tx, owner: tx.conversations.update(owner, "c", b"[]"), None),
    "conversations.delete": (lambda tx, owner: tx.conversations.delete(owner, "c"), False),
    "delete_conversation": (lambda tx, owner: tx.delete_conversation(owner, "c"), False),
    "conversations.add_items": (
        lambda tx, owner: tx.conversations.add_items(owner, "c", [StoredItem("i2", b"2")]),
        False,
    ),
    "conversations.list_items": (
        lambda tx, owner: tx.conversations.list_items(
            owner, "c", after=None, limit=9, newest_first=False
        ),
        None,
    ),
    "conversations.get_items": (
        lambda tx, owner: tx.conversations.get_items(owner, "c", ["i"]),
        {},
    ),
    "conversations.get_item": (lambda tx, owner: tx.conversations.get_item(owner, "c", "i"), None),
    "conversations.delete_item": (
        lambda tx, owner: tx.conversations.delete_item(owner, "c", "i"),
        False,
    ),
    "key_values.get_turns": (lambda tx, owner: tx.key_values.get_turns(owner, ["k"]), []),
    "conversations.measure_items": (
        lambda tx, owner: tx.conversations.measure_items(owner, "c"),
        0,
    ),
    "responses.measure_history": (lambda tx, owner: tx.responses.measure_history(owner, "r"), 0),
    "completions.get": (lambda tx, owner: tx.completions.get(owner, "chat"), None),
    "completions.update": (lambda tx, owner: tx.completions.update(owner, "chat", b"new"), False),
    "completions.delete": (lambda tx, owner: tx.completions.delete(owner, "chat"), False),
    "delete_completion": (lambda tx, owner: tx.delete_completion(owner, "chat"), False),
    "completions.list_page": (lambda tx, owner: tx.completions.list_page(owner, PAGE), []),
    "files.get": (lambda tx, owner: tx.files.get(owner, "f"), None),
    "files.append": (lambda tx, owner: tx.files.append(owner, "g", [(1, b"more")]), False),
    "files.sum_bytes": (lambda tx, owner: tx.files.sum_bytes(owner), 0),
    "files.finish": (lambda tx, owner: tx.files.finish(owner, "g"), None),
    "files.list_page": (lambda tx, owner: tx.files.list_page(owner, PAGE), []),
    "files.delete": (lambda tx, owner: tx.files.delete(owner, "f"), False),
    "batches.get": (lambda tx, owner: tx.batches.get(owner, "b"), None),
    "batches.list_page": (lambda tx, owner: tx.batches.list_page(owner, PAGE), []),
    "batches.count_unfinished": (lambda tx, owner: tx.batches.count_unfinished(owner), 0),
    "batches.request_cancel": (lambda tx, owner: tx.batches.request_cancel(owner, "b"), None),
}

# methods that take an owner but return nothing: they cannot reveal or change another owner's rows
WITHOUT_RESULT = {"key_values.put_turns", "key_values.delete_turns", "responses.index_output_items"}

# methods that take a whole row, or that only servers call
WITHOUT_OWNER = {
    "add_response",
    "finish_response",
    "responses.add",
    "responses.append_frames",
    "responses.list_cancel_requests",
    "responses.lock_running",
    "conversations.add",
    "completions.add",
    "files.add",
    "files.read_chunks",
    "files.delete_piece",
    "batches.add",
    "batches.claim",
    "batches.has_unclaimed",
    "batches.release",
    "batches.list_cancelling",
    "batches.start",
    "batches.record_results",
    "batches.list_done",
    "batches.finalize",
    "batches.finish",
    "claim_batches",
    "servers.list_alive",
    "key_values.get_or_create_secret",
    "key_values.get_secret",
    "servers.register",
    "servers.record_heartbeat",
    "servers.unregister",
    "servers.list_dead",
    "servers.fail_responses",
    "maintenance.delete_expired",
    "maintenance.evict_oldest",
}


def list_methods() -> dict[str, Callable[..., Any]]:
    """All public methods of a transaction and of its repositories."""
    connection: Any = None
    transaction = Transaction(connection, ServerProcess("s", "", "", 0, ""), StoreLimits())
    parts = {"": transaction} | {
        f"{name}.": part for name, part in vars(transaction).items() if name[0] != "_"
    }
    return {
        prefix + name: method
        for prefix, part in parts.items()
        for name, method in inspect.getmembers(part, inspect.ismethod)
        if name[0] != "_"
    }
