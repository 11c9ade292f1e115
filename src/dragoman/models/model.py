"""A loaded model: its engine, tokenizer, chat template and output format.

A loader makes one `Model`, and every stage of the pipeline reads from it what it needs: validation
the capabilities of the engine, rendering the `renderer`, parsing the `output_format`. Once it is
loaded, only its names and its adapters change, apart from what is cached here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman._version import __version__
from dragoman.engines.in_process_watch import InProcessWatch
from dragoman.engines.limits import make_context_overflow
from dragoman.errors import ContextOverflow
from dragoman.models.output_format import OutputFormat
from dragoman.presets import Preset
from dragoman.prompt.go_template import writes_suffix
from dragoman.prompt.renderer import PromptRenderer
from dragoman.prompt.tokens.limit import DEFAULT_TOKENS, PromptLimit, make_limit
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.types import Capabilities, Engine, Sampling, TraceLevel

ProgressListener = Callable[[str, float], None]  # the stage, and the fraction that is done

# Set in the task that loads a model, so that loaders need no parameter for it.
progress_listener: ContextVar[ProgressListener | None] = ContextVar(
    "progress_listener", default=None
)


def report_progress(stage: str, fraction: float) -> None:
    """Report the progress of a load, from inside a loader."""
    listener = progress_listener.get()
    if listener is not None:
        listener(stage, fraction)


class UpstreamSummary(Struct, frozen=True, kw_only=True):
    """The server that runs a model, for clients: without its address."""

    server: str  # llama-server, vLLM, SGLang, Ollama…
    version: str = ""
    model: str = ""  # its name there
    api: str = "tokens"  # tokens, text or chat
    limitations: tuple[str, ...] = ()  # what this model does not support, one sentence each


class ModelInfo(Struct, frozen=True, kw_only=True):
    """Information about a model for clients; None is unknown until it is loaded."""

    architecture: str | None = None
    parameters: str | None = None  # a label like 135M
    quantization: str | None = None
    context: int | None = None  # tokens that are served
    trained_context: int | None = None  # tokens that it was trained for
    size: int = 0  # bytes of its files
    memory: int | None = None  # bytes that it needs in memory, estimated
    modalities: tuple[str, ...] = ("text",)
    capabilities: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()
    created: int = 0  # when its file was last changed, which is stable
    upstream: UpstreamSummary | None = None  # if another server runs it


class TokenVisibility(Struct, frozen=True):
    """Special tokens that are never text, and those that the parser must see."""

    hidden: frozenset[int] = frozenset()
    shown: frozenset[int] = frozenset()
    parser_only: frozenset[int] = frozenset()  # those that are shown and no part of the answer


class Model(Struct, kw_only=True, eq=False, weakref=True):
    """One model in memory."""

    id: str
    engine: Engine
    info: ModelInfo = ModelInfo()
    aliases: tuple[str, ...] = ()
    path: Path | None = None
    capabilities: Capabilities = Capabilities()
    tokenizer: AnyTokenizer | None = None
    template_source: str | None = None
    defaults: Sampling = Sampling()  # recommended by the model's author, else ours
    defaults_source: str = ""  # where they come from
    greedy_defaults: Sampling = Sampling()  # of requests for the most likely tokens
    preset: Preset = Preset()  # the operator's values for requests
    output_format: OutputFormat = OutputFormat()
    renderer: PromptRenderer
    relays_chat: bool = False  # the engine takes whole conversations, see `pipeline.relay`
    shares_cache: bool = False  # all API keys share cached prompts
    public_prompts: tuple[str, ...] = ()  # system prompts that all API keys may reuse
    public_prefixes: tuple[float, list[list[int]]] | None = None  # their tokens, and since when
    warned_about_scopes: bool = False
    watch: InProcessWatch | None = None  # of an engine that runs in this process
    _fingerprint: str = ""
    _prompt_limits: dict[str, PromptLimit] = msgspec.field(default_factory=dict)
    _token_visibility: dict[OutputFormat, TokenVisibility] = msgspec.field(default_factory=dict)

    def get_prompt_limit(self, param: str) -> PromptLimit:
        """Return how long a prompt may be, with the error that names the client's field."""
        limit = self._prompt_limits.get(param)
        if limit is None:
            limit = self._prompt_limits[param] = self._compute_prompt_limit(param)
        return limit

    def _compute_prompt_limit(self, param: str) -> PromptLimit:
        context, trained = self.capabilities.context, self.capabilities.trained_context
        if context is None:
            return self._make_limit(DEFAULT_TOKENS, f"`{param}` is too long: it has")
        return make_limit(
            context - 1,  # one is left for the answer
            self.renderer.longest_token,
            lambda length: make_context_overflow(length, context, trained, param),
        )

    def make_embedding_limit(self, param: str) -> PromptLimit:
        """Return how long an input to embed may be."""
        context = self.capabilities.embedding_context
        if context is None:
            return self.get_prompt_limit(param)
        return make_limit(
            context,
            self.renderer.longest_token,
            lambda length: make_context_overflow(length, context, param=param),
        )

    def make_count_limit(self, param: str) -> PromptLimit:
        """Return how long a text may be whose tokens are only counted or listed."""
        tokens = max(DEFAULT_TOKENS, 2 * (self.capabilities.context or 0))
        return self._make_limit(tokens, f"At most {tokens} tokens are counted. `{param}` has")

    def _make_limit(self, tokens: int, problem: str) -> PromptLimit:
        return make_limit(
            tokens,
            self.renderer.longest_token,
            lambda length: ContextOverflow(f"{problem} {length}. Please shorten it."),
        )

    def can_trace(self, level: TraceLevel) -> bool:
        """Whether the engine traces itself: its capabilities list the level, or it says so."""
        should_trace = getattr(self.engine, "should_trace", None)
        asked = callable(should_trace) and bool(should_trace(level))
        return asked or level in self.capabilities.trace

    def get_defaults(self, sampling: Sampling) -> Sampling:
        """Return the defaults of a request with these sampling fields."""
        return self.greedy_defaults if sampling.is_greedy else self.defaults

    def get_fingerprint(self) -> str:
        """Return a short text that changes when the model, or how it is served, changes."""
        if not self._fingerprint:
            described = (__version__, self.id, self.info, self.capabilities, self.template_source)
            served = (self.defaults, self.greedy_defaults, self.preset)
            data = msgspec.to_builtins(
                (described, served), enc_hook=repr, str_keys=True, order="deterministic"
            )
            digest = hashlib.sha256(msgspec.json.encode(data)).hexdigest()
            self._fingerprint = f"fp_{digest[:12]}"
        return self._fingerprint

    @property
    def template_stops(self) -> tuple[str, ...]:
        """Stop strings of the chat template, unless the operator forces others."""
        preset = self.preset
        is_forced = preset.stop is not None and preset.stop_rule == "force"
        return () if is_forced else self.renderer.stop_strings

    def get_token_visibility(self, output_format: OutputFormat) -> TokenVisibility:
        """Return which special tokens are hidden and which the parser of these formats sees."""
        visibility = self._token_visibility.get(output_format)
        if visibility is None:
            every = frozenset() if self.tokenizer is None else self.tokenizer.control
            shown = output_format.find_marker_tokens(self.tokenizer)
            visible = output_format.find_visible_marker_tokens(self.tokenizer)
            visibility = TokenVisibility(every - shown, shown, shown - visible)
            self._token_visibility[output_format] = visibility
        return visibility


def list_capabilities(
    capabilities: Capabilities,
    template: str | None,
    output_format: OutputFormat,
    tokenizer: object = None,
) -> tuple[str, ...]:
    """List what a model can do, under the names that clients look for."""
    supported = {
        "completion": capabilities.generates,
        "chat": capabilities.generates and template is not None,
        "tools": template is not None and output_format.tools is not None,
        "thinking": output_format.reasoning is not None,
        "embedding": capabilities.embeddings > 0,
        "rerank": capabilities.scores,
        "infill": getattr(tokenizer, "infill", None) is not None or writes_suffix(template),
        "grammar": capabilities.generates and capabilities.grammars,
        "logprobs": capabilities.generates and capabilities.logprobs >= 0,
        "lora": bool(capabilities.lora),
    }
    return tuple(name for name, is_supported in supported.items() if is_supported)
