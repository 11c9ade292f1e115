"""How to reach an upstream server, and what was found there.

`RemoteSettings` is what the operator says. `Upstream` is what discovery has found out: the engine
relies on it, sends no job that it does not allow, and compares it with the server again whenever
all connections to the server were lost, because another one may run at the same address.

A loader calls, in this order:

    settings = RemoteSettings(url="http://127.0.0.1:8080", api_key=...)
    upstream = ...                         # discovery, through `http.client.UpstreamClient`
    engine = await connect(settings, upstream, vocabulary)   # of `engines.remote.engine`
    engine.capabilities                    # lists what holds for this server
    await engine.aclose()

`connect` asks for one token, and refuses a server whose answer has no ids. It raises `ModelBroken`
with a message for the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from dragoman.options.secrets import HIDDEN

TokenProtocol: TypeAlias = Literal[
    "llama-server", "vllm-generate", "vllm-completions", "sglang", "dragoman"
]
# of servers that take and return text: prompts, or whole conversations
TextProtocol: TypeAlias = Literal["text", "chat"]
RemoteProtocol: TypeAlias = TokenProtocol | TextProtocol
PORTS = {"http": 80, "https": 443}
MAX_KEY_BYTES = 1 << 16
MAX_LOGPROBS = 20  # of servers that do not say it, as vLLM has it


class RemoteSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach a server. Times are in seconds."""

    url: str  # `http://HOST:PORT` or `https://HOST/PREFIX`
    model: str = ""  # the name of the model there; "" is the only one
    api_key: str = ""  # never shown
    api_key_file: str = ""  # read for each request, so that a key can be replaced
    ca_file: str = ""  # authorities that may sign its certificate; "" is those of the system
    grammars: bool | None = None  # None: tried once, and never with llama-server
    connect_timeout: float = 5.0
    stall_timeout: float = 60.0  # without a byte of an answer
    prefill_rate: float = 50.0  # prompt tokens per second at least, until the first byte
    first_retry_delay: float = 0.5  # before a server that is down is tried again; doubled each time
    max_retry_delay: float = 30.0
    identity_interval: float = 1.0  # for which a check of the server's identity is valid
    idle_connections: int = 64  # kept alive

    def __repr__(self) -> str:
        key = HIDDEN if self.api_key else ""
        return f"RemoteSettings(url={self.url!r}, model={self.model!r}, api_key={key!r})"

    def hide_key(self, text: object) -> str:
        """Return a text for the log: some servers repeat the key in their errors."""
        try:
            key = self.read_api_key()
        except ValueError:
            key = ""
        return str(text).replace(key, HIDDEN) if key else str(text)

    def read_api_key(self) -> str:
        """Return the key, or raise a `ValueError` that says what is wrong with its file."""
        if not self.api_key_file:
            return check_key(self.api_key, "the API key")
        try:
            with Path(self.api_key_file).open("rb") as stream:
                key = stream.read(MAX_KEY_BYTES).decode("ascii").strip()
        except (OSError, ValueError):
            raise ValueError(f"cannot read a key from {self.api_key_file}") from None
        if not key:
            raise ValueError(f"{self.api_key_file} contains no key")
        return check_key(key, self.api_key_file)


def check_key(key: str, source: str) -> str:
    """Return a key that fits into a header, or raise a `ValueError` that does not show it."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{source} must be one word of ASCII characters")
    return key


class Upstream(Struct, frozen=True, kw_only=True):
    """What was found at an address. The tokens of probe texts are the tokenizer's identity."""

    protocol: RemoteProtocol
    model: str  # the name that requests use
    version: str = ""  # as the server says it
    context: int | None = None
    slots: int | None = None  # choices that run at once
    vocabulary_size: int | None = None
    max_logprobs: int = MAX_LOGPROBS
    adapters: Mapping[str, int] = {}  # LoRA adapters: name -> number, which llama-server uses
    deterministic_seeds: bool = True  # SGLang ignores seeds without an option
    probe_ids: Mapping[str, list[int]] = {}  # texts -> their tokens, see `identity`
    sampling_fields: tuple[str, ...] = ()  # that the engine of another Dragoman honours


def parse_url(url: str) -> SplitResult:
    """Return the parts of the address of a server, or raise a `ValueError` for the operator."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("the address contains a user or a password; set the API key instead")
    try:
        is_address = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or too large
        is_address = False
    if not is_address:
        raise ValueError(f"{url!r} is not an address such as http://HOST:PORT")
    if not parts.path.isascii() or not parts.path.isprintable() or " " in parts.path:
        raise ValueError(f"{url!r} has a space or another character that must be written as %XX")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; give the address alone")
    return parts
