"""A model that is loaded: its engine, its tokenizer, its template, its formats, and so on."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.engines import get_capabilities
from dragoman.models.output_format import FormatOverrides, OutputFormat, detect_output_format
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.types import Capabilities, Engine, Sampling

ProgressListener = Callable[[str, float], None]  # what is being done, and how much of all is done

# Set for the task that loads a model, so that a loader need not be handed it
progress_listener: ContextVar[ProgressListener | None] = ContextVar("reporting", default=None)


def report_progress(what: str, done: float) -> None:
    """Say, from inside a loader, how far it is."""
    listener = progress_listener.get()
    if listener is not None:
        listener(what, done)


class ModelInfo(Struct, frozen=True, kw_only=True):
    """What a client may know of a model; None is "not known before it is loaded"."""

    architecture: str | None = None
    parameters: str | None = None  # a label like 135M
    quantisation: str | None = None
    context: int | None = None
    size: int = 0  # bytes of its files
    modalities: tuple[str, ...] = ("text",)
    capabilities: tuple[str, ...] = ()
    lora: tuple[str, ...] = ()
    created: int = 0  # when its file was last changed: the same at every look


class TokenVisibility(Struct, frozen=True):
    """Control tokens that are never text, and those that a parser must see."""

    hidden: frozenset[int] = frozenset()
    shown: frozenset[int] = frozenset()


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
    defaults: Sampling = Sampling()
    output_format: OutputFormat = OutputFormat()  # the formats of its answers
    renderer: PromptRenderer
    _token_visibility: dict[OutputFormat, TokenVisibility] = msgspec.field(default_factory=dict)

    def get_token_visibility(self, speech: OutputFormat) -> TokenVisibility:
        """The control tokens, for whoever reads these formats."""
        if speech not in self._token_visibility:
            every = frozenset() if self.tokenizer is None else self.tokenizer.control
            shown = speech.find_marker_tokens(self.tokenizer)
            self._token_visibility[speech] = TokenVisibility(every - shown, shown)
        return self._token_visibility[speech]


def list_capabilities(
    can: Capabilities, template: str | None, speech: OutputFormat
) -> tuple[str, ...]:
    """What a model can do, in the words that clients look for."""
    able = {
        "completion": True,
        "chat": template is not None,
        "tools": template is not None and speech.tools is not None,
        "thinking": speech.reasoning is not None,
        "embedding": can.embeddings > 0,
        "grammar": can.grammars,
        "logprobs": can.logprobs >= 0,
        "lora": bool(can.lora),
    }
    return tuple(name for name, has in able.items() if has)


def make_engine_model(
    engine: Engine,
    name: str,
    template: str | None,
    created: int,
    formats: FormatOverrides = (None, None),
) -> Model:
    """A model around an engine that someone else made."""
    can = get_capabilities(engine)
    tokenizer = getattr(engine, "tokenizer", None)
    known = detect_output_format(template, tokenizer, formats, name)
    info = ModelInfo(
        context=can.context,
        modalities=can.modalities,
        capabilities=list_capabilities(can, template, known.output_format),
        lora=can.lora,
        created=created,
    )
    return Model(
        id=name,
        engine=engine,
        info=info,
        capabilities=can,
        tokenizer=tokenizer,
        template_source=template,
        output_format=known.output_format,
        renderer=PromptRenderer(template, tokenizer, reasoning=known.reasoning_options),
    )
