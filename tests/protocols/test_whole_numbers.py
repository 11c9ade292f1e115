"""Whole floats are accepted wherever a request has an integer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from dragoman.errors import BadRequest
from dragoman.protocols.chat.decode import ChatRequest
from dragoman.protocols.completions.decode import CompletionRequest
from dragoman.protocols.embeddings.decode import EmbeddingRequest
from dragoman.protocols.infill.decode import InfillRequest
from dragoman.protocols.messages.decode import CountTokensRequest, MessagesRequest
from dragoman.protocols.responses.decode.fields import ResponseRequest
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.whole_numbers import convert_json, decode_json
from dragoman.protocols.tokenize.decode import DetokenizeRequest, TokenizeRequest
from dragoman.testing import ScriptedEngine
from tests.support.hostile_samples import SAMPLES
from tests.support.serving import RunningServer, serve_scripted

REQUESTS: dict[type[msgspec.Struct], str] = {
    ChatRequest: "/v1/chat/completions",
    CompletionRequest: "/v1/completions",
    EmbeddingRequest: "/v1/embeddings",
    InfillRequest: "/infill",
    MessagesRequest: "/v1/messages",
    CountTokensRequest: "/v1/messages/count_tokens",
    ResponseRequest: "/v1/responses",
    TokenizeRequest: "/tokenize",
    DetokenizeRequest: "/detokenize",
}


def list_values(kind: msgspec.inspect.Type, depth: int = 4) -> Iterator[Any]:
    """Yield values of a type that contain integers; each integer is 1."""
    match kind:
        case msgspec.inspect.IntType():
            yield 1
        case msgspec.inspect.UnionType(types=types):
            if not any(isinstance(option, msgspec.inspect.FloatType) for option in types):
                for option in types:
                    yield from list_values(option, depth)
        case msgspec.inspect.ListType(item_type=item) if depth:
            yield from ([value, value] for value in list_values(item, depth - 1))
        case msgspec.inspect.DictType(value_type=item) if depth:
            yield from ({"1": value} for value in list_values(item, depth - 1))
        case msgspec.inspect.StructType(fields=fields) if depth:
            needed = {
                field.encode_name: "x"
                for field in fields
                if field.required and isinstance(field.type, msgspec.inspect.StrType)
            }
            for field in fields:
                for value in list_values(field.type, depth - 1):
                    yield needed | {field.encode_name: value}


def to_floats(value: Any) -> Any:
    match value:
        case int():
            return float(value)
        case list():
            return [to_floats(item) for item in value]
        case dict():
            return {name: to_floats(item) for name, item in value.items()}
    return value


CASES = [
    pytest.param(kind, field.encode_name, value, id=f"{kind.__name__}-{field.encode_name}-{number}")
    for kind in REQUESTS
    for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    for number, value in enumerate(list_values(field.type))
]


def test_there_are_many_integers() -> None:
    assert len(CASES) > 100


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_whole_float_is_an_integer(kind: type[msgspec.Struct], name: str, value: Any) -> None:
    body = SAMPLES[REQUESTS[kind]] | {name: value}
    try:
        expected = decode_body(json.dumps(body).encode(), kind)
    except BadRequest as error:  # 1 is out of range, or another field is missing
        pytest.skip(error.message)
    sent = body | {name: to_floats(value)}
    assert decode_body(json.dumps(sent).encode(), kind) == expected


class Inner(msgspec.Struct):
    count: int | None = None
    text: msgspec.Raw = msgspec.Raw(b"")


class Outer(msgspec.Struct):
    ids: list[list[int]] = []
    numbers: dict[str, int] = {}
    inner: str | list[Inner] = ""
    anything: Any = None
    ratio: float = 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"ids": [[1.0, 2], [], [3e0]]}', Outer(ids=[[1, 2], [], [3]])),
        ('{"numbers": {"a.b": 5.0, "c[0]": -0.0}}', Outer(numbers={"a.b": 5, "c[0]": 0})),
        (
            '{"inner": [{"count": null}, {"count": 1e2, "text": { "a":  1.0 }}]}',
            Outer(inner=[Inner(None), Inner(100, msgspec.Raw(b'{ "a":  1.0 }'))]),
        ),
        (
            '{"ids": [[1.0]], "anything": {"a": [1.0, 2]}, "ratio": 1}',
            Outer(ids=[[1]], anything={"a": [1.0, 2]}, ratio=1.0),
        ),
        ('{"numbers": {"a": 9007199254740992.0}}', Outer(numbers={"a": 2**53})),
    ],
)
def test_only_integers_are_changed(text: str, expected: Outer) -> None:
    decoded = decode_json(text.encode(), Outer)
    assert msgspec.json.encode(decoded) == msgspec.json.encode(expected)
    assert repr(decoded.anything) == repr(expected.anything)


@pytest.mark.parametrize(
    "text",
    [
        '{"ids": [[1.5]]}',
        '{"numbers": {"a": 1e300}}',
        '{"numbers": {"a": "5"}}',
        '{"numbers": {"a": true}}',
        '{"ids": [[1.0, 2.5]]}',
        '{"ids": 1.0}',
    ],
)
def test_other_values_are_still_errors(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_json(text.encode(), Outer)
    with pytest.raises(msgspec.ValidationError):
        convert_json(json.loads(text), list[int])


FIRST_USE = """
import sys, threading
sys.setswitchinterval(1e-6)
from dragoman.protocols.chat.decode import ChatRequest
from dragoman.protocols.responses.decode.fields import ResponseRequest
from dragoman.protocols.shared.json_body import decode_body
start = threading.Barrier(8)

def decode(kind):
    start.wait()
    decode_body(b'{"messages": [], "input": "x"}', kind)

kinds = [ChatRequest, ResponseRequest] * 4
threads = [threading.Thread(target=decode, args=(kind,)) for kind in kinds]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    """Otherwise msgspec crashes, in one of a few such processes."""
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", FIRST_USE], timeout=60)
        assert result.returncode == 0


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("Hello.", tokens=True, context=2048)) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"max_tokens": 3.0, "n": 1.0, "seed": 7.0}),
        ("/v1/completions", {"prompt": [97.0, 98.0], "max_tokens": 3.0}),
        ("/v1/completions", {"prompt": [[97.0], [98]], "max_tokens": 3.0}),
        ("/v1/embeddings", {"input": [97.0, 98]}),
        ("/v1/messages", {"max_tokens": 5.0, "thinking": {"type": "disabled"}, "top_k": 2.0}),
        ("/v1/responses", {"max_output_tokens": 20.0, "max_tool_calls": 2.0}),
        ("/tokenize", {"prompt": None, "content": ["a", 98.0]}),
        ("/detokenize", {"tokens": [97.0, 98.0]}),
    ],
)
def test_servers_accept_whole_floats(
    server: RunningServer, path: str, fields: dict[str, Any]
) -> None:
    answer = httpx.post(f"{server.url}{path}", json=SAMPLES[path] | fields)
    assert answer.status_code == 200, answer.text


def test_query_fields_and_websockets_accept_them_too(server: RunningServer) -> None:
    listed = httpx.get(f"{server.url}/v1/chat/completions?limit=5.0")
    assert listed.status_code == 200
    assert httpx.get(f"{server.url}/v1/chat/completions?limit=5.5").status_code == 400
