"""What is measured over HTTP: CPU per token, the same model in two servers, long answers.

Each part starts its servers once, lets them take turns, and returns a `Table`.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

from msgspec import Struct

from bench.measure import Load, Peer, Report, ask, cores, free_port, median, ratio, running

STREAMS = 200
LONG = 10_000  # tokens; longer than any window


class Table(Struct):
    """A result as it is shown."""

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = []

    def __str__(self) -> str:
        lines = [f"## {self.title}", ""]
        lines += [f"| {' | '.join(self.head)} |", f"|{'---|' * len(self.head)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, "", *self.notes, ""])


class Plan(Struct, frozen=True, kw_only=True):
    """How often and how long."""

    rounds: int = 5
    window: float = 3.0
    model: str = ""
    tokens: int = 96  # of an answer by the real model


def body(tokens: int, text: str = "Go on.", **fields: object) -> str:
    said = {"model": "bench", "messages": [{"role": "user", "content": text}], "stream": True}
    options = {"max_tokens": tokens, "stream_options": {"include_usage": True}}
    return json.dumps(said | options | fields)


def load(peer: Peer, bodies: list[str], window: float = 0.0) -> Load:
    return Load(port=peer.port, pid=peer.pid, core=cores()[1], bodies=bodies, window=window)


def started(stack: ExitStack, name: str, module: str, *arguments: object) -> Peer:
    port = free_port()
    words = [str(port) if word == "PORT" else str(word) for word in arguments]
    return stack.enter_context(running(name, [module, *words], port))


def in_turns(peers: list[Peer], rounds: int) -> Iterator[tuple[int, Peer]]:
    """Every peer once a round, each round beginning with another; the first round is to warm up."""
    for number in range(-1, rounds):
        for at in range(len(peers)):
            time.sleep(0.3)  # let the one before finish closing its connections
            yield number, peers[(at + number) % len(peers)]


def stream_cpu(plan: Plan) -> Table:
    """(a) Server CPU per token of many streams: ours, the usual stack, and the floor."""
    rows = []
    for title, pace in (("paced, a token each 20 ms", 0.02), ("saturated", 0.0)):
        costs: dict[str, list[float]] = {"ours": [], "reference": [], "floor": []}
        frames: dict[str, float] = {}
        with ExitStack() as stack:
            peers = [started(stack, name, f"bench.{name}", "PORT", pace) for name in costs]
            for number, peer in in_turns(peers, plan.rounds):
                window = plan.window if number >= 0 else 0.5
                report = ask(load(peer, [body(LONG)] * STREAMS, window))
                if number >= 0:
                    costs[peer.name].append(report.cpu_ns / report.tokens / 1000)
                    frames[peer.name] = report.frames / report.tokens
        for name, cost in costs.items():
            against = "" if name == "ours" else str(ratio(costs["ours"], cost))
            rows.append([title, name, f"{median(cost):.1f}", f"{frames[name]:.2f}", against])
    return Table(
        f"(a) Server CPU per token, {STREAMS} streams",
        ["streams", "server", "µs CPU per token", "frames per token", "ours against it"],
        rows,
        [
            "`reference` is FastAPI with a pydantic chunk per token and a queue per request; "
            "`floor` is a bare protocol that writes prepared bytes. Lower is better."
        ],
    )


def prompts(number: int, count: int) -> list[str]:
    """Prompts of about 64 tokens that no server has seen, alike for both."""
    return [
        f"Story {number}-{at}: a traveller came to town number {100 * number + at} by the sea, "
        "carrying a lamp, three books and a letter that nobody could read. Tell me at length what "
        "happened to the traveller, to the books and to the letter, one step after the other."
        for at in range(count)
    ]


def same_model(plan: Plan) -> Table:
    """(b) The same weights in the same wheel, behind our HTTP and behind its own."""
    slots, context = 8, 1024
    flags = ["--slots", slots, "--threads", 1, "--context", context, "--served-name", "bench"]
    seen: dict[tuple[int, str], list[Report]] = defaultdict(list)
    with ExitStack() as stack:
        peers = [
            started(stack, "ours", "dragoman", "serve", plan.model, "--port", "PORT", *flags),
            started(stack, "wheel", "bench.wheel", "PORT", plan.model, slots, context),
        ]
        for number, peer in in_turns(peers, plan.rounds):
            for count in (1, slots):
                bodies = [
                    body(plan.tokens, text, temperature=0, ignore_eos=True)
                    for text in prompts(10 * number + count, count)
                ]
                report = ask(load(peer, bodies))
                if number >= 0:
                    seen[count, peer.name].append(report)
    rows = [row for count in (1, slots) for row in _model_rows(count, seen)]
    return Table(
        "(b) The same GGUF on the same wheel, one thread",
        [
            "streams",
            "server",
            "tokens/s",
            "first token, ms",
            "tokens/s against it",
            "first against it",
        ],
        rows,
        [
            "`wheel` is the HTTP server inside the engine's own wheel. Tokens/s of one stream are "
            "those after its first token; of several, all tokens over all the time, prompts too."
        ],
    )


def _model_rows(count: int, seen: dict[tuple[int, str], list[Report]]) -> Iterator[list[str]]:
    speed = {name: [_speed(report) for report in seen[count, name]] for name in ("ours", "wheel")}
    first = {
        name: [median(report.first) for report in seen[count, name]] for name in ("ours", "wheel")
    }
    for name in ("ours", "wheel"):
        row = [str(count), name, f"{median(speed[name]):.1f}", f"{1000 * median(first[name]):.1f}"]
        if name == "ours":
            yield [*row, "", ""]
        else:
            added = median(
                [ours - theirs for ours, theirs in zip(first["ours"], first[name], strict=True)]
            )
            yield [*row, str(ratio(speed["ours"], speed[name])), f"{1000 * added:+.1f} ms"]


def _speed(report: Report) -> float:
    """Of many streams only the sum counts: some decode while others wait for their first token."""
    return report.decode[0] if len(report.decode) == 1 else report.tokens / report.seconds


def long_answers(plan: Plan) -> Table:
    """(c) An answer eight times as long must cost eight times as much, no more."""
    lengths = (1000, 8000)
    costs: dict[int, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        peer = started(stack, "ours", "bench.ours", "PORT", 0.0)
        for number in range(-1, plan.rounds):
            for length in lengths:
                report = ask(load(peer, [body(length)] * 4))
                if report.tokens != 4 * length:
                    raise SystemExit(f"{report.tokens} tokens came instead of {4 * length}")
                if number >= 0:
                    costs[length].append(report.cpu_ns / report.tokens / 1000)
    rows = [[f"{length:,}", f"{median(costs[length]):.1f}"] for length in lengths]
    spread = ratio(costs[lengths[1]], costs[lengths[0]])
    return Table(
        "(c) Server CPU per token of a short and a long answer",
        ["tokens of the answer", "µs CPU per token"],
        rows,
        [f"A token of the long answer costs {spread} one of the short; 1 is linear."],
    )
