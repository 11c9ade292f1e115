"""Any number of small schemas, no two of them the same, ordered from a workshop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dragoman.errors import BadRequest
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.grammar.grammar_spec import GrammarSpec
from dragoman.types import Constraint, Tool

CONCURRENT = 32  # orders at once
FORMATS = ("hermes_json", "pythonic", "qwen3_coder")


def make_schema(number: int) -> dict[str, Any]:
    """One of six families; the last cannot be read."""
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
    """Every third is for a tool."""
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


async def compile_all(shop: CompilerPool, numbers: Iterable[int]) -> int:
    """Order all of them, some at once; how many were refused."""
    waiting = iter(numbers)

    async def one_after_another() -> int:
        refused = 0
        for number in waiting:
            try:
                await shop.compile(make_grammar_spec(number))
            except BadRequest:
                refused += 1
        return refused

    return sum(await asyncio.gather(*(one_after_another() for _ in range(CONCURRENT))))


def read_resident_bytes(pid: int | str = "self") -> int:
    """Bytes of memory that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
