"""Loads a model that another server runs: finds out what is there, and connects to it.

A server that takes and returns token ids is an engine like any other. One that takes only text has
no tokenizer here; one that takes only conversations renders and parses them itself (`relays_chat`).
`UpstreamSummary.limitations` lists what such a model therefore does not support.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from msgspec.structs import replace

from dragoman.engines.options import EngineOptions
from dragoman.engines.remote.engine import connect
from dragoman.engines.remote.options import SHARED_FIELDS
from dragoman.engines.remote.settings import MAX_LOGPROBS, RemoteProtocol, Upstream
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.assemble import ModelDetails, check_format_names, make_model
from dragoman.models.model import Model, UpstreamSummary, report_progress
from dragoman.models.recommended_sampling import RecommendedSampling
from dragoman.models.upstream.discover import Discovery, discover
from dragoman.models.upstream.limitations import list_limitations
from dragoman.models.upstream.server_info import shorten_name
from dragoman.tokenizers.tokenizer import PROBES
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Capabilities, Sampling

log = logging.getLogger("dragoman.models")

# A server that is used without ids has defaults that are not known here.
UPSTREAM_SAMPLING = RecommendedSampling(Sampling(), "the upstream server", Sampling())
IDENTITY_TEXTS = PROBES[::10]  # compared again later, to notice another tokenizer


async def load(source: ModelSource, key: str = "") -> Model:
    """Connect to the server of a model; `key` is sent where it has no key file of its own."""
    check_format_names(source)
    report_progress("asking the upstream server", 0.1)
    found = await asyncio.to_thread(discover, source.options, key)
    report_progress("connecting to the upstream server", 0.5)
    tokenizer = found.tokenizer
    vocabulary = Vocabulary(pieces=[]) if tokenizer is None else tokenizer.vocabulary
    engine = await connect(found.settings, make_upstream(source, found), vocabulary)
    if "cache_scopes" in found.ignored_fields:
        engine.capabilities = replace(engine.capabilities, cache_scopes=False)
    try:
        details = make_details(source, found, engine.capabilities)
        model = await asyncio.to_thread(make_model, source, engine, found.tokenizer, details)
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise
    # not in the engine's capabilities: none of our options can raise another server's context
    model.info = replace(model.info, trained_context=found.info.trained_context)
    if found.api == "chat":
        model.relays_chat = True
        names = ("completion", "chat", "tools")
        model.info = replace(model.info, capabilities=names)
    return model


def make_upstream(source: ModelSource, found: Discovery) -> Upstream:
    """Return what the engine must know about the server; options may lower what it has."""
    info, options = found.info, source.options
    for name in EngineOptions.__struct_fields__:
        if name not in SHARED_FIELDS and getattr(options, name) is not None:
            log.warning("%s: `%s` has no effect: another server runs it", source.id, name)
    protocol: RemoteProtocol | None = info.protocol if found.api == "tokens" else found.api
    if protocol is None:
        raise ModelBroken("The upstream server neither takes nor returns token ids.")
    return Upstream(
        protocol=protocol,
        model=info.model,
        version=info.version,
        context=get_smaller(info.context, options.context),
        slots=get_smaller(info.slots, options.slots),
        vocabulary_size=info.vocabulary_size,
        adapters=info.adapters,
        deterministic_seeds="seed" not in found.ignored_fields,
        sampling_fields=info.sampling_fields,
        max_logprobs=MAX_LOGPROBS if info.max_logprobs is None else info.max_logprobs,
        probe_ids={text: ids for text, ids in found.probe_ids.items() if text in IDENTITY_TEXTS},
    )


def get_smaller(found: int | None, chosen: int | None) -> int | None:
    """Return the smaller of two limits, each of which may be none."""
    limits = [limit for limit in (found, chosen) if limit]
    return min(limits, default=None)


def find_sampling(found: Discovery) -> RecommendedSampling | None:
    """Return the defaults of the server; None if they come from the files of the model."""
    if found.info.default_sampling is not None:
        return replace(UPSTREAM_SAMPLING, sampling=found.info.default_sampling)
    return None if found.api == "tokens" else UPSTREAM_SAMPLING


def make_details(source: ModelSource, found: Discovery, capabilities: Capabilities) -> ModelDetails:
    info, place = found.info, found.place
    limitations = list_limitations(found, capabilities)
    for sentence in limitations:
        log.warning("%s: %s", source.id, sentence)
    return ModelDetails(
        directory=Path() if place is None else place.directory,
        template=None if found.api == "chat" else found.template,
        parameters=info.parameters,
        quantization=info.quantization,
        context=capabilities.context,
        metadata={} if place is None else place.metadata,
        recommended=find_sampling(found),
        upstream=UpstreamSummary(
            server=info.name,
            version=info.version,
            model=shorten_name(info.model),
            api=found.api,
            limitations=limitations,
        ),
    )
