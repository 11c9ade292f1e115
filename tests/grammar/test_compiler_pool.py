"""The compiler pool: its cache, its queue, and workers that fail.

The workers run `compiler_targets` instead of the compiler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dragoman.errors import (
    BadRequest,
    DragomanError,
    Draining,
    Overloaded,
    SerializedError,
    Unavailable,
)
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.grammar.compiler.grammar_cache import GrammarCache
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.types import Constraint, Tool
from dragoman.types.cache_scope import set_cache_scope
from tests.support.fake_models import wait_until

pytestmark = pytest.mark.slow

TARGET = "tests.support.compiler_targets:run_instruction"
LONG = 60.0  # seconds that no test takes
SHORT = 0.4
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Use = Callable[[CompilerPool], Awaitable[None]]
Loop = Callable[[], asyncio.AbstractEventLoop]


def make_spec(do: str, of: Any = None) -> GrammarSpec:
    value = {"do": do, "of": of}
    return GrammarSpec(constraint=Constraint(kind="json", value=value, param="response_format"))


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    factory: Loop = request.param
    return factory


def list_alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def run_with_pool(
    use: Use,
    loop: Loop = asyncio.new_event_loop,
    **settings: Any,
) -> CompilerPool:
    """Use a pool, close it, and check that no task and no process is left."""
    defaults: dict[str, Any] = {"target": TARGET, "workers": 1, "cpu_seconds": LONG}
    pool = CompilerPool(**defaults | settings)

    async def go() -> None:
        pids: list[int] = []
        try:
            async with asyncio.timeout(LONG):
                await use(pool)
                pids = pool.pids
        finally:
            await pool.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert pool.pids == []
        assert not list_alive(pids)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(go())
    return pool


async def get_error(pool: CompilerPool, spec: GrammarSpec) -> DragomanError:
    with pytest.raises(DragomanError) as caught:
        await pool.compile(spec)
    return caught.value


class HeldCompile:
    """A compile that runs until it is released."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self.pipe = pipe
        self.spec = make_spec("hold", str(pipe))
        self._end: int | None = None

    async def wait_until_started(self) -> None:
        """Opening a pipe waits for the other end."""
        self._end = await asyncio.to_thread(os.open, self.pipe, os.O_WRONLY)

    def release(self) -> None:
        if self._end is not None:
            os.write(self._end, b"held")
            os.close(self._end)
            self._end = None


@asynccontextmanager
async def hold_worker(
    pool: CompilerPool, path: Path
) -> AsyncGenerator[asyncio.Task[CompiledGrammar], None]:
    """Keep one worker busy."""
    hold = HeldCompile(path / "held")
    task = asyncio.create_task(pool.compile(hold.spec))
    await hold.wait_until_started()
    try:
        yield task
    finally:
        hold.release()
    await asyncio.wait({task})


async def wait_for_waiters(pool: CompilerPool, count: int) -> None:
    """Wait until so many specs wait for a worker or for the compile of an equal spec."""
    await wait_until(lambda: pool.stats.waiting + pool.stats.hits >= count)


# --- compiling and caching


def test_a_grammar_is_compiled_once(loop: Loop) -> None:
    async def use(pool: CompilerPool) -> None:
        assert pool.pids == []  # no worker starts before it is needed
        first = await pool.compile(make_spec("name", "a"))
        assert first == CompiledGrammar("start: 'a'", ("warning of 'a'",))
        assert await pool.compile(make_spec("name", "a")) is first
        assert (await pool.compile(make_spec("nothing"))).grammar is None
        stats = pool.stats
        assert (stats.entries, stats.hits, stats.misses, stats.restarts) == (2, 1, 2, 0)
        assert stats.bytes > 0
        assert (stats.working, stats.waiting) == (0, 0)

    run_with_pool(use, loop)


@pytest.mark.parametrize(
    "value", [10**30, -(10**30), 1.5, "\U0001f600\x00", [None, True, {"": {}}], {"b": 1, "a": 2}]
)
def test_values_in_a_schema_reach_the_worker_unchanged(value: Any) -> None:
    async def use(pool: CompilerPool) -> None:
        assert (await pool.compile(make_spec("name", value))).grammar == f"start: {value!r}"

    run_with_pool(use)


def test_specs_with_only_tools() -> None:
    async def use(pool: CompilerPool) -> None:
        tools = (Tool(name="f", parameters={"type": "object"}),)
        compiled = await pool.compile(
            GrammarSpec(tools=tools, tool_format="hermes_json", special_tokens={"<a>": 1})
        )
        assert compiled.grammar == "start: 'tools'"

    run_with_pool(use)


def test_the_cache_is_bounded_by_number_of_entries() -> None:
    async def use(pool: CompilerPool) -> None:
        for start in range(0, 3000, 200):
            specs = [make_spec("name", n) for n in range(start, start + 200)]
            compiled = await asyncio.gather(*map(pool.compile, specs))
            assert [each.grammar for each in compiled] == [
                f"start: {n}" for n in range(start, start + 200)
            ]
        assert (pool.stats.entries, pool.stats.misses, pool.stats.restarts) == (50, 3000, 0)
        await pool.compile(make_spec("name", 2999))
        assert pool.stats.hits == 1
        await pool.compile(make_spec("name", 0))
        assert pool.stats.misses == 3001

    run_with_pool(use, workers=2, cache_entries=50)


def test_a_hundred_thousand_entries_do_not_fill_the_cache() -> None:
    cache = GrammarCache(512, 1 << 20)
    used = bytes(32)
    cache.put(used, CompiledGrammar("used"))
    most = 0
    for n in range(100_000):
        cache.put(n.to_bytes(32, "little") + b"x", CompiledGrammar(f"start: {n}"))
        assert cache.get(used) == CompiledGrammar("used")  # an entry in use stays
        most = max(most, len(cache))
    assert most == len(cache) == 512


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_the_cache_is_bounded_by_bytes(letter: str) -> None:
    limit = 1 << 20
    cache = GrammarCache(10_000, limit)
    for n in range(1000):
        text = letter * (n * 20)
        outcome = CompiledGrammar(text, (text,)) if n % 2 else SerializedError("BadRequest", text)
        cache.put(n.to_bytes(32, "little"), outcome)
        assert cache.size <= limit
    assert cache.get((999).to_bytes(32, "little")) is not None
    assert cache.get((1).to_bytes(32, "little")) is None
    size, count = cache.size, len(cache)
    cache.put(b"huge", CompiledGrammar("x" * (limit // 2)))
    assert (cache.size, len(cache)) == (size, count)  # it evicted nothing
    cache.put((999).to_bytes(32, "little"), CompiledGrammar("small"))
    assert cache.size < size
    assert len(cache) == count


# --- waiting


def test_equal_specs_share_one_compile(tmp_path: Path, loop: Loop) -> None:
    async def use(pool: CompilerPool) -> None:
        async with hold_worker(pool, tmp_path) as first:
            same = make_spec("hold", str(tmp_path / "held"))
            others = [asyncio.create_task(pool.compile(same)) for _ in range(20)]
            await wait_for_waiters(pool, 20)
            others[3].cancel()
            first.cancel()  # the first caller may leave as well
            await asyncio.wait({first, others[3]})
        done = await asyncio.gather(*others, return_exceptions=True)
        assert isinstance(done.pop(3), asyncio.CancelledError)
        assert done == [CompiledGrammar("held")] * 19
        assert (pool.stats.misses, pool.stats.restarts) == (1, 0)

    run_with_pool(use, loop)


def test_a_compile_that_nobody_waits_for_is_still_cached(tmp_path: Path) -> None:
    async def use(pool: CompilerPool) -> None:
        async with hold_worker(pool, tmp_path) as task:
            task.cancel()
            await asyncio.wait({task})
        same = make_spec("hold", str(tmp_path / "held"))
        assert await pool.compile(same) == CompiledGrammar("held")
        assert (pool.stats.misses, pool.stats.working) == (1, 0)

    run_with_pool(use)


def test_the_queue_is_bounded_and_cancelling_frees_a_place(tmp_path: Path) -> None:
    async def use(pool: CompilerPool) -> None:
        pool.queue.limit = 2
        async with hold_worker(pool, tmp_path):
            waiting = [asyncio.create_task(pool.compile(make_spec("name", n))) for n in range(2)]
            await wait_for_waiters(pool, 2)
            error = await get_error(pool, make_spec("name", "third"))
            assert isinstance(error, Overloaded)
            assert error.retry_after is not None
            waiting[0].cancel()
            await asyncio.wait({waiting[0]})
            assert pool.stats.waiting == 1
            again = asyncio.create_task(pool.compile(make_spec("name", 0)))  # a new compile
            await wait_for_waiters(pool, 2)
        assert (await again).grammar == "start: 0"
        assert (await waiting[1]).grammar == "start: 1"
        assert (pool.stats.waiting, pool.stats.restarts) == (0, 0)

    run_with_pool(use)


async def compile_as(pool: CompilerPool, owner: str, name: str, finished: list[str]) -> None:
    """Compile a spec of an owner, and note when that is done."""
    set_cache_scope(owner)
    await pool.compile(make_spec("name", name))
    finished.append(name)


def test_owners_take_turns_in_the_queue(tmp_path: Path) -> None:
    async def use(pool: CompilerPool) -> None:
        finished: list[str] = []
        async with hold_worker(pool, tmp_path):
            tasks = [
                asyncio.create_task(compile_as(pool, name[:3], name, finished))
                for name in ("ann 1", "ann 2", "ann 3", "ann 4", "bob 1", "bob 2", "eve 1")
            ]
            await wait_for_waiters(pool, 7)
        await asyncio.gather(*tasks)
        assert finished == ["ann 1", "bob 1", "eve 1", "ann 2", "bob 2", "ann 3", "ann 4"]

    run_with_pool(use)


def test_a_full_queue_takes_room_from_whoever_has_the_most(tmp_path: Path) -> None:
    async def use(pool: CompilerPool) -> None:
        pool.queue.limit = 4
        finished: list[str] = []
        async with hold_worker(pool, tmp_path):
            names = ["ann 1", "ann 2", "ann 3", "ann 4", "bob 1", "bob 2", "bob 3", "ann 5"]
            tasks = [
                asyncio.create_task(compile_as(pool, name[:3], name, finished)) for name in names
            ]
            for _ in names:
                await asyncio.sleep(0)  # each task gets into the queue, or is refused
            assert pool.stats.waiting == 4
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [name for name, error in zip(names, results, strict=True) if error is not None]
        assert refused == ["ann 3", "ann 4", "bob 3", "ann 5"]
        assert all(isinstance(error, Overloaded) for error in results if error is not None)
        assert finished == ["ann 1", "bob 1", "ann 2", "bob 2"]

    run_with_pool(use)


def test_waiting_in_the_queue_times_out(tmp_path: Path) -> None:
    async def use(pool: CompilerPool) -> None:
        async with hold_worker(pool, tmp_path):
            pool.queue_timeout = 0.0
            assert isinstance(await get_error(pool, make_spec("name", "a")), Overloaded)
            assert pool.stats.waiting == 0
            pool.queue_timeout = LONG
            later = asyncio.create_task(
                pool.compile(make_spec("name", "a"))
            )  # the timeout is not cached
            await wait_for_waiters(pool, 1)
        assert (await later).grammar == "start: 'a'"

    run_with_pool(use)


def test_a_slow_compile_delays_no_other_while_a_worker_is_idle(tmp_path: Path, loop: Loop) -> None:
    async def use(pool: CompilerPool) -> None:
        async with hold_worker(pool, tmp_path) as slow:
            compiled = await asyncio.gather(
                *(pool.compile(make_spec("name", n)) for n in range(100))
            )
            assert len(compiled) == 100
            assert not slow.done()
        assert await slow == CompiledGrammar("held")

    run_with_pool(use, loop, workers=2)


# --- failing


def test_errors_are_cached() -> None:
    async def use(pool: CompilerPool) -> None:
        first = await get_error(pool, make_spec("reject", "schema"))
        again = await get_error(pool, make_spec("reject", "schema"))
        for error in (first, again):
            assert type(error) is BadRequest
            assert error.message == "No schema."
            assert error.param == "response_format.schema"
            assert error.code == "no_schema"
        assert first is not again  # each caller gets a traceback of its own
        other = await get_error(pool, make_spec("unsupported", "schema"))
        assert (other.code, other.param) == ("unsupported_parameter", None)
        assert (pool.stats.hits, pool.stats.misses, pool.stats.restarts) == (1, 2, 0)

    run_with_pool(use)


TOO_COMPLEX = "constraint_too_complex"
FAILING = [
    # instruction, error code, part of the message, whether the worker ends
    (("recurse", None), TOO_COMPLEX, "nested too deep", False),
    (("allocate", 1 << 20), TOO_COMPLEX, "too large", True),
    (("allocate", 1 << 40), TOO_COMPLEX, "too large", True),
    (("large", 3 << 20), TOO_COMPLEX, "too large", True),
    (("panic", None), None, "cannot be compiled", True),
    (("bug", None), None, "cannot be compiled", False),
    (("engine", None), None, "cannot be compiled", False),
    (("surrogate", None), None, "cannot be compiled", False),
    (("abort", None), TOO_COMPLEX, "too complex", True),
    (("exit", 0), TOO_COMPLEX, "too complex", True),
    (("exit", 7), TOO_COMPLEX, "too complex", True),
    (("spin", None), TOO_COMPLEX, "took too long", True),
]


@pytest.mark.parametrize(
    ("instruction", "code", "message", "ends_worker"), FAILING, ids=lambda value: str(value)
)
def test_a_failure_affects_one_spec_and_is_cached(
    instruction: tuple[str, Any], code: str | None, message: str, ends_worker: bool, loop: Loop
) -> None:
    async def use(pool: CompilerPool) -> None:
        before = (await pool.compile(make_spec("pid", "before"))).grammar
        for _ in range(2):
            error = await get_error(pool, make_spec(*instruction))
            assert isinstance(error, BadRequest)
            assert (error.code, error.param) == (code, "response_format")
            assert message in error.message
            assert "internals" not in error.message
        assert pool.stats.hits + pool.stats.misses == 3
        # on a busy machine, a compile may run out of time before its processor time is used up
        assert pool.stats.hits == 1 or instruction[0] == "spin"
        after = (await pool.compile(make_spec("pid", "after"))).grammar
        assert (before != after) or not ends_worker

    pool = run_with_pool(use, loop, cpu_seconds=1.0, worker_memory=1 << 28)
    assert pool.stats.restarts <= ends_worker * pool.stats.misses


def test_an_error_of_tools_names_tools() -> None:
    async def use(pool: CompilerPool) -> None:
        tools = (Tool(name="f"),)
        error = await get_error(pool, GrammarSpec(tools=tools))
        assert (error.code, error.param) == (None, "tools")

    run_with_pool(use, target="tests.support.compiler_targets:fail")


def test_a_worker_killed_from_outside_is_not_cached_as_an_error() -> None:
    async def use(pool: CompilerPool) -> None:
        for misses in (1, 2):
            assert (await get_error(pool, make_spec("kill"))).code == TOO_COMPLEX
            assert (pool.stats.misses, pool.stats.entries) == (misses, 0)

    run_with_pool(use)


def test_wall_clock_time_is_limited_too(tmp_path: Path, loop: Loop) -> None:
    os.mkfifo(tmp_path / "pipe")  # nothing ever opens the other end

    async def use(pool: CompilerPool) -> None:
        hung = make_spec("hold", str(tmp_path / "pipe"))
        error = await get_error(pool, hung)
        assert error.code == TOO_COMPLEX
        assert "took too long" in error.message
        assert pool.stats.entries == 0  # the machine may have been at fault
        assert (await pool.compile(make_spec("name", 1))).grammar == "start: 1"

    run_with_pool(use, loop, cpu_seconds=SHORT)


def test_other_specs_are_compiled_while_some_exceed_their_time() -> None:
    async def use(pool: CompilerPool) -> None:
        await pool.warm_up()
        bad = [get_error(pool, make_spec("spin", n)) for n in range(4)]
        good = [pool.compile(make_spec("name", n)) for n in range(50)]
        errors, compiled = await asyncio.gather(asyncio.gather(*bad), asyncio.gather(*good))
        assert {error.code for error in errors} == {TOO_COMPLEX}
        assert [each.grammar for each in compiled] == [f"start: {n}" for n in range(50)]

    run_with_pool(use, workers=2, cpu_seconds=SHORT)


def test_workers_are_replaced_again_and_again() -> None:
    async def use(pool: CompilerPool) -> None:
        for n in range(10):
            await get_error(pool, make_spec("exit", n))
            assert await pool.compile(make_spec("name", n))
        assert len(pool.pids) <= 2
        await wait_until(lambda: pool.stats.restarts == 10)

    run_with_pool(use)


def test_a_worker_that_has_grown_too_large_is_replaced() -> None:
    async def use(pool: CompilerPool) -> None:
        for n in range(5):  # all together would not fit in one worker
            assert (await pool.compile(make_spec("leak", (160 << 20) + n))).grammar == "leaked"
        await wait_until(lambda: pool.stats.restarts == 5)

    run_with_pool(use, worker_memory=1 << 28)


def test_output_printed_by_a_library_is_no_result(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dragoman.grammar")

    async def use(pool: CompilerPool) -> None:
        assert (await pool.compile(make_spec("print"))).grammar == "printed"
        assert (await pool.compile(make_spec("name", 1))).grammar == "start: 1"
        assert pool.stats.restarts == 0

    run_with_pool(use)
    assert "printed" in caplog.text
    assert "reported" in caplog.text


@pytest.mark.parametrize(
    "target", ["tests.support.compiler_targets:missing", "no.such.module:compiled"]
)
def test_workers_that_do_not_start_are_reported(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(pool: CompilerPool) -> None:
        for _ in range(2):
            errors = await asyncio.gather(
                *(get_error(pool, make_spec("name", n)) for n in range(3))
            )
            assert [type(error) for error in errors] == [Unavailable] * 3
            assert {error.message for error in errors} == {
                "Constraints cannot be compiled at the moment."
            }
        assert (pool.stats.entries, pool.stats.restarts) == (0, 0)
        assert pool.pids == []

    run_with_pool(use, target=target)
    assert "did not start" in caplog.text


def test_an_interpreter_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def use(pool: CompilerPool) -> None:
        assert isinstance(await get_error(pool, make_spec("name")), Unavailable)

    run_with_pool(use)


# --- starting and closing


def wait_for_exit(pid: int) -> bool:
    """Wait for a process that is not our child to end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], LONG)[0])
    finally:
        os.close(handle)


def test_warm_up_starts_all_workers_and_a_spare_one(loop: Loop) -> None:
    async def use(pool: CompilerPool) -> None:
        await pool.warm_up()
        pids = pool.pids
        assert len(pids) == 3
        assert int((await pool.compile(make_spec("pid"))).grammar or 0) in pids
        assert set(pool.pids) == set(pids)

    run_with_pool(use, loop, workers=2)


def test_idle_workers_that_die_are_replaced_when_needed() -> None:
    async def use(pool: CompilerPool) -> None:
        await pool.warm_up()
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: pool.stats.restarts == 2)
        assert not pool.pids
        assert (await pool.compile(make_spec("name", 1))).grammar == "start: 1"

    run_with_pool(use)


def test_closing_ends_pending_compiles(tmp_path: Path, loop: Loop) -> None:
    async def use(pool: CompilerPool) -> None:
        hold = HeldCompile(tmp_path / "held")
        working = asyncio.create_task(pool.compile(hold.spec))
        await hold.wait_until_started()
        waiting = asyncio.create_task(pool.compile(make_spec("name", 1)))
        await wait_for_waiters(pool, 1)
        pids = pool.pids
        await pool.aclose()
        for task in (working, waiting):
            with pytest.raises(Draining):
                await task
        assert not list_alive(pids)
        assert isinstance(await get_error(pool, make_spec("name", 2)), Draining)
        assert (pool.stats.waiting, pool.stats.working, pool.stats.restarts) == (0, 0, 0)
        with pytest.raises(BrokenPipeError):
            hold.release()

    run_with_pool(use, loop)


def test_closing_while_workers_start(loop: Loop) -> None:
    async def use(pool: CompilerPool) -> None:
        early = asyncio.create_task(pool.compile(make_spec("name", 1)))
        await wait_for_waiters(pool, 1)
        await pool.aclose()
        with pytest.raises(Draining):
            await early

    run_with_pool(use, loop, workers=2)


def test_closing_an_unused_pool() -> None:
    async def use(pool: CompilerPool) -> None:
        await pool.aclose()
        assert pool.pids == []

    run_with_pool(use)


PARENT = """
import asyncio
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from tests.grammar.test_compiler_pool import make_spec

async def main():
    target = "tests.support.compiler_targets:run_instruction"
    pool = CompilerPool(workers=1, cpu_seconds={seconds}, target=target)
    await pool.warm_up()
    task = asyncio.create_task(pool.compile(make_spec({do!r})))
    await asyncio.sleep(0)
    print(*pool.pids, flush=True)
    await task
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize(("do", "seconds"), [("name", 60), ("spin", SHORT)])
def test_workers_do_not_outlive_their_parent(do: str, seconds: float) -> None:
    code = PARENT.format(do=do, seconds=seconds)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    assert all(map(wait_for_exit, pids))


def test_an_unused_pool_starts_and_imports_nothing() -> None:
    code = (
        "import sys, dragoman.grammar.compiler.compiler_pool as p; pool = p.CompilerPool()\n"
        "assert 1 <= pool.workers <= 2 and not pool.pids\n"
        "print(sorted(m for m in sys.modules if m.startswith(('llguidance', 'dragoman.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "llguidance" not in done.stdout
    assert "'dragoman.grammar.compiler.compile'" not in done.stdout
