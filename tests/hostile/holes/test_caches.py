"""Holes of caches: keys that collide, and keys that a client chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from dragoman.testing import ScriptedEngine
from dragoman.types import Job
from dragoman.types.cache_scope import make_cache_scope
from tests.support.serving import make_chat, serve_scripted

# fields with which clients of other servers choose where a prompt is cached
CHOSEN: dict[str, Any] = {
    "cache_salt": "salt of another",
    "cache_scope": "",
    "extra_key": "salt of another",
    "id_slot": 0,
    "prompt_cache_key": "key of another",
    "public_prefix": 10,
    "mm_hashes": {"image": ["0" * 64]},
    "user": "another",
}


def test_hole_76_scopes_of_many_owners_are_all_different(
    count_cases: Callable[[int], None],
) -> None:
    """They are 96 bits of a keyed hash; prompts themselves are compared token by token."""
    owners = [f"{number:032x}" for number in range(100_000)]
    count_cases(len(owners))
    scopes = {make_cache_scope(owner) for owner in owners}
    assert len(scopes) == len(owners)
    assert {len(scope) for scope in scopes} == {24}
    assert make_cache_scope(owners[0]) in scopes  # the same each time


@pytest.mark.parametrize("field", [*CHOSEN])
def test_hole_78_no_field_of_a_client_chooses_where_a_prompt_is_cached(field: str) -> None:
    engine = ScriptedEngine(tokens=True)
    engine.capabilities = replace(engine.capabilities, cache_scopes=True, public_prefixes=True)

    def get_cache_fields(job: Job) -> tuple[str, int, bool]:
        return job.cache_scope, job.public_prefix, job.cache_prompt

    with serve_scripted(engine, api_key=("key-of-ann", "key-of-bob")) as server:
        sent: list[dict[str, Any]] = [{}, {field: CHOSEN[field]}]
        for fields in sent:
            body = make_chat(**fields)
            headers = {"authorization": "Bearer key-of-ann"}
            url = f"{server.url}/v1/chat/completions"
            assert httpx.post(url, json=body, headers=headers).status_code in (200, 400)
    first, *others = map(get_cache_fields, engine.jobs)
    assert first[0]
    assert all(other == first for other in others)
