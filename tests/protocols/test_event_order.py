"""Ten thousand generated answers in every wire API: no stream is out of order.

The output of a model is generated from a seed: texts, reasoning and calls of all kinds, cut
anywhere, over several rounds, with a natural end or an early one. The machines of `event_order`
read the streams; the vendors' own clients read some of them, too.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias

import anthropic
import httpx2
import openai
import pytest
from msgspec import Struct
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from dragoman.errors import (
    ContextOverflow,
    DragomanError,
    Draining,
    EngineFailed,
    Overloaded,
    TemplateRejected,
)
from dragoman.events import Channel, Completion, Delta, Finish, Token, Usage
from dragoman.protocols.chat import ChatEncoder
from dragoman.protocols.dialect import AnswerInfo
from dragoman.protocols.messages import encode_error
from dragoman.protocols.messages.encode import MessagesEncoder
from dragoman.protocols.responses.encode.encoder import ResponseEncoder
from dragoman.protocols.responses.encode.frames import get_frame_json
from dragoman.protocols.responses.encode.replay import encode_stored_events
from dragoman.protocols.responses.encode.resource import mark_failed
from dragoman.protocols.responses.types import ResponseInfo, ToolOrigin
from dragoman.signing import Signer
from dragoman.types import Chat, Message, Request, make_text_content
from tests.support.event_order import check_chat, check_messages, check_responses

pytestmark = pytest.mark.slow

ANSWERS = 10_000
SHARDS = 20  # tests, so that one can run by itself
CLIENT_STRIDE = 20  # the vendors' clients read every 20th answer

ALPHABET = "ab \n\"\\{}[]<>:,é漢😀\t/u0041'"
TOOLS = {
    "f": ToolOrigin(kind="function", name="f"),
    "ns_g": ToolOrigin(kind="function", name="g", namespace="ns"),
    "free": ToolOrigin(kind="custom", name="free"),
    "ns_free": ToolOrigin(kind="custom", name="free", namespace="ns"),
    "far": ToolOrigin(kind="mcp", name="far", server_label="server"),
    "far_ask": ToolOrigin(kind="mcp", name="ask", server_label="server", needs_approval=True),
}
NAMES = [*TOOLS, "undeclared"]
INCLUDE = ["reasoning.encrypted_content", "message.output_text.logprobs"]
ERRORS: list[DragomanError] = [
    EngineFailed("It broke."),
    ContextOverflow("Too long."),
    Overloaded("Too many.", retry_after=2),
    Draining("Going away."),
    TemplateRejected("No."),
]


class Segment(Struct, frozen=True):
    """Text, reasoning or a call of the model."""

    channel: str
    text: str
    name: str = ""


RoundScript: TypeAlias = list[Segment]


class RunScript(Struct):
    """One answer: what the model generates in each round, and how it ends."""

    rounds: list[RoundScript]
    ending: str  # of the last round: "natural", "length", "fail", "cancel"
    error: DragomanError
    info: ResponseInfo
    request: Request
    is_queued: bool
    list_answers: list[bool]  # for each remote server, whether it lists its tools
    has_approved_call: bool  # a call was approved


class FakeSigner:
    """Signs for an anonymous owner."""

    def __init__(self) -> None:
        self.signer = Signer(b"key")

    def pack(self, purpose: str, data: bytes) -> str:
        return self.signer.pack("", purpose, data)

    def unpack(self, purpose: str, text: str) -> bytes | None:
        return self.signer.unpack("", purpose, text)

    def sign(self, purpose: str, data: bytes) -> str:
        return self.signer.sign("", purpose, data)

    def verify(self, purpose: str, data: bytes, signature: str) -> bool:
        return self.signer.verify("", purpose, data, signature)


# Generating answers


def make_text(rng: random.Random, max_length: int = 24) -> str:
    return "".join(rng.choices(ALPHABET, k=rng.randint(1, max_length)))


def make_segment(rng: random.Random) -> Segment:
    channel = rng.choice(["text", "text", "reasoning", "call", "call"])
    if channel != "call":
        return Segment(channel, make_text(rng))
    name = rng.choice(NAMES)
    if "free" in name:
        arguments: Any = {"input": make_text(rng)}
    else:
        arguments = {make_text(rng, 4): make_text(rng) for _ in range(rng.randint(0, 2))}
    return Segment("call", json.dumps(arguments, ensure_ascii=rng.random() < 0.5), name)


def make_script(seed: int) -> RunScript:
    rng = random.Random(seed)
    rounds = [[make_segment(rng) for _ in range(rng.choice([0, 1, 1, 2, 3, 5]))]]
    while len(rounds) < 4 and rng.random() < 0.4:
        rounds.append([make_segment(rng) for _ in range(rng.randint(0, 3))])
    info = ResponseInfo(
        id=f"resp_{seed}",
        created=seed,
        model="m",
        echoed_fields={"background": rng.random() < 0.2, "metadata": {"seed": str(seed)}},
        tools=TOOLS,
        include=frozenset(rng.sample(INCLUDE, k=rng.randint(0, 2))),
        summary=rng.random() < 0.3,
        max_remote_calls=rng.choice([None, None, 0, 1, 2]),
        packer=FakeSigner(),
    )
    request = Request(
        model="m",
        prompts=(Chat(messages=(Message(role="user", content=make_text_content("?")),)),),
        logprobs=rng.choice([None, None, 2]),
        obfuscate=rng.random() < 0.2,
        include_usage=rng.random() < 0.5,
    )
    return RunScript(
        rounds,
        rng.choice(["natural", "natural", "length", "fail", "cancel"]),
        rng.choice(ERRORS),
        info,
        request,
        rng.random() < 0.2,
        [rng.random() < 0.8 for _ in range(rng.choice([0, 0, 0, 1, 2]))],
        rng.random() < 0.1,
    )


def split(rng: random.Random, text: str) -> Iterator[str]:
    while text:
        size = rng.randint(1, max(1, min(8, len(text))))
        yield text[:size]
        text = text[size:]


def make_deltas(rng: random.Random, round_script: RoundScript, logprobs: bool) -> list[Delta]:
    """Return the deltas of one round, without its end."""
    deltas = []
    calls = 0
    for segment in round_script:
        if segment.channel == "call":
            deltas.append(
                Delta(0, segment.name, "tool_name", calls, id=f"call_{rng.getrandbits(64)}")
            )
            deltas += [Delta(0, piece, "tool_args", calls) for piece in split(rng, segment.text)]
            calls += 1
            continue
        channel: Channel = "text" if segment.channel == "text" else "reasoning"
        for piece in split(rng, segment.text):
            tokens = (Token(piece, piece.encode(), -0.5),) if logprobs and channel == "text" else ()
            deltas.append(Delta(0, piece, channel, tokens=tokens))
    return deltas


def make_final_delta(rng: random.Random, round_script: RoundScript, ending: str) -> Delta:
    calls = any(segment.channel == "call" for segment in round_script)
    finish: Finish = "length" if ending == "length" else "tool_calls" if calls else "stop"
    usage = Usage(rng.randint(1, 90), 50, 1, rng.randint(0, 50))
    return Delta(0, finish=finish, usage=usage)


def make_round(
    rng: random.Random, run: RunScript, round_script: RoundScript, is_final: bool
) -> list[Delta]:
    """Return the deltas of a round up to its end, or up to where it is cut."""
    deltas = make_deltas(rng, round_script, run.request.logprobs is not None)
    ending = run.ending if is_final else "natural"
    if ending != "natural":
        deltas = deltas[: rng.randint(0, len(deltas))]
    if ending in ("natural", "length"):
        deltas.append(make_final_delta(rng, round_script, ending))
    return deltas


# Responses


class EncodedRun(Struct):
    """A stream, and the deltas that it was encoded from."""

    run: RunScript
    frames: list[bytes]
    encoder: ResponseEncoder
    deltas: list[Delta]
    is_broken: bool = False  # while a remote server was called


def encode_run(seed: int, stop: int | None = None) -> EncodedRun:
    """Encode a generated answer as the server does, or only its first `stop` deltas."""
    run, rng = make_script(seed), random.Random(seed)
    encoder = ResponseEncoder(run.info, run.request)
    encoded = EncodedRun(
        run, [*(encoder.queue() if run.is_queued else []), *encoder.start()], encoder, []
    )
    for round_deltas in encode_rounds(encoded, rng):
        for delta in round_deltas:
            if len(encoded.deltas) == stop:
                return encoded
            encoded.deltas.append(delta)
            encoded.frames += encoder.encode_delta(delta)
    if stop is None:
        encoded.frames += encode_end(encoded)
    return encoded


def encode_rounds(encoded: EncodedRun, rng: random.Random) -> Iterator[list[Delta]]:
    """Yield the deltas of each round; encode what comes before and between the rounds."""
    run, encoder = encoded.run, encoded.encoder
    for i, has_tools in enumerate(run.list_answers):
        encoded.frames += encoder.start_tool_list(f"server{i}")
        encoded.is_broken = rng.random() < 0.05
        if encoded.is_broken:
            return
        tools = [{"name": "t", "input_schema": {}}] if has_tools else []
        encoded.frames += encoder.finish_tool_list(
            f"server{i}", tools, None if has_tools else "No answer."
        )
    if run.has_approved_call:
        approval_request = {
            "id": "mcpr_1",
            "server_label": "server",
            "name": "far",
            "arguments": "{}",
        }
        encoded.frames += encoder.start_approved_call(approval_request)
        answer_remote_calls(encoded, rng)
    for number, round_script in enumerate(run.rounds, 1):
        if encoded.is_broken:
            return
        yield make_round(rng, run, round_script, number == len(run.rounds))
        if not answer_remote_calls(encoded, rng) or encoder.needs_client:
            return


def answer_remote_calls(encoded: EncodedRun, rng: random.Random) -> bool:
    """Answer the calls to remote tools in random order; return whether there were any."""
    calls = encoded.encoder.get_remote_calls()
    rng.shuffle(calls)
    for call in calls:
        encoded.is_broken = encoded.is_broken or rng.random() < 0.05
        if not encoded.is_broken:
            output, error = rng.choice([("42", None), ("", None), (None, "Refused.")])
            encoded.frames += encoded.encoder.finish_remote_call(call, output, error)
    return bool(calls)


def encode_end(encoded: EncodedRun) -> list[bytes]:
    run, encoder, deltas = encoded.run, encoded.encoder, encoded.deltas
    if not encoded.is_broken and deltas and deltas[-1].finish is not None:
        return encoder.end(Usage())
    return encoder.cancel() if run.ending == "cancel" else encoder.fail(run.error)


def make_shards() -> list[range]:
    return [range(shard, ANSWERS, SHARDS) for shard in range(SHARDS)]


@pytest.mark.parametrize("seeds", make_shards(), ids=lambda seeds: str(seeds[0]))
def test_responses_are_in_order(seeds: range) -> None:
    for seed in seeds:
        try:
            check_run(seed)
        except Exception as error:
            raise AssertionError(f"answer {seed}: {error}") from error


def check_run(seed: int) -> None:
    encoded = encode_run(seed)
    resource = check_responses(encoded.frames)
    assert resource == json.loads(encoded.encoder.encode_whole())
    assert list_output(resource) == list_expected_output(encoded)
    assert check_responses(encode_stored_events(encoded.encoder.encode_whole())) == resource
    usage = [delta.usage for delta in encoded.deltas if delta.usage is not None]
    if usage:
        assert resource["usage"]["input_tokens"] == sum(item.prompt for item in usage)
    complete_items = [item for item in resource["output"] if item.get("status") != "incomplete"]
    assert [
        item for item in encoded.encoder.finished_items if item.get("status") != "incomplete"
    ] == complete_items


def list_output(resource: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name or channel, and the text, of each item of a response."""
    output = []
    for item in resource["output"]:
        match item["type"]:
            case "message" | "reasoning":
                channel = "text" if item["type"] == "message" else "reasoning"
                output.append((channel, item["content"][0]["text"]))
            case "mcp_list_tools":
                pass
            case "custom_tool_call":
                is_complete = item["status"] == "completed"
                output.append((item["name"], item["input"] if is_complete else "?"))
            case "mcp_call" if item["approval_request_id"] == "mcpr_1":
                pass
            case _:
                output.append((item["name"], item["arguments"]))
    return output


class ChannelText(Struct):
    """What a model wrote on one channel before it switched to another."""

    channel: str
    call: int
    text: str = ""
    name: str = ""
    is_complete: bool = True


def split_channels(deltas: list[Delta]) -> list[list[ChannelText]]:
    """Split the deltas into rounds and channels."""
    rounds: list[list[ChannelText]] = [[]]
    for i, delta in enumerate(deltas):
        segments = rounds[-1]
        channel = "call" if delta.channel.startswith("tool_") else delta.channel
        if (delta.text or delta.channel == "tool_name") and (
            not segments or (segments[-1].channel, segments[-1].call) != (channel, delta.call)
        ):
            segments.append(ChannelText(channel, delta.call))
        if delta.channel == "tool_name":
            segments[-1].name = delta.text
        elif delta.text:
            segments[-1].text += delta.text
        if delta.finish is not None and i + 1 < len(deltas):
            rounds.append([])
    if rounds[-1] and deltas[-1].finish not in ("stop", "tool_calls"):
        segment = rounds[-1][-1]
        suffix = "}" if "free" in segment.name else ""  # its text is complete before the object is
        segment.is_complete = deltas[-1].finish == "length" and (
            is_json(segment.text) or is_json(segment.text + suffix)
        )
    return rounds


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def list_expected_output(encoded: EncodedRun) -> list[tuple[str, str]]:
    """Return the expected output of a response, from the deltas."""
    remaining_calls = encoded.run.info.max_remote_calls
    if remaining_calls is not None and encoded.run.has_approved_call:
        remaining_calls = max(0, remaining_calls - 1)
    expected: list[tuple[str, str]] = []
    calls = visible = 0
    waits_for_client, white_space = False, ""
    for round_script in split_channels(encoded.deltas):
        calls = visible = 0
        white_space = ""
        for segment in round_script:
            origin = TOOLS.get(segment.name) or ToolOrigin(kind="function", name=segment.name)
            if segment.channel != "call" and (
                segment.channel == "reasoning" or segment.text.strip()
            ):
                expected.append((segment.channel, segment.text))
            elif segment.channel != "call":
                white_space = segment.text
                continue
            elif origin.kind != "mcp":
                waits_for_client = waits_for_client or segment.is_complete
                text = segment.text
                if origin.kind == "custom":
                    text = (
                        json.loads(text.rstrip("}") + "}")["input"] if segment.is_complete else "?"
                    )
                expected.append((origin.name, text))
            elif origin.needs_approval:
                waits_for_client = waits_for_client or segment.is_complete
                white_space = ""
                if not segment.is_complete:
                    continue
                expected.append((origin.name, segment.text))
            elif remaining_calls == 0:
                white_space = ""
                continue
            else:
                remaining_calls = None if remaining_calls is None else remaining_calls - 1
                calls += 1
                expected.append((origin.name, segment.text))
            visible, white_space = visible + 1, ""
    is_over = encoded.deltas and encoded.deltas[-1].finish is not None and not encoded.is_broken
    if is_over and not waits_for_client:
        has_answered_calls = encoded.deltas[-1].finish == "tool_calls" and calls
        if has_answered_calls or not visible:
            expected.append(("text", "" if has_answered_calls else white_space))
    return expected


def test_unfinished_stored_responses_are_replayed_in_order() -> None:
    for seed in range(2000):
        encoded = encode_run(seed, stop=random.Random(seed).randint(0, 12))
        body = encoded.encoder.encode_whole()
        was_over = encoded.encoder.is_over
        failed = mark_failed(body)
        encoded.encoder.cancel()
        cancelled = encoded.encoder.encode_whole()
        for stored, status in ((failed, "failed"), (cancelled, "cancelled")):
            resource = check_responses(encode_stored_events(stored))
            assert resource["status"] == status or (stored == body and was_over)


# The machines themselves


STREAMS: dict[str, tuple[Callable[[int], list[bytes]], Callable[[list[bytes]], Any]]] = {
    "responses": (lambda seed: encode_run(seed).frames, check_responses),
    "chat": (lambda seed: encode_answer(seed, "chat").frames, check_chat),
    "messages": (lambda seed: encode_answer(seed, "messages").frames, check_messages),
}
# events that may be missing: `queued`, or `in_progress` of a response that never starts; the end of
# the arguments of a call that is not answered
OPTIONAL_EVENTS = (b"event: response.queued", b"event: response.in_progress")
OPTIONAL_DONE = b"event: response.mcp_call_arguments.done"


@pytest.mark.parametrize("api", STREAMS)
def test_a_missing_or_repeated_event_is_out_of_order(api: str) -> None:
    """Otherwise the tests above would prove nothing."""
    make_stream, check = STREAMS[api]
    for seed in range(60):
        frames = make_stream(seed)
        expected, is_queued = check(frames), make_script(seed).is_queued
        for i, frame in enumerate(frames):
            variants = [[*frames[:i], frame, *frames[i:]]]
            may_queue = is_queued and frame.startswith(OPTIONAL_EVENTS)
            if not may_queue and not frame.startswith(OPTIONAL_DONE):
                variants.append([*frames[:i], *frames[i + 1 :]])
            for variant in variants:
                where = (seed, i, len(variant) - len(frames))
                assert read_or_none(check, renumber(variant)) != expected, where


def read_or_none(check: Callable[[list[bytes]], Any], frames: list[bytes]) -> Any:
    try:
        return check(frames)
    except (AssertionError, LookupError, ValueError):
        return None


def renumber(frames: list[bytes]) -> list[bytes]:
    """Return the frames with correct sequence numbers."""
    numbers = itertools.count()
    return [
        re.sub(rb'"sequence_number":\d+', lambda _: b'"sequence_number":%d' % next(numbers), frame)
        for frame in frames
    ]


# The vendors' clients


@cache
def openai_client() -> tuple[openai.OpenAI, list[bytes]]:
    """Return a client, and the list of frames that it gets as the response."""
    body: list[bytes] = []
    return openai.OpenAI(
        api_key="-",
        base_url="http://here",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(transport=httpx2.MockTransport(make_handler(body))),
    ), body


@cache
def anthropic_client() -> tuple[anthropic.Anthropic, list[bytes]]:
    body: list[bytes] = []
    return anthropic.Anthropic(
        api_key="-",
        base_url="http://here",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(
            transport=httpx2.MockTransport(make_handler(body))
        ),
    ), body


def make_handler(body: list[bytes]) -> Callable[[httpx2.Request], httpx2.Response]:
    headers = {"content-type": "text/event-stream"}
    return lambda _: httpx2.Response(200, headers=headers, content=b"".join(body))


EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize("shard", range(5))
def test_the_openai_client_reads_responses_unchanged(shard: int) -> None:
    client, body = openai_client()
    for seed in range(shard * CLIENT_STRIDE, ANSWERS, 5 * CLIENT_STRIDE):
        encoded = encode_run(seed)
        body[:] = encoded.frames
        resource = json.loads(encoded.encoder.encode_whole())
        with client.responses.stream(model="m", input="?") as stream:
            events: list[Any] = list(stream)
        assert len(events) == len(encoded.frames)
        assert normalize(events[-1].response) == resource
        if resource["status"] == "completed":
            assert normalize(stream.get_final_response()) == resource
        assert get_snapshots(events) == [
            text for name, text in list_output(resource) if name == "text" and text
        ]
        for frame in encoded.frames:  # each event has all required fields
            event = json.loads(get_frame_json(frame))
            if event["type"] != "response.failed":  # the SDK knows fewer error codes than agents do
                EVENT.validate_python(event)


def normalize(response: Any) -> Any:
    """Return the fields that the client received, without those that it adds."""
    fields = response.model_dump(mode="json", exclude_unset=True, warnings=False)
    fields["output"] = [
        {name: value for name, value in item.items() if name != "parsed_arguments"}
        for item in fields["output"]
    ]
    for item in fields["output"]:
        if item["type"] == "message":
            for part in item["content"]:
                part.pop("parsed", None)
    return fields


def get_snapshots(events: list[Any]) -> list[str]:
    """Return the texts that a client accumulated."""
    texts: dict[int, str] = {}
    for event in events:
        if event.type == "response.output_text.delta":
            texts[event.output_index] = event.snapshot
    return list(texts.values())


# Chat completions and Messages, which have one round


class EncodedAnswer(Struct):
    run: RunScript
    frames: list[bytes]
    completion: Completion
    body: bytes


def encode_answer(seed: int, api: str) -> EncodedAnswer:
    run, rng = make_script(seed), random.Random(seed)
    encoder: Any = ChatEncoder(run.request, AnswerInfo("m", 1, 1))
    if api == "messages":
        encoder = MessagesEncoder(run.request, "m", 3, FakeSigner(), encode_error)
    frames, completion = encoder.start(), Completion()
    deltas = make_round(rng, run, run.rounds[0], True)
    for delta in deltas:
        frames += encoder.encode_delta(delta)
        completion.add(delta)
    if deltas and deltas[-1].finish is not None:
        frames += encoder.end(completion.usage)
        return EncodedAnswer(run, frames, completion, encoder.encode_whole(completion))
    return EncodedAnswer(run, frames + encoder.fail(run.error), completion, b"")


@pytest.mark.parametrize("seeds", make_shards(), ids=lambda seeds: str(seeds[0]))
def test_chat_is_in_order(seeds: range) -> None:
    for seed in seeds:
        encoded = encode_answer(seed, "chat")
        result = check_chat(encoded.frames)
        if not encoded.body:
            assert result["error"]["message"] == encoded.run.error.message
            continue
        (choice,) = result["choices"]
        assert choice == get_choice(json.loads(encoded.body))
        assert (result["usage"] is not None) == encoded.run.request.include_usage


def get_choice(completion: dict[str, Any]) -> dict[str, Any]:
    (choice,) = completion["choices"]
    message = choice["message"]
    return {
        "role": "assistant",
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [
            {"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()
        ],
        "finish": choice["finish_reason"],
    }


def get_client_choice(choice: Any) -> dict[str, Any]:
    """Return the same of a choice that a client accumulated."""
    message = choice.message
    calls = [(call.id, call.function) for call in message.tool_calls or ()]
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": getattr(message, "reasoning_content", ""),
        "calls": [{"id": id_, "name": f.name, "arguments": f.arguments} for id_, f in calls],
        "finish": choice.finish_reason,
    }


@pytest.mark.parametrize("seeds", make_shards(), ids=lambda seeds: str(seeds[0]))
def test_messages_are_in_order(seeds: range) -> None:
    for seed in seeds:
        encoded = encode_answer(seed, "messages")
        result = check_messages(encoded.frames)
        if not encoded.body:
            assert result["error"] is not None
            continue
        message = json.loads(encoded.body)
        blocks = [dict(block) for block in result["content"]]
        for block in blocks:
            if "partial_json" in block and is_json(block["partial_json"]):
                block["input"] = json.loads(block["partial_json"])
            block.pop("partial_json", None)
        assert [b["type"] for b in blocks] == [b["type"] for b in message["content"]]
        if result["stop"]["stop_reason"] != "max_tokens":
            assert blocks == message["content"]
        assert result["stop"]["stop_reason"] == message["stop_reason"]


def test_the_clients_read_chat_and_messages_unchanged() -> None:
    for seed in range(0, ANSWERS, CLIENT_STRIDE):
        encoded = encode_answer(seed, "chat")
        if encoded.body:
            client, body = openai_client()
            body[:] = encoded.frames
            with client.chat.completions.stream(model="m", messages=[]) as stream:
                completion = stream.until_done().current_completion_snapshot
            assert get_client_choice(completion.choices[0]) == get_choice(json.loads(encoded.body))
        encoded = encode_answer(seed, "messages")
        if encoded.body:
            anthropic_sdk, body = anthropic_client()
            body[:] = encoded.frames
            with anthropic_sdk.messages.stream(
                model="m", max_tokens=1, messages=[]
            ) as message_stream:
                message = message_stream.get_final_message().to_dict()
            expected = json.loads(encoded.body)
            assert message["content"] == expected["content"]
            assert message["stop_reason"] == expected["stop_reason"]
