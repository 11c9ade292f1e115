"""`dragoman bench`: measure how fast a model answers here.

For each prompt length and number of streams, that many requests run at once. The table shows the
time to the first token, how fast the prompts are processed and how fast tokens are generated, all
as a client sees them. Prompts are not cached, and answers do not end early.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import closing
from queue import SimpleQueue

import msgspec
from msgspec import Struct

from dragoman.cli.client.arguments import (
    add_client_flags,
    add_model_argument,
    needs_local_model,
    reduce_logging,
)
from dragoman.cli.client.client import DragomanClient
from dragoman.cli.client.connect import notify, open_client
from dragoman.cli.client.transport import RequestFailed
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import add_usage
from dragoman.cli.console.table import format_duration, print_json, print_table
from dragoman.cli.console.text import print_text
from dragoman.config import Settings
from dragoman.types import Json

PROMPT_LENGTHS = (128, 512, 2048)
DEFAULT_STREAMS = 4  # besides one, where the server does not say how many slots it has
MAX_STREAMS = 256
TEXT = "The quick brown fox jumps over the lazy dog while seven wise owls watch from an old oak. "
HEADINGS = ("PROMPT", "STREAMS", "FIRST TOKEN", "PROMPT TOKENS/S", "TOKENS/S", "PER STREAM")


class StreamTiming(Struct, kw_only=True):
    """One answer: times by `time.perf_counter`, and its tokens."""

    started: float
    first: float
    last: float
    prompt_tokens: int
    completion_tokens: int


class BenchResult(Struct, frozen=True, kw_only=True):
    """What requests of one kind measured. Rates are tokens per second."""

    prompt_tokens: int
    streams: int
    completion_tokens: int  # of all streams
    first_token: float  # seconds, the mean of all streams
    prompt_rate: float
    rate: float | None  # of all streams together; None if the answers are too short
    rate_per_stream: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] [MODEL]",
        examples=(
            "dragoman bench",
            "dragoman bench ./model.gguf --prompt 512,4096 --streams 1,8 --tokens 128",
            "dragoman bench qwen3 --url http://gpu-box:8000 --json",
        ),
    )
    add_model_argument(parser)
    parser.add_argument(
        "--prompt",
        type=parse_counts,
        metavar="COUNTS",
        help="prompt lengths in tokens (default: 128,512,2048 as far as they fit)",
    )
    parser.add_argument(
        "--streams",
        type=parse_counts,
        metavar="COUNTS",
        help="requests at once (default: 1 and the number of slots)",
    )
    parser.add_argument(
        "--tokens",
        type=parse_count,
        default=64,
        metavar="COUNT",
        help="length of answers in tokens (default: 64)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def parse_counts(text: str) -> list[int]:
    return [parse_count(part) for part in text.split(",")]


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    is_local = needs_local_model(arguments)
    reduce_logging(arguments)
    client, model = open_client(arguments.model, settings, is_local=is_local)
    with closing(client):
        bench = Bench(client, model, arguments.tokens)
        lengths = arguments.prompt or bench.choose_lengths()
        streams = arguments.streams or bench.choose_streams()
        if max(streams) > MAX_STREAMS:
            raise CommandFailed(f"--streams can be at most {MAX_STREAMS}.")
        bench.check_lengths(lengths)
        bench.warm_up()
        results = []
        for length in lengths:
            for count in streams:
                notify(f"prompts of {length} tokens, {count} at once …")
                results.append(bench.measure(length, count))
    if arguments.json:
        rows = [msgspec.to_builtins(result) for result in results]
        print_json({"model": model, "server": client.address, "results": rows})
    else:
        print_text(f"{model} {client.place}, answers of {arguments.tokens} tokens")
        print_table(HEADINGS, map(make_row, results))


class Bench:
    """Measures one model."""

    def __init__(self, client: DragomanClient, model: str, tokens: int) -> None:
        self._client = client
        self._model = model
        self._tokens = tokens
        self._fields: dict[str, Json] = {
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        self._card = client.get_model(model)
        self._ids: list[int] | None = None

    def choose_lengths(self) -> list[int]:
        """Return the default prompt lengths that fit into the context."""
        room = (self._card.context_length or max(PROMPT_LENGTHS) * 2) - self._tokens
        return [length for length in PROMPT_LENGTHS if length < room] or [max(1, room // 2)]

    def check_lengths(self, lengths: list[int]) -> None:
        """Refuse prompts that leave no room for an answer in the context."""
        context = self._card.context_length
        if context is not None and max(lengths) + self._tokens > context:
            raise CommandFailed(
                f"Prompts of {max(lengths)} tokens and answers of {self._tokens} do not fit into "
                f"the context of {context} tokens: choose less with --prompt and --tokens."
            )

    def choose_streams(self) -> list[int]:
        slots = self._card.slots or DEFAULT_STREAMS
        return sorted({1, slots})

    def warm_up(self) -> None:
        """Load the model, and find out which fields its engine honours."""
        while True:
            try:
                self._request("Hello", 2)
                break
            except RequestFailed as error:
                if error.http_status != 400 or error.param not in self._fields:
                    raise
                del self._fields[error.param]
        try:
            self._ids = self._client.tokenize(self._model, TEXT * 20)
        except RequestFailed:  # an engine without a tokenizer takes text
            self._ids = None

    def measure(self, length: int, streams: int) -> BenchResult:
        """Run requests of one kind at once and combine what they measured."""
        results: SimpleQueue[StreamTiming | BaseException] = SimpleQueue()

        def work(number: int) -> None:
            try:
                results.put(self._request(self._make_prompt(length, number), self._tokens))
            except BaseException as error:
                results.put(error)

        for number in range(streams):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        timings = []
        for _ in range(streams):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            timings.append(result)
        return combine(timings)

    def _make_prompt(self, length: int, number: int) -> str | list[int]:
        """Return a prompt of so many tokens; those of two streams differ from the first token."""
        if self._ids is None:
            words = TEXT.split()
            return " ".join(words[(number + place) % len(words)] for place in range(length))
        ids = self._ids
        return [ids[(number + place) % len(ids)] for place in range(length)]

    def _request(self, prompt: str | list[int], tokens: int) -> StreamTiming:
        body = self._fields | {"model": self._model, "prompt": prompt, "max_tokens": tokens}
        started = time.perf_counter()
        with closing(self._client.stream_completion(body)) as stream:
            first: float | None = None
            usage: Json = {}
            last = started
            for event in stream:
                usage = event.get("usage") or usage
                if event["choices"]:
                    last = time.perf_counter()
                    first = last if first is None else first
        return StreamTiming(
            started=started,
            first=last if first is None else first,
            last=last,
            prompt_tokens=usage.get("prompt_tokens") or 0,
            completion_tokens=usage.get("completion_tokens") or 0,
        )


def combine(timings: list[StreamTiming]) -> BenchResult:
    """Combine requests that ran at the same time."""
    started = min(timing.started for timing in timings)
    first = [timing.first - timing.started for timing in timings]
    prompt_tokens = sum(timing.prompt_tokens for timing in timings)
    prefill = max(timing.first for timing in timings) - started
    generation = max(t.last for t in timings) - min(t.first for t in timings)
    generated = sum(timing.completion_tokens - 1 for timing in timings)
    rates = [
        (timing.completion_tokens - 1) / (timing.last - timing.first)
        for timing in timings
        if timing.last > timing.first and timing.completion_tokens > 1
    ]
    return BenchResult(
        prompt_tokens=max(timing.prompt_tokens for timing in timings),
        streams=len(timings),
        completion_tokens=sum(timing.completion_tokens for timing in timings),
        first_token=sum(first) / len(first),
        prompt_rate=prompt_tokens / max(prefill, 1e-9),
        rate=generated / generation if generation > 0 and generated > 0 else None,
        rate_per_stream=sum(rates) / len(rates) if rates else None,
    )


def make_row(result: BenchResult) -> tuple[str, ...]:
    def format_rate(rate: float | None) -> str:
        return "-" if rate is None else f"{rate:,.1f}"

    return (
        str(result.prompt_tokens),
        str(result.streams),
        format_duration(result.first_token),
        format_rate(result.prompt_rate),
        format_rate(result.rate),
        format_rate(result.rate_per_stream),
    )
