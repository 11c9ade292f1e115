"""Servers on loopback in the place of services on other machines: Hugging Face, a collector."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 40
REPO_PATH = re.compile(r"/api/models/(?P<name>[^/]+/[^/?]+)(?P<rest>.*)")
HUB_ERRORS = {"missing": (404, "RepoNotFound"), "gated": (403, "GatedRepo")}


class HubHandler(BaseHTTPRequestHandler):
    """Answers as huggingface.co does, as far as the library asks; all repositories are alike."""

    protocol_version = "HTTP/1.1"

    def __init__(self, files: Mapping[str, bytes], *arguments: Any) -> None:
        self.files = files
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        for wrong, (status, code) in HUB_ERRORS.items():
            if f"owner/{wrong}" in self.path:
                self.answer(b"", status, {"X-Error-Code": code, "X-Error-Message": code})
                return
        name = self.path.rpartition("/")[2]
        repo = REPO_PATH.match(self.path)
        if repo and repo["rest"].startswith("/tree/"):
            tree = [
                {"type": "file", "path": file, "size": len(data), "oid": f"{zlib.crc32(data):x}"}
                for file, data in self.files.items()
            ]
            self.answer(json.dumps(tree).encode(), 200, {"Content-Type": "application/json"})
        elif repo:
            files = [{"rfilename": file} for file in self.files]
            body = {"id": repo["name"], "sha": COMMIT, "siblings": files}
            self.answer(json.dumps(body).encode(), 200, {"Content-Type": "application/json"})
        elif name in self.files:
            etag = f'"{hashlib.sha256(self.files[name]).hexdigest()}"'  # as of every large file
            self.answer(self.files[name], 200, {"X-Repo-Commit": COMMIT, "ETag": etag})
        else:
            self.answer(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class BreakingHubHandler(HubHandler):
    """A hub whose downloads break off while its list of `limits` has entries, and go on after it.

    Each entry is the number of bytes that one request gets. `ranges` are those that were asked for.
    """

    def __init__(
        self, files: Mapping[str, bytes], limits: list[int], ranges: list[str], *arguments: Any
    ) -> None:
        self.limits, self.ranges = limits, ranges
        super().__init__(files, *arguments)

    def answer(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        if self.command == "HEAD" or "ETag" not in headers:
            super().answer(body, status, headers)
            return
        wanted = self.headers.get("Range", "bytes=0-")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start >= len(body):
            super().answer(b"", 416, {})
            return
        self.send_response(206 if start else 200)
        place = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        for name, value in (headers | place | {"Content-Length": str(len(body) - start)}).items():
            self.send_header(name, value)
        self.end_headers()
        end = start + self.limits.pop(0) if self.limits else len(body)
        self.wfile.write(body[start:end])
        self.close_connection = True


class CollectorHandler(BaseHTTPRequestHandler):
    """Receives spans as an OTLP collector does."""

    def __init__(self, received: list[tuple[str, bytes]], *arguments: Any) -> None:
        self.received = received
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()


@contextmanager
def serve_hub(files: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Run a hub with these files; yield the variables that lead the library to it."""
    with serve_handler(partial(HubHandler, files)) as url:
        yield {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serve_breaking_hub(
    files: Mapping[str, bytes], limits: list[int], ranges: list[str]
) -> Iterator[dict[str, str]]:
    """Run a hub whose downloads break off, see `BreakingHubHandler`."""
    with serve_handler(partial(BreakingHubHandler, files, limits, ranges)) as url:
        yield {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serve_collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Run a collector; yield its URL and the list of paths and bodies that it receives."""
    received: list[tuple[str, bytes]] = []
    with serve_handler(partial(CollectorHandler, received)) as url:
        yield url, received


@contextmanager
def serve_handler(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
