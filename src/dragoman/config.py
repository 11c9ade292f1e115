"""The settings of a server, and where each value comes from.

A setting is given by a flag, else by the environment variable `DRAGOMAN_<NAME>`, else by its
default here. This module is the only reader of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

PREFIX = "DRAGOMAN_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class SettingsError(ValueError):
    """A setting does not exist, or cannot have that value."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"  # address to listen on
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000  # 0 is any free port
    models_dir: str = ""  # directory of installed models; empty is in the user's cache
    models_file: str = ""  # names and options of models; empty is models.yaml in models_dir
    served_name: tuple[str, ...] = ()  # additional names of the model on the command line
    any_model: bool = False  # answer requests for unknown models with the default model
    chat_template: str = ""  # file to use instead of the model's own chat template
    format: str = ""  # tool call format; empty is detected from the template
    reasoning_format: str = ""  # reasoning format; empty is detected from the template
    engine: str = "llamacpp"  # engine for model files
    context: int = 0  # context size in tokens; 0 is the model's own, at most 8192
    slots: int = 4  # choices that are generated at the same time
    threads: int = 0  # CPU threads of the engine; 0 is all cores
    gpu_layers: int = -1  # layers to run on the GPU; -1 lets the engine decide
    lora: tuple[str, ...] = ()  # NAME=PATH of adapters for the model on the command line
    memory: int = 0  # maximum size of all loaded models; 0 is no limit
    keep_alive: float = -1  # how long an idle model stays loaded; -1 is forever
    load_wait: float = 120.0  # how long a request waits for its model to load
    queue: int = 256  # requests that may wait for a slot of one model
    api_key: tuple[str, ...] = ()  # keys that requests may use
    api_key_file: str = ""  # file with one key per line, read again when it changes
    admin_key: tuple[str, ...] = ()  # keys for loading and unloading models
    allow_open: bool = False  # listen on addresses other than localhost without a key
    allowed_host: tuple[str, ...] = ()  # additional Host headers to accept
    strict_params: bool = False  # reject unknown top-level fields of a request
    recall: bool = True  # put the tokens that the model wrote back into replayed conversations
    body_limit: int = 32 * 1024 * 1024  # largest request body
    header_limit: int = 64 * 1024  # largest request header
    receive_timeout: float = 30.0  # for a request to arrive completely
    patience: float = 0.5  # how long a stream waits for its first token before it sends headers
    ping: float = 15.0  # silence on a stream before a keep-alive is sent
    stall: float = 60.0  # how long a client may read nothing before it is disconnected
    drain: float = 30.0  # how long running requests may take to finish after SIGTERM
    store: str = ""  # database, sqlite:///PATH or postgresql://…; empty is a file of the user
    store_ttl: float = 30 * 24 * 3600.0  # how long responses and conversations are stored
    store_size: int = 1 << 30  # maximum size of the database
    mcp: tuple[str, ...] = ()  # LABEL=URL of MCP servers that requests may use by label
    mcp_hosts: tuple[str, ...] = ()  # private HOST[:PORT] that requests may name as MCP servers
    mcp_rounds: int = 16  # rounds of remote tool calls in one response
    mcp_timeout: float = 60.0  # for one call to an MCP server
    mcp_output: int = 64 * 1024  # characters of a remote tool's output that the model gets
    log_level: str = "info"  # debug, info, warning or error

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def models_path(self) -> Path:
        return Path(self.models_dir) if self.models_dir else cache_dir() / "models"

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{state_dir() / 'state.db'}"


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's directory for files that can be downloaded again."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dragoman"


def state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's directory for files that must persist."""
    base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "dragoman"


def load(flags: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Settings:
    """Load the settings: flags override the environment, which overrides the defaults."""
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    values: dict[str, object] = {}
    for name, field in fields.items():
        text = environment.get(PREFIX + name.upper())
        if text is not None:
            values[name] = _parse_value(name, text, field.type)
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(
            str(error).replace("Object contains unknown field", "There is no setting")
        ) from None


def _parse_value(name: str, text: str, kind: object) -> object:
    """Parse the value of an environment variable for a setting of this type."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in ("1", "0", "true", "false", "yes", "no", ""):
            raise SettingsError(f"{PREFIX}{name.upper()} must be true or false")
        return text.lower() in ("1", "true", "yes")
    try:
        return float(text) if kind is float else int(text) if kind is int else text
    except ValueError:
        raise SettingsError(f"{PREFIX}{name.upper()} must be a number") from None
