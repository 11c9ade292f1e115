"""The process that compiles: `python -m dragoman.grammar.compiler.worker TARGET MEMORY SECONDS`.

It reads specs from the socket to its parent and writes a result for each, one at a time, within the
limits of `processes.worker_loop`. The frames hold JSON, which unlike msgpack holds integers of any
size, as schemas do.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, SerializedError, serialize_error
from dragoman.grammar.complexity import make_too_complex_error
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.processes.worker_loop import apply_process_limits, serve_tasks, uses_too_much_memory

log = logging.getLogger("dragoman.grammar")

MAX_RESULT_BYTES = 4 << 20  # of a grammar and its warnings
MAX_FRAME_BYTES = 8 * MAX_RESULT_BYTES  # of their JSON; an escaped character takes six bytes

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
    except BaseException as error:  # a panic of a native library is not an Exception
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


def _import_target(target: str) -> Target:
    module, _, function = target.partition(":")
    imported: Target = getattr(importlib.import_module(module), function)
    return imported


def main() -> None:
    memory, seconds = int(sys.argv[2]), float(sys.argv[3])
    apply_process_limits(memory)
    target = _import_target(sys.argv[1])

    def handle(data: bytes) -> bytes:
        result = run_target(target, _spec_decoder.decode(data))
        if uses_too_much_memory(memory):
            result = msgspec.structs.replace(result, needs_restart=True)
        return _encoder.encode(result)

    serve_tasks(handle, seconds)


if __name__ == "__main__":
    main()
