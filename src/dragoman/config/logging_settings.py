"""Settings about what operators and clients learn about requests: logs, timings, traces."""

from __future__ import annotations

from typing import Annotated

from dragoman.options import Setting
from dragoman.presets.options import SharedOptions


class LoggingSettings(SharedOptions, frozen=True, kw_only=True):
    """The settings of the group `logging`, except for the level."""

    log_format: Annotated[
        str,
        Setting(
            help="lines of text, or one JSON object per line",
            group="logging",
            metavar="FORMAT",
            choices=("text", "json"),
            key="format",
        ),
    ] = "text"
    audit_log: Annotated[
        str,
        Setting(
            help="file for administrators' actions and refused requests, one JSON object per line",
            group="logging",
            metavar="PATH",
            default="administrators' actions are in the ordinary log",
            is_path=True,
        ),
    ] = ""
    log_prompts: Annotated[
        bool,
        Setting(
            help="include prompts and answers in the log at level debug",
            group="logging",
            key="prompts",
        ),
    ] = False
    timings: Annotated[
        bool,
        Setting(
            help="send `timings` with every answer, as llama-server does, not only where a request "
            "asks for them",
            group="logging",
        ),
    ] = False
    debug_header: Annotated[
        bool,
        Setting(
            help="honour the header x-dragoman-debug, which returns prompt and raw output, for"
            " every key, not only for admin keys",
            group="logging",
        ),
    ] = False
    otlp_endpoint: Annotated[
        str,
        Setting(
            help="OTLP collector to send OpenTelemetry spans to, such as http://localhost:4318",
            group="logging",
            metavar="URL",
            schemes=("http", "https"),
        ),
    ] = ""
