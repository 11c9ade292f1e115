"""Encoding responses: the events, and the resource at the end."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import (
    BadRequest,
    ContextOverflow,
    DragomanError,
    Draining,
    EngineFailed,
    ModelLoading,
    Overloaded,
)
from dragoman.events import Delta, Finish, Token, Usage
from dragoman.protocols.responses.encode.encoder import ResponseEncoder
from dragoman.protocols.responses.encode.frames import get_frame_json, make_frame
from dragoman.protocols.responses.encode.free_text import FreeTextDecoder
from dragoman.protocols.responses.encode.replay import encode_stored_events
from dragoman.protocols.responses.encode.resource import mark_failed
from dragoman.protocols.responses.types import ResponseInfo, ToolOrigin
from dragoman.signing import Signer
from dragoman.types import Chat, Request
from tests.support.event_order import RESOURCE_FIELDS, check_responses, parse_sse

USAGE = Usage(7, 5, 2, 1)
TOOLS = {
    "f": ToolOrigin(kind="function", name="f"),
    "ns_f": ToolOrigin(kind="function", name="f", namespace="ns"),
    "free": ToolOrigin(kind="custom", name="free"),
    "far": ToolOrigin(kind="mcp", name="search", server_label="docs"),
    "ask": ToolOrigin(kind="mcp", name="delete", server_label="docs", needs_approval=True),
}


class FakePacker:
    def pack(self, purpose: str, data: bytes) -> str:
        return Signer(b"key").pack("me", purpose, data)

    def unpack(self, purpose: str, text_delta: str) -> bytes | None:
        return Signer(b"key").unpack("me", purpose, text_delta)


def make_encoder(request: dict[str, Any] | None = None, **fields: Any) -> ResponseEncoder:
    info: dict[str, Any] = {
        "id": "resp_1",
        "created": 9,
        "model": "m",
        "echoed_fields": {},
        "tools": TOOLS,
    } | fields
    return ResponseEncoder(
        ResponseInfo(**info), Request(model="m", prompts=(Chat(messages=()),), **request or {})
    )


def text_delta(text: str, **fields: Any) -> Delta:
    return Delta(text=text, **fields)


def reasoning_delta(text: str) -> Delta:
    return Delta(text=text, channel="reasoning")


def make_call(number: int, name: str, *arguments: str) -> list[Delta]:
    name_delta = Delta(text=name, channel="tool_name", call=number, id=f"call_{number}")
    return [
        name_delta,
        *(Delta(text=piece, channel="tool_args", call=number) for piece in arguments),
    ]


def make_finish(reason: Finish = "stop", usage: Usage = USAGE) -> Delta:
    return Delta(finish=reason, usage=usage)


def encode(encoder: ResponseEncoder, *deltas: Delta) -> list[bytes]:
    return [frame for delta in deltas for frame in encoder.encode_delta(delta)]


def encode_response(*deltas: Delta, encoder: ResponseEncoder | None = None) -> list[dict[str, Any]]:
    """Return the events of a response of one round."""
    encoder = encoder or make_encoder()
    frames = encoder.start() + encode(encoder, *deltas) + encoder.end(Usage())
    assert check_responses(frames) == json.loads(encoder.encode_whole())
    return parse_sse(frames)


def get_types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def get_output(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    return items


FIRST_EVENTS = ["created", "in_progress"]
MESSAGE_EVENTS = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.delta",
]
MESSAGE_EVENTS += ["output_text.done", "content_part.done", "output_item.done"]
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
CALL_EVENTS += ["output_item.done"]
EMPTY_MESSAGE_EVENTS = [kind for kind in MESSAGE_EVENTS if kind != "output_text.delta"]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([text_delta("a"), text_delta("b"), make_finish()], [*MESSAGE_EVENTS, "completed"]),
        ([text_delta("a"), text_delta("b", finish="stop")], [*MESSAGE_EVENTS, "completed"]),
        (
            [text_delta("a"), text_delta("b"), make_finish("length")],
            [*MESSAGE_EVENTS, "incomplete"],
        ),
        ([*make_call(0, "f", "{}"), make_finish("tool_calls")], [*CALL_EVENTS, "completed"]),
        (
            [
                text_delta("a"),
                text_delta("b"),
                *make_call(0, "f", "{}"),
                text_delta("a"),
                text_delta("b"),
                make_finish("tool_calls"),
            ],
            [*MESSAGE_EVENTS, *CALL_EVENTS, *MESSAGE_EVENTS, "completed"],
        ),
        (
            [
                *make_call(0, "f", "{}"),
                text_delta("\n"),
                *make_call(1, "ns_f", "{}"),
                make_finish("tool_calls"),
            ],
            [*CALL_EVENTS, *CALL_EVENTS, "completed"],
        ),
        ([make_finish()], [*EMPTY_MESSAGE_EVENTS, "completed"]),
        ([make_finish("length")], [*EMPTY_MESSAGE_EVENTS, "incomplete"]),
    ],
)
def test_events_come_in_order(deltas: list[Delta], expected: list[str]) -> None:
    assert get_types(encode_response(*deltas)) == [*FIRST_EVENTS, *expected]


def test_reasoning_is_sent_as_text_and_as_a_summary_on_request() -> None:
    plain = ["output_item.added", "content_part.added", "reasoning_text.delta"]
    plain += ["reasoning_text.done", "content_part.done", "output_item.done"]
    events = encode_response(reasoning_delta("hm"), make_finish())
    assert get_types(events) == [*FIRST_EVENTS, *plain, "completed"]
    [item] = get_output(events)
    assert item.pop("id").startswith("rs_")
    assert item == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    events = encode_response(
        reasoning_delta("hm"), make_finish(), encoder=make_encoder(summary=True)
    )
    summary_types = [kind for kind in get_types(events) if "summary" in kind]
    assert summary_types == [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    assert get_output(events)[0]["summary"] == [{"type": "summary_text", "text": "hm"}]


def test_reasoning_is_encrypted_on_request() -> None:
    include = frozenset(["reasoning.encrypted_content"])
    events = encode_response(
        reasoning_delta("hm"),
        make_finish(),
        encoder=make_encoder(include=include, packer=FakePacker()),
    )
    encrypted = get_output(events)[0]["encrypted_content"]
    assert FakePacker().unpack("reasoning", encrypted) == b"hm"
    events = encode_response(
        reasoning_delta("hm"), make_finish(), encoder=make_encoder(packer=FakePacker())
    )
    assert "encrypted_content" not in get_output(events)[0]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("f", ['{"a"', ":1}"], {"type": "function_call", "name": "f", "arguments": '{"a":1}'}),
        ("f", [], {"type": "function_call", "name": "f", "arguments": "{}"}),
        ("ns_f", ["{}"], {"type": "function_call", "name": "f", "namespace": "ns"}),
        ("new", ["{}"], {"type": "function_call", "name": "new"}),
        ("free", ['{"input": "l', 's\\n"}'], {"type": "custom_tool_call", "input": "ls\n"}),
    ],
)
def test_calls_that_the_client_answers(
    name: str, arguments: list[str], expected: dict[str, Any]
) -> None:
    encoder = make_encoder()
    events = encode_response(
        *make_call(0, name, *arguments), make_finish("tool_calls"), encoder=encoder
    )
    [item] = get_output(events)
    assert item.items() >= expected.items()
    assert item["call_id"] == "call_0"
    assert item["status"] == "completed"
    assert ("namespace" in item) == ("namespace" in expected)
    assert encoder.needs_client
    assert encoder.finished_items == [item]
    assert encoder.get_remote_calls() == []


@pytest.mark.parametrize("arguments", ['{"a": 1', ""])
@pytest.mark.parametrize("name", ["f", "free", "far", "ask"])
@pytest.mark.parametrize("end", ["length", "stop", "fail", "cancel"])
def test_a_cut_call_is_never_done(name: str, arguments: str, end: Any) -> None:
    encoder = make_encoder()
    frames = encoder.start() + encode(encoder, *make_call(0, name, *filter(None, [arguments])))
    if end in ("length", "stop"):
        frames += encode(encoder, make_finish(end)) + encoder.end(Usage())
    else:
        frames += encoder.cancel() if end == "cancel" else encoder.fail(EngineFailed("It broke."))
    items = check_responses(frames)["output"]
    calls = [item for item in items if item["type"] != "message"]  # no approval request is sent
    assert [item["status"] for item in calls] == ([] if name == "ask" else ["incomplete"])
    assert [item for item in encoder.finished_items if item["type"] != "message"] == []
    assert encoder.get_remote_calls() == []
    assert not encoder.needs_client


def test_a_complete_call_at_the_limit_is_done() -> None:
    events = encode_response(*make_call(0, "f", '{"a": 1}'), make_finish("length"))
    assert get_output(events)[0]["status"] == "completed"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_whitespace_begins_no_message_and_is_not_lost_before_text() -> None:
    items = get_output(
        encode_response(text_delta("\n"), text_delta(" \n"), text_delta("a"), make_finish())
    )
    assert items[0]["content"][0]["text"] == "\n \na"
    assert (
        get_output(encode_response(text_delta(" "), make_finish()))[0]["content"][0]["text"] == " "
    )


LOGPROBS = frozenset(["message.output_text.logprobs"])


def test_logprobs_are_sent_on_request() -> None:
    token = Token("a", b"a", -0.5, (Token("b", b"b", -1.5),))
    logprob = {"token": "a", "logprob": -0.5, "bytes": [97]}
    logprob["top_logprobs"] = [{"token": "b", "logprob": -1.5, "bytes": [98]}]
    deltas = [text_delta("a", tokens=(token,)), text_delta("a", tokens=(token,)), make_finish()]
    events = encode_response(*deltas, encoder=make_encoder({"logprobs": 1}, include=LOGPROBS))
    assert [event["logprobs"] for event in events if "delta" in event] == [[logprob], [logprob]]
    assert get_output(events)[0]["content"][0]["logprobs"] == [logprob, logprob]
    for encoder in (make_encoder({"logprobs": 1}), make_encoder(include=LOGPROBS)):
        assert (
            get_output(encode_response(*deltas, encoder=encoder))[0]["content"][0]["logprobs"] == []
        )


def test_delta_frames_can_be_padded() -> None:
    encoder = make_encoder({"obfuscate": True}, include=LOGPROBS)
    frames = encoder.start() + encode(
        encoder, *(text_delta("ab" * i) for i in range(1, 40)), make_finish()
    )
    pieces = [frame for frame in frames if b"output_text.delta" in frame]
    assert len({len(frame) % 32 for frame in pieces}) == 1
    check_responses(frames + encoder.end(Usage()))


def test_the_resource_has_all_its_fields() -> None:
    echoed = {"temperature": 0.5, "metadata": {"a": "b"}, "user": "me"}
    encoder = make_encoder(echoed_fields=echoed)
    [created, *_] = parse_sse(encoder.start())
    assert created["response"].keys() == RESOURCE_FIELDS | {"user"}
    assert created["response"].items() >= echoed.items()
    assert created["response"]["usage"] is None
    encode(encoder, text_delta("a"), make_finish())
    encoder.end(Usage())
    resource = json.loads(encoder.encode_whole())
    assert resource["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    }
    assert type(resource["completed_at"]) is int


def test_usage_is_the_sum_of_all_rounds_or_the_callers() -> None:
    encoder = make_encoder()
    encoder.start()
    encode(encoder, *make_call(0, "far", "{}"), make_finish("tool_calls"))
    encoder.finish_remote_call(encoder.get_remote_calls()[0], "", None)
    encode(encoder, text_delta("a"), make_finish(usage=Usage(20, 3)))
    encoder.end(Usage(1, 1))
    assert encoder.get_resource()["usage"]["input_tokens"] == 27
    encoder = make_encoder()
    encoder.end(Usage(1, 1))
    assert encoder.get_resource()["usage"]["total_tokens"] == 2


def test_the_resource_can_be_read_while_it_grows() -> None:
    encoder = make_encoder()
    encoder.queue()
    assert encoder.get_resource()["status"] == "queued"
    encoder.start()
    encode(encoder, reasoning_delta("hm"), text_delta("a"), text_delta("b"))
    snapshot = encoder.get_resource()
    assert snapshot["status"] == "in_progress"
    assert [item["status"] for item in snapshot["output"]] == ["completed", "in_progress"]
    assert snapshot["output"][1]["content"][0]["text"] == "ab"
    assert [item["type"] for item in encoder.finished_items] == ["reasoning"]
    encode(encoder, *make_call(0, "f", '{"a'))
    assert encoder.get_resource()["output"][2]["arguments"] == '{"a'


def test_a_response_may_be_queued_before_it_starts() -> None:
    encoder = make_encoder()
    frames = (
        encoder.queue()
        + encoder.start()
        + encode(encoder, text_delta("a"), make_finish())
        + encoder.end(Usage())
    )
    assert get_types(parse_sse(frames))[:3] == ["created", "queued", "in_progress"]
    check_responses(frames)
    encoder = make_encoder()
    assert get_types(parse_sse(encoder.queue() + encoder.cancel())) == [
        "created",
        "queued",
        "incomplete",
    ]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineFailed("It broke."), "server_error", "It broke."),
        (ContextOverflow("Too long."), "context_length_exceeded", "Too long."),
        (Overloaded("Busy."), "rate_limit_exceeded", "Busy."),
        (
            Overloaded("Busy.", retry_after=1.5),
            "rate_limit_exceeded",
            "Busy. Please try again in 1.5s.",
        ),
        (Draining("Going."), "server_is_overloaded", "Going."),
        (ModelLoading("Soon."), "server_is_overloaded", "Soon."),
        (BadRequest("No."), "invalid_prompt", "No."),
    ],
)
def test_a_failed_response_has_an_error(error: DragomanError, code: str, message: str) -> None:
    encoder = make_encoder()
    frames = encoder.start() + encode(encoder, text_delta("a")) + encoder.fail(error)
    final = check_responses(frames)
    assert final["error"] == {"code": code, "message": message}
    assert final["output"][0]["status"] == "incomplete"
    assert encoder.is_over
    assert [
        *encoder.fail(error),
        *encoder.cancel(),
        *encoder.end(USAGE),
        *encoder.encode_delta(text_delta("b")),
    ] == []


def test_a_response_can_fail_before_it_starts() -> None:
    frames = make_encoder().fail(EngineFailed("It broke."))
    check_responses(frames)
    assert get_types(parse_sse(frames)) == [*FIRST_EVENTS, "failed"]


def test_a_cancelled_response_has_that_status() -> None:
    encoder = make_encoder()
    final = check_responses(encoder.start() + encode(encoder, text_delta("a")) + encoder.cancel())
    assert final["status"] == "cancelled"
    assert final["output"][0]["content"][0]["text"] == "a"


# Remote tools


def test_a_remote_call_is_open_until_it_is_answered() -> None:
    encoder = make_encoder()
    frames = encoder.start() + encoder.start_tool_list("docs")
    frames += encoder.finish_tool_list("docs", [{"name": "search", "input_schema": {}}])
    calls = [*make_call(0, "far", '{"q"', ":1}"), *make_call(1, "far", "{}")]
    frames += encode(encoder, *calls, make_finish("tool_calls"))
    assert not encoder.needs_client
    first, second = encoder.get_remote_calls()
    assert (first.server_label, first.name, first.arguments) == ("docs", "search", '{"q":1}')
    frames += encoder.finish_remote_call(second, None, "Refused.") + encoder.finish_remote_call(
        first, "found", None
    )
    assert encoder.get_remote_calls() == []
    frames += encode(encoder, text_delta("a"), make_finish()) + encoder.end(Usage())
    final = check_responses(frames)
    tool_list, completed, failed, message = final["output"]
    assert tool_list["tools"] == [{"name": "search", "input_schema": {}}]
    assert (completed["status"], completed["output"], completed["error"]) == (
        "completed",
        "found",
        None,
    )
    assert failed["status"] == "failed"
    assert failed["error"] == {"type": "mcp_tool_execution_error", "content": "Refused."}
    assert message["content"][0]["text"] == "a"
    assert get_types(parse_sse(frames))[2:15] == [
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed"),
        *("output_item.done", "output_item.added", "mcp_call.in_progress"),
        *("mcp_call_arguments.delta", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"),
        "mcp_call_arguments.done",
    ]


def test_tool_lists_without_an_answer() -> None:
    encoder = make_encoder()
    frames = encoder.start() + encoder.start_tool_list("a") + encoder.start_tool_list("b")
    frames += encoder.finish_tool_list("a", [], "No answer.") + encoder.fail(
        EngineFailed("It broke.")
    )
    first, second = check_responses(frames)["output"]
    assert first["error"] == "No answer."
    assert second["error"]


def test_a_call_that_needs_approval_is_requested_and_resumed() -> None:
    encoder = make_encoder()
    events = encode_response(
        *make_call(0, "ask", '{"a"', ":1}"), make_finish("tool_calls"), encoder=encoder
    )
    assert get_types(events) == [
        *FIRST_EVENTS,
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    [approval_request] = get_output(events)
    assert encoder.needs_client
    assert encoder.get_remote_calls() == []
    encoder = make_encoder()
    frames = encoder.start() + encoder.start_approved_call(approval_request)
    [remote_call] = encoder.get_remote_calls()
    assert (remote_call.server_label, remote_call.name, remote_call.arguments) == (
        "docs",
        "delete",
        '{"a":1}',
    )
    frames += encoder.finish_remote_call(remote_call, "gone", None) + encode(
        encoder, text_delta("a"), make_finish()
    )
    final = check_responses(frames + encoder.end(Usage()))
    assert final["output"][0]["approval_request_id"] == approval_request["id"]


def test_calls_beyond_the_limit_are_ignored() -> None:
    encoder = make_encoder(max_remote_calls=1)
    calls = [*make_call(0, "far", "{}"), *make_call(1, "far", "{}"), make_finish("tool_calls")]
    frames = encoder.start() + encode(encoder, *calls)
    assert encoder.remaining_remote_calls == 0
    [remote_call] = encoder.get_remote_calls()
    frames += encoder.finish_remote_call(remote_call, "1", None) + encode(
        encoder, *make_call(0, "far", "{}"), make_finish()
    )
    assert encoder.get_remote_calls() == []
    final = check_responses(frames + encoder.end(Usage()))
    assert [item["type"] for item in final["output"]] == ["mcp_call", "message"]
    assert make_encoder().remaining_remote_calls is None


def test_a_client_call_beside_a_remote_call_ends_the_response() -> None:
    encoder = make_encoder()
    frames = encoder.start()
    frames += encode(
        encoder, *make_call(0, "f", "{}"), *make_call(1, "far", "{}"), make_finish("tool_calls")
    )
    assert encoder.needs_client
    [remote_call] = encoder.get_remote_calls()
    final = check_responses(
        frames + encoder.finish_remote_call(remote_call, "1", None) + encoder.end(Usage())
    )
    assert [item["type"] for item in final["output"]] == ["function_call", "mcp_call"]


# Frames and stored responses


def test_a_frame_is_an_event_and_its_json() -> None:
    encoder = make_encoder()
    for frame in (
        encoder.start() + encode(encoder, text_delta("é\n"), make_finish()) + encoder.end(Usage())
    ):
        assert make_frame(get_frame_json(frame)) == frame
        assert json.loads(get_frame_json(frame))["type"].encode() in frame.split(b"\n")[0]


def test_unfinished_stored_responses_can_be_ended() -> None:
    encoder = make_encoder()
    encoder.start()
    encode(encoder, *make_call(0, "far", "{}"), *make_call(1, "f", '{"a'))
    body = encoder.encode_whole()
    failed = json.loads(mark_failed(body))
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert [item["status"] for item in failed["output"]] == ["incomplete", "incomplete"]
    encoder.cancel()
    cancelled = encoder.encode_whole()
    assert json.loads(cancelled)["status"] == "cancelled"
    for stored in (mark_failed(body), cancelled):
        assert mark_failed(stored) == stored
        assert check_responses(encode_stored_events(stored)) == json.loads(stored)


def test_a_stored_response_is_replayed_with_one_delta_for_each_part() -> None:
    encoder = make_encoder(summary=True)
    encoder.start()
    encode(
        encoder,
        reasoning_delta("h"),
        reasoning_delta("m"),
        text_delta("a"),
        text_delta("b"),
        make_finish(),
    )
    encoder.end(Usage())
    frames = encode_stored_events(encoder.encode_whole())
    assert check_responses(frames) == json.loads(encoder.encode_whole())
    assert [event["delta"] for event in parse_sse(frames) if "delta" in event] == ["hm", "hm", "ab"]


# Free text


def decode_free_text(*pieces: str) -> str:
    decoder = FreeTextDecoder()
    return "".join([*map(decoder.feed, pieces), decoder.close()])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "ls -l"}', "ls -l"),
        (' {\n "input" :\t"a" } trailing', "a"),
        (r'{"input": "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"}', '"\\/\b\f\n\r\té😀'),
        (r'{"input": "\ud83d!\ude00\ud83d\ud83d\ude00\ud83d"}', "\ufffd!\ufffd\ufffd😀\ufffd"),
        (r'{"input": "\q\u12"}', "\\q\\u12"),
        ('{"input": "two\nlines"}', "two\nlines"),
        ('{"why": 1, "input": "a"}', "a"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"cmd": "a"}', '{"cmd": "a"}'),
        ('"a"', "a"),
        ("ls -l", "ls -l"),
        ("{}", ""),
        ("", ""),
        ('{"inp', ""),
        ('{"input": "a\\', "a"),
        ('{"input": "a\\u00e', "a"),
        ('{"input": "' + " " * 300 + '"}', " " * 300),
        ("{" + " " * 300 + '"input": "a"}', "a"),
    ],
)
def test_free_text_is_decoded(arguments: str, expected: str) -> None:
    assert decode_free_text(arguments) == expected
    assert decode_free_text(*arguments) == expected


JSON_LIKE = st.text(st.sampled_from('{"input:\\ud83e0\n}é 😀'), max_size=40)
INPUTS = st.text(st.characters(exclude_categories=["Cs"])).map(lambda deltas: {"input": deltas})


@given(
    st.one_of(JSON_LIKE, JSON_LIKE.map('{"input": "'.__add__), INPUTS.map(json.dumps)),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_free_text_does_not_depend_on_the_cuts(arguments: str, cuts: list[int]) -> None:
    positions = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    pieces = [arguments[a:b] for a, b in pairwise(positions)]
    text = decode_free_text(*pieces)
    assert text == decode_free_text(arguments) == decode_free_text(*arguments)
    text.encode()  # never half a surrogate pair


@given(INPUTS, st.booleans())
def test_free_text_is_the_input_string(arguments: dict[str, str], escaped: bool) -> None:
    assert decode_free_text(json.dumps(arguments, ensure_ascii=escaped)) == arguments["input"]
