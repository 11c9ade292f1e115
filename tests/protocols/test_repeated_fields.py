"""Only the messages of a body are decoded if its other fields were decoded before."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from dragoman.errors import BadRequest
from dragoman.protocols.chat.decode import REPEATED, decode_request
from dragoman.protocols.shared.json_body import collect_warnings
from dragoman.types import Json
from dragoman.types.cache_scope import restore_cache_scope, set_cache_scope

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FIELDS: list[dict[str, Json]] = [
    {},
    {"temperature": 0.5, "max_tokens": 5.0, "stop": ["a"], "stream": True},
    {"tools": [TOOL], "tool_choice": "required", "seed": 1},
    {"response_prefix": "Yes,"},
    {"service_tier": "no such tier", "verbosity": "high"},
]
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TURNS: list[list[Json]] = [
    [{"role": "user", "content": "Hi."}],
    [{"role": "user", "content": [{"type": "text", "text": "你好"}], "name": "a"}],
    [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "Seen.", "tool_call_id": "c"},
    ],
]


@pytest.fixture(autouse=True)
def scope() -> Iterator[None]:
    set_cache_scope("owner")
    yield
    restore_cache_scope("")


def make_body(messages: list[Json], fields: dict[str, Json]) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": messages} | fields)


def is_known(body: bytes) -> bool:
    split = REPEATED.split(body, strict=False)
    return split is not None and REPEATED.find(split) is not None


@pytest.mark.parametrize("fields", FIELDS)
def test_requests_do_not_depend_on_what_came_before(fields: dict[str, Json]) -> None:
    bodies = [make_body(messages, fields) for messages in TURNS]
    expected = []
    for number, body in enumerate(bodies):
        set_cache_scope(f"owner {number} of {fields}")  # nothing is known yet
        assert not is_known(body)
        expected.append(decode_request(body))
    set_cache_scope("another owner")
    assert [decode_request(body) for body in bodies] == expected
    assert is_known(bodies[0]) == ("response_prefix" not in fields)


def test_errors_of_messages_are_the_same_for_known_fields() -> None:
    fields = {"top_p": 0.5}
    decode_request(make_body(TURNS[0], fields))
    for messages in ([], [{"role": "user"}], [{"role": "user", "content": 5}], [{"role": "a"}]):
        body = make_body(messages, fields)
        with pytest.raises(BadRequest) as known:
            decode_request(body)
        set_cache_scope("another owner")
        with pytest.raises(BadRequest) as unknown:
            decode_request(body)
        set_cache_scope("owner")
        assert (known.value.message, known.value.param) == (
            unknown.value.message,
            unknown.value.param,
        )


def test_unknown_fields_are_reported_each_time() -> None:
    body = make_body(
        TURNS[0], {"no_such_field": 1, "stream": True, "stream_options": {"another": 1}}
    )
    for _ in range(2):
        warnings: list[str] = []
        with collect_warnings(warnings):
            decode_request(body)
        assert len(warnings) == 2


def test_owners_share_nothing() -> None:
    body = make_body(TURNS[0], {"user": "a"})
    decode_request(body)
    assert is_known(body)
    set_cache_scope("another owner of this test")
    assert not is_known(body)
