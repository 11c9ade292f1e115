"""Settings: what an operator can choose, and where each choice comes from.

A setting is given by a flag, else by the environment variable `DRAGOMAN_<NAME>`, else by its
default here. This module is the only reader of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

PREFIX = "DRAGOMAN_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class SettingsError(ValueError):
    """A setting that does not exist or cannot have that value."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an operator can choose. Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    models_dir: str = ""  # where models live; empty is the user's cache
    models_file: str = ""  # names and settings of models; empty is models.yaml in models_dir
    served_name: tuple[str, ...] = ()  # further names of the model given on the command line
    any_model: bool = False  # answer every model name with the first model
    chat_template: str = ""  # a file that replaces the model's own template
    format: str = ""  # how tool calls are written; empty is as the template shows
    reasoning_format: str = ""  # how thoughts are written, likewise
    engine: str = "llamacpp"  # what runs models from files
    context: int = 0  # tokens of prompt and answer; 0 is the model's own, within reason
    slots: int = 4  # answers generated at once
    threads: int = 0  # 0 is all cores
    gpu_layers: int = -1  # -1 lets the engine decide
    lora: tuple[str, ...] = ()  # NAME=PATH of adapters for the model on the command line
    memory: int = 0  # most bytes of models kept loaded; 0 is no limit
    keep_alive: float = -1  # how long an idle model stays loaded; -1 is for ever
    load_wait: float = 120.0  # how long a request waits for its model to load
    queue: int = 256  # requests that may wait for a slot
    api_key: tuple[str, ...] = ()
    api_key_file: str = ""
    admin_key: tuple[str, ...] = ()
    allow_open: bool = False  # listen beyond this machine without a key
    allowed_host: tuple[str, ...] = ()  # further values of the Host header
    strict_params: bool = False  # refuse unknown fields
    recall: bool = True  # earlier turns go to the model as it wrote them, token by token
    body_limit: int = 32 * 1024 * 1024
    header_limit: int = 64 * 1024
    receive_timeout: float = 30.0  # for a request to arrive whole
    patience: float = 0.5  # how long a stream waits for its first token before it sends headers
    ping: float = 15.0  # silence on a stream before a comment is sent
    stall: float = 60.0  # how long a reader may take nothing before it is cut off
    drain: float = 30.0  # how long streams may go on after a request to stop
    store: str = ""  # a database, sqlite:///PATH or postgresql://…; empty is a file of this user's
    store_ttl: float = 30 * 24 * 3600.0  # how long responses and conversations are kept
    store_size: int = 1 << 30  # of everything that is kept
    mcp: tuple[str, ...] = ()  # LABEL=URL of servers whose tools requests may use by label
    mcp_hosts: tuple[str, ...] = ()  # HOST[:PORT] that requests may name though it is not public
    mcp_rounds: int = 16  # how often a response may call remote tools and go on
    mcp_timeout: float = 60.0  # for a remote server to answer
    mcp_output: int = 64 * 1024  # characters of a remote tool's output that the model is shown
    log_level: str = "info"

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
    """Where this user keeps what can be fetched again."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dragoman"


def state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user keeps what programs must find again."""
    base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "dragoman"


def load(said: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Flags that were said, over the environment, over the defaults."""
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    values: dict[str, Any] = {}
    for name, field in fields.items():
        text = environment.get(PREFIX + name.upper())
        if text is not None:
            values[name] = _from_text(name, text, field.type)
    values |= {name: value for name, value in said.items() if value is not None}
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(
            str(error).replace("Object contains unknown field", "There is no setting")
        ) from None


def _from_text(name: str, text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in ("1", "0", "true", "false", "yes", "no", ""):
            raise SettingsError(f"{PREFIX}{name.upper()} must be true or false")
        return text.lower() in ("1", "true", "yes")
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{PREFIX}{name.upper()} must be a number") from None
