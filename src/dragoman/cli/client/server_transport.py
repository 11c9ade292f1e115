"""Requests to a running server over HTTP.

Each request has a connection of its own, because closing the connection is what cancels a request.

The certificate of an HTTPS server is verified as usual. The server of this machine, which commands
use without a URL, must show the certificate of `--tls-cert`, whatever host it names.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from msgspec import Struct

from dragoman.cli.client.transport import RequestFailed, split_lines
from dragoman.options import mask_password

CONNECT_TIMEOUT = 5.0
PROBE_TIMEOUT = 2.0
CHUNK = 1 << 16
PEM_START, PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def speaks_no_tls(error: OSError) -> bool:
    """Whether the error of a handshake says that the server answers without TLS."""
    from dragoman.models.upstream.probe_client import PLAIN_REASONS  # only mistakes need it

    return isinstance(error, ssl.SSLError) and getattr(error, "reason", None) in PLAIN_REASONS


class ServerResponse:
    """A response of a running server."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.getheaders()]

    def read(self) -> bytes:
        return b"".join(self._read_chunks())

    def read_lines(self) -> Iterator[bytes]:
        return split_lines(self._read_chunks())

    def _read_chunks(self) -> Iterator[bytes]:
        try:
            while chunk := self._response.read1(CHUNK):
                yield chunk
        except (OSError, http.client.HTTPException):
            raise RequestFailed("The server closed the connection.") from None
        finally:
            self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class ClientTls(Struct, frozen=True):
    """Files for connections to an HTTPS server; each is the path of a PEM file, or empty."""

    ca_file: str = ""  # authorities to trust
    cert: str = ""  # of this client
    key: str = ""
    server_cert: str = ""  # the only certificate to accept

    def make_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # with those of TLS
            reason = getattr(error, "reason", None) or error.strerror or error
            message = f"Cannot use the files of --ca-file, --client-cert, --client-key: {reason}."
            raise RequestFailed(message) from None
        if self.server_cert:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def check(self, connection: ssl.SSLSocket) -> None:
        """Check what the context does not: that the server shows one given certificate."""
        if not self.server_cert:
            return
        with open(self.server_cert, encoding="ascii") as file:
            first, end, _ = file.read().partition(PEM_END)
        own = ssl.PEM_cert_to_DER_cert(first[first.index(PEM_START) :] + end)
        if connection.getpeercert(binary_form=True) != own:
            raise ssl.SSLError("its certificate is not that of --tls-cert")


SYSTEM_TRUST = ClientTls()


class ServerTransport:
    """Sends requests to the server at a URL."""

    def __init__(self, url: str, key: str | None = None, tls: ClientTls = SYSTEM_TRUST) -> None:
        address = url if "://" in url else f"http://{url}"
        self.address = mask_password(address)  # for messages
        self._key = key
        self._tls = tls
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host:
            shown = mask_password(url)
            raise RequestFailed(
                f"{shown!r} is not the URL of a server, like http://127.0.0.1:8000."
            )
        self._is_secure = parts.scheme == "https"
        self._host, self._port = host, port
        self._prefix = parts.path.rstrip("/")

    def is_dragoman(self) -> bool:
        """Whether the server identifies itself as ours."""
        response = self._send("GET", "/", None, PROBE_TIMEOUT)
        try:
            return bool(json.loads(response.read()).get("object") == "dragoman")
        except (ValueError, AttributeError):
            return False

    def send(self, method: str, path: str, body: bytes | None = None) -> ServerResponse:
        # An answer may take long; Ctrl-C ends the wait.
        return self._send(method, path, body, None)

    def _send(
        self, method: str, path: str, body: bytes | None, timeout: float | None
    ) -> ServerResponse:
        headers = {"accept": "application/json, text/event-stream"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        connection = self._connect()
        connection.sock.settimeout(timeout)
        try:
            connection.request(method, self._prefix + quote(path), body, headers)
            return ServerResponse(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            message = f"No answer from the server at {self.address}: {error}."
            raise RequestFailed(message) from None
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_TIMEOUT, context=self._tls.make_context()
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT)
        try:
            connection.connect()
            if isinstance(connection.sock, ssl.SSLSocket):
                self._tls.check(connection.sock)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise RequestFailed(
                f"The certificate of the server at {self.address} is not trusted: "
                f"{error.verify_message}. --ca-file names the authority that signed it."
            ) from None
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error)
            if speaks_no_tls(error):
                raise RequestFailed(
                    f"The server at {self.address} does not speak TLS; its address may begin with "
                    "http://."
                ) from None
            raise RequestFailed(f"Cannot reach a server at {self.address}: {reason}.") from None
        return connection

    def close(self) -> None:
        """Nothing stays open between requests."""
