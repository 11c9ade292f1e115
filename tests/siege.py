"""A server under hostile requests: somebody who asks whether it lives, and what answers must be."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import httpx

from tests.hostile import MODEL, TEXT, Case
from tests.real import answer, asking, fault, shape
from tests.serving import Running, events

# what a message may not hold, unless its reader sent it
INTERNALS = re.compile(
    r"llguidance|pyo3|xllamacpp|llama\.cpp|msgspec|jinja|derivre|earley|dragoman|traceback|panick"
    r"|site-packages|\.py\b|\.rs\b|0x[0-9a-f]{5}|\w+Error\b|\w+Exception\b|object at|/usr/|/root/"
)
REFUSED = ("http", "a file", "metadata", "a relative one", "itself", "each other", "100000 arrays")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}


class Watcher:
    """Asks whether the server lives, over and over, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.failures: list[str] = []
        self.latencies: list[float] = []
        self._url = f"{url}/health/live"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._over.wait(0.01):
                self._ask(client)

    def _ask(self, client: httpx.Client) -> None:
        begun = time.perf_counter()
        try:
            status = client.get(self._url).status_code
            if status != 200:
                self.failures.append(str(status))
        except httpx.HTTPError as error:
            self.failures.append(repr(error))
        self.latencies.append(time.perf_counter() - begun)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        worst = max(self.latencies, default=0.0)
        print(f"\n/health/live: {len(self.latencies)} times, at most {worst * 1000:.1f} ms")


def engine_of(server: Running) -> Any:
    return next(iter(server.app.models.loaded())).engine


def attack(client: httpx.Client, case: Case, *, streamed: bool) -> None:
    """Send a hostile value, and see that it is answered as any request is."""
    sent = case.body('"stream":true,' if streamed else "")
    response = client.post(case.path, content=sent)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        _check_error(response.json(), sent)
    elif streamed:
        for event in events(response):
            if "error" in event:
                _check_error(event, sent)
    if case.kind == "schema" and case.name in REFUSED and case.field != "tools auto":
        assert response.status_code == 400


def _check_error(body: Any, sent: bytes) -> None:
    """An error object for a person, with nothing in it that is ours alone."""
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None or isinstance(error["param"], str)
    assert 0 < len(error["message"]) < 1000
    for found in INTERNALS.findall(error["message"]):
        assert found.encode() in sent, error["message"]


def check_unharmed(client: httpx.Client, server: Running, watcher: Watcher, pid: int) -> None:
    """It is the same server with the same engine, and answers."""
    said = {"model": MODEL, "prompt": "One, two,", "max_tokens": 3}
    assert client.post(TEXT, json=said).json()["usage"]["completion_tokens"] == 3
    found = answer(server, asking("Say one.", 1, **shape(SCHEMA)))
    assert fault(found.content, SCHEMA) is None
    assert engine_of(server).pid == pid
    assert engine_of(server).restarts == 0
    stats = server.app.models.workshop.stats
    assert (stats.working, stats.waiting) == (0, 0)
    assert watcher.failures == []
    assert watcher.latencies
