"""What a schema costs: per token over HTTP, per token mask, and with many schemas at once.

Over HTTP the same server alternates between answers with and without a schema, so the ratio
compares an engine with itself. The peer is the server in the wheel of the engine, which has its own
grammar engine for schemas. The schema requires a long list, so that answers with a schema are as
long as those without.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from bench.http_serving import (
    alternate,
    make_body,
    make_prompts,
    measure,
    start_model_servers,
)
from bench.measure import LoadResult, compute_ratio
from bench.report import BenchOptions, Table
from dragoman.engines.llamacpp import gguf
from dragoman.engines.token_mask import TokenMasker
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.tokenizers.from_gguf import pieces_from_gguf
from dragoman.types import Constraint, Json

CONCURRENT = 64  # different schemas at once
KINDS = ("free", "schema")
WORDS = ("city", "days", "tags", "owner", "price", "notes", "state", "kind", "parts", "route")
LONG_LIST: Json = {
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


def make_schema(number: int) -> Json:
    """Make a schema that no other number makes."""
    rng = random.Random(number)
    leaves: list[dict[str, object]] = [
        {"type": "string", "maxLength": rng.randint(8, 40)},
        {"type": "integer", "minimum": rng.randint(0, 9), "maximum": rng.randint(10, 9999)},
        {"enum": rng.sample(WORDS, 4)},
        {"type": "boolean"},
        {"type": "string", "pattern": "^[a-z]{2,12}$"},
        {"type": "array", "items": {"type": "number"}, "maxItems": rng.randint(2, 6)},
        {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
    ]
    names = rng.sample(WORDS, rng.randint(4, 8))
    properties = {f"{name}_{number}": rng.choice(leaves) for name in names}
    item = {"type": "object", "properties": properties, "required": list(properties)[:3]}
    return {"type": "array", "minItems": 100, "items": item | {"additionalProperties": False}}


def make_format_fields(schema: Json) -> dict[str, object]:
    """Make the request fields for a schema; without one there are none."""
    if schema is None:
        return {}
    json_schema = {"name": "answer", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def measure_constraints(options: BenchOptions) -> Table:
    """(f) With and without a schema: per token, and with 64 different schemas at once."""
    single: dict[tuple[str, str], list[LoadResult]] = defaultdict(list)
    concurrent: dict[str, list[LoadResult]] = defaultdict(list)
    with ExitStack() as stack:
        peers = start_model_servers(stack, options.model, "--queue", 2 * CONCURRENT)
        for number, peer in alternate(peers, options.rounds):
            for index, kind in enumerate(KINDS):
                text = make_prompts(20 * number + 3 * index + 1, 1)[0]
                fields = make_format_fields(LONG_LIST if kind == "schema" else None)
                body = make_body(options.tokens, text, temperature=1, seed=number + 2, **fields)
                result = measure(peer, [body])
                if number >= 0:
                    single[peer.name, kind].append(result)
        for number in range(-1, max(1, options.rounds // 2)):
            for kind in KINDS:
                result = measure(peers[0], _make_concurrent_bodies(kind, number))
                if number >= 0:
                    concurrent[kind].append(result)
    return Table(
        "(f) With and without a schema, one thread",
        ["answers", "server", "ms per token, free", "ms per token, schema", "schema / free"],
        [*_make_single_rows(single), _make_concurrent_row(concurrent)],
        [_measure_masks(options.model)],
    )


def _make_concurrent_bodies(kind: str, number: int) -> list[str]:
    texts = make_prompts(1000 + 7 * number, CONCURRENT)
    first = CONCURRENT * (number + 2)
    schemas = [
        make_schema(first + index) if kind == "schema" else None for index in range(CONCURRENT)
    ]
    return [
        make_body(24, text, temperature=1, seed=7, **make_format_fields(schema))
        for text, schema in zip(texts, schemas, strict=True)
    ]


def _make_single_rows(results: dict[tuple[str, str], list[LoadResult]]) -> list[list[str]]:
    rows = []
    for name in ("dragoman", "xllamacpp"):
        free, schema = (_get_token_times(results[name, kind]) for kind in KINDS)
        ratio = str(compute_ratio(schema, free))
        rows.append(["one", name, f"{median(free):.1f}", f"{median(schema):.1f}", ratio])
    return rows


def _get_token_times(results: Sequence[LoadResult]) -> list[float]:
    """Return the milliseconds per token after the first."""
    return [1000 / median(result.decode_rate) for result in results]


def _make_concurrent_row(results: dict[str, list[LoadResult]]) -> list[str]:
    free, schema = (
        [1000 * result.seconds / result.tokens for result in results[kind]] for kind in KINDS
    )
    numbers = [f"{median(free):.1f}", f"{median(schema):.1f}", str(compute_ratio(schema, free))]
    return [f"{CONCURRENT} at once, all schemas different", "dragoman", *numbers]


def _measure_masks(model: str) -> str:
    """Measure the first and later masks of many schemas over the model's vocabulary.

    Random allowed tokens advance the grammars.
    """
    pieces = pieces_from_gguf(gguf.read_header(model).metadata)
    masker = TokenMasker(pieces, {0}, range(1, 17))
    masker.prepare()
    rng = random.Random(1)
    writing, first_masks, later_masks = [], [], []
    for number in range(100):
        constraint = Constraint(kind="json", value=make_schema(number), param="schema")
        started = time.perf_counter()
        grammar = compile_grammar(GrammarSpec(constraint=constraint)).grammar or ""
        writing.append(time.perf_counter() - started)
        started = time.perf_counter()
        state = masker.start_grammar(grammar)
        mask = state.get_mask()
        first_masks.append(time.perf_counter() - started)
        for _ in range(60):
            state.advance(_choose_token(mask, rng))
            if state.must_end:
                break
            started = time.perf_counter()
            mask = state.get_mask()
            later_masks.append(time.perf_counter() - started)
    return (
        f"{len(pieces):,} tokens, 100 schemas, random walks: writing the grammar takes "
        f"{_format_times(writing)}, compiling it with its first mask {_format_times(first_masks)}, "
        f"each later mask {_format_times(later_masks)}. `xllamacpp` is the HTTP server in the "
        "wheel of the engine, with its own grammars; 1.00× means that a schema costs nothing."
    )


def _choose_token(mask: bytes, rng: random.Random) -> int:
    """Choose a token that the mask allows, other than the end token."""
    while True:
        index = rng.randrange(len(mask))
        for bit in range(8):
            if mask[index] >> bit & 1 and 8 * index + bit:
                return 8 * index + bit


def _format_times(values: list[float]) -> str:
    return f"{_format_quantile(values, 0.5)} (p99 {_format_quantile(values, 0.99)})"


def _format_quantile(values: list[float], share: float) -> str:
    value = sorted(values)[min(len(values) - 1, int(share * len(values)))]
    return f"{1000 * value:.1f} ms" if value >= 0.001 else f"{1e6 * value:.0f} µs"
