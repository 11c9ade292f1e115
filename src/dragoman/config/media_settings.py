"""Settings of pictures, sound and files in requests."""

from __future__ import annotations

from typing import Annotated

from dragoman.config.api_key_settings import ApiKeySettings
from dragoman.options import Setting


class MediaSettings(ApiKeySettings, frozen=True, kw_only=True):
    """The settings of the group `media`."""

    media_hosts: Annotated[
        tuple[str, ...],
        Setting(
            help="host from which URLs of pictures, sound and files in requests are fetched; a "
            "private address must be listed, too",
            group="media",
            metavar="HOST[:PORT]",
            default="none: only data URLs are accepted",
        ),
    ] = ()
    media_http: Annotated[
        bool, Setting(help="fetch `http://` URLs from these hosts, too", group="media")
    ] = False
    media_items: Annotated[
        int,
        Setting(
            help="maximum number of pictures, sounds and files in one request",
            group="media",
            minimum=0,
        ),
    ] = 16
    media_size: Annotated[
        int,
        Setting(
            help="maximum size of a picture, sound or file, as it is sent or fetched",
            group="media",
            unit="bytes",
            minimum=1024,
        ),
    ] = 20 << 20
    media_pixels: Annotated[
        int,
        Setting(
            help="maximum number of pixels of a picture, as it is sent", group="media", minimum=1
        ),
    ] = 40_000_000
    media_side: Annotated[
        int,
        Setting(
            help="maximum number of pixels of a side of a picture, as the engine gets it; larger "
            "pictures are shrunk",
            group="media",
            minimum=1,
        ),
    ] = 2048
    media_seconds: Annotated[
        float,
        Setting(help="maximum length of a sound", group="media", unit="seconds", minimum=0.001),
    ] = 300.0
