"""The audit log: one JSON object per line, bounded, and safe to rotate."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from dragoman.keys import AuditLog
from dragoman.keys.audit import MAX_REFUSALS, MAX_REFUSALS_PER_SOURCE
from tests.support.serving import poll_until


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_flood_of_refusals_is_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for _ in range(10_000):
        log.record_refusal("10.0.0.1", {"status": 401})
    log.record_refusal("10.0.0.2", {"status": 403})  # another source still has room
    log.record("admin", {"key": "boss"})
    log.close()
    events = read(path)
    flood = [event for event in events if event.get("status") == 401]
    assert len(flood) <= MAX_REFUSALS_PER_SOURCE + 1
    assert sum(event.get("count", 0) for event in events) == 10_000 - len(flood)
    assert [event["status"] for event in events if event["event"] == "refusal"][-1] == 403
    assert events[-1]["event"] == "admin"
    assert all(event["time"].endswith("+00:00") for event in events)


def test_refusals_of_many_sources_have_one_limit(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    for number in range(5000):
        log.record_refusal(f"10.0.{number // 256}.{number % 256}", {"status": 401})
    log.close()
    assert len(read(path)) <= MAX_REFUSALS + 3


def test_a_rotated_file_is_left_alone_after_reopening(tmp_path: Path) -> None:
    path, rotated = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    log = AuditLog(path)
    log.record("admin", {"route": "first"})
    poll_until(lambda: path.stat().st_size > 0)
    path.rename(rotated)
    log.record("admin", {"route": "second"})
    log.reopen()
    log.record("admin", {"route": "third"})
    log.close()
    assert [event["route"] for event in read(rotated)] == ["first", "second"]
    assert [event["route"] for event in read(path)] == ["third"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_that_cannot_be_written_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(Path("/dev/full"))
    for _ in range(3):
        log.record("admin", {"key": "boss"})
    log.close()
    log.record("admin", {"key": "boss"})  # after the end: nothing happens
    assert "cannot write the audit log: No space left on device" in caplog.messages
