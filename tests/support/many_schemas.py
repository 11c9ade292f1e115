"""Any number of small schemas, all different, compiled by a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from dragoman.errors import BadRequest
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.types import Constraint, Tool

CONCURRENT = 32  # compilations
FORMATS = ("hermes_json", "pythonic", "qwen3_coder")


def make_schema(number: int) -> dict[str, Any]:
    """Make a schema of one of six families; those of the last are invalid."""
    match number % 6:
        case 0:
            inner: dict[str, Any] = {"type": "integer", "minimum": number}
        case 1:
            inner = {"enum": [f"one {number}", f"two {number}"]}
        case 2:
            inner = {"type": "array", "items": {"const": number}, "maxItems": 5}
        case 3:
            inner = {"type": "string", "pattern": f"^[a-f]{{2}}{number}$"}
        case 4:
            inner = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
        case _:
            inner = {"type": f"kind {number}"}
    return {"type": "object", "properties": {f"key_{number}": inner, "b": {"type": "string"}}}


def make_grammar_spec(number: int) -> GrammarSpec:
    """Make a constraint; every third is for a tool."""
    if number % 3:
        return GrammarSpec(
            constraint=Constraint(
                kind="json", value=make_schema(number), param="schema", strict=True
            )
        )
    tool = Tool(name="act", parameters=make_schema(number), param="tools[0]")
    return GrammarSpec(
        tools=(tool,), tool_choice="required", tool_format=FORMATS[number % len(FORMATS)]
    )


async def compile_all(pool: CompilerPool, numbers: Iterable[int]) -> int:
    """Compile all of them, several at once; return how many were rejected."""
    remaining = iter(numbers)

    async def compile_remaining() -> int:
        rejected = 0
        for number in remaining:
            try:
                await pool.compile(make_grammar_spec(number))
            except BadRequest:
                rejected += 1
        return rejected

    return sum(await asyncio.gather(*(compile_remaining() for _ in range(CONCURRENT))))
