"""The flags that set `config.Settings`, in the groups that `--help` shows them in."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Literal, TypeAlias

from msgspec import Struct

# `list` may be repeated; `switch_on` and `switch_off` take no value.
FlagKind: TypeAlias = Literal["text", "int", "float", "list", "switch_on", "switch_off"]


class Flag(Struct, frozen=True):
    """One flag and the setting it sets."""

    name: str
    setting: str
    help: str
    metavar: str = ""
    kind: FlagKind = "text"


class FlagGroup(Struct, frozen=True):
    title: str
    flags: tuple[Flag, ...]


GROUPS = (
    FlagGroup(
        "server",
        (
            Flag("--host", "host", "address to listen on (default: 127.0.0.1)", "ADDRESS"),
            Flag("--port", "port", "port to listen on (default: 8000)", "PORT", "int"),
            Flag(
                "--body-limit",
                "body_limit",
                "largest request body in bytes (default: 32 MiB)",
                "BYTES",
                "int",
            ),
            Flag(
                "--drain",
                "drain",
                "seconds that running requests get to finish after SIGTERM (default: 30)",
                "SECONDS",
                "float",
            ),
            Flag(
                "--strict-params",
                "strict_params",
                "reject unknown top-level fields of a request",
                kind="switch_on",
            ),
            Flag(
                "--log-level",
                "log_level",
                "debug, info, warning or error (default: info)",
                "LEVEL",
            ),
        ),
    ),
    FlagGroup(
        "access",
        (
            Flag(
                "--api-key",
                "api_key",
                "API key that requests must send; may be repeated",
                "KEY",
                "list",
            ),
            Flag(
                "--api-key-file",
                "api_key_file",
                "file with one API key per line, read again when it changes",
                "PATH",
            ),
            Flag(
                "--admin-key",
                "admin_key",
                "key for loading and unloading models; may be repeated",
                "KEY",
                "list",
            ),
            Flag(
                "--allow-open",
                "allow_open",
                "listen on addresses other than localhost without an API key",
                kind="switch_on",
            ),
            Flag(
                "--allowed-host",
                "allowed_host",
                "additional Host header to accept; may be repeated",
                "HOST",
                "list",
            ),
        ),
    ),
    FlagGroup(
        "models",
        (
            Flag(
                "--models-dir",
                "models_dir",
                "directory of installed models (default: ~/.cache/dragoman/models)",
                "PATH",
            ),
            Flag(
                "--models-file",
                "models_file",
                "names and options of models (default: models.yaml in the models directory)",
                "PATH",
            ),
            Flag(
                "--served-name",
                "served_name",
                "additional name for MODEL; may be repeated",
                "NAME",
                "list",
            ),
            Flag(
                "--any-model",
                "any_model",
                "answer requests for unknown models with MODEL",
                kind="switch_on",
            ),
            Flag(
                "--memory",
                "memory",
                "maximum size of all loaded models in bytes (default: no limit)",
                "BYTES",
                "int",
            ),
            Flag(
                "--keep-alive",
                "keep_alive",
                "seconds until an idle model is unloaded; -1 is never (default: -1)",
                "SECONDS",
                "float",
            ),
            Flag(
                "--load-wait",
                "load_wait",
                "seconds a request waits for its model to load (default: 120)",
                "SECONDS",
                "float",
            ),
        ),
    ),
    FlagGroup(
        "engine",
        (
            Flag("--engine", "engine", "engine for model files (default: llamacpp)", "NAME"),
            Flag(
                "--context",
                "context",
                "context size in tokens (default: the model's own, at most 8192)",
                "TOKENS",
                "int",
            ),
            Flag(
                "--slots",
                "slots",
                "choices that are generated at the same time (default: 4)",
                "COUNT",
                "int",
            ),
            Flag(
                "--queue",
                "queue",
                "requests that may wait for a slot (default: 256)",
                "COUNT",
                "int",
            ),
            Flag(
                "--threads",
                "threads",
                "CPU threads of the engine (default: all cores)",
                "COUNT",
                "int",
            ),
            Flag(
                "--gpu-layers",
                "gpu_layers",
                "layers to run on the GPU (default: the engine decides)",
                "COUNT",
                "int",
            ),
            Flag(
                "--lora",
                "lora",
                "LoRA adapter for MODEL; may be repeated",
                "NAME=PATH",
                "list",
            ),
        ),
    ),
    FlagGroup(
        "output formats",
        (
            Flag(
                "--chat-template",
                "chat_template",
                "Jinja file to use instead of the model's own chat template",
                "PATH",
            ),
            Flag(
                "--format",
                "format",
                "tool call format (default: detected from the template)",
                "NAME",
            ),
            Flag(
                "--reasoning-format",
                "reasoning_format",
                "reasoning format (default: detected from the template)",
                "NAME",
            ),
        ),
    ),
    FlagGroup(
        "stored responses",
        (
            Flag(
                "--store",
                "store",
                "database: sqlite:///PATH or postgresql://… "
                "(default: ~/.local/state/dragoman/state.db)",
                "URL",
            ),
            Flag(
                "--store-ttl",
                "store_ttl",
                "seconds that responses are stored (default: 30 days)",
                "SECONDS",
                "float",
            ),
            Flag(
                "--store-size",
                "store_size",
                "maximum size of the database in bytes (default: 1 GiB)",
                "BYTES",
                "int",
            ),
            Flag(
                "--no-recall",
                "recall",
                "use the client's version of earlier turns",
                kind="switch_off",
            ),
        ),
    ),
    FlagGroup(
        "remote tools (MCP)",
        (
            Flag(
                "--mcp",
                "mcp",
                "MCP server that requests may use by its label; may be repeated",
                "LABEL=URL",
                "list",
            ),
            Flag(
                "--mcp-hosts",
                "mcp_hosts",
                "private host that requests may name as an MCP server; may be repeated",
                "HOST[:PORT]",
                "list",
            ),
            Flag(
                "--mcp-rounds",
                "mcp_rounds",
                "rounds of remote tool calls in one response (default: 16)",
                "COUNT",
                "int",
            ),
            Flag(
                "--mcp-timeout",
                "mcp_timeout",
                "seconds until a call to an MCP server times out (default: 60)",
                "SECONDS",
                "float",
            ),
            Flag(
                "--mcp-output",
                "mcp_output",
                "characters of a remote tool's output that the model gets (default: 65536)",
                "COUNT",
                "int",
            ),
        ),
    ),
)
FLAGS = tuple(flag for group in GROUPS for flag in group.flags)
COMMON = ("models_dir", "models_file", "log_level")
ENGINE = (
    *("chat_template", "format", "reasoning_format", "engine"),
    *("context", "slots", "threads", "gpu_layers", "lora"),
)


def add_flags(parser: argparse.ArgumentParser, settings: Collection[str] | None = None) -> None:
    """Add the flags of these settings, or of all settings, in their groups."""
    for group in GROUPS:
        flags = [flag for flag in group.flags if settings is None or flag.setting in settings]
        if flags:
            section = parser.add_argument_group(group.title)
            for flag in flags:
                _add_flag(section, flag)


def _add_flag(section: argparse._ArgumentGroup, flag: Flag) -> None:
    name, setting, text, metavar = flag.name, flag.setting, flag.help, flag.metavar
    match flag.kind:
        case "switch_on":
            section.add_argument(name, dest=setting, action="store_true", default=None, help=text)
        case "switch_off":
            section.add_argument(name, dest=setting, action="store_false", default=None, help=text)
        case "list":
            section.add_argument(name, dest=setting, action="append", metavar=metavar, help=text)
        case "int":
            section.add_argument(name, dest=setting, type=int, metavar=metavar, help=text)
        case "float":
            section.add_argument(name, dest=setting, type=float, metavar=metavar, help=text)
        case "text":
            section.add_argument(name, dest=setting, metavar=metavar, help=text)
