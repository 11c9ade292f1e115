"""What a worker can be told to do instead of compiling: an order's shape says what."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dragoman.errors import BadRequest, EngineFailed, Unsupported
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec


class Panic(BaseException):
    """As a native library's panic arrives in Python."""


def compiled(order: GrammarSpec) -> CompiledGrammar:
    value = (
        order.constraint.value if order.constraint is not None else {"do": "name", "of": "tools"}
    )
    return globals()[f"_{value['do']}"](value.get("of"))  # type: ignore[no-any-return]


def broken(order: GrammarSpec) -> CompiledGrammar:
    raise KeyError("internals")


def _name(of: Any) -> CompiledGrammar:
    return CompiledGrammar(f"start: {of!r}", (f"warning of {of!r}",))


def _nothing(of: Any) -> CompiledGrammar:
    return CompiledGrammar(None)


def _hold(of: str) -> CompiledGrammar:
    """Work until whoever opened the other end of this pipe closes it."""
    return CompiledGrammar(Path(of).read_text())


def _spin(of: Any) -> CompiledGrammar:
    while True:
        pass


def _refuse(of: str) -> CompiledGrammar:
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


def _eat(of: int) -> CompiledGrammar:
    held = []
    while True:
        held.append(bytes(of))


def _keep(of: int) -> CompiledGrammar:
    """Leave the process larger than it was."""
    kept.append(bytearray(of))
    return CompiledGrammar("kept")


kept: list[bytearray] = []


def _abort(of: Any) -> CompiledGrammar:
    os.abort()


def _exit(of: int) -> CompiledGrammar:
    os._exit(of)


def _shot(of: Any) -> CompiledGrammar:
    """As when somebody outside kills the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return CompiledGrammar(None)


def _chatter(of: Any) -> CompiledGrammar:
    os.write(1, b"\x00\x00\x00\x02[]")
    print("printed", flush=True)
    print("complained", file=sys.stderr)
    return CompiledGrammar("spoken")


def _pid(of: Any) -> CompiledGrammar:
    return CompiledGrammar(str(os.getpid()))
