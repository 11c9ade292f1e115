"""Writing responses: which events, in which words, and what stands in the resource at the end."""

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
from dragoman.protocols.responses.encode.resource import mark_cancelled, mark_failed
from dragoman.protocols.responses.types import ResponseInfo, ToolOrigin
from dragoman.signing import Signer
from dragoman.types import Chat, Request
from tests.support.event_order import RESOURCE, check_responses, sse

SPENT = Usage(7, 5, 2, 1)
TOOLS = {
    "f": ToolOrigin(kind="function", name="f"),
    "ns_f": ToolOrigin(kind="function", name="f", namespace="ns"),
    "free": ToolOrigin(kind="custom", name="free"),
    "far": ToolOrigin(kind="mcp", name="search", server_label="docs"),
    "ask": ToolOrigin(kind="mcp", name="delete", server_label="docs", needs_approval=True),
}


class Sealing:
    def pack(self, purpose: str, data: bytes) -> str:
        return Signer(b"key").pack("me", purpose, data)

    def unpack(self, purpose: str, text: str) -> bytes | None:
        return Signer(b"key").unpack("me", purpose, text)


def writer(request: dict[str, Any] | None = None, **fields: Any) -> ResponseEncoder:
    known: dict[str, Any] = {
        "id": "resp_1",
        "created": 9,
        "model": "m",
        "echoed_fields": {},
        "tools": TOOLS,
    } | fields
    return ResponseEncoder(
        ResponseInfo(**known), Request(model="m", prompts=(Chat(messages=()),), **request or {})
    )


def text(said: str, **fields: Any) -> Delta:
    return Delta(text=said, **fields)


def thought(said: str) -> Delta:
    return Delta(text=said, channel="reasoning")


def call(number: int, name: str, *arguments: str) -> list[Delta]:
    named = Delta(text=name, channel="tool_name", call=number, id=f"call_{number}")
    return [named, *(Delta(text=one, channel="tool_args", call=number) for one in arguments)]


def finish(how: Finish = "stop", usage: Usage = SPENT) -> Delta:
    return Delta(finish=how, usage=usage)


def written(made: ResponseEncoder, *deltas: Delta) -> list[bytes]:
    return [frame for delta in deltas for frame in made.encode_delta(delta)]


def response(*deltas: Delta, made: ResponseEncoder | None = None) -> list[dict[str, Any]]:
    """The events of an answer of one round."""
    made = made or writer()
    frames = made.start() + written(made, *deltas) + made.end(Usage())
    assert check_responses(frames) == json.loads(made.encode_whole())
    return sse(frames)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def output(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    return items


BEGIN = ["created", "in_progress"]
SAID = ["output_item.added", "content_part.added", "output_text.delta", "output_text.delta"]
SAID += ["output_text.done", "content_part.done", "output_item.done"]
CALLED = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
CALLED += ["output_item.done"]
EMPTY = [kind for kind in SAID if kind != "output_text.delta"]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([text("a"), text("b"), finish()], [*SAID, "completed"]),
        ([text("a"), text("b", finish="stop")], [*SAID, "completed"]),
        ([text("a"), text("b"), finish("length")], [*SAID, "incomplete"]),
        ([*call(0, "f", "{}"), finish("tool_calls")], [*CALLED, "completed"]),
        (
            [text("a"), text("b"), *call(0, "f", "{}"), text("a"), text("b"), finish("tool_calls")],
            [*SAID, *CALLED, *SAID, "completed"],
        ),
        (
            [*call(0, "f", "{}"), text("\n"), *call(1, "ns_f", "{}"), finish("tool_calls")],
            [*CALLED, *CALLED, "completed"],
        ),
        ([finish()], [*EMPTY, "completed"]),
        ([finish("length")], [*EMPTY, "incomplete"]),
    ],
)
def test_events_come_in_order(deltas: list[Delta], expected: list[str]) -> None:
    assert kinds(response(*deltas)) == [*BEGIN, *expected]


def test_a_thought_is_told_as_text_and_as_a_summary_if_asked() -> None:
    plain = ["output_item.added", "content_part.added", "reasoning_text.delta"]
    plain += ["reasoning_text.done", "content_part.done", "output_item.done"]
    events = response(thought("hm"), finish())
    assert kinds(events) == [*BEGIN, *plain, "completed"]
    [item] = output(events)
    assert item.pop("id").startswith("rs_")
    assert item == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    events = response(thought("hm"), finish(), made=writer(summary=True))
    told = [kind for kind in kinds(events) if "summary" in kind]
    assert told == [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    assert output(events)[0]["summary"] == [{"type": "summary_text", "text": "hm"}]


def test_a_thought_is_sealed_if_asked_for() -> None:
    asked = frozenset(["reasoning.encrypted_content"])
    events = response(thought("hm"), finish(), made=writer(include=asked, packer=Sealing()))
    sealed = output(events)[0]["encrypted_content"]
    assert Sealing().unpack("reasoning", sealed) == b"hm"
    events = response(thought("hm"), finish(), made=writer(packer=Sealing()))
    assert "encrypted_content" not in output(events)[0]


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
    made = writer()
    events = response(*call(0, name, *arguments), finish("tool_calls"), made=made)
    [item] = output(events)
    assert item.items() >= expected.items()
    assert item["call_id"] == "call_0"
    assert item["status"] == "completed"
    assert ("namespace" in item) == ("namespace" in expected)
    assert made.needs_client
    assert made.finished_items == [item]
    assert made.get_remote_calls() == []


@pytest.mark.parametrize("arguments", ['{"a": 1', ""])
@pytest.mark.parametrize("name", ["f", "free", "far", "ask"])
@pytest.mark.parametrize("end", ["length", "stop", "fail", "cancel"])
def test_a_call_that_was_cut_is_never_done(name: str, arguments: str, end: Any) -> None:
    made = writer()
    frames = made.start() + written(made, *call(0, name, *filter(None, [arguments])))
    if end in ("length", "stop"):
        frames += written(made, finish(end)) + made.end(Usage())
    else:
        frames += made.cancel() if end == "cancel" else made.fail(EngineFailed("It broke."))
    items = check_responses(frames)["output"]
    calls = [item for item in items if item["type"] != "message"]  # none is told of to be allowed
    assert [item["status"] for item in calls] == ([] if name == "ask" else ["incomplete"])
    assert [item for item in made.finished_items if item["type"] != "message"] == []
    assert made.get_remote_calls() == []
    assert not made.needs_client


def test_a_whole_call_at_the_limit_is_done() -> None:
    events = response(*call(0, "f", '{"a": 1}'), finish("length"))
    assert output(events)[0]["status"] == "completed"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_space_begins_no_message_and_is_not_lost_before_a_text() -> None:
    items = output(response(text("\n"), text(" \n"), text("a"), finish()))
    assert items[0]["content"][0]["text"] == "\n \na"
    assert output(response(text(" "), finish()))[0]["content"][0]["text"] == " "


LOGS = frozenset(["message.output_text.logprobs"])


def test_logprobs_are_told_if_asked_for() -> None:
    token = Token("a", b"a", -0.5, (Token("b", b"b", -1.5),))
    one = {"token": "a", "logprob": -0.5, "bytes": [97]}
    one["top_logprobs"] = [{"token": "b", "logprob": -1.5, "bytes": [98]}]
    said = [text("a", tokens=(token,)), text("a", tokens=(token,)), finish()]
    events = response(*said, made=writer({"logprobs": 1}, include=LOGS))
    assert [event["logprobs"] for event in events if "delta" in event] == [[one], [one]]
    assert output(events)[0]["content"][0]["logprobs"] == [one, one]
    for made in (writer({"logprobs": 1}), writer(include=LOGS)):
        assert output(response(*said, made=made))[0]["content"][0]["logprobs"] == []


def test_frames_of_pieces_can_be_of_a_coarse_size() -> None:
    made = writer({"obfuscate": True}, include=LOGS)
    frames = made.start() + written(made, *(text("ab" * i) for i in range(1, 40)), finish())
    pieces = [frame for frame in frames if b"output_text.delta" in frame]
    assert len({len(frame) % 32 for frame in pieces}) == 1
    check_responses(frames + made.end(Usage()))


def test_the_resource_has_all_its_fields() -> None:
    echo = {"temperature": 0.5, "metadata": {"a": "b"}, "user": "me"}
    made = writer(echoed_fields=echo)
    [created, *_] = sse(made.start())
    assert created["response"].keys() == RESOURCE | {"user"}
    assert created["response"].items() >= echo.items()
    assert created["response"]["usage"] is None
    written(made, text("a"), finish())
    made.end(Usage())
    whole = json.loads(made.encode_whole())
    assert whole["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    }
    assert type(whole["completed_at"]) is int


def test_usage_is_that_of_all_rounds_or_what_the_caller_knows() -> None:
    made = writer()
    made.start()
    written(made, *call(0, "far", "{}"), finish("tool_calls"))
    made.finish_remote_call(made.get_remote_calls()[0], "", None)
    written(made, text("a"), finish(usage=Usage(20, 3)))
    made.end(Usage(1, 1))
    assert made.get_resource()["usage"]["input_tokens"] == 27
    made = writer()
    made.end(Usage(1, 1))
    assert made.get_resource()["usage"]["total_tokens"] == 2


def test_what_there_is_can_be_looked_at_while_it_grows() -> None:
    made = writer()
    made.queue()
    assert made.get_resource()["status"] == "queued"
    made.start()
    written(made, thought("hm"), text("a"), text("b"))
    now = made.get_resource()
    assert now["status"] == "in_progress"
    assert [item["status"] for item in now["output"]] == ["completed", "in_progress"]
    assert now["output"][1]["content"][0]["text"] == "ab"
    assert [item["type"] for item in made.finished_items] == ["reasoning"]
    written(made, *call(0, "f", '{"a'))
    assert made.get_resource()["output"][2]["arguments"] == '{"a'


def test_a_response_may_wait_before_it_starts() -> None:
    made = writer()
    frames = made.queue() + made.start() + written(made, text("a"), finish()) + made.end(Usage())
    assert kinds(sse(frames))[:3] == ["created", "queued", "in_progress"]
    check_responses(frames)
    made = writer()
    assert kinds(sse(made.queue() + made.cancel())) == ["created", "queued", "incomplete"]


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
def test_a_response_that_broke_says_why(error: DragomanError, code: str, message: str) -> None:
    made = writer()
    frames = made.start() + written(made, text("a")) + made.fail(error)
    final = check_responses(frames)
    assert final["error"] == {"code": code, "message": message}
    assert final["output"][0]["status"] == "incomplete"
    assert made.is_over
    assert [
        *made.fail(error),
        *made.cancel(),
        *made.end(SPENT),
        *made.encode_delta(text("b")),
    ] == []


def test_a_response_can_break_before_it_began() -> None:
    frames = writer().fail(EngineFailed("It broke."))
    check_responses(frames)
    assert kinds(sse(frames)) == [*BEGIN, "failed"]


def test_a_response_that_was_cancelled_says_so() -> None:
    made = writer()
    final = check_responses(made.start() + written(made, text("a")) + made.cancel())
    assert final["status"] == "cancelled"
    assert final["output"][0]["content"][0]["text"] == "a"


# Remote tools


def test_a_remote_call_is_open_until_it_is_answered() -> None:
    made = writer()
    frames = made.start() + made.start_tool_list("docs")
    frames += made.finish_tool_list("docs", [{"name": "search", "input_schema": {}}])
    two = [*call(0, "far", '{"q"', ":1}"), *call(1, "far", "{}")]
    frames += written(made, *two, finish("tool_calls"))
    assert not made.needs_client
    first, second = made.get_remote_calls()
    assert (first.server_label, first.name, first.arguments) == ("docs", "search", '{"q":1}')
    frames += made.finish_remote_call(second, None, "Refused.") + made.finish_remote_call(
        first, "found", None
    )
    assert made.get_remote_calls() == []
    frames += written(made, text("a"), finish()) + made.end(Usage())
    final = check_responses(frames)
    listed, found, refused, message = final["output"]
    assert listed["tools"] == [{"name": "search", "input_schema": {}}]
    assert (found["status"], found["output"], found["error"]) == ("completed", "found", None)
    assert refused["status"] == "failed"
    assert refused["error"] == {"type": "mcp_tool_execution_error", "content": "Refused."}
    assert message["content"][0]["text"] == "a"
    assert kinds(sse(frames))[2:15] == [
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed"),
        *("output_item.done", "output_item.added", "mcp_call.in_progress"),
        *("mcp_call_arguments.delta", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta"),
        "mcp_call_arguments.done",
    ]


def test_servers_that_say_nothing() -> None:
    made = writer()
    frames = made.start() + made.start_tool_list("a") + made.start_tool_list("b")
    frames += made.finish_tool_list("a", [], "No answer.") + made.fail(EngineFailed("It broke."))
    first, second = check_responses(frames)["output"]
    assert first["error"] == "No answer."
    assert second["error"]


def test_a_call_that_must_be_approved_is_asked_for_and_resumed() -> None:
    made = writer()
    events = response(*call(0, "ask", '{"a"', ":1}"), finish("tool_calls"), made=made)
    assert kinds(events) == [*BEGIN, "output_item.added", "output_item.done", "completed"]
    [asked] = output(events)
    assert made.needs_client
    assert made.get_remote_calls() == []
    made = writer()
    frames = made.start() + made.start_approved_call(asked)
    [wanted] = made.get_remote_calls()
    assert (wanted.server_label, wanted.name, wanted.arguments) == ("docs", "delete", '{"a":1}')
    frames += made.finish_remote_call(wanted, "gone", None) + written(made, text("a"), finish())
    final = check_responses(frames + made.end(Usage()))
    assert final["output"][0]["approval_request_id"] == asked["id"]


def test_calls_beyond_the_most_are_ignored() -> None:
    made = writer(max_remote_calls=1)
    two = [*call(0, "far", "{}"), *call(1, "far", "{}"), finish("tool_calls")]
    frames = made.start() + written(made, *two)
    assert made.remaining_remote_calls == 0
    [only] = made.get_remote_calls()
    frames += made.finish_remote_call(only, "1", None) + written(
        made, *call(0, "far", "{}"), finish()
    )
    assert made.get_remote_calls() == []
    final = check_responses(frames + made.end(Usage()))
    assert [item["type"] for item in final["output"]] == ["mcp_call", "message"]
    assert writer().remaining_remote_calls is None


def test_a_call_for_the_client_beside_a_remote_one_ends_the_response() -> None:
    made = writer()
    frames = made.start()
    frames += written(made, *call(0, "f", "{}"), *call(1, "far", "{}"), finish("tool_calls"))
    assert made.needs_client
    [only] = made.get_remote_calls()
    final = check_responses(frames + made.finish_remote_call(only, "1", None) + made.end(Usage()))
    assert [item["type"] for item in final["output"]] == ["function_call", "mcp_call"]


# Frames, and what was kept


def test_a_frame_is_an_event_and_its_json() -> None:
    made = writer()
    for frame in made.start() + written(made, text("é\n"), finish()) + made.end(Usage()):
        assert make_frame(get_frame_json(frame)) == frame
        assert json.loads(get_frame_json(frame))["type"].encode() in frame.split(b"\n")[0]


def test_what_was_kept_unfinished_ends() -> None:
    made = writer()
    made.start()
    written(made, *call(0, "far", "{}"), *call(1, "f", '{"a'))
    body = made.encode_whole()
    dead = json.loads(mark_failed(body))
    assert (dead["status"], dead["error"]["code"]) == ("failed", "server_error")
    assert [item["status"] for item in dead["output"]] == ["incomplete", "incomplete"]
    assert json.loads(mark_cancelled(body))["status"] == "cancelled"
    for ended in (mark_failed(body), mark_cancelled(body)):
        assert mark_failed(ended) == mark_cancelled(ended) == ended
        assert check_responses(encode_stored_events(ended)) == json.loads(ended)


def test_what_is_finished_is_told_again_with_one_piece_for_each_part() -> None:
    made = writer(summary=True)
    made.start()
    written(made, thought("h"), thought("m"), text("a"), text("b"), finish())
    made.end(Usage())
    frames = encode_stored_events(made.encode_whole())
    assert check_responses(frames) == json.loads(made.encode_whole())
    assert [event["delta"] for event in sse(frames) if "delta" in event] == ["hm", "hm", "ab"]


# Free text


def free(*pieces: str) -> str:
    reading = FreeTextDecoder()
    return "".join([*map(reading.feed, pieces), reading.close()])


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
def test_free_text(arguments: str, expected: str) -> None:
    assert free(arguments) == expected
    assert free(*arguments) == expected


SIGNS = st.text(st.sampled_from('{"input:\\ud83e0\n}é 😀'), max_size=40)
WHOLE = st.text(st.characters(exclude_categories=["Cs"])).map(lambda said: {"input": said})


@given(
    st.one_of(SIGNS, SIGNS.map('{"input": "'.__add__), WHOLE.map(json.dumps)),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_free_text_is_the_same_however_it_is_cut(arguments: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(arguments)) for cut in cuts), len(arguments)]
    pieces = [arguments[a:b] for a, b in pairwise(places)]
    said = free(*pieces)
    assert said == free(arguments) == free(*arguments)
    said.encode()  # never half a character


@given(WHOLE, st.booleans())
def test_free_text_is_what_was_meant(given: dict[str, str], escaped: bool) -> None:
    assert free(json.dumps(given, ensure_ascii=escaped)) == given["input"]
