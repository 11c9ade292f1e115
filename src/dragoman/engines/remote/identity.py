"""Which model and tokenizer a server has, to notice when another one runs at its address.

A model is known by what the server lists about it, its tokenizer by the tokens of a few odd texts:
sizes of vocabularies are padded, so equal sizes prove nothing. A server without a route for tokens
is known by its list alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.engines.remote.failures import ConnectionFailure, StatusFailure
from dragoman.engines.remote.http.client import UpstreamClient
from dragoman.engines.remote.protocols.api import UpstreamApi
from dragoman.types import Json

PROBE_TEXTS = (
    "Zażółć gęślą jaźń\t\n\n  12345.67 snake_case camelCase <b>x</b> 你好 \U0001f99c\u200d!",
)
# what servers list about a model that stays the same while it runs
LISTED_FIELDS = ("id", "root", "parent", "max_model_len", "meta")
CONTEXT_FIELDS = ("max_model_len", "n_ctx")  # which a restarted server may have more of
NOT_LISTED: dict[str, Json] = {"id": None}  # models are listed, but not the one that is asked for
MISSING_STATUSES = (404, 405, 501)


Difference: TypeAlias = Literal["tokenizer", "model", "context"]


class ServerIdentity(Struct, frozen=True):
    """A model and its tokenizer, as a server shows them."""

    listed: dict[str, Json]  # empty: the server lists no models
    probe_ids: dict[str, list[int]]  # empty: the server tells no tokens

    def find_difference(self, other: ServerIdentity) -> Difference | None:
        """Say in what a later identity differs; None if it can do what this one can."""
        for text, ids in self.probe_ids.items():
            if other.probe_ids.get(text) != ids:
                return "tokenizer"
        if bool(self.listed) != bool(other.listed) or not agree(self.listed, other.listed):
            return "model"
        return "context" if has_less_context(self.listed, other.listed) else None


def agree(first: Mapping[str, Json], second: Mapping[str, Json]) -> bool:
    """Whether two descriptions of a model can be true at once.

    A server may say more of a model once it is loaded, so only what both say is compared. The
    context is not a property of the model.
    """
    return all(
        agree(first[name], second[name])
        if isinstance(first[name], dict) and isinstance(second[name], dict)
        else first[name] == second[name]
        for name in (first.keys() & second.keys()).difference(CONTEXT_FIELDS)
    )


def has_less_context(first: Mapping[str, Json], second: Mapping[str, Json]) -> bool:
    """Whether the second description of a server has a smaller context than the first."""
    for name in CONTEXT_FIELDS:
        before, after = (find_field(fields, name) for fields in (first, second))
        if isinstance(before, int) and isinstance(after, int) and after < before:
            return True
    return False


def find_field(listed: Mapping[str, Json], name: str) -> Json:
    """Return a field of a listed model, or of its `meta`."""
    meta = listed.get("meta")
    return listed.get(name, meta.get(name) if isinstance(meta, dict) else None)


async def read_identity(
    client: UpstreamClient,
    api: UpstreamApi,
    model: str,
    texts: Collection[str] = PROBE_TEXTS,
    *,
    timeout: float | None = None,
) -> ServerIdentity:
    """Ask a server; raises an `UpstreamFailure`."""
    listed = await _read_listing(client, model, timeout)
    probe_ids: dict[str, list[int]] = {}
    for text in texts:
        ids = await fetch_tokens(client, api, text, timeout=timeout)
        if ids is not None:
            probe_ids[text] = ids
    return ServerIdentity(listed, probe_ids)


async def _read_listing(
    client: UpstreamClient, model: str, timeout: float | None
) -> dict[str, Json]:
    try:
        answer = await client.fetch("/v1/models", timeout=timeout)
    except StatusFailure as failure:
        if failure.status in MISSING_STATUSES:
            return {}
        raise
    entries = answer.get("data") if isinstance(answer, dict) else answer
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and (not model or entry.get("id") == model):
            return {name: entry[name] for name in LISTED_FIELDS if entry.get(name) is not None}
    return NOT_LISTED


async def fetch_tokens(
    client: UpstreamClient,
    api: UpstreamApi,
    text: str,
    special: bool = False,
    *,
    timeout: float | None = None,
) -> list[int] | None:
    """Return the tokens of a text; None if the server has no route for that."""
    request = api.build_tokenize(text, special)
    if request is None:
        return None
    path, body = request
    try:
        answer = await client.fetch(path, body, timeout=timeout)
    except StatusFailure as failure:
        if failure.status in MISSING_STATUSES:
            return None
        raise
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise ConnectionFailure("invalid", f"{path} does not return a list of tokens")
    return tokens
