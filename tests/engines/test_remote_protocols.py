"""Reading what upstream servers send: frames of SGLang, damaged frames, and every way to cut them.

The files in `sglang_frames` are the bodies that SGLang's own code wrote (`record.py` there says
how), and answers of real servers with their sources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import pytest
from msgspec.structs import replace

from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.failures import (
    InvalidFrame,
    StatusFailure,
    UpstreamFailure,
    convert_failure,
)
from dragoman.engines.remote.http import frames
from dragoman.engines.remote.http.frames import DONE, FrameSplitter
from dragoman.engines.remote.protocols import make_api
from dragoman.engines.remote.protocols.api import FrameReader
from dragoman.engines.remote.settings import TokenProtocol, Upstream
from dragoman.errors import ContextOverflow, DragomanError, Unavailable
from dragoman.testing import every_cut
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Job, Json, Logprob, Step
from tests.support.yaml_files import read_yaml

FRAMES = Path(__file__).parent / "sglang_frames"
KINDS = ("cumulative", "incremental")
IDS = [504, 3575, 282, 4649, 314, 7042, 30]  # The capital of France is Paris.
STOP = 30  # a token that the request of `stop` ends at
END = 2
VOCABULARY = Vocabulary(pieces=[b"x"] * 151_700, eos_id=END, eos_ids=frozenset({END}))


def make_reader(protocol: TokenProtocol, **fields: Json) -> FrameReader:
    upstream = Upstream(protocol=protocol, model="m", context=4096)
    fields.setdefault("sampling", DEFAULT_SAMPLING)
    job = Job(id="j", prompt=[1] * 16, **fields)
    api = make_api(upstream, VOCABULARY)
    parts = AnswerParts(job=job, vocabulary=VOCABULARY, vocabulary_size=len(VOCABULARY.pieces))
    return api.make_reader(api.build_requests(job)[0], parts)


def read_all(reader: FrameReader, pieces: list[bytes]) -> list[Step]:
    splitter = FrameSplitter()
    frames = [frame for piece in pieces for frame in splitter.feed(piece)]
    return [step for frame in frames for step in reader.read(frame)]


def read_recorded(case: str, kind: str, line_end: bytes = b"\n", **fields: Json) -> list[Step]:
    body = (FRAMES / f"{case}.{kind}.txt").read_bytes().replace(b"\n", line_end)
    reader = make_reader("sglang", **fields)
    steps = read_all(reader, [body])
    assert reader.is_complete
    return steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_both_kinds_of_sglang_streams_are_read_alike(kind: str, line_end: bytes) -> None:
    steps = read_recorded("logprobs", kind, line_end, logprobs=2)
    assert [token for step in steps for token in step.ids] == IDS
    assert [len(step.ids) for step in steps] == [1, 1, 2, 1, 2]
    assert (steps[-1].finish, steps[-1].stop_id) == ("stop", END)
    assert (steps[0].prompt_tokens, steps[0].cached_tokens) == (16, 0)
    assert all(step.prompt_tokens is None for step in steps[1:])
    logprobs = [entry for step in steps for entry in step.logprobs]
    assert [entry.id for entry in logprobs] == IDS
    values = (-0.587388277053833, -2.316638231277466)
    assert logprobs[0] == Logprob(504, values[0], (Logprob(504, values[0]), Logprob(60, values[1])))


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_answers_end_for_the_reason_that_sglang_gives(kind: str) -> None:
    by_length = read_recorded("length", kind)
    ids = [token for step in by_length for token in step.ids]
    assert ids == [198, 198, 10813, 116, 243, 198, 198]  # some are parts of a character
    assert (by_length[-1].finish, by_length[-1].stop_id) == ("length", None)
    stop = replace(DEFAULT_SAMPLING, stop_token_ids=[STOP])
    by_token = read_recorded("stop", kind, sampling=stop)
    assert [token for step in by_token for token in step.ids] == IDS[:-1]
    assert (by_token[-1].finish, by_token[-1].stop_id) == ("stop", STOP)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("case", "status", "error"), [("abort", 503, Unavailable), ("too-long", 400, ContextOverflow)]
)
def test_recorded_errors_have_their_status(
    case: str, status: int, error: type[DragomanError], kind: str
) -> None:
    with pytest.raises(StatusFailure) as failure:
        read_recorded(case, kind)
    assert failure.value.status == status
    converted = convert_failure(failure.value, Capabilities(context=8192), 9000)
    assert type(converted) is error


@pytest.mark.parametrize("kind", KINDS)
def test_the_cuts_of_the_network_make_no_difference(kind: str) -> None:
    text = "".join((FRAMES / f"stop.{kind}.txt").read_text().partition("\n\n")[:2])
    expected = read_all(make_reader("sglang"), [text.encode()])
    for pieces in every_cut(text):
        steps = read_all(make_reader("sglang"), [piece.encode() for piece in pieces])
        assert steps == expected


ANSWERS: list[dict[str, Json]] = read_yaml(FRAMES / "answers.yaml")


def make_stream(answer: dict[str, Json], size: int, *, is_cumulative: bool) -> bytes:
    """Return a real answer as SGLang streams it, some tokens in each frame."""
    ids, meta, frames = answer["output_ids"], answer["meta_info"], []
    for start in range(0, len(ids), size):
        end = min(start + size, len(ids))
        is_last = end == len(ids)
        reason = meta["finish_reason"] if is_last else None
        counts = {"completion_tokens": end, "finish_reason": reason}
        frame = {
            "text": "x" * end if is_last else None,
            "output_ids": ids[:end] if is_cumulative else ids[start:end],
            "meta_info": meta | counts,
        }
        frames.append(f"data: {json.dumps(frame)}\n\n")
    return "".join([*frames, "data: [DONE]\n\n"]).encode()


@pytest.mark.parametrize("is_cumulative", [True, False])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer["source"]))
def test_answers_of_real_sglang_servers(
    answer: dict[str, Json], size: int, is_cumulative: bool
) -> None:
    reader = make_reader("sglang")
    steps = read_all(reader, [make_stream(answer, size, is_cumulative=is_cumulative)])
    ids, reason = answer["output_ids"], answer["meta_info"]["finish_reason"]
    stop = reason.get("matched")
    assert reader.is_complete
    assert [token for step in steps for token in step.ids] == [
        token for token in ids if token != stop
    ]
    assert (steps[-1].finish, steps[-1].stop_id) == (reason["type"], stop)
    assert steps[0].cached_tokens == answer["meta_info"]["cached_tokens"]


def damage(frame: dict[str, Json], *path: str, value: Json) -> None:
    for name in path[:-1]:
        frame = frame[name]
    frame[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("output_ids",), None),
        (("output_ids",), []),
        (("output_ids",), ["504"]),
        (("output_ids",), [504.5]),
        (("output_ids",), [-1]),
        (("output_ids",), [1, 504]),  # a token of the prompt, as some versions send
        (("meta_info",), None),
        (("meta_info", "completion_tokens"), None),
        (("meta_info", "completion_tokens"), 2),
        (("meta_info", "output_token_logprobs"), []),
        (("meta_info", "output_token_logprobs"), [[-0.1, 7, None]]),
    ],
)
def test_a_damaged_frame_of_sglang_is_an_error(path: tuple[str, ...], value: Json) -> None:
    first = (FRAMES / "logprobs.cumulative.txt").read_text().partition("\n\n")[0]
    frame = json.loads(first.removeprefix("data: "))
    damage(frame, *path, value=value)
    with pytest.raises(InvalidFrame):
        make_reader("sglang", logprobs=2).read(json.dumps(frame).encode())


@pytest.mark.parametrize(("code", "status"), [(400, 400), (503, 503), (None, 500)])
def test_an_aborted_answer_has_the_status_of_its_reason(code: int | None, status: int) -> None:
    reason = {"type": "abort", "message": "no memory", "status_code": code}
    meta = {"completion_tokens": 3, "finish_reason": reason}
    with pytest.raises(StatusFailure) as failure:
        make_reader("sglang").read(json.dumps({"output_ids": [5], "meta_info": meta}).encode())
    assert failure.value.status == status


LLAMA = {"index": 0, "content": "x", "tokens": [5], "stop": False, "tokens_predicted": 1}
VLLM = {"choices": [{"index": 0, "token_ids": [5], "finish_reason": None}]}


@pytest.mark.parametrize(
    ("protocol", "frame"),
    [
        ("llama-server", b"{"),
        ("llama-server", b"[]"),
        ("llama-server", json.dumps(LLAMA | {"tokens": []}).encode()),
        ("llama-server", json.dumps(LLAMA | {"tokens": [10**9]}).encode()),
        ("llama-server", json.dumps(LLAMA | {"tokens_predicted": 9}).encode()),
        ("vllm-generate", b"null"),
        ("vllm-generate", b'{"choices": [{"index": 7, "token_ids": [5]}]}'),
        ("vllm-generate", b'{"choices": [{"index": 0, "token_ids": ["5"]}]}'),
        ("vllm-generate", b'{"choices": [{"index": 0}]}'),
        ("vllm-generate", b"[DONE]"),
        ("vllm-completions", b'{"choices": [{"index": 0, "text": "x"}]}'),
        ("vllm-completions", b'{"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}'),
        ("vllm-completions", b'{"error": {"message": "no", "code": 500}}'),
        ("sglang", b'{"error": {"message": "no"}}'),
        ("sglang", b"[DONE]"),
    ],
)
def test_a_damaged_frame_is_an_error(protocol: TokenProtocol, frame: bytes) -> None:
    with pytest.raises(UpstreamFailure):
        make_reader(protocol).read(frame)


def test_vllm_counts_its_tokens_at_the_end() -> None:
    end = {"index": 0, "token_ids": [6, END], "finish_reason": "stop"}
    frames = [VLLM, {"choices": [end]}]
    usage = {"prompt_tokens": 14, "prompt_tokens_details": {"cached_tokens": 8}}

    def read(total: int) -> list[Step]:
        reader = make_reader("vllm-generate")
        last = {"choices": [], "usage": usage | {"completion_tokens": total}}
        return [step for each in (*frames, last) for step in reader.read(json.dumps(each).encode())]

    steps = read(3)
    assert [token for step in steps for token in step.ids] == [5, 6]
    assert (steps[-1].finish, steps[-1].stop_id, steps[-1].cached_tokens) == ("stop", END, 8)
    with pytest.raises(InvalidFrame, match="counts 4"):
        read(4)


def test_comments_and_names_of_events_are_dropped() -> None:
    body = b": ping\n\nevent: x\ndata: a\n\nid: 1\n\ndata: b\ndata: c\n\ndata:d\n\nrest"
    assert FrameSplitter().feed(body) == [b"a", b"b\nc", b"d"]


EVENTS = b'\n\ndata: {"a":1}\n\n: ping\n\ndata: {"b":2}\nid: 1\n\ndata:x\ndata: y\n\nevent: z\n\n'
BODIES = {
    "LF": EVENTS,
    "CRLF": EVENTS.replace(b"\n", b"\r\n"),
    "CR": EVENTS.replace(b"\n", b"\r"),
    "CRLF and LF": EVENTS.replace(b"\n\n", b"\r\n\n"),
    "LF and CRLF": EVENTS.replace(b"\n\n", b"\n\r\n"),
    "byte order mark": b"\xef\xbb\xbf" + EVENTS.lstrip(),
    "no end": EVENTS.removesuffix(b"event: z\n\n").rstrip(),
}


@pytest.mark.parametrize("name", BODIES)
def test_frames_are_the_same_however_a_body_is_cut(name: str) -> None:
    body = BODIES[name]
    cuts = [[body], [bytes([byte]) for byte in body]]
    cuts += [[body[:first], body[first:]] for first in range(1, len(body))]
    cuts += [
        [body[:first], body[first:second], body[second:]]
        for first in range(1, len(body))
        for second in range(first + 1, min(first + 9, len(body)))
    ]
    for parts in cuts:
        splitter = FrameSplitter()
        found = [frame for part in [*parts, frames.END] for frame in splitter.feed(part)]
        assert found == [b'{"a":1}', b'{"b":2}', b"x\ny"], parts


class CountingBuffer(bytearray):
    """Counts the bytes that are added, searched and copied."""

    work = 0

    def __iadd__(self, data: Any) -> Self:  # type: ignore[misc]
        type(self).work += len(data)
        return super().__iadd__(data)

    def __bytes__(self) -> bytes:
        type(self).work += len(self)
        return bytes(memoryview(self))

    def find(self, part: Any, start: Any = 0, end: Any = None, /) -> int:
        type(self).work += len(self) - start
        return super().find(part, start, end)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [100, 1460, 65536])
def test_the_work_for_a_long_frame_grows_with_its_length(
    size: int, line_end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "bytearray", CountingBuffer, raising=False)

    def count_work(length: int) -> int:
        CountingBuffer.work = 0
        splitter = FrameSplitter()
        body = b"data: " + b"x" * length + 2 * line_end
        found = [
            frame
            for start in range(0, len(body), size)
            for frame in splitter.feed(body[start : start + size])
        ]
        assert found == [b"x" * length]
        return CountingBuffer.work

    assert 0 < count_work(1 << 20) <= 5 << 20
    assert count_work(1 << 21) <= 2.1 * count_work(1 << 20)


def test_a_frame_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME", 1000)
    splitter = FrameSplitter()
    assert splitter.feed(b"data: " + b"x" * 900) == []
    with pytest.raises(InvalidFrame, match="too long"):
        splitter.feed(b"x" * 200)


def make_text_reader(**sampling: Json) -> FrameReader:
    upstream = Upstream(protocol="text", model="m")
    job = Job(id="j", prompt="p", sampling=replace(DEFAULT_SAMPLING, **sampling))
    api = make_api(upstream, VOCABULARY)
    parts = AnswerParts(job=job, vocabulary=VOCABULARY, vocabulary_size=1)
    return api.make_reader(api.build_requests(job)[0], parts)


def read_text(*frames: Json) -> list[Step]:
    reader = make_text_reader()
    data = [frame if isinstance(frame, bytes) else json.dumps(frame).encode() for frame in frames]
    steps = [step for frame in [*data, DONE] for step in reader.read(frame)]
    assert reader.is_complete
    return steps


def test_a_text_far_beyond_max_tokens_is_given_up() -> None:
    """A server that ignores the limit may send text for ever; a long token is no reason."""
    reader = make_text_reader(max_tokens=5)
    frame = json.dumps({"choices": [{"text": " " * 1000}]}).encode()
    assert [len(reader.read(frame)) for _ in range(5)] == [1] * 5
    with pytest.raises(InvalidFrame, match="longer than `max_tokens`"):
        read_all(reader, [b"data: " + frame + b"\n\n"] * 100)


def test_a_text_that_goes_on_after_its_end_is_dropped() -> None:
    reader = make_text_reader()
    frames = [{"text": "a"}, {"text": "b", "finish_reason": "stop"}, {"text": "c"}, {"text": "d"}]
    data = [json.dumps({"choices": [frame]}).encode() for frame in frames]
    steps = [step for frame in data for step in reader.read(frame)]
    assert [step.text for step in steps] == ["a", "b", ""]
    assert reader.is_complete


FIRST = {"choices": [{"text": "a", "finish_reason": ""}], "usage": None}
LAST = {"choices": [{"text": "b", "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 5}, 5),
        ({"completion_tokens": 0}, 0),
        ({"completion_tokens": -1}, 2),
        ({"prompt_tokens": -7, "completion_tokens": 5}, 2),
        ({"completion_tokens": "5"}, 2),
        ({"completion_tokens": 10**30}, 2),
        ({"completion_tokens": 5, "prompt_tokens_details": []}, 2),
        ([], 2),
        ("none", 2),
        ({}, 2),
        (None, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("choices", [[], None])
def test_a_wrong_usage_costs_no_text(usage: Json, tokens: int, choices: Json) -> None:
    steps = read_text(FIRST, LAST, {"choices": choices, "usage": usage})
    assert "".join(step.text or "" for step in steps) == "ab"
    assert steps[-1].finish == "stop"
    assert sum(step.tokens for step in steps) == tokens
    assert all((step.prompt_tokens or 0) >= 0 for step in steps)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("end_turn", "stop"),
        ("COMPLETE", "stop"),
        ("tool_use", "stop"),
        ("SAFETY", "stop"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_reasons_of_other_servers_end_an_answer(reason: str, finish: str) -> None:
    last = {"choices": [{"text": "b", "finish_reason": reason}]}
    steps = read_text(FIRST, last, last | {"choices": [{"text": "", "finish_reason": reason}]})
    assert [step.text for step in steps] == ["a", "b", ""]
    assert steps[-1].finish == finish


def test_the_word_null_is_no_reason_to_end() -> None:
    first = {"choices": [{"text": "a", "finish_reason": "null"}]}
    assert [step.text for step in read_text(first, LAST)] == ["a", "b", ""]


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        ({"error": "boom"}, 500),
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "429"}}, 429),
        ({"error": {"code": None, "type": "rate_limit_error"}}, 429),
        ({"error": {"code": "context_length_exceeded", "type": "x"}}, 400),
        ({"error": {"code": "wonder", "status": 503}}, 503),
        ({"error": {"code": 7}}, 500),
        ({"error": {"code": [], "type": {}}}, 500),
        ({"object": "error", "message": "bad", "code": 400}, 400),
        ({"detail": "bad"}, 500),
        ({"text": "busy", "error_code": 50001}, 500),
    ],
    ids=str,
)
def test_errors_inside_streams_have_a_status(frame: Json, status: int) -> None:
    with pytest.raises(StatusFailure) as caught:
        read_text(FIRST, frame)
    assert caught.value.status == status


def test_half_characters_cost_no_text() -> None:
    """Servers whose strings are UTF-16 cut inside characters; an escaped backslash is none."""
    frames = [
        rb'{"choices":[{"text":"a\ud83d"}]}',
        rb'{"choices":[{"text":"\uDE00b\\ud83d\ud83d\ude00\u00e9"}]}',
        rb'{"choices":[{"text":"","finish_reason":"stop"}]}',
    ]
    steps = read_text(*frames)
    assert "".join(step.text or "" for step in steps) == "a\ufffd\ufffdb\\ud83d\U0001f600é"
