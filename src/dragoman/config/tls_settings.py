"""Settings of TLS: the certificate of the server, and what commands trust."""

from __future__ import annotations

from typing import Annotated

from dragoman.config.logging_settings import LoggingSettings
from dragoman.options import Setting


class TlsSettings(LoggingSettings, frozen=True, kw_only=True):
    """The settings of the group `TLS`, and those of the group `client` that belong to it."""

    tls_cert: Annotated[
        str,
        Setting(
            help="certificate to serve HTTPS with, in PEM format, followed by its intermediate"
            " certificates; read again when it changes",
            group="TLS",
            metavar="PATH",
            is_path=True,
        ),
    ] = ""
    tls_key: Annotated[
        str,
        Setting(
            help="private key of the certificate",
            group="TLS",
            metavar="PATH",
            default="in the file of --tls-cert",
            is_path=True,
        ),
    ] = ""
    tls_client_ca: Annotated[
        str,
        Setting(
            help="accept only clients with a certificate that one of these authorities signed",
            group="TLS",
            metavar="PATH",
            is_path=True,
        ),
    ] = ""
    ca_file: Annotated[
        str,
        Setting(
            help="certificate authorities that commands trust",
            group="client",
            metavar="PATH",
            default="those of the system",
            is_path=True,
        ),
    ] = ""
    client_cert: Annotated[
        str,
        Setting(
            help="certificate that a command shows to the server, for --tls-client-ca",
            group="client",
            metavar="PATH",
            key="cert",
            is_path=True,
        ),
    ] = ""
    client_key: Annotated[
        str,
        Setting(
            help="private key of that certificate",
            group="client",
            metavar="PATH",
            default="in the file of --client-cert",
            key="key",
            is_path=True,
        ),
    ] = ""
