"""What reading an answer costs: a token at a time, on hostile texts, and beside vLLM's parsers.

All of it is CPU time of this process with the garbage collector off. The peer runs in an
environment of its own (`make bench-peers`), in one process with ours, turn by turn.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.measure import ROOT, median, ratio
from bench.parts import Plan, Table
from bench.speech import SPEECHES, TOOL, Said, Speech, Writer, many_values, one_string, plain_words
from dragoman.formats import find_reasoning, find_tools, tool_formats
from dragoman.output.library import OutputParser, collect_markers
from dragoman.output.spec import GAP, ToolFormat

SHORT, LONG = 1000, 8000  # tokens
PEERS = ROOT / "bench" / ".peers" / "bin" / "python"
PEER_FORMATS = ("hermes_json", "qwen3_coder", "deepseek_v31", "gemma4", "pythonic")
PEER_CALLS = (
    ("words alone", SHORT, plain_words),
    ("prose and code", SHORT, one_string),
    ("prose and code", LONG, one_string),
)
ANSWERS = {
    "call, one long string": one_string,
    "call, many small values": many_values,
    "thoughts and text": None,
}
MEGABYTE = 1_000_000
CUTS = {1: "a character", 4: "4 characters", MEGABYTE: "all at once"}
LOOK = {1: 2_000, MEGABYTE: 8_000}  # length of a hostile text, by the size of pieces
TOLD = 0.02  # seconds that are enough to tell
QUICK = 0.001  # seconds that are too few, and too few to matter
LETTERS = {"spaces": " ", "quotes": '"', "letters": "a"}
ONE = {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}
LINEAR = 2.5  # twice the text must not cost more than this many times as much


class Tables(Struct):
    """Several results of one part."""

    each: list[Table]

    def __str__(self) -> str:
        return "\n".join(map(str, self.each))


@contextmanager
def no_collector() -> Generator[None, None, None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(parser: OutputParser, pieces: Sequence[str]) -> float:
    """What reading all pieces costs."""
    feed = parser.feed
    begun = time.process_time()
    for piece in pieces:
        feed(piece)
    parser.close()
    return time.process_time() - begun


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


# Answers as models give them


def parser_of(speech: Speech) -> OutputParser:
    return OutputParser(speech.format, speech.reasoning, tools=[TOOL], inside=False)


def check(speech: Speech, said: Said) -> None:
    """A parser that is fast and wrong is worth nothing."""
    parser = parser_of(speech)
    spans = [span for piece in said.pieces for span in parser.feed(piece)] + parser.close()
    found = {"text": "", "reasoning": "", "tool_name": "", "tool_args": ""}
    for span in spans:
        found[span.channel] += span.text
    arguments = json.loads(found["tool_args"] or "null")
    if (arguments, found["reasoning"], found["text"]) != (
        said.arguments,
        said.reasoning,
        said.text,
    ):
        raise SystemExit(f"{speech.format} was not read right: {str(found)[:1000]}")


def by_token(plan: Plan, writer: Writer) -> Table:
    """One token per chunk, a short and a long answer."""
    rows = []
    for speech in SPEECHES:
        for title, shape in ANSWERS.items():
            short, long = (writer.says(speech, tokens, shape) for tokens in (SHORT, LONG))
            check(speech, short)
            check(speech, long)
            rows.append([speech.format, title, *_costs(plan, speech, short, long)])
    return Table(
        "(e) Parsing, one token per chunk",
        ["format", "answer", "µs per token of 1,000", "of 8,000", "8,000 against 1,000"],
        rows,
        [
            "Best of the rounds; the last column is the time of the long answer over that of the "
            "short one: 8 is linear. Every result is compared with what was said."
        ],
    )


def _costs(plan: Plan, speech: Speech, short: Said, long: Said) -> list[str]:
    costs: dict[int, list[float]] = {SHORT: [], LONG: []}
    with no_collector():
        for number in range(-1, plan.rounds):
            for tokens, said in ((SHORT, short), (LONG, long)):
                times = LONG // tokens
                spent = sum(seconds(parser_of(speech), said.pieces) for _ in range(times))
                if number >= 0:
                    costs[tokens].append(spent / times / len(said.pieces) * 1e6)
    grown = ratio([8 * cost for cost in costs[LONG]], costs[SHORT])
    return [f"{min(costs[SHORT]):.2f}", f"{min(costs[LONG]):.2f}", str(grown)]


# Hostile texts


class Attack(Struct, frozen=True):
    """A text that begins like an answer and then repeats itself for ever."""

    format: ToolFormat
    title: str
    begins: str
    unit: str
    inside: bool = False

    def cost(self, size: int, length: int) -> float:
        parser = OutputParser(
            self.format, thoughts_of(self.format), tools=[ONE], inside=self.inside
        )
        text = self.begins + self.unit * (length // len(self.unit) + 1)
        return seconds(parser, pieces_of(text, size))

    def growth(self, size: int) -> float:
        """What twice the text costs; measured again, and longer, where it seems to be too much."""
        length = LOOK[size]
        short, long = self.cost(size, length), self.cost(size, 2 * length)
        if long <= LINEAR * short:
            return long / short
        length *= 2 if long > TOLD else 8
        short, long = (min(self.cost(size, n) for _ in range(3)) for n in (length, 2 * length))
        return long / short if long > QUICK else 2.0


def thoughts_of(tools: ToolFormat) -> str:
    return tools.default_reasoning or (tools.name if tools.name == "harmony" else "think")


def marks_of(tools: ToolFormat) -> list[str]:
    found = collect_markers(tools, find_reasoning(thoughts_of(tools)))
    return sorted(mark.replace(GAP, " ") for mark in found)


def units(tools: ToolFormat) -> dict[str, str]:
    """What is repeated."""
    marks = marks_of(tools)
    return {
        "beginnings of marks": "".join(mark[:-1] for mark in marks),
        "marks": "".join(marks),
        "an example call": tools.example,
        "half of it": tools.example[: len(tools.example) // 2],
        '`{"name": "`': '{"name": "',
        '`{"name":`': '{"name":',
        '`{"a":`': '{"a":',
        "`[f(`": "[f(",
        "`<parameter=`": "<parameter=",
        "`[`": "[",
        "backslashes": "\\",
        **LETTERS,
    }


def attacks(tools: ToolFormat) -> Iterator[Attack]:
    """Everything that is repeated, in every kind of place."""
    example = tools.example
    string = example[: example.rfind("1")] + '"'  # examples have a 1 as their argument
    begins = dict.fromkeys(["", example[: len(example) // 3], string, example])
    for title, unit in units(tools).items():
        for begin in begins:
            yield Attack(tools, title, begin, unit)
        yield Attack(tools, title, "", unit, inside=True)


def everywhere(tools: ToolFormat) -> Iterator[Attack]:
    """Runs of one letter after every beginning of the example that does not end in a word."""
    example = tools.example
    for at in range(1, len(example)):
        if not (example[at - 1].isalnum() and example[at].isalnum()):
            for title, unit in LETTERS.items():
                yield Attack(tools, title, example[:at], unit)


def hostile() -> Table:
    """Every format against every repetition: the worst of each."""
    worst: dict[str, tuple[float, str, int]] = {}
    bad: dict[tuple[str, str], str] = {}  # one line for each format and repetition
    with no_collector():
        for tools in tool_formats().values():
            looks = [(attack, size) for attack in attacks(tools) for size in LOOK]
            looks += [(attack, 1) for attack in everywhere(tools)]
            for attack, size in looks:
                where = f"in pieces of {CUTS[size]}, `{attack.unit[:24]!r}`"
                where += f" after `{attack.begins[-24:]!r}`{' in thoughts' * attack.inside}"
                try:
                    grown = attack.growth(size)
                except RecursionError:
                    bad[tools.name, attack.title] = f"- **raised**: {tools.name}, {where}"
                    continue
                known = worst.get(attack.title, (0.0, "", 0))
                worst[attack.title] = max(known, (grown, tools.name, size))
                if grown > LINEAR:
                    line = f"- {grown:.1f}×: {tools.name}, {where}"
                    bad.setdefault((tools.name, attack.title), line)
            gc.collect()
    rows = [
        [title, f"{grown:.2f}×", name, CUTS[size]] for title, (grown, name, size) in worst.items()
    ]
    verdict = f"{len(bad)} of them were not linear, or raised:" if bad else "None was above that."
    return Table(
        f"(e) Twice as much of a hostile text, {len(tool_formats())} formats",
        ["repeated", "worst growth", "in format", "in pieces of"],
        rows,
        [
            "At the beginning, in the middle of a call, in a string argument, after a call, among "
            "thoughts; spaces, quotes and letters also after every beginning of an example. "
            f"From {LOOK[1]:,} to {2 * LOOK[1]:,} characters one by one, and from "
            f"{LOOK[MEGABYTE]:,} to {2 * LOOK[MEGABYTE]:,} at once; what seems to grow by more "
            f"than {LINEAR} is measured again, longer, and that counts. Too short to see a cost "
            "that is only the copying of what is held back.",
            verdict,
            *bad.values(),
        ],
    )


def megabyte() -> Table:
    """A million characters of everything that a format's parser might fall for."""
    rows = []
    for speech in SPEECHES:
        tools = find_tools(speech.format)
        dice = random.Random(7)
        some = list(units(tools).values())
        text = "".join(dice.choice(some) for _ in range(MEGABYTE // 4))[:MEGABYTE]
        assert len(text) == MEGABYTE
        for size, title in CUTS.items():
            with no_collector():
                half, whole = (
                    min(
                        seconds(
                            OutputParser(tools, thoughts_of(tools)), pieces_of(text[:length], size)
                        )
                        for _ in range(2)
                    )
                    for length in (MEGABYTE // 2, MEGABYTE)
                )
            rows.append(
                [speech.format, title, f"{whole / MEGABYTE * 1e6:.2f}", f"{whole / half:.2f}×"]
            )
    return Table(
        "(e) A hostile megabyte",
        ["format", "in pieces of", "µs per character", "1 MB against half of it"],
        rows,
        [
            "What is repeated in the next table, in a random order: no state lasts, so this says "
            "nothing of one pattern for ever. 2 is linear."
        ],
    )


# Beside a peer


def beside_peer(plan: Plan, writer: Writer) -> Table:
    """vLLM's own parsers of the same formats, on the same tokens."""
    title = "(e) Beside vLLM's parsers, one token per chunk"
    if not PEERS.exists():
        return Table(title, ["no peer is installed"], [], ["`make bench-peers` installs it."])
    calls = [
        (speech.format, title, tokens, writer.says(speech, tokens, shape))
        for speech in SPEECHES
        if speech.format in PEER_FORMATS
        for title, tokens, shape in PEER_CALLS
    ]
    asked = [
        {"format": name, "pieces": said.pieces, "expected": said.arguments}
        for name, _, _, said in calls
    ]
    done = subprocess.run(
        [PEERS, "-m", "bench.vllm_parsers"],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{Path(ROOT, 'src')}", "VLLM_LOGGING_LEVEL": "ERROR"},
        input=json.dumps({"rounds": plan.rounds, "tool": TOOL, "calls": asked}).encode(),
        stdout=subprocess.PIPE,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for (name, kind, tokens, said), result in zip(calls, told["results"], strict=True):
        per = 1e6 / len(said.pieces)
        rows.append(
            [
                name,
                f"{tokens:,}, {kind}",
                f"{median(result['ours']) * per:.2f}",
                f"{median(result['theirs']) * per:.2f}" + ("" if result["right"] else " (wrong)"),
                str(ratio(result["theirs"], result["ours"])),
                str(len(result["ours"])),
            ]
        )
    return Table(
        title,
        [
            "format",
            "tokens of the call",
            "µs per token, ours",
            "vLLM",
            "vLLM against ours",
            "rounds",
        ],
        rows,
        [
            f"{told['peer']}, with a stub tokenizer; medians. Both make what they hand on: spans "
            "here, delta messages there. What vLLM's newer parsers cost depends on the text: they "
            "go over all arguments again where punctuation comes, so words alone are shown too. "
            "Slow ones get fewer rounds.",
        ],
    )


def parsing(plan: Plan) -> Tables:
    """(e) What reading an answer costs."""
    writer = Writer(plan.model)
    tables = [by_token(plan, writer), beside_peer(plan, writer), megabyte(), hostile()]
    return Tables(tables)
