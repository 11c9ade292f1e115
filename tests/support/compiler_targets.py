"""What a worker can be told to do instead of compiling: an order's shape says what."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dragoman.errors import BadRequest, EngineFailed, Unsupported
from dragoman.grammar.spec import Made, Order


class Panic(BaseException):
    """As a native library's panic arrives in Python."""


def compiled(order: Order) -> Made:
    value = order.shape.value if order.shape is not None else {"do": "name", "of": "tools"}
    return globals()[f"_{value['do']}"](value.get("of"))  # type: ignore[no-any-return]


def broken(order: Order) -> Made:
    raise KeyError("internals")


def _name(of: Any) -> Made:
    return Made(f"start: {of!r}", (f"warning of {of!r}",))


def _nothing(of: Any) -> Made:
    return Made(None)


def _hold(of: str) -> Made:
    """Work until whoever opened the other end of this pipe closes it."""
    return Made(Path(of).read_text())


def _spin(of: Any) -> Made:
    while True:
        pass


def _refuse(of: str) -> Made:
    raise BadRequest(f"No {of}.", param="response_format.schema", code="no_schema")


def _unsupported(of: str) -> Made:
    raise Unsupported(f"No {of}.")


def _recurse(of: Any) -> Made:
    return _recurse(of)


def _panic(of: Any) -> Made:
    raise Panic("internals")


def _bug(of: Any) -> Made:
    raise KeyError("internals")


def _engine(of: Any) -> Made:
    raise EngineFailed("internals")


def _surrogate(of: Any) -> Made:
    return Made("\ud800")


def _large(of: int) -> Made:
    return Made("é" * of)


def _eat(of: int) -> Made:
    held = []
    while True:
        held.append(bytes(of))


def _keep(of: int) -> Made:
    """Leave the process larger than it was."""
    kept.append(bytearray(of))
    return Made("kept")


kept: list[bytearray] = []


def _abort(of: Any) -> Made:
    os.abort()


def _exit(of: int) -> Made:
    os._exit(of)


def _shot(of: Any) -> Made:
    """As when somebody outside kills the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Made(None)


def _chatter(of: Any) -> Made:
    os.write(1, b"\x00\x00\x00\x02[]")
    print("printed", flush=True)
    print("complained", file=sys.stderr)
    return Made("spoken")


def _pid(of: Any) -> Made:
    return Made(str(os.getpid()))
