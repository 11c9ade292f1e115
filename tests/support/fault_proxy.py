"""A TCP proxy that damages what a server answers, as a bad network does.

It passes everything on until a request contains the trigger. From then on, the fault applies to
what the server sends back on that connection: it is cut, reset, stalled, dripped or garbled.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

Fault: TypeAlias = Literal["cut", "reset", "stall", "drip", "garbage", "none"]
DRIP_SECONDS = 0.2  # between two bytes
TIMEOUT = 30.0


class FaultProxy:
    """Listens on a port and passes connections on to another one of this machine."""

    def __init__(self, target: int, fault: Fault, trigger: bytes, passed: int = 0) -> None:
        """`passed`: how many bytes of the damaged response still pass."""
        self.fault = fault
        self.triggered = 0  # how many requests contained the trigger
        self._target = target
        self._trigger = trigger
        self._passed = passed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    def start(self) -> None:
        self._threads[0].start()

    def stop(self) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            is_triggered = threading.Event()
            pair = (client, server, is_triggered)
            self._threads += [
                threading.Thread(target=self._pass_requests, args=pair),
                threading.Thread(target=self._pass_responses, args=pair),
            ]
            for connection in (client, server):
                connection.settimeout(0.2)
            for thread in self._threads[-2:]:
                thread.start()

    def _read(self, connection: socket.socket) -> Iterator[bytes]:
        while not self._stopped.is_set():
            try:
                data = connection.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            yield data

    def _pass_requests(
        self, client: socket.socket, server: socket.socket, is_triggered: threading.Event
    ) -> None:
        for data in self._read(client):
            if self._trigger in data:
                self.triggered += 1
                is_triggered.set()
            with suppress(OSError):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _pass_responses(
        self, client: socket.socket, server: socket.socket, is_triggered: threading.Event
    ) -> None:
        with client, server, suppress(OSError):
            for data in self._read(server):
                if is_triggered.is_set() and self.fault != "none":
                    self._damage(client, data)
                    return
                client.sendall(data)

    def _damage(self, client: socket.socket, data: bytes) -> None:
        if self._passed:
            client.sendall(data[: self._passed])
        match self.fault:
            case "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case "stall":
                self._stopped.wait(TIMEOUT)
            case "drip":
                for byte in data[self._passed :]:
                    client.sendall(bytes([byte]))
                    if self._stopped.wait(DRIP_SECONDS):
                        return
            case "garbage":
                client.sendall(bytes(255 - byte for byte in data[self._passed :]))


@contextmanager
def run_proxy(target: int, fault: Fault, trigger: bytes, passed: int = 0) -> Iterator[FaultProxy]:
    proxy = FaultProxy(target, fault, trigger, passed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
