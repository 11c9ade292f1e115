"""A new process takes over the listening socket of a server: no request fails meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import Authority
from tests.support.server_process import (
    list_listening_addresses,
    read_until,
    run_engine_server,
    run_server,
)
from tests.support.serving import make_chat, poll_until

pytestmark = pytest.mark.slow

CHAT = "/v1/chat/completions"
CLOSE = {"connection": "close"}
SERVED = 't.ScriptedEngine([t.Reply("slow " * 60, when="slow"), t.Reply("a b c")], pace=0.02), '
IS_SUCCESSOR = "('DRAGOMAN_HANDOVER' in os.environ)"
OPTIONS = 'name="scripted", port=0, drain=20'


class Load:
    """Clients that send requests until they are stopped, and count how these end."""

    def __init__(self, url: str, model: str = "scripted") -> None:
        self._url = url
        self._model = model
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(keeps_alive, streamed))
            for keeps_alive in (True, False)
            for streamed in (True, False)
        ]
        self.succeeded = 0
        self.failures: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for(self, count: int) -> None:
        """Wait for this many further requests."""
        goal = self.succeeded + count
        poll_until(lambda: self.succeeded >= goal or bool(self.failures))

    def _run(self, keeps_alive: bool, streamed: bool) -> None:
        headers = {} if keeps_alive else CLOSE
        body = make_chat(stream=streamed, model=self._model, max_tokens=4)
        with httpx.Client(base_url=self._url, headers=headers, timeout=60) as client:
            while not self._stopping.is_set():
                try:
                    response = client.post(CHAT, json=body)
                    is_whole = response.status_code == 200 and (
                        not streamed or response.text.endswith("data: [DONE]\n\n")
                    )
                    problem = "" if is_whole else f"{response.status_code} {response.text}"
                except httpx.HTTPError as error:
                    problem = repr(error)
                if problem:
                    self.failures.append(problem)
                else:
                    self.succeeded += 1


@contextmanager
def upgrade(process: subprocess.Popen[str], pid: int | None = None) -> Iterator[int]:
    """Tell a server to upgrade; the process that takes over ends with the block."""
    os.kill(pid or process.pid, signal.SIGUSR2)
    successor = int(read_until(process, r"upgrading: process (\d+) is loading"))
    try:
        yield successor
    finally:
        with suppress(ProcessLookupError):
            os.kill(successor, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has exited and was not waited for does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_no_request_fails_while_another_process_takes_over() -> None:
    with (
        run_engine_server(SERVED + OPTIONS) as server,
        httpx.Client(base_url=server.url, headers=CLOSE, timeout=60) as client,
        Load(server.url) as load,
    ):
        load.wait_for(20)
        slow = make_chat("slow", stream=True)
        with client.stream("POST", CHAT, json=slow) as response, upgrade(server.process) as second:
            lines = response.iter_lines()
            next(lines)
            read_until(server.process, "a new process has taken over")
            # the stream that the first process has continues, and new requests are served
            load.wait_for(20)
            assert "data: [DONE]" in list(lines)
            assert server.process.wait(60) == 0  # its clients have connected to the other one
            load.wait_for(20)
            assert len(list_listening_addresses(second)) == 1
            with upgrade(server.process, second) as third:  # once more
                read_until(server.process, "a new process has taken over")
                poll_until(lambda: not is_running(second))
                load.wait_for(20)
                load.__exit__()
                os.kill(third, signal.SIGTERM)
                poll_until(lambda: not is_running(third))
    assert load.failures == []


def test_connection_that_is_being_opened_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, context = authority.issue("server"), ssl.create_default_context(cafile=authority.file)
    tls = f", tls_cert={str(files.cert)!r}, tls_key={str(files.key)!r}"
    with run_engine_server(SERVED + OPTIONS + tls) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        address = "127.0.0.1", int(server.url.rsplit(":", 1)[1])
        with socket.create_connection(address, timeout=60) as connection:
            # accepted after that connection, which has not begun its handshake
            assert httpx.get(f"{url}/health/live", verify=context).status_code == 200
            with upgrade(server.process) as second:
                read_until(server.process, "a new process has taken over")
                with context.wrap_socket(connection, server_hostname="localhost") as wrapped:
                    wrapped.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert wrapped.recv(65536).startswith(b"HTTP/1.1 200 ")
                assert server.process.wait(60) == 0
                os.kill(second, signal.SIGTERM)
                poll_until(lambda: not is_running(second))


def test_failed_upgrade_changes_nothing() -> None:
    """The program fails in the process that would take over, as with a mistake in its settings."""
    fails = f"{IS_SUCCESSOR} and sys.exit('no such model') or "
    with run_engine_server(fails + SERVED + OPTIONS) as server:
        for _ in range(2):  # and it can be tried again
            with upgrade(server.process):
                read_until(server.process, "the upgrade failed, see above; this process continues")
            assert httpx.post(server.url + CHAT, json=make_chat()).status_code == 200


def test_stopping_a_server_stops_the_process_that_would_take_over() -> None:
    waits = f"{IS_SUCCESSOR} and time.sleep(600) or "
    with run_engine_server(waits + SERVED + OPTIONS) as server, upgrade(server.process) as second:
        os.kill(server.process.pid, signal.SIGUSR2)
        read_until(server.process, "SIGUSR2 has no effect")
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
        poll_until(lambda: not is_running(second))


@pytest.mark.real_model
def test_model_is_loaded_before_a_process_takes_over(default_model: Path) -> None:
    with run_server(str(default_model), "--threads", "1", "--context", "512") as server:
        process = server.process
        model = read_until(process, r"Serving (\S+)\. Press")
        with Load(server.url, model) as load, upgrade(process) as second:
            assert read_until(process, rf"Serving {model}\. Press|Listening on").startswith("Serv")
            read_until(process, "a new process has taken over")
            assert process.wait(60) == 0
            load.wait_for(8)
            load.__exit__()
            os.kill(second, signal.SIGTERM)
            poll_until(lambda: not is_running(second))
        assert load.failures == []


# Sockets of systemd


# Starts a command with a listening socket, and with the variables that name it.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def activate(
    listening: socket.socket, options: str, notify: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Start a server as systemd does, with a socket that listens already."""
    program = f"import dragoman, dragoman.testing as t; dragoman.serve({SERVED}{options})"
    with subprocess.Popen(
        [sys.executable, "-c", ACTIVATE, str(listening.fileno()), sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[listening.fileno()],
        env=os.environ | ({"NOTIFY_SOCKET": notify} if notify else {}),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_socket_of_systemd_is_served_and_systemd_is_told(tmp_path: Path) -> None:
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with socket.create_server(("127.0.0.1", 0)) as listening, notifications:
        notifications.bind(str(tmp_path / "notify"))
        notifications.settimeout(60)
        port = listening.getsockname()[1]
        options = f'name="scripted", port={port}'
        with activate(listening, options, str(tmp_path / "notify")) as process:
            # a connection that was made before the server runs waits for it
            response = httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=make_chat(), timeout=60)
            assert response.status_code == 200
            assert notifications.recv(1000) == b"READY=1"
            read_until(process, "Press Ctrl-C")
            with upgrade(process) as second:
                received = {notifications.recv(1000), notifications.recv(1000)}
                assert received == {b"READY=1", f"MAINPID={second}".encode()}
                assert process.wait(60) == 0
                os.kill(second, signal.SIGTERM)
                assert notifications.recv(1000) == b"STOPPING=1"


def test_socket_of_another_address_is_refused() -> None:
    """A server that believes to be on localhost would let everyone in on another address."""
    with (
        socket.create_server(("0.0.0.0", 0)) as listening,
        activate(listening, f'name="scripted", port={listening.getsockname()[1]}') as process,
    ):
        read_until(process, r"not that of `host` 127.0.0.1 and `port`")
        assert process.wait(60) != 0
