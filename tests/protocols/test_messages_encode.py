"""Writing answers of the Messages dialect: events in order, and the same as the whole message.

The `anthropic` package's own accumulator adds the events up.
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
from dragoman.protocols.messages import DIALECT, partial_json, reasoning
from dragoman.signing import Signer
from dragoman.types import Chat, Request, text_content
from dragoman.types import Message as Turn

SIGNING = Signer(b"k" * 32).for_owner("me")
CONTEXT = DialectContext(request_id="req_1", signer=SIGNING)
USAGE = Usage(prompt=100, completion=20, cached=60, reasoning=5)
EVENT = re.compile(rb"event: (\w+)\ndata: ([^\n]*)\n\n")
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def request(**fields: Any) -> Request:
    chat = Chat(messages=(Turn(role="user", content=text_content("hi")),))
    return Request(model="m", prompts=(chat,), **fields)


def encoder(prompt_tokens: int = 100, **fields: Any) -> Encoder:
    return DIALECT.encoder(request(**fields), AnswerInfo("m", 1, prompt_tokens), CONTEXT)


def say(text: str, channel: Any = "text", call: int = 0, **more: Any) -> Delta:
    return Delta(0, text, channel, call, **more)


def finish(how: Any = "stop", text: str = "", **more: Any) -> Delta:
    return Delta(0, text, finish=how, usage=USAGE, **more)


def call(at: int, name: str, *arguments: str) -> list[Delta]:
    named = say(name, "tool_name", at, id=f"call_{at}")
    return [named, *(say(piece, "tool_args", at) for piece in arguments)]


def frames(deltas: list[Delta], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Events of a stream, each with its name."""
    writer = encoder(**fields)
    written = writer.start()
    for delta in deltas:
        written += writer.encode_delta(delta)
    written += writer.end(USAGE)
    found = []
    for frame in written:
        match = EVENT.fullmatch(frame)
        assert match is not None, frame
        name, data = match[1].decode(), json.loads(match[2])
        assert data["type"] == name
        found.append((name, data))
    return found


def whole(deltas: list[Delta], **fields: Any) -> dict[str, Any]:
    completion = Completion()
    for delta in deltas:
        completion.add(delta)
    writer = encoder(**fields)
    answer: dict[str, Any] = json.loads(writer.encode_whole(completion))
    Message.model_validate(answer)
    return answer


def added_up(events: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for _, data in events:
        event = EVENTS.validate_python(data)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    made: dict[str, Any] = snapshot.model_dump(warnings=False)
    return made


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """What of a message must not depend on how it came."""
    told = Message.model_validate(message).model_dump()
    return {name: value for name, value in told.items() if name != "id"}


def in_order(events: list[tuple[str, dict[str, Any]]]) -> None:
    """The order of events, as the dialect has it."""
    names = [name for name, _ in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    opened, index, kind = False, -1, ""
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert not opened
            opened, index, kind = True, index + 1, data["content_block"]["type"]
        elif name == "content_block_delta":
            assert opened
            allowed = {"text": ("text_delta",), "tool_use": ("input_json_delta",)}
            thinking = ("thinking_delta", "signature_delta")
            assert data["delta"]["type"] in allowed.get(kind, thinking)
        else:
            assert name == "content_block_stop"
            assert opened
            opened = False
        assert data["index"] == index
    assert not opened


def blocks(deltas: list[Delta], **fields: Any) -> list[dict[str, Any]]:
    """The content of an answer, the same both ways."""
    events, one = frames(deltas, **fields), whole(deltas, **fields)
    in_order(events)
    assert plain(added_up(events)) == plain(one)
    content: list[dict[str, Any]] = one["content"]
    return content


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thought(said: str) -> dict[str, Any]:
    signature = reasoning.sign_reasoning(said, SIGNING, omitted=False)
    return {"type": "thinking", "thinking": said, "signature": signature}


def use(at: int, name: str, given_: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"call_{at}", "name": name, "input": given_}


CASES: dict[str, tuple[list[Delta], list[dict[str, Any]]]] = {
    "text": ([say("Hel"), say("lo."), finish()], [text("Hello.")]),
    "last words": ([say("Hel"), finish(text="lo.")], [text("Hello.")]),
    "nothing": ([finish()], []),
    "white space": ([say("\n"), say(" "), finish()], []),
    "thought": (
        [say("hm", "reasoning"), say("?", "reasoning"), say("\n"), say("\nSo."), finish()],
        [thought("hm?"), text("\n\nSo.")],
    ),
    "only thought": ([say("hm", "reasoning"), finish("length")], [thought("hm")]),
    "call": (
        [*call(0, "look", '{"a":', '"b"}'), finish("tool_calls")],
        [use(0, "look", {"a": "b"})],
    ),
    "no arguments": ([*call(0, "now", "{}"), finish("tool_calls")], [use(0, "now", {})]),
    "not even those": ([*call(0, "now"), finish("tool_calls")], [use(0, "now", {})]),
    "all": (
        [
            say("hm", "reasoning"),
            say("Let me look."),
            *call(0, "look", '{"a": 1}'),
            say("\n"),
            *call(1, "now", "{}"),
            finish("tool_calls"),
        ],
        [thought("hm"), text("Let me look."), use(0, "look", {"a": 1}), use(1, "now", {})],
    ),
    "by turns": (
        [
            say("one", "reasoning"),
            say("First."),
            say("two", "reasoning"),
            *call(0, "look", "{}"),
            say("Last."),
            finish(),
        ],
        [thought("one"), text("First."), thought("two"), use(0, "look", {}), text("Last.")],
    ),
    "space in a thought": (
        [say("one", "reasoning"), say("\n"), say("two", "reasoning"), finish()],
        [thought("onetwo")],
    ),
    "cut off": (
        [*call(0, "look", '{"a": [1, 2], "b": "un'), finish("length")],
        [use(0, "look", {"a": [1, 2]})],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_answers(name: str) -> None:
    deltas, expected = CASES[name]
    assert blocks(deltas) == expected


def test_thoughts_that_are_left_out_come_back_in_their_signature() -> None:
    [block, _] = blocks([say("hm", "reasoning"), say("So."), finish()], encrypt_reasoning=True)
    assert block["thinking"] == ""
    assert reasoning.verify_reasoning("", block["signature"], SIGNING) == "hm"
    events = frames([say("hm", "reasoning"), finish()], encrypt_reasoning=True)
    deltas = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert deltas == ["signature_delta"]


def test_a_signature_is_good_on_return() -> None:
    [block] = blocks([say("hm 雨", "reasoning"), finish()])
    assert reasoning.verify_reasoning(block["thinking"], block["signature"], SIGNING) == "hm 雨"


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (finish("stop"), "end_turn", None),
        (finish("stop", stop=7), "end_turn", None),
        (finish("stop", stop="END"), "stop_sequence", "END"),
        (finish("length"), "max_tokens", None),
        (finish("tool_calls"), "tool_use", None),
        (finish("tool_calls", stop="END"), "tool_use", None),
    ],
)
def test_why_an_answer_ended(last: Delta, reason: str, sequence: str | None) -> None:
    answer = whole([say("a"), last])
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    name, data = frames([say("a"), last])[-2]
    assert name == "message_delta"
    assert (data["delta"]["stop_reason"], data["delta"]["stop_sequence"]) == (reason, sequence)
    assert data["delta"]["stop_details"] is None


def test_what_an_answer_cost() -> None:
    events, answer = frames([say("a"), finish()]), whole([say("a"), finish()])
    cost = {
        "input_tokens": 40,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 0,
        "output_tokens": 20,
        "output_tokens_details": {"thinking_tokens": 5},
    }
    assert answer["usage"] == cost | {"service_tier": "standard"}
    assert events[-2][1]["usage"] == cost
    began = events[0][1]["message"]
    assert began["usage"]["input_tokens"] == 100
    assert began["content"] == []
    assert began["stop_reason"] is None
    assert began["id"].startswith("msg_")
    assert answer["container"] is None
    assert answer["stop_details"] is None


def test_a_prompt_is_never_said_to_be_empty() -> None:
    writer = encoder(0)
    [frame] = writer.start()
    assert b'"input_tokens":1,' in frame


# Any answer

WORDS = st.text(alphabet='ab \n雨😀"\\{', min_size=1, max_size=8)
JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(WORDS, JSONS, max_size=3)
PARTS = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning"]), WORDS) | st.tuples(st.just("call"), OBJECTS),
    max_size=6,
)


def pieces(draw: st.DrawFn, said: str) -> list[str]:
    size = draw(st.integers(1, 5))
    return [said[at : at + size] for at in range(0, len(said), size)]


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    deltas: list[Delta] = []
    calls = 0
    for kind, said in draw(PARTS):
        if kind == "call":
            written = json.dumps(said, ensure_ascii=draw(st.booleans()))
            deltas += call(calls, "look", *pieces(draw, written))
            calls += 1
        else:
            deltas += [say(piece, kind) for piece in pieces(draw, str(said))]
    if draw(st.booleans()):  # cut off anywhere
        return [*deltas[: draw(st.integers(0, len(deltas)))], finish("length")]
    return [*deltas, finish("tool_calls" if calls else "stop")]


@given(answers(), st.booleans())
def test_any_stream_adds_up_to_the_whole(deltas: list[Delta], sealed: bool) -> None:
    content = blocks(deltas, encrypt_reasoning=sealed)
    assert all(block["text"].strip() for block in content if block["type"] == "text")


@given(OBJECTS, st.integers(0, 200))
def test_half_an_object_is_read_as_clients_read_it(value: Any, length: int) -> None:
    said = json.dumps(value)[:length]
    try:
        expected = jiter.from_json(said.encode(), partial_mode=True)
    except ValueError:
        expected = {}
    assert partial_json.parse_partial_json(said) == expected


@pytest.mark.parametrize(
    "said", ["", "  ", "nonsense", '"text', "[" * 5000, '{"a":' * 5000, "]", "}{", '{"a" 1', "-"]
)
def test_where_nothing_is_certain_there_is_an_empty_object(said: str) -> None:
    assert partial_json.parse_partial_json(said) == {}


# Errors


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
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
def test_errors_have_a_type_for_each_status(failure: DragomanError, status: int, kind: str) -> None:
    assert messages.error_status(failure) == status
    body = {"type": "error", "error": {"type": kind, "message": "x"}}
    assert json.loads(messages.encode_error(failure)) == body | {"request_id": None}
    assert json.loads(DIALECT.encode_error(failure, "req_1")) == body | {"request_id": "req_1"}
    [frame] = encoder(1).fail(failure)
    match = EVENT.fullmatch(frame)
    assert match is not None
    assert match[1] == b"error"
    assert json.loads(match[2])["error"]["type"] == kind


@pytest.mark.parametrize(
    ("failure", "message"),
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
        (ContextOverflow("It does not fit."), "prompt is too long: It does not fit."),
    ],
)
def test_errors_name_what_is_to_blame(failure: DragomanError, message: str) -> None:
    assert json.loads(messages.encode_error(failure))["error"]["message"] == message
