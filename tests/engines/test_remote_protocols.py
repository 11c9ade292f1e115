"""Reading what upstream servers send: frames of SGLang, damaged frames, and every way to cut them.

The files in `sglang_frames` have the fields that SGLang 0.5 sends, for an answer with logprobs, and
answers of real servers with their sources.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.failures import InvalidFrame, StatusFailure, UpstreamFailure
from dragoman.engines.remote.http.frames import FrameSplitter
from dragoman.engines.remote.protocols import make_api
from dragoman.engines.remote.protocols.api import FrameReader
from dragoman.engines.remote.settings import TokenProtocol, Upstream
from dragoman.testing import every_cut
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import DEFAULT_SAMPLING, Job, Json, Logprob, Step
from tests.support.yaml_files import read_yaml

FRAMES = Path(__file__).parent / "sglang_frames"
IDS = [785, 6722, 315, 9625, 374, 12095, 13]
END = 151645
VOCABULARY = Vocabulary(pieces=[b"x"] * 151_700, eos_id=END, eos_ids=frozenset({END}))


def make_reader(protocol: TokenProtocol, **fields: Json) -> FrameReader:
    upstream = Upstream(protocol=protocol, model="m", context=4096)
    job = Job(id="j", prompt=[1] * 14, sampling=DEFAULT_SAMPLING, **fields)
    api = make_api(upstream, VOCABULARY)
    parts = AnswerParts(job=job, vocabulary=VOCABULARY, vocabulary_size=len(VOCABULARY.pieces))
    return api.make_reader(api.build_requests(job)[0], parts)


def read_all(reader: FrameReader, pieces: list[bytes]) -> list[Step]:
    splitter = FrameSplitter()
    frames = [frame for piece in pieces for frame in splitter.feed(piece)]
    return [step for frame in frames for step in reader.read(frame)]


@pytest.mark.parametrize("kind", ["cumulative", "incremental"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_both_kinds_of_sglang_streams_are_read_alike(kind: str, line_end: bytes) -> None:
    body = (FRAMES / f"{kind}.txt").read_bytes().replace(b"\n", line_end)
    reader = make_reader("sglang", logprobs=2)
    steps = read_all(reader, [body])
    assert reader.is_complete
    assert [token for step in steps for token in step.ids] == IDS
    assert [len(step.ids) for step in steps] == [1, 1, 2, 1, 2, 0]
    assert (steps[-1].finish, steps[-1].stop_id) == ("stop", END)
    assert (steps[0].prompt_tokens, steps[0].cached_tokens) == (14, 12)
    assert all(step.prompt_tokens is None for step in steps[1:])
    logprobs = [entry for step in steps for entry in step.logprobs]
    assert [entry.id for entry in logprobs] == IDS
    assert logprobs[0] == Logprob(785, -0.021, (Logprob(785, -0.021), Logprob(9707, -5.521)))


@pytest.mark.parametrize("kind", ["cumulative", "incremental"])
def test_the_cuts_of_the_network_make_no_difference(kind: str) -> None:
    text = "".join((FRAMES / f"{kind}.txt").read_text().partition("\n\n")[:2])
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
        (("output_ids",), ["785"]),
        (("output_ids",), [785.5]),
        (("output_ids",), [-1]),
        (("output_ids",), [1, 785]),  # a token of the prompt, as some versions send
        (("meta_info",), None),
        (("meta_info", "completion_tokens"), None),
        (("meta_info", "completion_tokens"), 2),
        (("meta_info", "output_token_logprobs"), []),
        (("meta_info", "output_token_logprobs"), [[-0.1, 7, None]]),
    ],
)
def test_a_damaged_frame_of_sglang_is_an_error(path: tuple[str, ...], value: Json) -> None:
    first = (FRAMES / "cumulative.txt").read_text().partition("\n\n")[0].removeprefix("data: ")
    frame = json.loads(first)
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
