"""All settings of a server. Each is declared once, here or in a Struct that `Settings` inherits.

A field's annotation holds its help text, group, unit and range (`dragoman.options.Setting`), and
its default is the default. The flag is the name with dashes, the environment variable is
`DRAGOMAN_<NAME>`, and the key in dragoman.yaml is the name (without the prefix `<section>_`) in the
section of its group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import field

from dragoman.config.paths import get_cache_dir, get_state_dir
from dragoman.config.state_settings import StateSettings
from dragoman.options import Setting

LOOPBACK = ("127.0.0.1", "::1", "localhost")
# The groups of `--help` and the documentation, and the section of each in dragoman.yaml.
GROUPS = {
    "server": "server",
    "TLS": "tls",
    "keys": "keys",
    "models": "server",
    "engine": "engine",
    "engine memory": "engine",
    "GPU": "engine",
    "context extension (RoPE)": "engine",
    "speculative decoding": "engine",
    "upstream": "upstream",
    "presets": "presets",
    "output formats": "formats",
    "limits": "limits",
    "timeouts": "limits",
    "media": "media",
    "stored responses": "store",
    "files and batches": "files",
    "remote tools (MCP)": "mcp",
    "logging": "logging",
    "client": "client",
}


class Settings(StateSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Times are in seconds, sizes in bytes."""

    config: Annotated[
        str,
        Setting(
            help="configuration file",
            group="server",
            metavar="PATH",
            default="./dragoman.yaml, else ~/.config/dragoman/dragoman.yaml",
            is_in_file=False,
            is_path=True,
        ),
    ] = ""
    host: Annotated[
        str, Setting(help="address that the server listens on", group="server", metavar="ADDRESS")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Setting(
            help="port that the server listens on; 0 is any free port",
            group="server",
            metavar="PORT",
            minimum=0,
            maximum=65535,
        ),
    ] = 8000
    allow_open: Annotated[
        bool,
        Setting(help="listen on addresses other than localhost without an API key", group="server"),
    ] = False
    allowed_host: Annotated[
        tuple[str, ...],
        Setting(help="additional Host header to accept", group="server", metavar="HOST"),
    ] = ()
    strict_params: Annotated[
        bool,
        Setting(help="reject unknown top-level fields of a request", group="server", is_live=True),
    ] = False
    models_dir: Annotated[
        str,
        Setting(
            help="directory of installed models",
            group="models",
            metavar="PATH",
            default="~/.cache/dragoman/models",
            is_path=True,
        ),
    ] = ""
    models_file: Annotated[
        str,
        Setting(
            help="file with names and options of models",
            group="models",
            metavar="PATH",
            default="models.yaml in the models directory",
            is_path=True,
        ),
    ] = ""
    default_model: Annotated[
        str,
        Setting(
            help="model to serve where no MODEL is given",
            group="models",
            metavar="NAME",
            default="the first under `models:` in dragoman.yaml, else smollm2-135m",
        ),
    ] = ""
    pull: Annotated[
        bool,
        Setting(help="download MODEL from Hugging Face if it is not installed", group="models"),
    ] = False
    models: Annotated[
        dict[str, Any],
        Setting(help="names and options of models", group="models", is_file_only=True),
    ] = field(default_factory=dict)
    served_name: Annotated[
        tuple[str, ...],
        Setting(help="additional name for MODEL", group="models", metavar="NAME"),
    ] = ()
    any_model: Annotated[
        bool, Setting(help="use MODEL for requests that name an unknown model", group="models")
    ] = False
    engine: Annotated[
        str,
        Setting(
            help="engine for models: llamacpp, vllm, or module:function, which is called with the "
            "path of the model",
            group="engine",
            metavar="NAME",
            default="auto, which is llamacpp for GGUF and vllm for safetensors",
            key="name",
        ),
    ] = "auto"
    engine_arg: Annotated[
        tuple[str, ...],
        Setting(
            help="argument of vLLM under its own name, such as tensor_parallel_size=2; lists and "
            "objects are JSON",
            group="engine",
            metavar="NAME=VALUE",
            key="args",
        ),
    ] = ()
    engines_dir: Annotated[
        str,
        Setting(
            help="directory of engines that `dragoman engine install` installs",
            group="engine",
            metavar="PATH",
            default="~/.cache/dragoman/engines",
            key="directory",
            is_path=True,
        ),
    ] = ""
    upstream_key: Annotated[
        str,
        Setting(
            help="API key of servers without a key file of their own; set it in the "
            "environment rather than on the command line",
            group="upstream",
            metavar="KEY",
            is_secret=True,
        ),
    ] = ""
    upstream_wait: Annotated[
        float,
        Setting(
            help="how long `dragoman serve` waits for a server that is not up yet; 0 exits instead",
            group="upstream",
            unit="seconds",
            minimum=0,
            can_be_forever=True,
            key="wait",
        ),
    ] = -1
    lora: Annotated[
        tuple[str, ...],
        Setting(help="LoRA adapter for MODEL", group="engine", metavar="NAME=PATH", is_path=True),
    ] = ()
    chat_template: Annotated[
        str,
        Setting(
            help="Jinja file to use instead of the model's own chat template",
            group="output formats",
            metavar="PATH",
            is_path=True,
        ),
    ] = ""
    format: Annotated[
        str,
        Setting(
            help="tool call format",
            group="output formats",
            metavar="NAME",
            default="detected from the template",
        ),
    ] = ""
    reasoning_format: Annotated[
        str,
        Setting(
            help="reasoning format",
            group="output formats",
            metavar="NAME",
            default="detected from the template",
        ),
    ] = ""
    memory: Annotated[
        int,
        Setting(
            help="memory for all loaded models: weights, KV caches and buffers, as estimated",
            group="limits",
            unit="bytes",
            minimum=0,
            smallest=1 << 20,
            default="90 % of what is available",
        ),
    ] = 0
    queue: Annotated[
        int,
        Setting(
            help="maximum number of requests that wait for a slot of one model",
            group="limits",
            minimum=0,
            is_live=True,
        ),
    ] = 256
    body_limit: Annotated[
        int | None,
        Setting(
            help="largest request body",
            group="limits",
            unit="bytes",
            minimum=100,
            default="from the context: 8MiB to 24MiB",
            is_live=True,
        ),
    ] = None
    blob_limit: Annotated[
        int,
        Setting(
            help="largest file that clients upload to create a model",
            group="limits",
            unit="bytes",
            minimum=1024,
        ),
    ] = 64 << 30
    header_limit: Annotated[
        int,
        Setting(
            help="largest request header", group="limits", unit="bytes", minimum=256, is_live=True
        ),
    ] = 64 * 1024
    keep_alive: Annotated[
        float,
        Setting(
            help="how long an idle model stays loaded",
            group="timeouts",
            unit="seconds",
            minimum=0,
            can_be_forever=True,
        ),
    ] = -1
    load_wait: Annotated[
        float,
        Setting(
            help="how long a request waits for its model to load",
            group="timeouts",
            unit="seconds",
            minimum=0,
            is_live=True,
        ),
    ] = 120.0
    receive_timeout: Annotated[
        float,
        Setting(
            help="how long a request may take to arrive completely",
            group="timeouts",
            unit="seconds",
            minimum=0.001,
            is_live=True,
        ),
    ] = 30.0
    request_timeout: Annotated[
        float,
        Setting(
            help="how long a request may take in total; a client can lower it with `x-request-"
            "timeout`",
            group="timeouts",
            unit="seconds",
            minimum=0.001,
            can_be_forever=True,
            is_live=True,
        ),
    ] = -1
    patience: Annotated[
        float,
        Setting(
            help="how long a stream waits for its first token before it sends headers",
            group="timeouts",
            unit="seconds",
            minimum=0,
            is_live=True,
        ),
    ] = 0.5
    ping: Annotated[
        float,
        Setting(
            help="silence on a stream before a keep-alive is sent",
            group="timeouts",
            unit="seconds",
            minimum=0.001,
            is_live=True,
        ),
    ] = 15.0
    stall: Annotated[
        float,
        Setting(
            help="how long a client may read nothing before it is disconnected",
            group="timeouts",
            unit="seconds",
            minimum=0.001,
            is_live=True,
        ),
    ] = 60.0
    hang_timeout: Annotated[
        float,
        Setting(
            help="how long an engine may make no progress before it is restarted",
            group="timeouts",
            unit="seconds",
            minimum=0.1,
            can_be_forever=True,
        ),
    ] = 20.0
    drain: Annotated[
        float,
        Setting(
            help="how long running requests may take to finish after SIGTERM",
            group="timeouts",
            unit="seconds",
            minimum=0,
            is_live=True,
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        Setting(
            help="how much is logged",
            group="logging",
            metavar="LEVEL",
            choices=("debug", "info", "warning", "error"),
            key="level",
            is_live=True,
        ),
    ] = "info"
    url: Annotated[
        str,
        Setting(
            help="running server that a command uses",
            group="client",
            metavar="URL",
            default="http://HOST:PORT, or https:// with --tls-cert",
        ),
    ] = ""

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def models_path(self) -> Path:
        return Path(self.models_dir) if self.models_dir else get_cache_dir() / "models"

    @property
    def engines_path(self) -> Path:
        return Path(self.engines_dir) if self.engines_dir else get_cache_dir() / "engines"

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{get_state_dir() / 'state.db'}"
