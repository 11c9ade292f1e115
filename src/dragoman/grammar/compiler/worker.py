"""The process that compiles: `python -m dragoman.grammar.compiler.worker TARGET MEMORY SECONDS`.

It reads specs from the socket to its parent and writes a result for each, one at a time. The frames
hold JSON, which unlike msgpack holds integers of any size, as schemas do. A first, empty frame says
that everything is imported. The process ends when the parent closes the socket.

The kernel enforces the limits, so no library can block them: a limit on the address space of the
process, and for each spec a timer of processor time, whose signal ends the process. A limit on wall
clock time would blame the spec for an engine that keeps the processors busy. A second timer, of
wall clock time and far longer, ends a process that hangs and whose parent is gone.
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
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.processes.child import ignore_interrupts, limit_memory, open_parent_connection
from dragoman.processes.framing import encode_frame, read_frame

log = logging.getLogger("dragoman.grammar")

MAX_RESULT_BYTES = 4 << 20  # of a grammar and its warnings
MAX_FRAME_BYTES = 8 * MAX_RESULT_BYTES  # of their JSON; an escaped character takes six bytes
WALL_CLOCK_FACTOR = 4  # wall clock seconds allowed per second of processor time, on a busy machine

Target: TypeAlias = Callable[[GrammarSpec], CompiledGrammar]


class CompileResult(Struct, frozen=True, array_like=True):
    """The outcome of a compile: a grammar or an error."""

    compiled: CompiledGrammar | None = None
    error: SerializedError | None = None
    needs_restart: bool = False  # the process must not compile anything else

    @property
    def outcome(self) -> CompiledGrammar | SerializedError:
        if self.compiled is not None:
            return self.compiled
        assert self.error is not None  # noqa: S101
        return self.error


result_decoder = msgspec.json.Decoder(CompileResult)
_spec_decoder = msgspec.json.Decoder(GrammarSpec)
_encoder = msgspec.json.Encoder()


def run_target(target: Target, spec: GrammarSpec) -> CompileResult:
    """Compile a spec; every exception becomes a result."""
    try:
        compiled = target(spec)
        if _measure_bytes(compiled) > MAX_RESULT_BYTES:
            raise MemoryError
        return CompileResult(compiled=compiled)
    except BadRequest as error:
        return CompileResult(error=serialize_error(error))
    except RecursionError:
        problem, needs_restart = "is nested too deeply to compile", False
    except MemoryError:
        problem, needs_restart = "is too large to compile", True
    except BaseException as error:  # a panic of a native library is no Exception
        log.error("a constraint failed to compile", exc_info=error)
        failure = BadRequest("This constraint cannot be compiled.", param=spec.param)
        return CompileResult(
            error=serialize_error(failure), needs_restart=not isinstance(error, Exception)
        )
    log.error("a constraint %s", problem)
    too_complex = make_too_complex_error(spec.param, problem)
    return CompileResult(error=serialize_error(too_complex), needs_restart=needs_restart)


def _measure_bytes(compiled: CompiledGrammar) -> int:
    return sum(len(text.encode()) for text in (compiled.grammar or "", *compiled.warnings))


def _apply_process_limits(memory: int) -> None:
    """Limit this process as far as the operating system can."""
    ignore_interrupts()
    for name in ("SIGPROF", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    limit_memory(memory)


def _set_timers(seconds: float) -> None:
    """Start the timers that end this process; 0 stops them."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 2 * WALL_CLOCK_FACTOR * seconds)


def _uses_too_much_memory(memory: int) -> bool:
    """Whether earlier specs left too little memory for another."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > memory // 2


def _import_target(target: str) -> Target:
    module, _, function = target.partition(":")
    imported: Target = getattr(importlib.import_module(module), function)
    return imported


def _serve(target: Target, seconds: float, memory: int, stream: BufferedRWPair) -> None:
    stream.write(encode_frame(b""))
    stream.flush()
    while (data := read_frame(stream)) is not None:
        spec = _spec_decoder.decode(data)
        _set_timers(seconds)
        result = run_target(target, spec)
        _set_timers(0)
        if _uses_too_much_memory(memory):
            result = msgspec.structs.replace(result, needs_restart=True)
        stream.write(encode_frame(_encoder.encode(result)))
        stream.flush()


def main() -> None:
    target, memory, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _apply_process_limits(memory)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stream = open_parent_connection().makefile("rwb")
    with contextlib.suppress(ConnectionError):
        _serve(_import_target(target), seconds, memory, stream)
    sys.stderr.flush()
    os._exit(0)  # skip interpreter shutdown: nothing here needs it


if __name__ == "__main__":
    main()
