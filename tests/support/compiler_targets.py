"""Functions that workers run in tests instead of the compiler; the constraint says what to do."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dragoman.errors import BadRequest, EngineFailed, Unsupported
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec


class Panic(BaseException):
    """As Python sees the panic of a native library."""


def run_instruction(spec: GrammarSpec) -> CompiledGrammar:
    value = spec.constraint.value if spec.constraint is not None else {"do": "name", "of": "tools"}
    return globals()[f"_{value['do']}"](value.get("of"))  # type: ignore[no-any-return]


def fail(spec: GrammarSpec) -> CompiledGrammar:
    raise KeyError("internals")


def _name(of: Any) -> CompiledGrammar:
    return CompiledGrammar(f"start: {of!r}", (f"warning of {of!r}",))


def _nothing(of: Any) -> CompiledGrammar:
    return CompiledGrammar(None)


def _hold(of: str) -> CompiledGrammar:
    """Work until the other end of this pipe is closed."""
    return CompiledGrammar(Path(of).read_text())


def _spin(of: Any) -> CompiledGrammar:
    while True:
        pass


def _reject(of: str) -> CompiledGrammar:
    raise BadRequest(f"No {of}.", param="response_format.schema", code="no_schema")


def _unsupported(of: str) -> CompiledGrammar:
    raise Unsupported(f"No {of}.")


def _recurse(of: Any) -> CompiledGrammar:
    return _recurse(of)


def _panic(of: Any) -> CompiledGrammar:
    raise Panic("internals")


def _bug(of: Any) -> CompiledGrammar:
    raise KeyError("internals")


def _engine(of: Any) -> CompiledGrammar:
    raise EngineFailed("internals")


def _surrogate(of: Any) -> CompiledGrammar:
    return CompiledGrammar("\ud800")


def _large(of: int) -> CompiledGrammar:
    return CompiledGrammar("é" * of)


def _allocate(of: int) -> CompiledGrammar:
    blocks = []
    while True:
        blocks.append(bytes(of))


def _leak(of: int) -> CompiledGrammar:
    leaked.append(bytearray(of))
    return CompiledGrammar("leaked")


leaked: list[bytearray] = []


def _abort(of: Any) -> CompiledGrammar:
    os.abort()


def _exit(of: int) -> CompiledGrammar:
    os._exit(of)


def _kill(of: Any) -> CompiledGrammar:
    """As if another process killed this one."""
    os.kill(os.getpid(), signal.SIGKILL)
    return CompiledGrammar(None)


def _print(of: Any) -> CompiledGrammar:
    os.write(1, b"\x00\x00\x00\x02[]")
    print("printed", flush=True)
    print("reported", file=sys.stderr)
    return CompiledGrammar("printed")


def _pid(of: Any) -> CompiledGrammar:
    return CompiledGrammar(str(os.getpid()))
