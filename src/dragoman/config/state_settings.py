"""Settings of stored responses, of files and batches, and of remote tools."""

from __future__ import annotations

from typing import Annotated

from dragoman.config.media_settings import MediaSettings
from dragoman.options import Setting


class StateSettings(MediaSettings, frozen=True, kw_only=True):
    """The settings of stored responses, of files and batches, and of remote tools (MCP)."""

    store: Annotated[
        str,
        Setting(
            help="database: sqlite:///PATH or postgresql://…",
            group="stored responses",
            metavar="URL",
            default="~/.local/state/dragoman/state.db",
            key="url",
            is_path=True,
        ),
    ] = ""
    store_ttl: Annotated[
        float,
        Setting(
            help="how long responses and conversations are stored",
            group="stored responses",
            unit="seconds",
            minimum=0,
        ),
    ] = 30 * 24 * 3600.0
    store_size: Annotated[
        int,
        Setting(
            help="maximum size of the database",
            group="stored responses",
            unit="bytes",
            minimum=0,
            smallest=64 << 10,
        ),
    ] = 1 << 30
    recall: Annotated[
        bool,
        Setting(
            help="replace the client's copy of earlier answers with the tokens that the model "
            "generated",
            group="stored responses",
        ),
    ] = True
    file_size: Annotated[
        int,
        Setting(
            help="maximum size of an uploaded file",
            group="files and batches",
            unit="bytes",
            minimum=1024,
        ),
    ] = 200 << 20
    files_size: Annotated[
        int,
        Setting(
            help="maximum size of all files of one API key together",
            group="files and batches",
            unit="bytes",
            minimum=0,
            smallest=1024,
            key="size",
        ),
    ] = 512 << 20
    batch_requests: Annotated[
        int,
        Setting(
            help="maximum number of requests of batches that run at once",
            group="files and batches",
            minimum=1,
            maximum=10_000,
        ),
    ] = 16
    mcp: Annotated[
        tuple[str, ...],
        Setting(
            help="MCP server that requests may use by its label",
            group="remote tools (MCP)",
            metavar="LABEL=URL",
            key="servers",
        ),
    ] = ()
    mcp_hosts: Annotated[
        tuple[str, ...],
        Setting(
            help="private host that requests may name as an MCP server",
            group="remote tools (MCP)",
            metavar="HOST[:PORT]",
        ),
    ] = ()
    mcp_rounds: Annotated[
        int,
        Setting(
            help="maximum number of rounds of remote tool calls in one response",
            group="remote tools (MCP)",
            minimum=1,
        ),
    ] = 16
    mcp_timeout: Annotated[
        float,
        Setting(
            help="time limit of one call to an MCP server",
            group="remote tools (MCP)",
            unit="seconds",
            minimum=0.001,
        ),
    ] = 60.0
    mcp_output: Annotated[
        int,
        Setting(
            help="maximum number of characters of a remote tool's output that the model gets",
            group="remote tools (MCP)",
            minimum=0,
        ),
    ] = 64 * 1024
