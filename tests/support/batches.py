"""Batches through the `openai` client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from openai import OpenAI
from openai.types import Batch, FileObject

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
MODEL = "scripted"


def connect(url: str, key: str = "x") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def make_line(custom_id: str, body: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Make a line; without a body it is a chat that says its own id."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": custom_id}]}
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body or chat}
    return line | fields


def encode_lines(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def upload(client: OpenAI, content: bytes, purpose: Any = "batch") -> FileObject:
    return client.files.create(file=("input.jsonl", content), purpose=purpose)


def start_batch(client: OpenAI, content: bytes, endpoint: Any = CHAT, **fields: Any) -> Batch:
    window: Any = fields.pop("completion_window", "24h")
    return client.batches.create(
        input_file_id=upload(client, content).id,
        endpoint=endpoint,
        completion_window=window,
        **fields,
    )


def wait_for(client: OpenAI, batch: str, condition: Callable[[Batch], bool]) -> Batch:
    """Retrieve a batch until it meets a condition."""
    deadline = time.monotonic() + 120
    while True:
        current = client.batches.retrieve(batch)
        if condition(current):
            return current
        assert current.status not in ENDED, current
        assert time.monotonic() < deadline, current
        time.sleep(0.02)


def wait_ended(client: OpenAI, batch: str) -> Batch:
    return wait_for(client, batch, lambda current: current.status in ENDED)


def run_batch(client: OpenAI, content: bytes, endpoint: Any = CHAT, **fields: Any) -> Batch:
    """Upload a file, create a batch, and wait for its end."""
    return wait_ended(client, start_batch(client, content, endpoint, **fields).id)


def read_results(client: OpenAI, file: str | None) -> list[dict[str, Any]]:
    """Read the lines of an output file or an error file; none if there is no file."""
    if file is None:
        return []
    text = client.files.content(file).text
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def list_ids(results: Sequence[dict[str, Any]]) -> list[str]:
    return [result["custom_id"] for result in results]


def check_answered_once(client: OpenAI, batch: Batch, ids: Iterable[str]) -> None:
    """Check that every line is in one of the two files, once, and is counted."""
    output = read_results(client, batch.output_file_id)
    errors = read_results(client, batch.error_file_id)
    assert sorted(list_ids(output) + list_ids(errors)) == sorted(ids)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (len(output), len(errors))
    assert counts.total == len(output) + len(errors)
    request_ids = [result["id"] for result in output + errors]
    assert len(set(request_ids)) == len(request_ids)
