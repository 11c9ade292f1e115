"""Keys under load and under attack: a reload loses nothing, and no key is ever shown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.keys.digests import format_hash
from tests.support.hostile_http import HANDSHAKE, HostileServer, make_path
from tests.support.hostile_samples import SAMPLES
from tests.support.logs import LogLines, collect_logs
from tests.support.server_process import ServerProcess, read_until
from tests.support.serving import make_chat, serve_scripted

SERVER = """
import sys, dragoman
from dragoman.testing import ScriptedEngine
dragoman.serve(ScriptedEngine("Hello there!"), name="scripted", port=0, config=sys.argv[1])
"""
CLIENTS, RELOADS = 6, 25
CHAT = "/v1/chat/completions"


@contextmanager
def run_scripted_server(config: Path, log: Path) -> Iterator[ServerProcess]:
    """Run a server in a process of its own; it logs to a file."""
    command = [sys.executable, "-c", SERVER, str(config)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield ServerProcess(process, read_until(process, r"Listening on (\S+)"))
        finally:
            process.terminate()
            process.communicate(timeout=30)


def write_config(file: Path, round_number: int) -> None:
    """Write other keys and limits each time; `steady` stays, and `leaving` goes half-way."""
    limits = {"requests_per_minute": 100_000 + round_number, "concurrent_requests": 50}
    entries: list[dict[str, Any]] = [
        {"name": "steady", "hash": format_hash("steady-key"), "limits": limits},
        {"name": f"other-{round_number}", "hash": format_hash(f"key {round_number}")},
    ]
    if round_number < RELOADS // 2:
        entries.append({"name": "leaving", "hash": format_hash("leaving-key")})
    tight = {"requests_per_minute": 1 if round_number == RELOADS else 100_000}
    entries.append({"name": "tight", "hash": format_hash("tight-key"), "limits": tight})
    content = {"keys": {"entries": entries}, "limits": {"queue": 100 + round_number}}
    other = file.with_suffix(".new")
    other.write_text(json.dumps(content))
    other.rename(file)


class LoadClient:
    """Sends requests with one key until it is stopped."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self.statuses: Counter[int] = Counter()
        self.last: list[int] = []
        self.incomplete = 0  # answers that do not end as they should

    async def run(self, stopped: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=30) as client:
            while not stopped.is_set():
                streamed = bool(self.statuses.total() % 2)
                body = make_chat(stream=streamed)
                answer = await client.post(CHAT, headers=self._headers, json=body)
                self.statuses[answer.status_code] += 1
                self.last.append(answer.status_code)
                end = "data: [DONE]\n\n" if streamed else "}"
                is_whole = '"finish_reason":"stop"' in answer.text and answer.text.endswith(end)
                self.incomplete += answer.status_code == 200 and not is_whole


def test_reload_of_keys_and_limits_under_load_loses_nothing(tmp_path: Path) -> None:
    config, log = tmp_path / "dragoman.yaml", tmp_path / "log"
    write_config(config, 0)

    async def load(server: ServerProcess) -> dict[str, list[LoadClient]]:
        stopped = asyncio.Event()
        clients = {
            key: [LoadClient(server.url, key) for _ in range(count)]
            for key, count in (("steady-key", CLIENTS), ("leaving-key", 1), ("tight-key", 1))
        }
        tasks = [
            asyncio.create_task(client.run(stopped))
            for group in clients.values()
            for client in group
        ]
        for number in range(1, RELOADS + 1):
            write_config(config, number)
            if number % 2 or number == RELOADS:
                server.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.05)
        deadline = time.monotonic() + 30
        last = (clients["leaving-key"][0].last, clients["tight-key"][0].last)
        while [statuses[-1] for statuses in last] != [401, 429]:
            assert time.monotonic() < deadline, [Counter(statuses) for statuses in last]
            await asyncio.sleep(0.05)
        stopped.set()
        await asyncio.gather(*tasks)
        return clients

    with run_scripted_server(config, log) as server:
        clients = asyncio.run(load(server))
        assert server.process.poll() is None
    steady = sum((client.statuses for client in clients["steady-key"]), Counter())
    assert set(steady) == {200}, steady
    for key, refusal in (("leaving-key", 401), ("tight-key", 429)):
        [client] = clients[key]
        assert set(client.statuses) == {200, refusal}
        first = client.last.index(refusal)
        assert set(client.last[first:]) == {refusal}  # once refused, always refused
    assert not sum(client.incomplete for group in clients.values() for client in group)
    text = log.read_text()
    assert "keys were read again: added other-" in text
    assert "settings reloaded; changed: key_entries, queue" in text
    assert not re.search("ERROR|Traceback|need a restart", text)
    print(f"{steady.total()} answers over {RELOADS} reloads: {dict(steady)}")


def test_a_broken_file_and_settings_that_need_a_restart_are_logged(tmp_path: Path) -> None:
    config, log = tmp_path / "dragoman.yaml", tmp_path / "log"
    entry = {"name": "ann", "hash": format_hash("ann-key")}
    config.write_text(json.dumps({"keys": {"entries": [entry]}}))
    with run_scripted_server(config, log) as server, httpx.Client(base_url=server.url) as client:

        def reload(content: str, expected: str) -> None:
            config.write_text(content)
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 20
            while expected not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.01)
            answer = client.get("/v1/models", headers={"x-api-key": "ann-key"})
            assert answer.status_code == 200

        reload("keys:\n  entries:\n  - nam: x\n", f"{config}:3: there is no option `nam`.")
        reload("limits:\n  queu: 3\n", f"{config}:2: there is no setting `queu` in `limits`.")
        content = {
            "keys": {"entries": [entry]},
            "server": {"any_model": True},
            "logging": {"level": "debug"},
        }
        reload(json.dumps(content), "these settings need a restart: any_model")
        assert "changed: log_level" in log.read_text()
        content["limits"] = {"body_limit": 100}
        reload(json.dumps(content), "changed: body_limit")
        answer = client.post(CHAT, headers={"x-api-key": "ann-key"}, json=make_chat("x" * 200))
        assert answer.status_code == 413
        client.get("/health/live")  # logged at level debug
    assert " DEBUG " in log.read_text()  # the new level is in effect


def test_closing_its_terminal_stops_the_server(tmp_path: Path) -> None:
    config = tmp_path / "dragoman.yaml"
    config.write_text("limits: {queue: 5}")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", SERVER, str(config)])  # noqa: S606
    output = b""
    while b"Serving" not in output:
        output += os.read(terminal, 4096)
    config.write_text("limits: {queue: 6}")
    os.kill(pid, signal.SIGHUP)  # the terminal is there: a reload
    while b"changed: queue" not in output:
        output += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitpid(pid, 0)[0] == pid


CANARY = "sk-canary-7f3a9c51e2"


@contextmanager
def collect_all_logs() -> Iterator[LogLines]:
    """Collect the lines of all loggers of the process, those of libraries too, at level debug."""
    root, level = logging.getLogger(), logging.getLogger().level
    with collect_logs(level=logging.DEBUG) as logs:
        root.addHandler(logs)
        root.setLevel(logging.DEBUG)
        try:
            yield logs
        finally:
            root.removeHandler(logs)
            root.setLevel(level)


def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    """Valid, wrong, expired and misplaced keys appear in no log, metric, audit line or answer."""
    audit = tmp_path / "audit.jsonl"
    entries = [
        {"name": "ann", "key": f"{CANARY}-ann", "limits": {"requests_per_minute": 200}},
        {"name": "old", "key": f"{CANARY}-old", "expires": "2020-01-01"},
        {"name": "boss", "key": f"{CANARY}-boss", "admin": True},
    ]
    options: dict[str, Any] = {
        "api_key": (f"{CANARY}-plain",),
        "key_entries": entries,
        "audit_log": str(audit),
        "store": "sqlite://",
    }
    with collect_all_logs() as logs, serve_scripted(**options) as running:
        server = HostileServer(running)
        bodies = []
        for key in ("ann", "old", "boss", "plain", "wrong"):
            for name in ("authorization", "x-api-key"):
                value = f"Bearer {CANARY}-{key}" if name == "authorization" else f"{CANARY}-{key}"
                for route in server.routes:
                    headers = [(name, value)]
                    method = route.method
                    if method == "WEBSOCKET":
                        method, headers = "GET", [*HANDSHAKE.items(), *headers]
                    body = (
                        json.dumps(SAMPLES.get(route.path, {})).encode()
                        if method == "POST"
                        else b""
                    )
                    answer = server.send_raw(
                        method, make_path(route), headers, body, allowed=(500, 501)
                    )
                    bodies.append(answer.body.decode() + str(answer.headers))
        for misplaced in ("cookie", "api-key", "x-request-id", "anthropic-version"):
            answer = server.send_raw("GET", "/v1/models", [(misplaced, f"{CANARY}!")])
            bodies.append(answer.body.decode())
        answer = server.send_raw("GET", f"/v1/models?key={CANARY}", [])
        bodies.append(answer.body.decode())
        metrics = server.send_raw("GET", "/metrics", [("x-api-key", f"{CANARY}-boss")])
        server.client.close()
    shown = {
        "answers": "\n".join(bodies),
        "log": "\n".join(logs.lines),
        "metrics": metrics.body.decode(),
        "audit": audit.read_text(),
    }
    assert all(shown.values())
    assert [place for place, text in shown.items() if CANARY in text] == []
    assert len(bodies) > 300


@pytest.mark.parametrize("form", ["entries", "file", "yaml file", "api"])
def test_a_mistake_in_the_configuration_shows_no_key(tmp_path: Path, form: str) -> None:
    config, file = tmp_path / "dragoman.yaml", tmp_path / "keys.yaml"
    file.write_text(f"entries:\n  - {{name: a, key: {CANARY}, rout: [chat]}}\n")
    config.write_text(
        {
            "entries": f"keys: {{entries: [{{name: a, key: {CANARY}, hash: {CANARY}}}]}}",
            "file": f"keys: {{file: {CANARY}}}\nkey: {CANARY}",
            "yaml file": f"keys: {{file: {file}}}",
            "api": f"keys: {{api: {{a: {CANARY}}}}}",
        }[form]
    )
    command = [sys.executable, "-c", SERVER, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    assert ".yaml:" in lines[-1] or form == "file", lines[-1]
    if form != "file":
        assert CANARY not in lines[-1]
