"""Encoding Messages answers: events in order, and equal to the whole message.

The `anthropic` package's own accumulator adds up the events.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jiter
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dragoman.engines.limits import make_context_overflow
from dragoman.errors import (
    BadRequest,
    ContextOverflow,
    DragomanError,
    Draining,
    EngineDown,
    EngineFailed,
    Forbidden,
    HeadersTooLarge,
    MethodNotAllowed,
    MissingParameter,
    ModelBroken,
    ModelLoading,
    ModelNotFound,
    Overloaded,
    RequestTimeout,
    TooLarge,
    Unauthorized,
    Unsupported,
)
from dragoman.events import Completion, Delta, Usage
from dragoman.protocols import messages
from dragoman.protocols.dialect import AnswerInfo, DialectContext, Encoder
from dragoman.protocols.messages import DIALECT, reasoning
from dragoman.protocols.shared.partial_json import parse_partial_json
from dragoman.signing import Signer
from dragoman.types import Chat, Request, make_text_content
from dragoman.types import Message as ChatMessage

SIGNER = Signer(b"k" * 32).for_owner("me")
CONTEXT = DialectContext(request_id="req_1", signer=SIGNER)
USAGE = Usage(prompt=100, completion=20, cached=60, reasoning=5)
EVENT = re.compile(rb"event: (\w+)\ndata: ([^\n]*)\n\n")
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def make_request(**fields: Any) -> Request:
    chat = Chat(messages=(ChatMessage(role="user", content=make_text_content("hi")),))
    return Request(model="m", prompts=(chat,), **fields)


def make_encoder(prompt_tokens: int = 100, **fields: Any) -> Encoder:
    return DIALECT.make_encoder(make_request(**fields), AnswerInfo("m", 1, prompt_tokens), CONTEXT)


def make_delta(text: str, channel: Any = "text", call: int = 0, **fields: Any) -> Delta:
    return Delta(0, text, channel, call, **fields)


def make_finish(reason: Any = "stop", text: str = "", **fields: Any) -> Delta:
    return Delta(0, text, finish=reason, usage=USAGE, **fields)


def make_call(number: int, name: str, *arguments: str) -> list[Delta]:
    name_delta = make_delta(name, "tool_name", number, id=f"call_{number}")
    return [name_delta, *(make_delta(piece, "tool_args", number) for piece in arguments)]


def encode_events(deltas: list[Delta], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a stream, each with its name."""
    encoder = make_encoder(**fields)
    frames = encoder.start()
    for delta in deltas:
        frames += encoder.encode_delta(delta)
    frames += encoder.end(USAGE)
    events = []
    for frame in frames:
        match = EVENT.fullmatch(frame)
        assert match is not None, frame
        name, data = match[1].decode(), json.loads(match[2])
        assert data["type"] == name
        events.append((name, data))
    return events


def encode_message(deltas: list[Delta], **fields: Any) -> dict[str, Any]:
    completion = Completion()
    for delta in deltas:
        completion.add(delta)
    encoder = make_encoder(**fields)
    answer: dict[str, Any] = json.loads(encoder.encode_whole(completion))
    Message.model_validate(answer)
    return answer


def accumulate(events: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for _, data in events:
        event = EVENTS.validate_python(data)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    message: dict[str, Any] = snapshot.model_dump(warnings=False)
    return message


def normalize(message: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message that do not depend on streaming."""
    message_fields = Message.model_validate(message).model_dump()
    return {name: value for name, value in message_fields.items() if name != "id"}


def check_order(events: list[tuple[str, dict[str, Any]]]) -> None:
    """Check that the events come in the order of the Messages API."""
    names = [name for name, _ in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    is_open, index, kind = False, -1, ""
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert not is_open
            is_open, index, kind = True, index + 1, data["content_block"]["type"]
        elif name == "content_block_delta":
            assert is_open
            allowed = {"text": ("text_delta",), "tool_use": ("input_json_delta",)}
            thinking = ("thinking_delta", "signature_delta")
            assert data["delta"]["type"] in allowed.get(kind, thinking)
        else:
            assert name == "content_block_stop"
            assert is_open
            is_open = False
        assert data["index"] == index
    assert not is_open


def encode_blocks(deltas: list[Delta], **fields: Any) -> list[dict[str, Any]]:
    """Return the content of an answer, which is the same streamed and whole."""
    events, message = encode_events(deltas, **fields), encode_message(deltas, **fields)
    check_order(events)
    assert normalize(accumulate(events)) == normalize(message)
    content: list[dict[str, Any]] = message["content"]
    return content


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def thinking_block(text: str) -> dict[str, Any]:
    signature = reasoning.sign_reasoning(text, SIGNER, omitted=False)
    return {"type": "thinking", "thinking": text, "signature": signature}


def tool_use_block(number: int, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"call_{number}", "name": name, "input": arguments}


CASES: dict[str, tuple[list[Delta], list[dict[str, Any]]]] = {
    "text": ([make_delta("Hel"), make_delta("lo."), make_finish()], [text_block("Hello.")]),
    "text with the finish": ([make_delta("Hel"), make_finish(text="lo.")], [text_block("Hello.")]),
    "nothing": ([make_finish()], []),
    "white space": ([make_delta("\n"), make_delta(" "), make_finish()], []),
    "reasoning": (
        [
            make_delta("hm", "reasoning"),
            make_delta("?", "reasoning"),
            make_delta("\n"),
            make_delta("\nSo."),
            make_finish(),
        ],
        [thinking_block("hm?"), text_block("\n\nSo.")],
    ),
    "only reasoning": (
        [make_delta("hm", "reasoning"), make_finish("length")],
        [thinking_block("hm")],
    ),
    "call": (
        [*make_call(0, "look", '{"a":', '"b"}'), make_finish("tool_calls")],
        [tool_use_block(0, "look", {"a": "b"})],
    ),
    "no arguments": (
        [*make_call(0, "now", "{}"), make_finish("tool_calls")],
        [tool_use_block(0, "now", {})],
    ),
    "no arguments at all": (
        [*make_call(0, "now"), make_finish("tool_calls")],
        [tool_use_block(0, "now", {})],
    ),
    "all": (
        [
            make_delta("hm", "reasoning"),
            make_delta("Let me look."),
            *make_call(0, "look", '{"a": 1}'),
            make_delta("\n"),
            *make_call(1, "now", "{}"),
            make_finish("tool_calls"),
        ],
        [
            thinking_block("hm"),
            text_block("Let me look."),
            tool_use_block(0, "look", {"a": 1}),
            tool_use_block(1, "now", {}),
        ],
    ),
    "alternating": (
        [
            make_delta("one", "reasoning"),
            make_delta("First."),
            make_delta("two", "reasoning"),
            *make_call(0, "look", "{}"),
            make_delta("Last."),
            make_finish(),
        ],
        [
            thinking_block("one"),
            text_block("First."),
            thinking_block("two"),
            tool_use_block(0, "look", {}),
            text_block("Last."),
        ],
    ),
    "space in reasoning": (
        [
            make_delta("one", "reasoning"),
            make_delta("\n"),
            make_delta("two", "reasoning"),
            make_finish(),
        ],
        [thinking_block("onetwo")],
    ),
    "cut off": (
        [*make_call(0, "look", '{"a": [1, 2], "b": "un'), make_finish("length")],
        [tool_use_block(0, "look", {"a": [1, 2]})],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_content_blocks(name: str) -> None:
    deltas, expected = CASES[name]
    assert encode_blocks(deltas) == expected


def test_omitted_reasoning_is_in_its_signature() -> None:
    [block, _] = encode_blocks(
        [make_delta("hm", "reasoning"), make_delta("So."), make_finish()], pack_reasoning=True
    )
    assert block["thinking"] == ""
    assert reasoning.verify_reasoning("", block["signature"], SIGNER) == "hm"
    events = encode_events([make_delta("hm", "reasoning"), make_finish()], pack_reasoning=True)
    deltas = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert deltas == ["signature_delta"]


def test_a_signature_verifies_when_it_comes_back() -> None:
    [block] = encode_blocks([make_delta("hm 雨", "reasoning"), make_finish()])
    assert reasoning.verify_reasoning(block["thinking"], block["signature"], SIGNER) == "hm 雨"


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (make_finish("stop"), "end_turn", None),
        (make_finish("stop", stop=7), "end_turn", None),
        (make_finish("stop", stop="END"), "stop_sequence", "END"),
        (make_finish("length"), "max_tokens", None),
        (make_finish("tool_calls"), "tool_use", None),
        (make_finish("tool_calls", stop="END"), "tool_use", None),
    ],
)
def test_stop_reasons(last: Delta, reason: str, sequence: str | None) -> None:
    answer = encode_message([make_delta("a"), last])
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    name, data = encode_events([make_delta("a"), last])[-2]
    assert name == "message_delta"
    assert (data["delta"]["stop_reason"], data["delta"]["stop_sequence"]) == (reason, sequence)
    assert data["delta"]["stop_details"] is None


def test_usage_counts_cached_tokens_apart() -> None:
    events, answer = (
        encode_events([make_delta("a"), make_finish()]),
        encode_message([make_delta("a"), make_finish()]),
    )
    usage = {
        "input_tokens": 40,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 0,
        "output_tokens": 20,
        "output_tokens_details": {"thinking_tokens": 5},
    }
    assert answer["usage"] == usage | {"service_tier": "standard"}
    assert events[-2][1]["usage"] == usage
    first_message = events[0][1]["message"]
    assert first_message["usage"]["input_tokens"] == 100
    assert first_message["content"] == []
    assert first_message["stop_reason"] is None
    assert first_message["id"].startswith("msg_")
    assert answer["container"] is None
    assert answer["stop_details"] is None


def test_input_tokens_are_never_zero() -> None:
    encoder = make_encoder(0)
    [frame] = encoder.start()
    assert b'"input_tokens":1,' in frame


# Arbitrary answers

TEXTS = st.text(alphabet='ab \n雨😀"\\{', min_size=1, max_size=8)
JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSONS, max_size=3)
PARTS = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning"]), TEXTS) | st.tuples(st.just("call"), OBJECTS),
    max_size=6,
)


def split(draw: st.DrawFn, text: str) -> list[str]:
    size = draw(st.integers(1, 5))
    return [text[start : start + size] for start in range(0, len(text), size)]


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    deltas: list[Delta] = []
    calls = 0
    for kind, value in draw(PARTS):
        if kind == "call":
            arguments = json.dumps(value, ensure_ascii=draw(st.booleans()))
            deltas += make_call(calls, "look", *split(draw, arguments))
            calls += 1
        else:
            deltas += [make_delta(piece, kind) for piece in split(draw, str(value))]
    if draw(st.booleans()):  # cut off anywhere
        return [*deltas[: draw(st.integers(0, len(deltas)))], make_finish("length")]
    return [*deltas, make_finish("tool_calls" if calls else "stop")]


@given(answers(), st.booleans())
def test_any_stream_adds_up_to_the_whole_message(deltas: list[Delta], encrypts: bool) -> None:
    content = encode_blocks(deltas, pack_reasoning=encrypts)
    assert all(block["text"].strip() for block in content if block["type"] == "text")


@given(OBJECTS, st.integers(0, 200))
def test_partial_json_is_parsed_as_clients_parse_it(value: Any, length: int) -> None:
    text = json.dumps(value)[:length]
    try:
        expected = jiter.from_json(text.encode(), partial_mode=True)
    except ValueError:
        expected = {}
    assert parse_partial_json(text) == expected


@pytest.mark.parametrize(
    "text", ["", "  ", "nonsense", '"text', "[" * 5000, '{"a":' * 5000, "]", "}{", '{"a" 1', "-"]
)
def test_uncertain_json_is_an_empty_object(text: str) -> None:
    assert parse_partial_json(text) == {}


# Errors


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("x"), 400, "invalid_request_error"),
        (Unauthorized("x"), 401, "authentication_error"),
        (Forbidden("x"), 403, "permission_error"),
        (ModelNotFound("x"), 404, "not_found_error"),
        (MethodNotAllowed("x"), 405, "invalid_request_error"),
        (RequestTimeout("x"), 408, "timeout_error"),
        (TooLarge("x"), 413, "request_too_large"),
        (HeadersTooLarge("x"), 431, "invalid_request_error"),
        (Overloaded("x"), 429, "rate_limit_error"),
        (EngineFailed("x"), 500, "api_error"),
        (ModelBroken("x"), 500, "api_error"),
        (ModelLoading("x"), 529, "overloaded_error"),
        (EngineDown("x"), 529, "overloaded_error"),
        (Draining("x"), 529, "overloaded_error"),
    ],
)
def test_errors_have_a_type_for_each_status(error: DragomanError, status: int, kind: str) -> None:
    assert messages.get_error_status(error) == status
    body = {"type": "error", "error": {"type": kind, "message": "x"}}
    assert json.loads(messages.encode_error(error)) == body | {"request_id": None}
    assert json.loads(DIALECT.encode_error(error, "req_1")) == body | {"request_id": "req_1"}
    [frame] = make_encoder(1).fail(error)
    match = EVENT.fullmatch(frame)
    assert match is not None
    assert match[1] == b"error"
    assert json.loads(match[2])["error"]["type"] == kind


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            MissingParameter("`a` is required.", param="a"),
            "a: Field required",
        ),
        (BadRequest("`a.b` must be 1.", param="a.b"), "`a.b` must be 1."),
        (Unsupported("Only text.", param="a[0].b"), "a[0].b: Only text."),
        (
            ContextOverflow(
                "This model's maximum context length is 4096 tokens. However, your messages "
                "resulted in 5000 tokens. Please shorten it.",
                param="messages",
            ),
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            make_context_overflow(5000, 4096, 131072),
            "prompt is too long: 5000 tokens > 4096 maximum (it was trained for 131072 tokens; "
            "the server's --context can raise it)",
        ),
        (ContextOverflow("It does not fit."), "prompt is too long: It does not fit."),
    ],
)
def test_error_messages_name_the_field(error: DragomanError, message: str) -> None:
    assert json.loads(messages.encode_error(error))["error"]["message"] == message
