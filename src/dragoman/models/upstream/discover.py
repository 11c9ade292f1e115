"""Finds out what must be known about an upstream server before its model is served.

`discover` identifies the server, finds tokenizer and template, compares the tokenizer with the
server's, and chooses the API: token ids where all of that succeeds, else text, else chat. The
loader makes a model from the result, and `dragoman explain URL` shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines.remote.settings import RemoteSettings
from dragoman.errors import ModelBroken
from dragoman.models.mapping import ModelOptions
from dragoman.models.upstream.compare_ids import check_ids, make_tokenize
from dragoman.models.upstream.identify import identify
from dragoman.models.upstream.probe_client import ProbeClient, normalize_url
from dragoman.models.upstream.server_info import ApiKind, ServerInfo
from dragoman.models.upstream.tokenizer_files import (
    TokenizerPlace,
    fetch_tokenizer,
    find_tokenizer,
)
from dragoman.models.upstream.versions import list_ignored_fields
from dragoman.options.secrets import mask_password
from dragoman.tokenizers.tokenizer import AnyTokenizer

log = logging.getLogger("dragoman.upstream")

NO_TOKENIZER = (
    "its tokenizer is unknown here; --tokenizer names the model's directory, GGUF file or "
    "Hugging Face name"
)


class Discovery(Struct, frozen=True, kw_only=True):
    """What was found at an address, and how it is used."""

    settings: RemoteSettings
    info: ServerInfo
    api: ApiKind
    reason: str = ""  # why the API is not that of token ids
    place: TokenizerPlace | None = None  # of the tokenizer
    tokenizer: AnyTokenizer | None = None  # of an API that takes ids
    template: str | None = None
    template_place: str = ""  # where it comes from
    probe_ids: Mapping[str, list[int]] = {}  # the server's ids of the texts that were compared
    ignored_fields: tuple[str, ...] = ()  # by this version of the server


def make_remote_settings(options: ModelOptions, key: str = "") -> RemoteSettings:
    """Return how to reach the server of a model; `key` is for servers without a key file."""
    settings = RemoteSettings(
        url=normalize_url(options.upstream or ""),
        model=options.upstream_model or "",
        api_key="" if options.upstream_key_file else key,
        api_key_file=options.upstream_key_file or "",
        ca_file=options.upstream_ca or "",
        grammars=options.upstream_grammars,
    )
    if options.upstream_timeout is None:
        return settings
    return replace(settings, stall_timeout=options.upstream_timeout)


def discover(options: ModelOptions, key: str = "") -> Discovery:
    """Find out everything about the server of a model. Blocks; raises a `DragomanError`."""
    settings = make_remote_settings(options, key)
    client = ProbeClient(settings)
    info = identify(client, settings.model)
    place = find_tokenizer(info, options.tokenizer) or fetch_tokenizer(client, info)
    template, template_place = choose_template(info, place, options)
    api, reason = choose_api(info, place, options, has_template=bool(template_place))
    tokenizer, probe_ids = None, {}
    if api == "tokens" and place is not None:
        tokenizer = place.read_tokenizer()
        if tokenizer is None:
            raise ModelBroken(f"The tokenizer ({place.name}) is of a kind that is not supported.")
        if info.tokenize_path:
            probe_ids = check_ids(tokenizer, make_tokenize(client, info), info, place.name)
        else:
            log.warning("%s: the server cannot tokenize, so ids were not compared", info.model)
    log.info(
        "%s is %s %s at %s: %s API",
        info.model,
        info.name,
        info.version or "of an unknown version",
        mask_password(settings.url),
        api,
    )
    return Discovery(
        settings=settings,
        info=info,
        api=api,
        reason=reason,
        place=place,
        tokenizer=tokenizer,
        template=template,
        template_place=template_place,
        probe_ids=probe_ids,
        ignored_fields=list_ignored_fields(info),
    )


def choose_template(
    info: ServerInfo, place: TokenizerPlace | None, options: ModelOptions
) -> tuple[str | None, str]:
    """Return the template, and where it is from; the operator's own file is read by the loader."""
    if options.chat_template is not None:
        return None, "the operator's file"
    if options.tokenizer is not None and place is not None and place.template is not None:
        return place.template, place.name
    if info.template is not None:
        return info.template, "the server"
    if place is not None and place.template is not None:
        return place.template, place.name
    return None, ""


def choose_api(
    info: ServerInfo, place: TokenizerPlace | None, options: ModelOptions, *, has_template: bool
) -> tuple[ApiKind, str]:
    """Return the API to use and, where it is not that of ids, why."""
    chosen = options.upstream_api or "auto"
    if chosen != "auto":
        if chosen not in info.apis:
            raise ModelBroken(
                f"The upstream server has no {chosen} API; it has: {', '.join(info.apis)}."
            )
        if chosen == "tokens" and place is None:
            raise ModelBroken(f"The API of token ids needs a tokenizer: {NO_TOKENIZER}.")
        return chosen, "" if chosen == "tokens" else "the operator chose it"
    reason = "the server neither takes nor returns token ids"
    if "tokens" in info.apis:
        if place is not None and info.tokenize_path:
            return "tokens", ""
        reason = NO_TOKENIZER if place is None else "it cannot tokenize, so ids cannot be compared"
    if "text" in info.apis and (has_template or "chat" not in info.apis):
        return "text", reason
    return "chat", reason if "text" not in info.apis else f"{reason}; no chat template is known"
