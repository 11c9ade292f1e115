"""Sends hostile requests to a server, monitors its health and checks its responses.

The server runs in its own process, as it does for users: in the process of the tests, their garbage
collection would delay it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.support.hostile_constraints import MODEL, TEXT, HostileCase
from tests.support.paths import ROOT
from tests.support.real_model import (
    find_schema_error,
    make_request,
    make_schema_fields,
    request_answer,
)
from tests.support.server_process import list_child_pids, read_until, run_server
from tests.support.serving import parse_events

# texts that no error message may contain, unless the client sent them
INTERNALS = re.compile(
    r"llguidance|pyo3|xllamacpp|llama\.cpp|msgspec|jinja|derivre|earley|dragoman|traceback|panick"
    r"|site-packages|\.py\b|\.rs\b|0x[0-9a-f]{5}|\w+Error\b|\w+Exception\b|object at|/usr/|/root/"
)
REJECTED = ("http", "a file", "metadata", "a relative one", "itself", "each other", "100000 arrays")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


class HealthMonitor:
    """Requests `/health/live` continuously."""

    def __init__(self, url: str, server_pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.health_probe", url, str(server_pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> HealthMonitor:
        return self

    def __exit__(self, *error: object) -> None:
        """Check that every request succeeded, and print the latencies."""
        output, _ = self._process.communicate()
        report = json.loads(output)
        assert report["failures"] == []
        slowest, own = (
            ", ".join(f"{1000 * seconds:.1f}" for seconds in sorted(report[kind])[-3:])
            for kind in ("latencies", "own")
        )
        print(
            f"\n/health/live: {len(report['latencies'])} requests, the slowest {slowest} ms; "
            f"without time waiting for a CPU, {own} ms"
        )


class AttackedServer(NamedTuple):
    """A server, a client for it, and the engine process that must survive."""

    client: httpx.Client
    url: str
    pid: int
    engine_pid: int


@contextmanager
def serve_under_attack(model: Path) -> Iterator[AttackedServer]:
    flags = ("--context", "512", "--slots", "2", "--threads", "1")
    with run_server(MODEL, *flags, "--models-dir", str(model.parent.parent)) as (process, url):
        read_until(process, "Serving")
        # a full pipe would block the server
        reader = threading.Thread(target=lambda: list(process.stdout or ()))
        reader.start()
        headers = {"content-type": "application/json"}
        with (
            HealthMonitor(url, process.pid),
            httpx.Client(base_url=url, timeout=60, headers=headers) as client,
        ):
            yield AttackedServer(client, url, process.pid, find_engine_pid(process.pid))
        process.terminate()
        reader.join()


def find_engine_pid(server_pid: int) -> int:
    [engine_pid] = [pid for pid in list_child_pids(server_pid) if is_engine(pid)]
    return engine_pid


def is_engine(pid: int) -> bool:
    try:
        return b"engines.subprocess" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return False


def check_attack(server: AttackedServer, case: HostileCase, *, streamed: bool) -> None:
    """Send a hostile value and check that the server responds as to any request."""
    sent = case.body('"stream":true,' if streamed else "")
    response = server.client.post(case.path, content=sent)
    assert response.status_code in (200, 400, 413), response.text
    if response.status_code in (400, 413):
        _check_error(response.json(), sent)
    elif streamed:
        for event in parse_events(response):
            if "error" in event:
                _check_error(event, sent)
    if case.kind == "schema" and case.name in REJECTED and case.field != "tools auto":
        assert response.status_code == 400


def _check_error(body: Any, sent: bytes) -> None:
    """Check an error object: it is complete and shows no internals."""
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None or isinstance(error["param"], str)
    assert 0 < len(error["message"]) < 1000
    for match in INTERNALS.findall(error["message"]):
        assert match.encode() in sent, error["message"]


def check_still_works(server: AttackedServer) -> None:
    """Check that the same server with the same engine still answers."""
    body = {"model": MODEL, "prompt": "One, two,", "max_tokens": 3}
    assert server.client.post(TEXT, json=body).json()["usage"]["completion_tokens"] == 3
    answer = request_answer(server, make_request("Say one.", 1, **make_schema_fields(SCHEMA)))
    assert find_schema_error(answer.content, SCHEMA) is None
    assert find_engine_pid(server.pid) == server.engine_pid
    page = server.client.get("/metrics").text
    for name in ("grammars_compiling", "grammars_waiting", "requests_running", "requests_waiting"):
        assert set(re.findall(rf"^dragoman_{name}\S* (\S+)$", page, re.MULTILINE)) == {"0.0"}
    restarts = re.findall(r"^dragoman_engine_restarts_total\S* (\S+)$", page, re.MULTILINE)
    assert set(restarts) <= {"0.0"}
