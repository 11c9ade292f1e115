"""The certificate that a server shows, and the TLS it speaks.

TLS 1.2 and 1.3, with ciphers that have forward secrecy and authenticate what they encrypt. There is
no compression and no renegotiation. With a client CA, only clients with a certificate that it
signed get through the handshake.

The files are read again when they change, and on SIGHUP. Connections that are open keep what they
negotiated, and new ones get the new certificate. Files that cannot be used, such as a certificate
that was replaced before its key, leave the previous certificate in place.

A certificate is tried out when it is loaded: a handshake in memory shows whether a client can use
it, and until when it is valid.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from contextlib import suppress
from typing import NoReturn

from dragoman.config import Settings
from dragoman.runtime import StartupError

log = logging.getLogger("dragoman.tls")
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all as good
OPTIONS = (
    ssl.OP_NO_COMPRESSION
    | ssl.OP_NO_RENEGOTIATION
    | ssl.OP_CIPHER_SERVER_PREFERENCE
    | ssl.OP_SINGLE_ECDH_USE
)
EXPIRES_SOON = 14 * 24 * 3600.0  # seconds
EXPIRED, NOT_YET_VALID = 10, 9  # OpenSSL's codes for why a certificate is not accepted


class TlsError(StartupError):
    """A certificate or key cannot be used; the message says which, and what to do."""


class TlsCertificate:
    """The TLS context of a server, renewed when its files change."""

    def __init__(self, settings: Settings) -> None:
        self._cert = settings.tls_cert
        self._key = settings.tls_key or settings.tls_cert
        self._client_ca = settings.tls_client_ca
        self._stamp = self._read_stamp()
        self.context = self._load()

    def refresh(self, *, is_forced: bool = False) -> None:
        """Load the files again if they have changed; keep what was loaded if that fails."""
        stamp = self._read_stamp()
        if stamp == self._stamp and not is_forced:
            return
        self._stamp = stamp
        try:
            self.context = self._load()
        except TlsError as error:
            log.error("keeping the previous certificate: %s", error)
        else:
            log.info("loaded the certificate %s", self._cert)

    def _read_stamp(self) -> list[tuple[int, int, int]]:
        stamp = []
        for path in filter(None, (self._cert, self._key, self._client_ca)):
            with suppress(OSError):
                status = os.stat(path)
                stamp.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return stamp

    def _load(self) -> ssl.SSLContext:
        _check_readable("--tls-cert", self._cert)
        _check_readable("--tls-key", self._key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= OPTIONS
        context.set_ciphers(CIPHERS)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, self._refuse_password)
        except ssl.SSLError as error:
            raise TlsError(self._explain(error)) from None
        if self._client_ca:
            _check_readable("--tls-client-ca", self._client_ca)
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError:
                message = f"--tls-client-ca: {self._client_ca!r} contains no PEM certificate."
                raise TlsError(message) from None
            context.verify_mode = ssl.CERT_REQUIRED
        if problem := find_problem(context, self._cert):
            log.warning("the certificate %s %s", self._cert, problem)
        return context

    def _refuse_password(self) -> NoReturn:
        raise TlsError(
            f"--tls-key: the key in {self._key!r} is encrypted. Decrypt it with "
            f"`openssl pkey -in {self._key} -out KEY`, and let only the server read KEY."
        )

    def _explain(self, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return (
                f"--tls-key: the key in {self._key!r} does not belong to the certificate in "
                f"{self._cert!r}."
            )
        if error.reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"):
            return f"--tls-cert: the certificate in {self._cert!r} is too weak for today's clients."
        if not _contains_pem(self._cert, "CERTIFICATE"):
            return f"--tls-cert: {self._cert!r} contains no PEM certificate."
        if not _contains_pem(self._key, "PRIVATE KEY"):
            return f"--tls-key: {self._key!r} contains no PEM private key."
        return f"--tls-cert: cannot load {self._cert!r} with the key {self._key!r}: {error.reason}."


def make_certificate(settings: Settings) -> TlsCertificate | None:
    """Load what `--tls-cert` names; None serves plain HTTP. Raises `StartupError`."""
    if settings.tls_cert:
        return TlsCertificate(settings)
    for name in ("tls_key", "tls_client_ca"):
        if getattr(settings, name):
            raise TlsError(f"--{name.replace('_', '-')} needs a certificate: set --tls-cert.")
    return None


def find_problem(context: ssl.SSLContext, certificate: str) -> str | None:
    """Say why clients will not accept a certificate, now or soon; who signed it is not checked."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    try:
        expiry = _read_expiry(context, client)
    except ssl.SSLCertVerificationError as error:
        problems = {EXPIRED: "has expired", NOT_YET_VALID: "is not valid yet"}
        return problems.get(error.verify_code, f"is not accepted: {error.verify_message}")
    except ssl.SSLError as error:
        return f"cannot be used for a handshake: {error.reason}"
    days = (expiry - time.time()) / 86400
    return f"expires in {days:.0f} days" if days * 86400 < EXPIRES_SOON else None


def _read_expiry(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> float:
    """Shake hands in memory, and return when the certificate that the client gets expires."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(2):  # the client has verified the certificate after its second turn
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        with suppress(ssl.SSLError):  # a missing client certificate does not matter here
            server.do_handshake()
    certificate = client.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


def _check_readable(flag: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TlsError(f"{flag}: cannot read {path!r}: {error.strerror or error}.") from None


def _contains_pem(path: str, label: str) -> bool:
    with open(path, encoding="latin-1") as file:
        return f"{label}-----" in file.read()
