"""Engines that yield something wrong: an error for the client, and advice for their authors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

import dragoman
from dragoman.engines.adapter import adapt
from dragoman.testing import ByteTokenizer
from dragoman.types import Capabilities, Job, Step
from tests.support.serving import RunningServer, make_scripted_app, run_app


class WrongEngine:
    """Yields what a test sets."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    async def generate(self, job: Job) -> AsyncGenerator[Any, None]:
        for step in self.steps:
            yield step


class FullEngine(WrongEngine):
    """The same, with `admit`, so that it gets all choices of a job at once."""

    async def admit(self, job: Job) -> None: ...


class TokenEngine(FullEngine):
    tokenizer = ByteTokenizer()


class DictEngine:
    """The same with dicts, the interface of SGLang."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    async def generate_request(self, obj: Any) -> AsyncGenerator[Any, None]:
        for step in self.steps:
            yield step


END = Step(finish="stop")
WRONG_STEPS: list[tuple[type[Any], list[Any], str]] = [
    (WrongEngine, ["Hello"], "yielded a str: yield `dragoman.Step(text=...)` instead"),
    (WrongEngine, [Step(text="a", tokens=1), "b"], "yielded a str: yield `dragoman.Step("),
    (WrongEngine, [b"Hello"], "yielded a bytes: decode it"),
    (WrongEngine, [{"text": "x"}], "yielded a dict: yield a `dragoman.Step` instead; only `gen"),
    (WrongEngine, [None], "yielded None: yield a `dragoman.Step`"),
    (WrongEngine, [7], "yielded a int: yield `dragoman.Step(ids=[...])`"),
    (WrongEngine, [object()], "yielded a object: yield a `dragoman.Step` instead"),
    (WrongEngine, [], 'ended without a finish: yield `dragoman.Step(finish="stop")`'),
    (WrongEngine, [Step(text="a", tokens=1)], "ended without a finish"),
    (WrongEngine, [Step(text=b"x"), END], "text=b'x': expected `str | null`"),  # type: ignore[arg-type]
    (WrongEngine, [Step(text=5), END], "text=5: expected `str | null`"),  # type: ignore[arg-type]
    (WrongEngine, [Step(text="x", tokens="1"), END], "tokens='1': expected `int`"),  # type: ignore[arg-type]
    (WrongEngine, [Step(text="x", tokens=-1), END], "tokens=-1: a count cannot be negative"),
    (WrongEngine, [Step(text="x", prompt_tokens=-1), END], "prompt_tokens=-1: a count"),
    (WrongEngine, [Step(text="x", prompt_tokens=1, cached_tokens=-1), END], "cached_tokens=-1"),
    (WrongEngine, [Step(finish="eos")], "finish='eos': it must be 'stop' or 'length'"),  # type: ignore[arg-type]
    (WrongEngine, [Step(text="\ud800"), END], "half of a surrogate pair"),
    (WrongEngine, [Step(ids=[5]), END], "the engine has no tokenizer: give it one"),
    (FullEngine, [Step(choice=5, text="x"), END], "choice=5 for a job with n=1"),
    (FullEngine, [Step(choice=-1, text="x"), END], "choice=-1 for a job with n=1"),
    (FullEngine, ["Hello"], "yielded a str"),
    (TokenEngine, [Step(ids=[9999]), END], "token id 9999, but its tokenizer has the ids 0 to 25"),
    (TokenEngine, [Step(ids=[-1]), END], "token id -1"),
    (TokenEngine, [Step(ids=[1.5]), END], "ids=[1.5]: expected `int`"),  # type: ignore[list-item]
    (DictEngine, ["Hello"], 'yielded a str: yield `{"text": ..., "meta_info": {"finish_reason"'),
    (DictEngine, [Step(text="x")], "yielded a Step: yield `{"),
    (DictEngine, [{"text": 5}], "yielded `text` as a int instead of a str"),
    (DictEngine, [{"text": "ab"}, {"text": "b"}], 'or set `yields = "delta"`'),
    (DictEngine, [{"meta_info": {"finish_reason": "done"}}], "use one of stop, eos"),
    (DictEngine, [], "without yielding anything"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[type, tuple[RunningServer, Any]]]:
    """A server for each kind of engine."""
    running: dict[type, tuple[RunningServer, Any]] = {}
    kinds = (WrongEngine, FullEngine, TokenEngine, DictEngine)
    engines = [kind() for kind in kinds]
    with (
        run_app(make_scripted_app(engines[0])) as first,
        run_app(make_scripted_app(engines[1])) as second,
        run_app(make_scripted_app(engines[2])) as third,
        run_app(make_scripted_app(engines[3])) as fourth,
    ):
        for kind, server, engine in zip(
            kinds, (first, second, third, fourth), engines, strict=True
        ):
            running[kind] = server, engine
        yield running


PROMPTS = {"one": "a b", "several": ["a b", "c"]}


def find_error(response: httpx.Response) -> Any:
    """Return the error of a response, whole or streamed."""
    if response.status_code != 200:
        assert response.status_code == 500
        return response.json()["error"]
    frames = [json.loads(line[6:]) for line in response.text.splitlines() if "error" in line]
    [frame] = frames
    return frame["error"]


@pytest.mark.parametrize(("kind", "steps", "advice"), WRONG_STEPS)
def test_a_wrong_step_is_an_error_with_advice_in_the_log(
    servers: dict[type, tuple[RunningServer, Any]],
    kind: type,
    steps: list[Any],
    advice: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, engine = servers[kind]
    engine.steps = steps
    for stream in (False, True):
        caplog.clear()
        body = {"model": "scripted", "prompt": "a b", "stream": stream, "max_tokens": 50}
        error = find_error(httpx.post(f"{server.url}/v1/completions", json=body))
        assert error["code"] == "engine_error"
        assert error["message"].startswith("The engine ")
        assert kind.__name__ not in error["message"]
        [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert f"engine {kind.__name__} " in record.getMessage()
        assert advice in record.getMessage()
        assert record.exc_info is None


@pytest.mark.parametrize("extra", [{"n": 2}, {"prompt": ["a", "b"]}, {"best_of": 2}])
@pytest.mark.parametrize("kind", [WrongEngine, FullEngine, DictEngine])
def test_a_wrong_step_is_found_among_several_choices(
    servers: dict[type, tuple[RunningServer, Any]],
    kind: type,
    extra: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, engine = servers[kind]
    engine.steps = ["Hello"]
    body = {"model": "scripted", "prompt": "a b", "max_tokens": 50} | extra
    response = httpx.post(f"{server.url}/v1/completions", json=body)
    if "best_of" in extra:  # needs logprobs, which these engines do not have
        assert response.status_code in (400, 500)
        return
    assert find_error(response)["code"] == "engine_error"
    assert f"engine {kind.__name__} yielded a str" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_step_after_the_finish_does_not_lose_the_answer(
    servers: dict[type, tuple[RunningServer, Any]],
) -> None:
    server, engine = servers[FullEngine]
    engine.steps = [Step(text="all", tokens=1), END, Step(text="more", tokens=1), "nonsense"]
    body = {"model": "scripted", "prompt": "a b"}
    answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "all"


class PlainGenerator:
    def generate(self, job: Job) -> Iterator[Step]:
        yield END


class PlainCoroutine:
    async def generate(self, job: Job) -> Any:
        return END


class NoArgument:
    async def generate(self) -> AsyncGenerator[Step, None]:
        yield END


class TwoArguments:
    async def generate(self, job: Job, more: int) -> AsyncGenerator[Step, None]:
        yield END


class OptionalArgument:
    async def generate(self, job: Job, more: int = 0) -> AsyncGenerator[Step, None]:
        yield END


class AdmitWithoutArgument(WrongEngine):
    async def admit(self) -> None: ...


class PlainRequests:
    def generate_request(self, obj: Any) -> Iterator[Any]:
        yield {}


class Declares(WrongEngine):
    def __init__(self, capabilities: Any) -> None:
        super().__init__()
        self.capabilities = capabilities


NOT_ENGINES: list[tuple[Any, str]] = [
    (PlainGenerator(), r"`generate` of PlainGenerator is not async; write it as `async def gener"),
    (PlainCoroutine(), r"`generate` of PlainCoroutine returns a value; it must `yield` steps"),
    (NoArgument(), r"`generate` of NoArgument must take one argument; .* generate\(self, job\)`"),
    (TwoArguments(), r"`generate` of TwoArguments must take one argument"),
    (AdmitWithoutArgument(), r"`admit` of AdmitWithoutArgument must take one argument"),
    (PlainRequests(), r"write it as `async def generate_request\(self, obj\)`"),
    (Declares({"context": 5}), r"`capabilities` of Declares is a dict; .* `dragoman.Capabilities`"),
    (Declares(Capabilities(embeddings=3)), r"promise `embed`, which it does not have"),
    (Declares(Capabilities(tokenize=True)), r"promise `tokenize`, which it does not have"),
    (Declares(Capabilities(sampling=frozenset({"temprature"}))), r"Did you mean `temperature`\?"),
]


@pytest.mark.parametrize(("engine", "message"), NOT_ENGINES)
def test_what_is_wrong_before_the_first_request_is_an_error_at_startup(
    engine: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        dragoman.app(engine)


def test_more_optional_arguments_are_accepted() -> None:
    async def generate() -> list[Step]:
        return [step async for step in adapt(OptionalArgument()).generate(Job(id="x", prompt="x"))]

    assert asyncio.run(generate()) == [END]


class ReturnsList(FullEngine):
    def generate(self, job: Job) -> Any:
        return [END]


class ReturnsCoroutine(FullEngine):
    def generate(self, job: Job) -> Any:
        return PlainCoroutine().generate(job)


class ReturnsListOnly:
    def generate(self, job: Job) -> Any:
        return [END]


@pytest.mark.parametrize("kind", [ReturnsList, ReturnsListOnly, ReturnsCoroutine])
@pytest.mark.parametrize(
    "fields", [{"prompt": "a"}, {"prompt": ["a", "b"]}, {"prompt": "a", "n": 2}]
)
def test_a_generate_that_returns_no_stream_is_reported(
    kind: type[Any], fields: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with run_app(make_scripted_app(kind())) as server:
        body = {"model": "scripted"} | fields
        response = httpx.post(f"{server.url}/v1/completions", json=body)
    assert find_error(response)["code"] == "engine_error"
    assert f"engine {kind.__name__} returned a " in caplog.text
    assert "write it as `async def generate(self, job)` with `yield`" in caplog.text
