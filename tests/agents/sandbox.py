"""A sandbox for an agent: a home directory, a working directory with a note, and no network.

Requests to other machines go to a proxy that blocks and records them. Agents inherit nothing from
the developer's environment but the search path.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import NamedTuple

BINARIES = Path(__file__).parent.parent.parent / ".agents" / "node_modules" / ".bin"
TASK = "There is a note in this directory. Find it, read it, and tell me the marker in it."
GREETING = "Say hello."


class AgentResult(NamedTuple):
    """How an agent ended, its output, and its requests to other machines."""

    exit_code: int
    output: str
    errors: str
    blocked_requests: list[str]


class AgentSandbox:
    """Directories of one run, below a temporary one."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.work = root / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.marker = f"marker-{secrets.token_hex(8)}"
        self.note = self.work / f"note-{secrets.token_hex(4)}.txt"
        self.note.write_text(f"Remember this: {self.marker}\n")
        (self.work / "README").write_text("Nothing of interest.\n")

    def write(self, path: str, text: str) -> Path:
        """Write a file in the home directory."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout: float = 120
    ) -> AgentResult:
        """Run an agent by the name of its program."""
        with run_blocking_proxy() as (proxy, blocked_requests):
            agent = subprocess.Popen(
                [str(BINARIES / command[0]), *command[1:]],
                cwd=self.work,
                env=self._environment(proxy) | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                out, errors = agent.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)  # the program is often only a launcher
                out, errors = agent.communicate()
                raise AssertionError(f"not done after {timeout} s: {out}{errors}") from None
        return AgentResult(agent.returncode, out, errors, blocked_requests)

    def _environment(self, proxy: str) -> dict[str, str]:
        local = "127.0.0.1,localhost"
        proxies = ("http_proxy", "https_proxy", "all_proxy")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "TERM": "dumb",
            "NO_PROXY": local,
            "no_proxy": local,
            **dict.fromkeys(proxies, proxy),
            **dict.fromkeys([name.upper() for name in proxies], proxy),
        }


@contextmanager
def run_blocking_proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that blocks all requests; yields its URL and the list of requests."""
    requests: list[str] = []

    class BlockingHandler(StreamRequestHandler):
        def handle(self) -> None:
            requests.append(self.rfile.readline(4096).decode("latin-1").strip())
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), BlockingHandler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="blocking-proxy")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()
