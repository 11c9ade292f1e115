"""Ten thousand answers that no engine would think of, in every dialect: no stream is out of order.

What a model says is made up from a seed: texts, thoughts and calls of all kinds, cut anywhere, over
several rounds, with an end of its own or one that comes too early. The machines of `order` read
the streams; every so often the vendors' own clients read them too.
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
from dragoman.protocols.chat import encode
from dragoman.protocols.messages import encode as messages_answer
from dragoman.protocols.messages import errors
from dragoman.protocols.responses.encode.encoder import ResponseEncoder
from dragoman.protocols.responses.encode.frames import get_frame_json
from dragoman.protocols.responses.encode.replay import encode_stored_events
from dragoman.protocols.responses.encode.resource import mark_cancelled, mark_failed
from dragoman.protocols.responses.types import ResponseInfo, ToolOrigin
from dragoman.signing import Signer
from dragoman.types import Chat, Message, Request, text_content
from tests.support.event_order import check_chat, check_messages, check_responses

ANSWERS = 10_000
SHARES = 20  # tests, so that one can be run by itself
EVERY = 20  # which answers the vendors' clients read as well

LETTERS = "ab \n\"\\{}[]<>:,é漢😀\t/u0041'"
TOOLS = {
    "f": ToolOrigin(kind="function", name="f"),
    "ns_g": ToolOrigin(kind="function", name="g", namespace="ns"),
    "free": ToolOrigin(kind="custom", name="free"),
    "ns_free": ToolOrigin(kind="custom", name="free", namespace="ns"),
    "far": ToolOrigin(kind="mcp", name="far", server_label="server"),
    "far_ask": ToolOrigin(kind="mcp", name="ask", server_label="server", needs_approval=True),
}
NAMES = [*TOOLS, "unheard_of"]
INCLUDE = ["reasoning.encrypted_content", "message.output_text.logprobs"]
ERRORS: list[DragomanError] = [
    EngineFailed("It broke."),
    ContextOverflow("Too long."),
    Overloaded("Too many.", retry_after=2),
    Draining("Going away."),
    TemplateRejected("No."),
]


class Segment(Struct, frozen=True):
    """Something the model does: it says, thinks, or calls."""

    channel: str
    text: str
    name: str = ""


Round: TypeAlias = list[Segment]


class Run(Struct):
    """One answer: what the model does in each round, and how it ends."""

    rounds: list[Round]
    ending: str  # of the last round: "natural", "length", "fail", "cancel"
    error: DragomanError
    frame: ResponseInfo
    request: Request
    queued: bool
    lists: list[bool]  # remote servers that are asked for their tools, and whether they answer
    resumes: bool  # a call was approved


class Sealer:
    """Seals for nobody in particular."""

    def __init__(self) -> None:
        self.seals = Signer(b"key")

    def pack(self, purpose: str, data: bytes) -> str:
        return self.seals.pack("", purpose, data)

    def unpack(self, purpose: str, text: str) -> bytes | None:
        return self.seals.unpack("", purpose, text)

    def sign(self, purpose: str, data: bytes) -> str:
        return self.seals.sign("", purpose, data)

    def verify(self, purpose: str, data: bytes, signature: str) -> bool:
        return self.seals.verify("", purpose, data, signature)


# Making answers up


def words(dice: random.Random, most: int = 24) -> str:
    return "".join(dice.choices(LETTERS, k=dice.randint(1, most)))


def segment(dice: random.Random) -> Segment:
    channel = dice.choice(["text", "text", "reasoning", "call", "call"])
    if channel != "call":
        return Segment(channel, words(dice))
    name = dice.choice(NAMES)
    if "free" in name:
        given: Any = {"input": words(dice)}
    else:
        given = {words(dice, 4): words(dice) for _ in range(dice.randint(0, 2))}
    return Segment("call", json.dumps(given, ensure_ascii=dice.random() < 0.5), name)


def made_up(seed: int) -> Run:
    dice = random.Random(seed)
    rounds = [[segment(dice) for _ in range(dice.choice([0, 1, 1, 2, 3, 5]))]]
    while len(rounds) < 4 and dice.random() < 0.4:
        rounds.append([segment(dice) for _ in range(dice.randint(0, 3))])
    frame = ResponseInfo(
        id=f"resp_{seed}",
        created=seed,
        model="m",
        echoed_fields={"background": dice.random() < 0.2, "metadata": {"seed": str(seed)}},
        tools=TOOLS,
        include=frozenset(dice.sample(INCLUDE, k=dice.randint(0, 2))),
        summary=dice.random() < 0.3,
        max_remote_calls=dice.choice([None, None, 0, 1, 2]),
        packer=Sealer(),
    )
    request = Request(
        model="m",
        prompts=(Chat(messages=(Message(role="user", content=text_content("?")),)),),
        logprobs=dice.choice([None, None, 2]),
        obfuscate=dice.random() < 0.2,
        include_usage=dice.random() < 0.5,
    )
    return Run(
        rounds,
        dice.choice(["natural", "natural", "length", "fail", "cancel"]),
        dice.choice(ERRORS),
        frame,
        request,
        dice.random() < 0.2,
        [dice.random() < 0.8 for _ in range(dice.choice([0, 0, 0, 1, 2]))],
        dice.random() < 0.1,
    )


def pieces(dice: random.Random, text: str) -> Iterator[str]:
    while text:
        size = dice.randint(1, max(1, min(8, len(text))))
        yield text[:size]
        text = text[size:]


def deltas(dice: random.Random, doing: Round, logprobs: bool) -> list[Delta]:
    """The deltas of one round, without its end."""
    made = []
    calls = 0
    for one in doing:
        if one.channel == "call":
            made.append(Delta(0, one.name, "tool_name", calls, id=f"call_{dice.getrandbits(64)}"))
            made += [Delta(0, piece, "tool_args", calls) for piece in pieces(dice, one.text)]
            calls += 1
            continue
        channel: Channel = "text" if one.channel == "text" else "reasoning"
        for piece in pieces(dice, one.text):
            tokens = (Token(piece, piece.encode(), -0.5),) if logprobs and channel == "text" else ()
            made.append(Delta(0, piece, channel, tokens=tokens))
    return made


def last(dice: random.Random, doing: Round, ending: str) -> Delta:
    calls = any(one.channel == "call" for one in doing)
    finish: Finish = "length" if ending == "length" else "tool_calls" if calls else "stop"
    spent = Usage(dice.randint(1, 90), 50, 1, dice.randint(0, 50))
    return Delta(0, finish=finish, usage=spent)


def cut_round(dice: random.Random, run: Run, doing: Round, final: bool) -> list[Delta]:
    """The deltas of a round, as far as it comes."""
    made = deltas(dice, doing, run.request.logprobs is not None)
    ending = run.ending if final else "natural"
    if ending != "natural":
        made = made[: dice.randint(0, len(made))]
    if ending in ("natural", "length"):
        made.append(last(dice, doing, ending))
    return made


# Responses


class Played(Struct):
    """A stream, and what it should say."""

    run: Run
    frames: list[bytes]
    writer: ResponseEncoder
    heard: list[Delta]
    broken: bool = False  # while a remote server was asked


def play(seed: int, stop: int | None = None) -> Played:
    """Write a made-up answer down as the server would, or as far as it came."""
    run, dice = made_up(seed), random.Random(seed)
    writer = ResponseEncoder(run.frame, run.request)
    played = Played(run, [*(writer.queue() if run.queued else []), *writer.start()], writer, [])
    for deltas in stages(played, dice):
        for delta in deltas:
            if len(played.heard) == stop:
                return played
            played.heard.append(delta)
            played.frames += writer.encode_delta(delta)
    if stop is None:
        played.frames += ended(played)
    return played


def stages(played: Played, dice: random.Random) -> Iterator[list[Delta]]:
    """The rounds of a response, with what comes before and between them."""
    run, writer = played.run, played.writer
    for i, answers in enumerate(run.lists):
        played.frames += writer.start_tool_list(f"server{i}")
        played.broken = dice.random() < 0.05
        if played.broken:
            return
        tools = [{"name": "t", "input_schema": {}}] if answers else []
        played.frames += writer.finish_tool_list(
            f"server{i}", tools, None if answers else "No answer."
        )
    if run.resumes:
        asked = {"id": "mcpr_1", "server_label": "server", "name": "far", "arguments": "{}"}
        played.frames += writer.start_approved_call(asked)
        answer(played, dice)
    for number, doing in enumerate(run.rounds, 1):
        if played.broken:
            return
        yield cut_round(dice, run, doing, number == len(run.rounds))
        if not answer(played, dice) or writer.needs_client:
            return


def answer(played: Played, dice: random.Random) -> bool:
    """Answer the calls of remote tools, in any order; whether there were any."""
    calls = played.writer.get_remote_calls()
    dice.shuffle(calls)
    for call in calls:
        played.broken = played.broken or dice.random() < 0.05
        if not played.broken:
            output, error = dice.choice([("42", None), ("", None), (None, "Refused.")])
            played.frames += played.writer.finish_remote_call(call, output, error)
    return bool(calls)


def ended(played: Played) -> list[bytes]:
    run, writer, heard = played.run, played.writer, played.heard
    if not played.broken and heard and heard[-1].finish is not None:
        return writer.end(Usage())
    return writer.cancel() if run.ending == "cancel" else writer.fail(run.error)


def shares() -> list[range]:
    return [range(share, ANSWERS, SHARES) for share in range(SHARES)]


@pytest.mark.parametrize("seeds", shares(), ids=lambda seeds: str(seeds[0]))
def test_responses_are_in_order(seeds: range) -> None:
    for seed in seeds:
        try:
            responses_in_order(seed)
        except Exception as error:
            raise AssertionError(f"answer {seed}: {error}") from error


def responses_in_order(seed: int) -> None:
    played = play(seed)
    final = check_responses(played.frames)
    assert final == json.loads(played.writer.encode_whole())
    assert said(final) == told(played)
    assert check_responses(encode_stored_events(played.writer.encode_whole())) == final
    usage = [delta.usage for delta in played.heard if delta.usage is not None]
    if usage:
        assert final["usage"]["input_tokens"] == sum(one.prompt for one in usage)
    kept = [item for item in final["output"] if item.get("status") != "incomplete"]
    assert [
        item for item in played.writer.finished_items if item.get("status") != "incomplete"
    ] == kept


def said(final: dict[str, Any]) -> list[tuple[str, str]]:
    """What a response says, item by item."""
    found = []
    for item in final["output"]:
        match item["type"]:
            case "message" | "reasoning":
                channel = "text" if item["type"] == "message" else "reasoning"
                found.append((channel, item["content"][0]["text"]))
            case "mcp_list_tools":
                pass
            case "custom_tool_call":
                whole = item["status"] == "completed"
                found.append((item["name"], item["input"] if whole else "?"))
            case "mcp_call" if item["approval_request_id"] == "mcpr_1":
                pass
            case _:
                found.append((item["name"], item["arguments"]))
    return found


class Did(Struct):
    """What a model did on one channel before it turned to another."""

    channel: str
    call: int
    text: str = ""
    name: str = ""
    whole: bool = True


def did(heard: list[Delta]) -> list[list[Did]]:
    """The rounds of a model, from its deltas."""
    rounds: list[list[Did]] = [[]]
    for number, delta in enumerate(heard):
        now = rounds[-1]
        channel = "call" if delta.channel.startswith("tool_") else delta.channel
        if (delta.text or delta.channel == "tool_name") and (
            not now or (now[-1].channel, now[-1].call) != (channel, delta.call)
        ):
            now.append(Did(channel, delta.call))
        if delta.channel == "tool_name":
            now[-1].name = delta.text
        elif delta.text:
            now[-1].text += delta.text
        if delta.finish is not None and number + 1 < len(heard):
            rounds.append([])
    if rounds[-1] and heard[-1].finish not in ("stop", "tool_calls"):
        one = rounds[-1][-1]
        rest = "}" if "free" in one.name else ""  # its text is whole before the object is
        one.whole = heard[-1].finish == "length" and (
            readable(one.text) or readable(one.text + rest)
        )
    return rounds


def readable(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def told(played: Played) -> list[tuple[str, str]]:
    """What a response should say, from what the model did."""
    left = played.run.frame.max_remote_calls
    if left is not None and played.run.resumes:
        left = max(0, left - 1)
    expected: list[tuple[str, str]] = []
    calls = visible = 0
    waits, white = False, ""
    for doing in did(played.heard):
        calls = visible = 0
        white = ""
        for one in doing:
            known = TOOLS.get(one.name) or ToolOrigin(kind="function", name=one.name)
            if one.channel != "call" and (one.channel == "reasoning" or one.text.strip()):
                expected.append((one.channel, one.text))
            elif one.channel != "call":
                white = one.text
                continue
            elif known.kind != "mcp":
                waits = waits or one.whole
                text = one.text
                if known.kind == "custom":
                    text = json.loads(text.rstrip("}") + "}")["input"] if one.whole else "?"
                expected.append((known.name, text))
            elif known.needs_approval:
                waits = waits or one.whole
                white = ""
                if not one.whole:
                    continue
                expected.append((known.name, one.text))
            elif left == 0:
                white = ""
                continue
            else:
                left = None if left is None else left - 1
                calls += 1
                expected.append((known.name, one.text))
            visible, white = visible + 1, ""
    over = played.heard and played.heard[-1].finish is not None and not played.broken
    if over and not waits:
        answered = played.heard[-1].finish == "tool_calls" and calls
        if answered or not visible:
            expected.append(("text", "" if answered else white))
    return expected


def test_responses_that_were_kept_unfinished_are_told_again_in_order() -> None:
    for seed in range(2000):
        played = play(seed, stop=random.Random(seed).randint(0, 12))
        body = played.writer.encode_whole()
        for made, status in ((mark_failed(body), "failed"), (mark_cancelled(body), "cancelled")):
            final = check_responses(encode_stored_events(made))
            assert final["status"] == status or (made == body and played.writer.is_over)


# The machines themselves


STREAMS: dict[str, tuple[Callable[[int], list[bytes]], Callable[[list[bytes]], Any]]] = {
    "responses": (lambda seed: play(seed).frames, check_responses),
    "chat": (lambda seed: write(seed, "chat").frames, check_chat),
    "messages": (lambda seed: write(seed, "messages").frames, check_messages),
}
# what may be left out: that one waits, or starts if nothing comes of it; that a call is said to its
# end if nobody answers
QUEUED = (b"event: response.queued", b"event: response.in_progress")
UNANSWERED = b"event: response.mcp_call_arguments.done"


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_stream_with_an_event_too_few_or_too_many_is_out_of_order(dialect: str) -> None:
    """Otherwise it would say nothing that the streams above are in order."""
    streamed, check = STREAMS[dialect]
    for seed in range(60):
        frames = streamed(seed)
        whole, queued = check(frames), made_up(seed).queued
        for at, frame in enumerate(frames):
            spoilt = [[*frames[:at], frame, *frames[at:]]]
            if not (queued and frame.startswith(QUEUED)) and not frame.startswith(UNANSWERED):
                spoilt.append([*frames[:at], *frames[at + 1 :]])
            for other in spoilt:
                assert read(check, numbered(other)) != whole, (seed, at, len(other) - len(frames))


def read(check: Callable[[list[bytes]], Any], frames: list[bytes]) -> Any:
    try:
        return check(frames)
    except (AssertionError, LookupError, ValueError):
        return None


def numbered(frames: list[bytes]) -> list[bytes]:
    """The same frames with numbers that are right."""
    number = itertools.count()
    return [
        re.sub(rb'"sequence_number":\d+', lambda _: b'"sequence_number":%d' % next(number), frame)
        for frame in frames
    ]


# What the vendors' clients make of it


@cache
def openai_client() -> tuple[openai.OpenAI, list[bytes]]:
    """A client that is answered with what is in the list."""
    body: list[bytes] = []
    return openai.OpenAI(
        api_key="-",
        base_url="http://here",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(transport=httpx2.MockTransport(answered(body))),
    ), body


@cache
def anthropic_client() -> tuple[anthropic.Anthropic, list[bytes]]:
    body: list[bytes] = []
    return anthropic.Anthropic(
        api_key="-",
        base_url="http://here",
        max_retries=0,
        http_client=anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(answered(body))),
    ), body


def answered(body: list[bytes]) -> Callable[[httpx2.Request], httpx2.Response]:
    kind = {"content-type": "text/event-stream"}
    return lambda _: httpx2.Response(200, headers=kind, content=b"".join(body))


EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize("share", range(5))
def test_openai_reads_responses_as_they_are(share: int) -> None:
    client, body = openai_client()
    for seed in range(share * EVERY, ANSWERS, 5 * EVERY):
        played = play(seed)
        body[:] = played.frames
        whole = json.loads(played.writer.encode_whole())
        with client.responses.stream(model="m", input="?") as stream:
            events: list[Any] = list(stream)
        assert len(events) == len(played.frames)
        assert plain(events[-1].response) == whole
        if whole["status"] == "completed":
            assert plain(stream.get_final_response()) == whole
        assert snapshots(events) == [text for kind, text in said(whole) if kind == "text" and text]
        for frame in played.frames:  # each has all that its type must have
            event = json.loads(get_frame_json(frame))
            if event["type"] != "response.failed":  # which knows fewer codes than agents do
                EVENT.validate_python(event)


def plain(response: Any) -> Any:
    """What a client was told, without what it makes of it."""
    told = response.model_dump(mode="json", exclude_unset=True, warnings=False)
    told["output"] = [
        {name: value for name, value in item.items() if name != "parsed_arguments"}
        for item in told["output"]
    ]
    for item in told["output"]:
        if item["type"] == "message":
            for part in item["content"]:
                part.pop("parsed", None)
    return told


def snapshots(events: list[Any]) -> list[str]:
    """The texts that a client has put together."""
    texts: dict[int, str] = {}
    for event in events:
        if event.type == "response.output_text.delta":
            texts[event.output_index] = event.snapshot
    return list(texts.values())


# Chat completions and Messages, which have one round


class Written(Struct):
    run: Run
    frames: list[bytes]
    completion: Completion
    whole: bytes


def write(seed: int, dialect: str) -> Written:
    run, dice = made_up(seed), random.Random(seed)
    writer: Any = encode.ChatEncoder(run.request, "m", 1)
    if dialect == "messages":
        writer = messages_answer.MessagesEncoder(run.request, "m", 3, Sealer(), errors.encode_error)
    frames, completion = writer.start(), Completion()
    heard = cut_round(dice, run, run.rounds[0], True)
    for delta in heard:
        frames += writer.encode_delta(delta)
        completion.add(delta)
    if heard and heard[-1].finish is not None:
        frames += writer.end(completion.usage)
        return Written(run, frames, completion, writer.encode_whole(completion))
    return Written(run, frames + writer.fail(run.error), completion, b"")


@pytest.mark.parametrize("seeds", shares(), ids=lambda seeds: str(seeds[0]))
def test_chat_is_in_order(seeds: range) -> None:
    for seed in seeds:
        written = write(seed, "chat")
        told = check_chat(written.frames)
        if not written.whole:
            assert told["error"]["message"] == written.run.error.message
            continue
        (choice,) = told["choices"]
        assert choice == whole_choice(json.loads(written.whole))
        assert (told["usage"] is not None) == written.run.request.include_usage


def whole_choice(whole: dict[str, Any]) -> dict[str, Any]:
    (choice,) = whole["choices"]
    message = choice["message"]
    return {
        "role": "assistant",
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [{"id": one["id"], **one["function"]} for one in message.get("tool_calls") or ()],
        "finish": choice["finish_reason"],
    }


def added_up(choice: Any) -> dict[str, Any]:
    """The same of what a client has put together."""
    message = choice.message
    calls = [(one.id, one.function) for one in message.tool_calls or ()]
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": getattr(message, "reasoning_content", ""),
        "calls": [{"id": id_, "name": f.name, "arguments": f.arguments} for id_, f in calls],
        "finish": choice.finish_reason,
    }


@pytest.mark.parametrize("seeds", shares(), ids=lambda seeds: str(seeds[0]))
def test_messages_are_in_order(seeds: range) -> None:
    for seed in seeds:
        written = write(seed, "messages")
        told = check_messages(written.frames)
        if not written.whole:
            assert told["error"] is not None
            continue
        whole = json.loads(written.whole)
        blocks = [dict(block) for block in told["content"]]
        for block in blocks:
            if "partial_json" in block and readable(block["partial_json"]):
                block["input"] = json.loads(block["partial_json"])
            block.pop("partial_json", None)
        assert [b["type"] for b in blocks] == [b["type"] for b in whole["content"]]
        if told["stop"]["stop_reason"] != "max_tokens":
            assert blocks == whole["content"]
        assert told["stop"]["stop_reason"] == whole["stop_reason"]


def test_the_clients_read_chat_and_messages_as_they_are() -> None:
    for seed in range(0, ANSWERS, EVERY):
        written = write(seed, "chat")
        if written.whole:
            client, body = openai_client()
            body[:] = written.frames
            with client.chat.completions.stream(model="m", messages=[]) as stream:
                final = stream.until_done().current_completion_snapshot
            assert added_up(final.choices[0]) == whole_choice(json.loads(written.whole))
        written = write(seed, "messages")
        if written.whole:
            other, body = anthropic_client()
            body[:] = written.frames
            with other.messages.stream(model="m", max_tokens=1, messages=[]) as flow:
                message = flow.get_final_message().to_dict()
            whole = json.loads(written.whole)
            assert message["content"] == whole["content"]
            assert message["stop_reason"] == whole["stop_reason"]
