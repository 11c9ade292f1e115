"""What parsing an answer costs: token by token, with hostile text, and compared with vLLM.

All times are CPU time of this process with the garbage collector off. vLLM's parsers run in their
own environment (`make bench-peers`), in one process with ours, alternating.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from bench.measure import ROOT, compute_ratio
from bench.model_output import (
    FORMAT_WRITERS,
    TOOL,
    Arguments,
    FormatWriter,
    OutputGenerator,
    SampleOutput,
    make_many_values,
    make_one_string,
    make_plain_words,
)
from bench.report import BenchOptions, Table, Tables
from dragoman.formats import find_reasoning, find_tools, get_tool_formats
from dragoman.output.library import OutputParser, collect_markers
from dragoman.output.spec import GAP, ToolFormat

SHORT, LONG = 1000, 8000  # tokens
PEER_PYTHON = ROOT / "bench" / ".peers" / "bin" / "python"
PEER_FORMATS = ("hermes_json", "qwen3_coder", "deepseek_v31", "gemma4", "pythonic")
PEER_CALLS = (
    ("words only", SHORT, make_plain_words),
    ("prose and code", SHORT, make_one_string),
    ("prose and code", LONG, make_one_string),
)
ANSWERS: dict[str, Callable[[int], Arguments] | None] = {
    "call, one long string": make_one_string,
    "call, many small values": make_many_values,
    "reasoning and text": None,
}
MEGABYTE = 1_000_000
PIECE_SIZES = {1: "1 character", 4: "4 characters", MEGABYTE: "all at once"}
HOSTILE_LENGTHS = {1: 2_000, MEGABYTE: 8_000}  # length of a hostile text, by the size of pieces
RELIABLE = 0.02  # seconds; measurements above this are repeated with only twice the text
NEGLIGIBLE = 0.001  # seconds; too short to be measured, and to matter
FILLERS = {"spaces": " ", "quotes": '"', "letters": "a"}
SMALL_TOOL = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}
MAX_GROWTH = 2.5  # twice the text must not cost more than this many times as much


@contextmanager
def disable_gc() -> Generator[None, None, None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure_parser(parser: OutputParser, pieces: Sequence[str]) -> float:
    """Return the CPU seconds for parsing all pieces."""
    feed = parser.feed
    started = time.process_time()
    for piece in pieces:
        feed(piece)
    parser.close()
    return time.process_time() - started


def split_text(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


# Answers as models write them


def make_parser(writer: FormatWriter) -> OutputParser:
    return OutputParser(writer.format, writer.reasoning, tools=[TOOL], inside=False)


def check(writer: FormatWriter, sample: SampleOutput) -> None:
    """Check that the parser returns the right result."""
    parser = make_parser(writer)
    spans = [span for piece in sample.pieces for span in parser.feed(piece)] + parser.close()
    channels = {"text": "", "reasoning": "", "tool_name": "", "tool_args": ""}
    for span in spans:
        channels[span.channel] += span.text
    arguments = json.loads(channels["tool_args"] or "null")
    result = (arguments, channels["reasoning"], channels["text"])
    if result != (sample.arguments, sample.reasoning, sample.text):
        raise SystemExit(f"{writer.format} was parsed wrong: {str(channels)[:1000]}")


def measure_by_token(options: BenchOptions, generator: OutputGenerator) -> Table:
    """Measure a short and a long answer, one token per chunk."""
    rows = []
    for writer in FORMAT_WRITERS:
        for title, make_arguments in ANSWERS.items():
            short, long = (
                generator.generate(writer, tokens, make_arguments) for tokens in (SHORT, LONG)
            )
            check(writer, short)
            check(writer, long)
            rows.append([writer.format, title, *_measure_costs(options, writer, short, long)])
    return Table(
        "(e) Parsing, one token per chunk",
        ["format", "answer", "µs per token of 1,000", "of 8,000", "8,000 / 1,000"],
        rows,
        [
            "Best of the rounds. The last column is the time of the long answer divided by that of "
            "the short one: 8 is linear. Every result is compared with what the model wrote."
        ],
    )


def _measure_costs(
    options: BenchOptions, writer: FormatWriter, short: SampleOutput, long: SampleOutput
) -> list[str]:
    costs: dict[int, list[float]] = {SHORT: [], LONG: []}
    with disable_gc():
        for number in range(-1, options.rounds):
            for tokens, sample in ((SHORT, short), (LONG, long)):
                times = LONG // tokens
                seconds = sum(
                    measure_parser(make_parser(writer), sample.pieces) for _ in range(times)
                )
                if number >= 0:
                    costs[tokens].append(seconds / times / len(sample.pieces) * 1e6)
    growth = compute_ratio([8 * cost for cost in costs[LONG]], costs[SHORT])
    return [f"{min(costs[SHORT]):.2f}", f"{min(costs[LONG]):.2f}", str(growth)]


# Hostile text


class HostileText(Struct, frozen=True):
    """A text that starts like an answer and then repeats one unit."""

    format: ToolFormat
    title: str
    start: str
    unit: str
    inside: bool = False  # whether the text is reasoning

    def measure(self, size: int, length: int) -> float:
        """Return the CPU seconds for `length` characters in pieces of `size`."""
        parser = OutputParser(
            self.format, choose_reasoning(self.format), tools=[SMALL_TOOL], inside=self.inside
        )
        text = self.start + self.unit * (length // len(self.unit) + 1)
        return measure_parser(parser, split_text(text, size))

    def measure_growth(self, size: int) -> float:
        """Return how much more twice the text costs; a high value is checked with longer texts."""
        length = HOSTILE_LENGTHS[size]
        short, long = self.measure(size, length), self.measure(size, 2 * length)
        if long <= MAX_GROWTH * short:
            return long / short
        length *= 2 if long > RELIABLE else 8
        short, long = (min(self.measure(size, n) for _ in range(3)) for n in (length, 2 * length))
        return long / short if long > NEGLIGIBLE else 2.0


def choose_reasoning(tools: ToolFormat) -> str:
    return tools.default_reasoning or (tools.name if tools.name == "harmony" else "think")


def list_markers(tools: ToolFormat) -> list[str]:
    markers = collect_markers(tools, find_reasoning(choose_reasoning(tools)))
    return sorted(marker.replace(GAP, " ") for marker in markers)


def make_units(tools: ToolFormat) -> dict[str, str]:
    """Make the texts to repeat, by title."""
    markers = list_markers(tools)
    return {
        "incomplete markers": "".join(marker[:-1] for marker in markers),
        "markers": "".join(markers),
        "an example call": tools.example,
        "half of an example call": tools.example[: len(tools.example) // 2],
        '`{"name": "`': '{"name": "',
        '`{"name":`': '{"name":',
        '`{"a":`': '{"a":',
        "calls in calls": '{"name": "f", "arguments": {"b":',
        "`[f(`": "[f(",
        "`<parameter=`": "<parameter=",
        "`[`": "[",
        "backslashes": "\\",
        **FILLERS,
    }


def make_repetitions(tools: ToolFormat) -> Iterator[HostileText]:
    """Repeat every unit: at the start, in and after a call, in a string, and in reasoning."""
    example = tools.example
    open_string = example[: example.rfind("1")] + '"'  # the argument in every example is 1
    starts = dict.fromkeys(["", example[: len(example) // 3], open_string, example])
    for title, unit in make_units(tools).items():
        for start in starts:
            yield HostileText(tools, title, start, unit)
        yield HostileText(tools, title, "", unit, inside=True)


def make_filled_prefixes(tools: ToolFormat) -> Iterator[HostileText]:
    """Repeat one character after every prefix of the example that does not end inside a word."""
    example = tools.example
    for end in range(1, len(example)):
        if not (example[end - 1].isalnum() and example[end].isalnum()):
            for title, unit in FILLERS.items():
                yield HostileText(tools, title, example[:end], unit)


def measure_hostile_growth() -> Table:
    """Measure every format with every hostile text; show the worst of each."""
    worst: dict[str, tuple[float, str, int]] = {}
    failures: dict[tuple[str, str], str] = {}  # one line for each format and repetition
    with disable_gc():
        for tools in get_tool_formats().values():
            cases = [(text, size) for text in make_repetitions(tools) for size in HOSTILE_LENGTHS]
            cases += [(text, 1) for text in make_filled_prefixes(tools)]
            for text, size in cases:
                where = f"in pieces of {PIECE_SIZES[size]}, `{text.unit[:24]!r}`"
                where += f" after `{text.start[-24:]!r}`{' in reasoning' * text.inside}"
                try:
                    growth = text.measure_growth(size)
                except RecursionError:
                    failures[tools.name, text.title] = f"- **raised**: {tools.name}, {where}"
                    continue
                known = worst.get(text.title, (0.0, "", 0))
                worst[text.title] = max(known, (growth, tools.name, size))
                if growth > MAX_GROWTH:
                    line = f"- {growth:.1f}×: {tools.name}, {where}"
                    failures.setdefault((tools.name, text.title), line)
            gc.collect()
    rows = [
        [title, f"{growth:.2f}×", name, PIECE_SIZES[size]]
        for title, (growth, name, size) in worst.items()
    ]
    verdict = f"{len(failures)} are not linear, or raised:" if failures else "All are below that."
    short, long = HOSTILE_LENGTHS[1], HOSTILE_LENGTHS[MEGABYTE]
    return Table(
        f"(e) Twice as much of a hostile text, {len(get_tool_formats())} formats",
        ["repeated text", "worst growth", "format", "pieces"],
        rows,
        [
            "The text is repeated at the start, in the middle of a call, in a string argument, "
            "after a call and in reasoning; spaces, quotes and letters also after every prefix of "
            f"an example call. The length grows from {short:,} to {2 * short:,} characters one by "
            f"one, and from {long:,} to {2 * long:,} at once. A growth above {MAX_GROWTH} is "
            "measured again with longer texts, and that result counts. The texts are too short to "
            "show a cost that comes only from copying text that is held back.",
            verdict,
            *failures.values(),
        ],
    )


def measure_megabyte() -> Table:
    """Measure a million characters of all hostile units in a random order."""
    rows = []
    for writer in FORMAT_WRITERS:
        tools = find_tools(writer.format)
        rng = random.Random(7)
        units = list(make_units(tools).values())
        text = "".join(rng.choice(units) for _ in range(MEGABYTE // 4))[:MEGABYTE]
        assert len(text) == MEGABYTE
        for size, title in PIECE_SIZES.items():
            with disable_gc():
                half, whole = (
                    min(_measure_hostile(tools, text[:length], size) for _ in range(2))
                    for length in (MEGABYTE // 2, MEGABYTE)
                )
            cost = whole / MEGABYTE * 1e6
            rows.append([writer.format, title, f"{cost:.2f}", f"{whole / half:.2f}×"])
    return Table(
        "(e) One megabyte of hostile text",
        ["format", "pieces", "µs per character", "1 MB / 0.5 MB"],
        rows,
        [
            "The repeated texts of the next table in a random order: no state of the parser lasts, "
            "so this does not cover long runs of one pattern. 2 is linear."
        ],
    )


def _measure_hostile(tools: ToolFormat, text: str, size: int) -> float:
    return measure_parser(OutputParser(tools, choose_reasoning(tools)), split_text(text, size))


# Comparison with a peer


def compare_with_vllm(options: BenchOptions, generator: OutputGenerator) -> Table:
    """Compare with vLLM's own parsers of the same formats, on the same tokens."""
    title = "(e) Compared with vLLM's parsers, one token per chunk"
    if not PEER_PYTHON.exists():
        return Table(title, ["vLLM is not installed"], [], ["`make bench-peers` installs it."])
    calls = [
        (writer.format, kind, tokens, generator.generate(writer, tokens, make_arguments))
        for writer in FORMAT_WRITERS
        if writer.format in PEER_FORMATS
        for kind, tokens, make_arguments in PEER_CALLS
    ]
    report = _run_vllm_parsers(options.rounds, [(name, sample) for name, _, _, sample in calls])
    rows = []
    for (name, kind, tokens, sample), result in zip(calls, report["results"], strict=True):
        scale = 1e6 / len(sample.pieces)
        mark = "" if result["peer_is_right"] else " (wrong)"
        rows.append(
            [
                name,
                f"{tokens:,}, {kind}",
                f"{median(result['dragoman']) * scale:.2f}",
                f"{median(result['vllm']) * scale:.2f}{mark}",
                str(compute_ratio(result["vllm"], result["dragoman"])),
                str(len(result["dragoman"])),
            ]
        )
    return Table(
        title,
        [
            "format",
            "tokens of the call",
            "µs per token, dragoman",
            "vLLM",
            "vLLM / dragoman",
            "rounds",
        ],
        rows,
        [
            f"{report['version']}, with a stub tokenizer; medians. Both create the objects that "
            "they return: spans here, delta messages there. The cost of vLLM's newer parsers "
            "depends on the text: they read all arguments again at punctuation, so calls with "
            "words only are shown, too. Slow parsers get fewer rounds.",
        ],
    )


def _run_vllm_parsers(rounds: int, samples: list[tuple[str, SampleOutput]]) -> dict[str, Any]:
    calls = [
        {"format": name, "pieces": sample.pieces, "expected": sample.arguments}
        for name, sample in samples
    ]
    process = subprocess.run(
        [PEER_PYTHON, "-m", "bench.vllm_parsers"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{Path(ROOT, 'src')}", "VLLM_LOGGING_LEVEL": "ERROR"},
        input=json.dumps({"rounds": rounds, "tool": TOOL, "calls": calls}).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return report


def measure_parsing(options: BenchOptions) -> Tables:
    """(e) What parsing an answer costs."""
    generator = OutputGenerator(options.model)
    return Tables(
        [
            measure_by_token(options, generator),
            compare_with_vllm(options, generator),
            measure_megabyte(),
            measure_hostile_growth(),
        ]
    )
