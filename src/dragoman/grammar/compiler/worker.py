"""The process that compiles: `python -m dragoman.grammar.compiler.worker TARGET MEMORY SECONDS`.

Its standard input brings orders and its standard output takes an answer to each, one at a time: a
frame is four bytes of length and JSON, which unlike msgpack holds integers of any size, as schemas
do. An empty frame says that all is imported and orders may come. It ends when its input does.

An order is limited by the kernel, which no library can hold up: address space for the whole
process, and for each order a timer of processor time whose signal ends the process. Time on the
wall would blame an order for an engine that keeps the processors busy. A second timer, on the wall
and far longer, ends a process that hangs and whose parent is gone.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, SerializedError, serialize_error
from dragoman.grammar.spec import Made, Order

log = logging.getLogger("dragoman.constraint")

HEAD = 4
LARGEST = 4 << 20  # bytes of a grammar and its warnings
LONGEST = 8 * LARGEST  # bytes of a frame with them; an escaped letter takes six
WALL = 4  # seconds on the wall for one of processor time, for machines that are busy
TOO_COMPLEX = "constraint_too_complex"
HINT = "Simplify it: fewer alternatives, shorter repetitions, less nesting."

Target: TypeAlias = Callable[[Order], Made]


class Answer(Struct, frozen=True, array_like=True):
    """What came of an order: the one or the other."""

    made: Made | None = None
    note: SerializedError | None = None
    spoilt: bool = False  # the process should do no more


read_answer = msgspec.json.Decoder(Answer)
_read_order = msgspec.json.Decoder(Order)
_encoder = msgspec.json.Encoder()


def blamed(order: Order) -> str | None:
    """The parameter that an order came from."""
    if order.shape is not None:
        return order.shape.param or None
    texts = [tool.input.param for tool in order.tools if tool.input is not None]
    return texts[0] if len(order.tools) == 1 and texts else "tools"


def too_complex(order: Order, why: str) -> SerializedError:
    return serialize_error(BadRequest(f"{why} {HINT}", param=blamed(order), code=TOO_COMPLEX))


def answered(target: Target, order: Order) -> Answer:
    """Do the work; whatever happens becomes an answer."""
    try:
        made = target(order)
        if _weight(made) > LARGEST:
            raise MemoryError
        return Answer(made=made)
    except BadRequest as error:
        return Answer(note=serialize_error(error))
    except RecursionError:
        why, spoilt = "nested too deep", False
    except MemoryError:
        why, spoilt = "too large", True
    except BaseException as error:  # a panic of a native library is no Exception
        log.error("an order cannot be compiled", exc_info=error)
        broken = BadRequest("This constraint cannot be compiled.", param=blamed(order))
        return Answer(note=serialize_error(broken), spoilt=not isinstance(error, Exception))
    log.error("an order is %s", why)
    return Answer(note=too_complex(order, f"This constraint is {why} to compile."), spoilt=spoilt)


def _weight(made: Made) -> int:
    return sum(len(text.encode()) for text in (made.grammar or "", *made.warnings))


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(HEAD, "big") + data


def _read(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end, be it in the middle of one."""
    head = stream.read(HEAD)
    size = int.from_bytes(head, "big")
    data = stream.read(size) if len(head) == HEAD else b""
    return data if len(head) == HEAD and len(data) == size else None


def _confine(memory: int) -> None:
    """Take no more than our share, where the system can see to that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    for name in ("SIGPROF", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, hard))


def _limit(seconds: float) -> None:
    """From now on there is so much time; 0 is no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 2 * WALL * seconds)


def _swollen(memory: int) -> bool:
    """Whether earlier orders left too little room for a later one."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > memory // 2


def _find(target: str) -> Target:
    module, _, function = target.partition(":")
    found: Target = getattr(importlib.import_module(module), function)
    return found


def _serve(target: Target, seconds: float, memory: int, out: BinaryIO) -> None:
    out.write(frame(b""))
    out.flush()
    while (data := _read(sys.stdin.buffer)) is not None:
        order = _read_order.decode(data)
        _limit(seconds)
        answer = answered(target, order)
        _limit(0)
        if _swollen(memory):
            answer = msgspec.structs.replace(answer, spoilt=True)
        out.write(frame(_encoder.encode(answer)))
        out.flush()


def main() -> None:
    target, memory, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _confine(memory)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(BrokenPipeError):
        _serve(_find(target), seconds, memory, out)
    sys.stderr.flush()
    os._exit(0)  # nothing here needs to be put in order


if __name__ == "__main__":
    main()
