"""What a schema costs: per token over HTTP, per mask in the masker, and with many at once.

Over HTTP the same server answers with and without a schema in turns, so that the ratio is of one
engine with itself; the peer is the server in the engine's own wheel, which has a grammar engine of
its own for schemas. Answers under a schema are as long as free ones: a list that must be long.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from bench.measure import Report, ask, median, ratio
from bench.parts import Plan, Table, body, in_turns, load, prompts, started
from dragoman.engines.llamacpp import gguf
from dragoman.engines.token_mask import TokenMasker
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.tokenizers.from_gguf import pieces_from_gguf
from dragoman.types import Constraint

MANY = 64
WORDS = ("city", "days", "tags", "owner", "price", "notes", "state", "kind", "parts", "route")
LONG: dict[str, Any] = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "kind": {"enum": ["lamp", "book", "letter"]},
            "size": {"type": "integer", "minimum": 1, "maximum": 999},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
}


def varied(number: int) -> dict[str, Any]:
    """A schema that no other number gives."""
    dice = random.Random(number)
    leaves: list[dict[str, Any]] = [
        {"type": "string", "maxLength": dice.randint(8, 40)},
        {"type": "integer", "minimum": dice.randint(0, 9), "maximum": dice.randint(10, 9999)},
        {"enum": dice.sample(WORDS, 4)},
        {"type": "boolean"},
        {"type": "string", "pattern": "^[a-z]{2,12}$"},
        {"type": "array", "items": {"type": "number"}, "maxItems": dice.randint(2, 6)},
        {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
    ]
    names = dice.sample(WORDS, dice.randint(4, 8))
    members = {f"{name}_{number}": dice.choice(leaves) for name in names}
    inner = {"type": "object", "properties": members, "required": list(members)[:3]}
    return {"type": "array", "minItems": 100, "items": inner | {"additionalProperties": False}}


def demanded(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def constraints(plan: Plan) -> Table:
    """(f) With a schema and without: token by token, and 64 different ones at once."""
    slots, context = 8, 1024
    flags = ["--slots", slots, "--threads", 1, "--context", context, "--served-name", "bench"]
    flags += ["--queue", 2 * MANY]
    seen: dict[tuple[str, str], list[Report]] = defaultdict(list)
    many: dict[str, list[Report]] = defaultdict(list)
    with ExitStack() as stack:
        ours = started(stack, "ours", "dragoman", "serve", plan.model, "--port", "PORT", *flags)
        wheel = started(stack, "wheel", "bench.wheel", "PORT", plan.model, slots, context)
        for number, peer in in_turns([ours, wheel], plan.rounds):
            for at, how in enumerate(("free", "schema")):
                text = prompts(20 * number + 3 * at + 1, 1)[0]
                extra: dict[str, Any] = {"response_format": demanded(LONG)} if at else {}
                said = body(plan.tokens, text, temperature=1, seed=number + 2, **extra)
                report = ask(load(peer, [said]))
                if number >= 0:
                    seen[peer.name, how].append(report)
        for number in range(-1, max(1, plan.rounds // 2)):
            for how in ("free", "schema"):
                report = ask(load(ours, _many(how, number)))
                if number >= 0:
                    many[how].append(report)
    rows = _token_rows(seen) + _many_rows(many)
    return Table(
        "(f) With a schema and without, one thread",
        ["answers", "server", "ms a token, free", "ms a token, schema", "schema against free"],
        rows,
        [_masks(plan.model)],
    )


def _many(how: str, number: int) -> list[str]:
    texts = prompts(1000 + 7 * number, MANY)
    extra = [
        {"response_format": demanded(varied(MANY * (number + 2) + at))} if how == "schema" else {}
        for at in range(MANY)
    ]
    return [
        body(24, text, temperature=1, seed=7, **more)
        for text, more in zip(texts, extra, strict=True)
    ]


def _token_rows(seen: dict[tuple[str, str], list[Report]]) -> list[list[str]]:
    rows = []
    for name in ("ours", "wheel"):
        free, bound = (_between(seen[name, how]) for how in ("free", "schema"))
        against = str(ratio(bound, free))
        rows.append(["one", name, f"{median(free):.1f}", f"{median(bound):.1f}", against])
    return rows


def _between(reports: Sequence[Report]) -> list[float]:
    """Milliseconds a token after the first."""
    return [1000 / median(report.decode) for report in reports]


def _many_rows(many: dict[str, list[Report]]) -> list[list[str]]:
    cost = {
        how: [1000 * report.seconds / report.tokens for report in reports]
        for how, reports in many.items()
    }
    free, bound = cost["free"], cost["schema"]
    numbers = [f"{median(free):.1f}", f"{median(bound):.1f}", str(ratio(bound, free))]
    return [[f"{MANY} at once, each another schema", "ours", *numbers]]


def _masks(model: str) -> str:
    """First and later masks of varied schemas over the model's vocabulary, on random walks."""
    pieces = pieces_from_gguf(gguf.read_header(model).metadata)
    masker = TokenMasker(pieces, {0}, range(1, 17))
    masker.prepare()
    dice = random.Random(1)
    made, first, later = [], [], []
    for number in range(100):
        order = GrammarSpec(
            constraint=Constraint(kind="json", value=varied(number), param="schema")
        )
        begun = time.perf_counter()
        grammar = compile_grammar(order).grammar or ""
        made.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        following = masker.start_grammar(grammar)
        mask = following.get_mask()
        first.append(time.perf_counter() - begun)
        for _ in range(60):
            following.advance(_picked(mask, dice))
            if following.must_end:
                break
            begun = time.perf_counter()
            mask = following.get_mask()
            later.append(time.perf_counter() - begun)
    return (
        f"Over {len(pieces):,} tokens, 100 schemas, random walks: grammar written in "
        f"{_at(made, 0.5)} (p99 {_at(made, 0.99)}), compiled with its first mask in "
        f"{_at(first, 0.5)} (p99 {_at(first, 0.99)}), later masks {_at(later, 0.5)} "
        f"(p99 {_at(later, 0.99)}). `wheel` is the HTTP server inside the engine's own wheel, "
        "with its own grammars; 1.00× is what no schema costs."
    )


def _picked(mask: bytes, dice: random.Random) -> int:
    """A token that the mask allows, other than the end."""
    while True:
        at = dice.randrange(len(mask))
        for bit in range(8):
            if mask[at] >> bit & 1 and 8 * at + bit:
                return 8 * at + bit


def _at(values: list[float], share: float) -> str:
    value = sorted(values)[min(len(values) - 1, int(share * len(values)))]
    return f"{1000 * value:.1f} ms" if value >= 0.001 else f"{1e6 * value:.0f} µs"
