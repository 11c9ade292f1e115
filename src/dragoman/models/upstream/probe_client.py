"""Asks an upstream server about itself: small JSON requests, before its model is served.

The addresses come from the operator, so private ones are allowed. The API key is only ever put into
the header of a request. Calls block, so a loader makes them in a thread.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, quote

from msgspec import Struct

from dragoman.engines.remote.http.client import create_tls_context
from dragoman.engines.remote.settings import RemoteSettings, parse_url
from dragoman.errors import DragomanError, ModelBroken, Unavailable
from dragoman.types import Json

log = logging.getLogger("dragoman.upstream")

TIMEOUT = 10.0  # seconds
MAX_BYTES = 64 << 20
RETRY_AFTER = 5
PLAIN_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")  # no TLS there


class ProbeAnswer(Struct, frozen=True):
    """The status and the body of an answer; a body that is not JSON is None."""

    status: int
    body: Json = None
    server: str = ""  # its header `Server`

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    @property
    def fields(self) -> dict[str, Json]:
        """The body of an answer that succeeded, if it is a JSON object."""
        return self.body if self.is_ok and isinstance(self.body, dict) else {}

    @property
    def has_route(self) -> bool:
        """Whether the server knows the path; LM Studio answers 200 where it does not."""
        if self.status in (403, 404, 405, 501):
            return False
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return not (isinstance(error, str) and error.startswith("Unexpected endpoint"))


class ProbeClient:
    """Sends requests to one server, over one connection for each."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._parts = split_url(settings.url)
        try:
            self._key = settings.read_api_key()
        except ValueError as error:
            log.error("%s", error)  # with the path, which clients do not see
            place = (
                "key file of the upstream server (--upstream-key-file) must contain one key"
                if settings.api_key_file
                else "key of the upstream server (DRAGOMAN_UPSTREAM_KEY) must be one word"
            )
            raise ModelBroken(f"The {place}, of ASCII characters.") from None

    def get(self, path: str) -> ProbeAnswer:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> ProbeAnswer:
        return self._send("POST", path, json.dumps(body).encode())

    def _send(self, method: str, path: str, body: bytes | None) -> ProbeAnswer:
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        connection = self._make_connection()
        try:
            connection.request(method, self._parts.path + quote(path, safe="/?=&"), body, headers)
            response = connection.getresponse()
            content = response.read(MAX_BYTES)
            return ProbeAnswer(
                response.status, _parse_json(content), response.getheader("server") or ""
            )
        except ssl.SSLCertVerificationError as error:
            raise ModelBroken(
                f"The certificate of the upstream server is not trusted: {error.verify_message}. "
                "--upstream-ca names the authority that signed it."
            ) from None
        except (ssl.SSLError, http.client.BadStatusLine) as error:
            raise _make_scheme_error(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unavailable(
                f"The upstream server cannot be reached: {reason.rstrip('.')}.",
                retry_after=RETRY_AFTER,
            ) from None
        finally:
            connection.close()

    def _make_connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT)
        try:
            context = create_tls_context(self._settings.ca_file)
        except ValueError as error:
            log.error("%s", error)
            raise ModelBroken(
                "The certificates of --upstream-ca cannot be read: it must be a PEM file."
            ) from None
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)


def _make_scheme_error(error: ssl.SSLError | http.client.BadStatusLine) -> DragomanError:
    """Return the error of a server that speaks another protocol than its address says."""
    if isinstance(error, http.client.RemoteDisconnected):
        return Unavailable("The upstream server closes connections.", retry_after=RETRY_AFTER)
    if isinstance(error, http.client.BadStatusLine):
        return ModelBroken(
            "The upstream server does not speak HTTP; its address may begin with https://."
        )
    if error.reason in PLAIN_REASONS:
        return ModelBroken(
            "The upstream server does not speak TLS; its address may begin with http://."
        )
    return Unavailable(
        f"TLS with the upstream server fails: {error.reason or 'closed'}.", retry_after=RETRY_AFTER
    )


def split_url(url: str) -> SplitResult:
    """Split the URL of an upstream, without a slash or `/v1` at its end, or raise `ModelBroken`."""
    try:
        parts = parse_url(url)
    except ValueError as error:
        raise ModelBroken(f"`upstream`: {error}.") from None
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))


def _parse_json(content: bytes) -> Json:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def normalize_url(url: str) -> str:
    """Return the URL of an upstream as it is compared and used, or raise `ModelBroken`."""
    return split_url(url).geturl()
