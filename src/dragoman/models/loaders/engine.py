"""A model around an engine that a program brings, see `dragoman.serve`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from dragoman.detection.sources import read_template_source
from dragoman.engines import get_capabilities
from dragoman.models.model import Model, ModelInfo, list_capabilities
from dragoman.models.output_format import FormatOverrides, detect_output_format
from dragoman.prompt.go_template import convert_go_template, is_go_template
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.from_object import adapt_tokenizer
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.types import Engine, Json

OPTIONS = ("name", "chat_template", "tokenizer", "special_tokens", "bos_token", "eos_token")
_TOKEN_NAME = re.compile(r"[a-z][a-z0-9_]*_tokens?", re.ASCII)


class EngineModelOptions(Struct, frozen=True, kw_only=True):
    """How to serve an engine as a model."""

    name: str = "default"
    chat_template: str | None = None  # Jinja source
    special_tokens: dict[str, Json] = {}  # variables of the template: bos_token and so on
    tokenizer: AnyTokenizer | None = None  # None is that of the engine, if it has one
    formats: FormatOverrides = (None, None)


def make_engine_model(engine: Engine, options: EngineModelOptions) -> Model:
    """Make a model around an engine that the caller made."""
    capabilities = get_capabilities(engine)
    tokenizer, template = options.tokenizer, options.chat_template
    own = getattr(engine, "tokenizer", None)
    if tokenizer is None and own is not None:
        tokenizer = adapt_tokenizer(own)
    findings = detect_output_format(template, tokenizer, options.formats, options.name)
    info = ModelInfo(
        context=capabilities.context,
        modalities=capabilities.modalities,
        capabilities=list_capabilities(capabilities, template, findings.output_format, tokenizer),
        lora=capabilities.lora,
        created=int(time.time()),
    )
    renderer = PromptRenderer(template, tokenizer, reasoning=findings.reasoning_options)
    renderer.special_tokens = options.special_tokens
    renderer.reads_media_as_text = capabilities.reads_media_as_text
    return Model(
        id=options.name,
        engine=engine,
        info=info,
        capabilities=capabilities,
        tokenizer=tokenizer,
        template_source=template,
        output_format=findings.output_format,
        renderer=renderer,
    )


def read_options(options: Mapping[str, object], formats: FormatOverrides) -> EngineModelOptions:
    """Read the options that a program gives, or raise an error that says what is wrong."""
    tokenizer = options.get("tokenizer")
    return EngineModelOptions(
        name=str(options.get("name") or "default"),
        chat_template=read_template(options.get("chat_template"), tokenizer),
        special_tokens=read_special_tokens(options),
        tokenizer=None if tokenizer is None else adapt_tokenizer(tokenizer),
        formats=formats,
    )


def read_template(template: object, tokenizer: object = None) -> str | None:
    """Return a template's source, given as text or as a path; else that of the tokenizer.

    Raises a `ValueError` that says what is wrong.
    """
    if isinstance(template, str) and ("{{" in template or "{%" in template):
        return convert_go_template(template) if is_go_template(template) else template
    if isinstance(template, str | Path):
        source = read_template_source(Path(template)) if Path(template).exists() else None
        if source is None:
            raise ValueError(f"`chat_template` is neither a template nor a file: {template}")
        return source.template
    if template is not None:
        raise ValueError(f"`chat_template` must be text or a path, not {type(template).__name__}.")
    if isinstance(tokenizer, str | Path):
        path = Path(tokenizer)
        source = read_template_source(path if path.is_dir() else path.parent)
        return None if source is None else source.template
    own = getattr(tokenizer, "chat_template", None)  # of `transformers`
    return own if isinstance(own, str) else None


def read_special_tokens(options: Mapping[str, object]) -> dict[str, Json]:
    """Return the special tokens in options: `special_tokens`, a mapping, and `bos_token` and so on.

    Raises a `ValueError` that says what is wrong.
    """
    given = options.get("special_tokens") or {}
    if not isinstance(given, Mapping):
        raise ValueError("`special_tokens` must be a mapping, such as {'bos_token': '<s>'}.")
    named = {name: options[name] for name in ("bos_token", "eos_token") if options.get(name)}
    tokens: dict[str, Json] = {}
    for name, value in {**given, **named}.items():
        if not (isinstance(name, str) and _TOKEN_NAME.fullmatch(name)):
            raise ValueError(
                f"`special_tokens`: {name!r} is not a name such as `bos_token`, `eos_token` or "
                "`additional_special_tokens`."
            )
        tokens[name] = _read_token(name, value)
    return tokens


def _read_token(name: str, value: object) -> Json:
    """Return the text of a token, or the texts of several; files write them as objects, too."""
    if isinstance(value, list | tuple) and name.endswith("tokens"):
        return [_read_token(name, entry) for entry in value]
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        raise ValueError(f"`special_tokens`: `{name}` must be text, not {type(value).__name__}.")
    return text
