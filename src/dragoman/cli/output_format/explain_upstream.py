"""`dragoman explain URL`: show what runs at the address of an upstream server, without serving it.

The server is identified and its model is loaded as `dragoman serve --upstream` would do it: the
tokenizers are compared, and one token is generated. What was found is shown even if that fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from dragoman.config import Settings
from dragoman.errors import DragomanError
from dragoman.explain.report import build_report, format_report, make_source
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.loader import LoadSettings, load
from dragoman.models.model import Model
from dragoman.models.upstream.discover import make_remote_settings
from dragoman.models.upstream.identify import identify
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import ServerInfo, shorten_name
from dragoman.options import mask_password
from dragoman.types import Json, Sampling

INDENT = 14


class UpstreamReport(Struct, kw_only=True):
    """What was found at an address."""

    url: str
    info: ServerInfo
    model: Model | None = None  # as it would be served
    error: str | None = None  # why it would not

    @property
    def template(self) -> str | None:
        """The template of the model, if it is rendered here."""
        return None if self.model is None else self.model.template_source

    @property
    def special_tokens(self) -> list[str]:
        tokenizer = None if self.model is None else self.model.tokenizer
        return [] if tokenizer is None else list(tokenizer.specials)


def inspect_upstream(source: ModelSource, settings: Settings) -> UpstreamReport:
    """Find out what runs at the address of a model, or raise a `DragomanError` if nothing does."""
    remote = make_remote_settings(source.options, settings.upstream_key)
    info = identify(ProbeClient(remote), remote.model)
    report = UpstreamReport(url=mask_password(remote.url), info=info)
    try:
        report.model = asyncio.run(_load(source, settings.upstream_key))
    except DragomanError as error:
        report.error = error.message
    return report


async def _load(source: ModelSource, key: str) -> Model:
    model = await load(source, LoadSettings(upstream_key=key))
    close = getattr(model.engine, "aclose", None)
    if close is not None:
        await close()
    return model


def describe_report(report: UpstreamReport) -> dict[str, Json]:
    """Return the report as data, for --json."""
    info, model, template = report.info, report.model, report.template
    described: dict[str, Json] = {
        "upstream": {"url": report.url, **msgspec.to_builtins(info)},
        "error": report.error,
    }
    if model is not None and model.info.upstream is not None:
        described |= {
            "api": model.info.upstream.api,
            "limitations": list(model.info.upstream.limitations),
            "capabilities": list(model.info.capabilities),
            "sampling": sorted(model.capabilities.sampling),
            "not_honoured": list_unsupported(model),
            "tokenizer": None if model.tokenizer is None else model.tokenizer.source,
        }
    if template is not None:
        source = make_source(template, report.url, report.special_tokens)
        described["formats"] = build_report(source)
    return described


def format_upstream_report(report: UpstreamReport, with_source: bool = False) -> str:
    """Return the report as text: the server first, then what does not hold, then the formats."""
    rows = [*list_server_rows(report), *list_model_rows(report)]
    lines = [f"{name.ljust(INDENT)}{value}".rstrip() for name, value in rows if value]
    if report.error is not None:
        lines += ["", f"{'cannot serve'.ljust(INDENT)}{report.error}"]
    limitations = () if report.model is None else _get_limitations(report.model)
    for number, sentence in enumerate(limitations):
        lines += [""] if number == 0 else []
        lines.append(("does not hold" if number == 0 else "").ljust(INDENT) + sentence)
    if report.template is not None:
        source = make_source(report.template, report.url, report.special_tokens)
        lines += ["", format_report(source, with_source)]
    return "\n".join(lines)


def list_server_rows(report: UpstreamReport) -> Iterator[tuple[str, str]]:
    info = report.info
    yield "upstream", f"{info.name} {info.version}".strip() + f" at {report.url}"
    yield "model", shorten_name(info.model)
    yield "other models", ", ".join(map(shorten_name, info.other_models))
    trained = f", trained for {info.trained_context}" if info.trained_context else ""
    yield "context", f"{info.context} tokens{trained}" if info.context else "unknown"
    yield "slots", str(info.slots or "")
    yield "adapters", ", ".join(info.adapters) or "none"
    yield "has", f"{', '.join(info.apis)} API"


def list_model_rows(report: UpstreamReport) -> Iterator[tuple[str, str]]:
    model = report.model
    if model is None or model.info.upstream is None:
        return
    capabilities = model.capabilities
    yield "uses", f"{model.info.upstream.api} API"
    yield "tokenizer", "unknown" if model.tokenizer is None else "its ids are those of the server"
    yield "abilities", ", ".join(model.info.capabilities)
    yield "grammars", "yes" if capabilities.grammars else "no"
    yield "logprobs", "no" if capabilities.logprobs < 0 else f"up to {capabilities.logprobs}"
    yield "sampling", ", ".join(sorted(capabilities.sampling))
    yield "not honoured", ", ".join(list_unsupported(model))


def list_unsupported(model: Model) -> list[str]:
    """Return the sampling fields that are rejected."""
    return [name for name in Sampling.__struct_fields__ if name not in model.capabilities.sampling]


def _get_limitations(model: Model) -> tuple[str, ...]:
    return () if model.info.upstream is None else model.info.upstream.limitations
