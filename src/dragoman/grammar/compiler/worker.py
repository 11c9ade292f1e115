"""The process that compiles: `python -m dragoman.grammar.compiler.worker TARGET MEMORY SECONDS`.

It reads specs from the socket to its parent and writes a result for each, one at a time. The frames
hold JSON, which unlike msgpack holds integers of any size, as schemas do. A first, empty frame says
that everything is imported. The process ends when the parent closes the socket.

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
from io import BufferedRWPair
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, SerializedError, serialize_error
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.processes.child import ignore_interrupts, limit_memory, open_parent_connection
from dragoman.processes.framing import encode_frame, read_frame

log = logging.getLogger("dragoman.constraint")

MAX_RESULT_BYTES = 4 << 20  # bytes of a grammar and its warnings
MAX_FRAME_BYTES = 8 * MAX_RESULT_BYTES  # bytes of a frame with them; an escaped letter takes six
WALL_CLOCK_FACTOR = 4  # seconds on the wall for one of processor time, for machines that are busy
TOO_COMPLEX = "constraint_too_complex"
HINT = "Simplify it: fewer alternatives, shorter repetitions, less nesting."

Target: TypeAlias = Callable[[GrammarSpec], CompiledGrammar]


class CompileResult(Struct, frozen=True, array_like=True):
    """What came of an order: the one or the other."""

    compiled: CompiledGrammar | None = None
    error: SerializedError | None = None
    needs_restart: bool = False  # the process should do no more


result_decoder = msgspec.json.Decoder(CompileResult)
_spec_decoder = msgspec.json.Decoder(GrammarSpec)
_encoder = msgspec.json.Encoder()


def find_param(order: GrammarSpec) -> str | None:
    """The parameter that an order came from."""
    if order.constraint is not None:
        return order.constraint.param or None
    texts = [tool.input.param for tool in order.tools if tool.input is not None]
    return texts[0] if len(order.tools) == 1 and texts else "tools"


def too_complex(order: GrammarSpec, why: str) -> SerializedError:
    return serialize_error(BadRequest(f"{why} {HINT}", param=find_param(order), code=TOO_COMPLEX))


def run_target(target: Target, order: GrammarSpec) -> CompileResult:
    """Do the work; whatever happens becomes an answer."""
    try:
        made = target(order)
        if _encoded_size(made) > MAX_RESULT_BYTES:
            raise MemoryError
        return CompileResult(compiled=made)
    except BadRequest as error:
        return CompileResult(error=serialize_error(error))
    except RecursionError:
        why, spoilt = "nested too deep", False
    except MemoryError:
        why, spoilt = "too large", True
    except BaseException as error:  # a panic of a native library is no Exception
        log.error("an order cannot be compiled", exc_info=error)
        broken = BadRequest("This constraint cannot be compiled.", param=find_param(order))
        return CompileResult(
            error=serialize_error(broken), needs_restart=not isinstance(error, Exception)
        )
    log.error("an order is %s", why)
    return CompileResult(
        error=too_complex(order, f"This constraint is {why} to compile."), needs_restart=spoilt
    )


def _encoded_size(made: CompiledGrammar) -> int:
    return sum(len(text.encode()) for text in (made.grammar or "", *made.warnings))


def _apply_process_limits(memory: int) -> None:
    """Take no more than our share, where the system can see to that."""
    ignore_interrupts()
    for name in ("SIGPROF", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    limit_memory(memory)


def _set_timers(seconds: float) -> None:
    """From now on there is so much time; 0 is no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 2 * WALL_CLOCK_FACTOR * seconds)


def _uses_too_much_memory(memory: int) -> bool:
    """Whether earlier orders left too little room for a later one."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > memory // 2


def _import_target(target: str) -> Target:
    module, _, function = target.partition(":")
    found: Target = getattr(importlib.import_module(module), function)
    return found


def _serve(target: Target, seconds: float, memory: int, stream: BufferedRWPair) -> None:
    stream.write(encode_frame(b""))
    stream.flush()
    while (data := read_frame(stream)) is not None:
        order = _spec_decoder.decode(data)
        _set_timers(seconds)
        answer = run_target(target, order)
        _set_timers(0)
        if _uses_too_much_memory(memory):
            answer = msgspec.structs.replace(answer, needs_restart=True)
        stream.write(encode_frame(_encoder.encode(answer)))
        stream.flush()


def main() -> None:
    target, memory, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _apply_process_limits(memory)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stream = open_parent_connection().makefile("rwb")
    with contextlib.suppress(ConnectionError):
        _serve(_import_target(target), seconds, memory, stream)
    sys.stderr.flush()
    os._exit(0)  # nothing here needs to be put in order


if __name__ == "__main__":
    main()
