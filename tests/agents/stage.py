"""A place for an agent to work in: a home of its own, a directory with a note, and no network.

Everything an agent asks for beyond this machine goes to a proxy that refuses it and remembers what
was asked for. Agents inherit nothing from the developer's environment but the search path.
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


class Done(NamedTuple):
    """How an agent ended, what it said, and which hosts it tried to reach."""

    code: int
    out: str
    errors: str
    strayed: list[str]


class Stage:
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
        """A file in the home."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], limit: float = 120
    ) -> Done:
        """Let an agent work, by the name of its program. Whatever it started ends with it."""
        with refusing() as (proxy, strayed):
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
                out, errors = agent.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)  # the program is often only a starter
                out, errors = agent.communicate()
                raise AssertionError(f"not done after {limit} s: {out}{errors}") from None
        return Done(agent.returncode, out, errors, strayed)

    def _environment(self, proxy: str) -> dict[str, str]:
        here = "127.0.0.1,localhost"
        proxies = ("http_proxy", "https_proxy", "all_proxy")
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "TERM": "dumb",
            "NO_PROXY": here,
            "no_proxy": here,
            **dict.fromkeys(proxies, proxy),
            **dict.fromkeys([name.upper() for name in proxies], proxy),
        }


@contextmanager
def refusing() -> Iterator[tuple[str, list[str]]]:
    """A proxy that lets nobody through, and what was asked of it."""
    asked: list[str] = []

    class Refusal(StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline(4096).decode("latin-1").strip())
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Refusal) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="refusing")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
