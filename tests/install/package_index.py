"""A package index at the address of another one: a proxy that answers for its host itself.

pip and uv reach it through `https_proxy`, and trust it because of an authority of our own. No other
host can be reached through the proxy.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.certificates import Authority


class PackageIndex:
    """Wheels in one directory, listed at a URL as pip expects it, with the requests for them."""

    def __init__(self, url: str, wheels: Path, directory: Path) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host, self.base = parts.hostname, parts.path.rstrip("/")
        self.wheels = {path.name: path for path in wheels.glob("*.whl")}
        self.requests: list[str] = []
        self.authority = Authority(directory)
        files = self.authority.issue(self.host)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.cert, files.key)

    def read(self, path: str) -> bytes | None:
        """Return the page or the file at a path."""
        self.requests.append(path)
        folder, _, name = unquote(path).rpartition("/")
        if not name and folder.startswith(f"{self.base}/"):
            project = folder.rpartition("/")[2]
            links = (
                f'<a href="../{each}">{each}</a>'
                for each in self.wheels
                if each.startswith(f"{project}-")
            )
            return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        if folder == self.base and name in self.wheels:
            return self.wheels[name].read_bytes()
        return None


class ProxyHandler(BaseHTTPRequestHandler):
    """Opens a tunnel to the host of the index, and is the server at its end."""

    protocol_version = "HTTP/1.1"

    def __init__(self, index: PackageIndex, *arguments: Any) -> None:
        self.index = index
        super().__init__(*arguments)

    def log_message(self, *_: object) -> None: ...

    def do_CONNECT(self) -> None:
        if self.path != f"{self.index.host}:443":
            self.send_error(403)
            return
        self.send_response(200)
        self.end_headers()
        self.connection = self.index.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body = self.index.read(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        is_page = self.path.endswith("/")
        self.send_header("Content-Type", "text/html" if is_page else "application/zip")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if body is not None and self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serve_index(index: PackageIndex) -> Iterator[dict[str, str]]:
    """Serve an index; yield the variables that lead pip and uv to it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(ProxyHandler, index)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            authority = str(index.authority.file)
            yield {
                "https_proxy": f"http://127.0.0.1:{server.server_port}",
                "PIP_CERT": authority,
                "SSL_CERT_FILE": authority,
                "REQUESTS_CA_BUNDLE": authority,
            }
        finally:
            server.shutdown()
            thread.join()
