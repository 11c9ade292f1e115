"""Settings of API keys."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from dragoman.config.tls_settings import TlsSettings
from dragoman.options import Setting
from dragoman.types import Json


class ApiKeySettings(TlsSettings, frozen=True, kw_only=True):
    """The settings of the group `keys`."""

    api_key: Annotated[
        tuple[str, ...],
        Setting(
            help="API key that requests must send",
            group="keys",
            metavar="KEY",
            key="api",
            is_secret=True,
            is_live=True,
        ),
    ] = ()
    api_key_file: Annotated[
        str,
        Setting(
            help="file of API keys, one per line, or YAML with entries; read again when it changes",
            group="keys",
            metavar="PATH",
            key="file",
            is_path=True,
            is_live=True,
        ),
    ] = ""
    admin_key: Annotated[
        tuple[str, ...],
        Setting(
            help="key for the admin routes, which load, unload and change models",
            group="keys",
            metavar="KEY",
            key="admin",
            is_secret=True,
            is_live=True,
        ),
    ] = ()
    key_entries: Annotated[
        tuple[object, ...],
        Setting(
            help="API keys with names, scopes, expiry and limits",
            group="keys",
            key="entries",
            is_file_only=True,
            is_secret=True,
            is_live=True,
        ),
    ] = ()
    key_limits: Annotated[
        dict[str, Json],
        Setting(
            help="default of a limit that a key does not set, such as requests_per_minute=60",
            group="keys",
            metavar="NAME=VALUE",
            key="limits",
            is_live=True,
        ),
    ] = field(default_factory=dict)
