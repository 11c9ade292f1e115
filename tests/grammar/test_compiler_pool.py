"""The workshop: what is remembered, who waits for whom, and what dies over what."""

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
from tests.support.fake_models import wait_until

pytestmark = pytest.mark.slow

TARGET = "tests.support.compiler_targets:compiled"
LONG = 60.0  # seconds that no test takes
SHORT = 0.4
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Use = Callable[[CompilerPool], Awaitable[None]]
Loop = Callable[[], asyncio.AbstractEventLoop]


def order(do: str, of: Any = None) -> GrammarSpec:
    value = {"do": do, "of": of}
    return GrammarSpec(constraint=Constraint(kind="json", value=value, param="response_format"))


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    made: Loop = request.param
    return made


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def run(
    use: Use,
    loop: Loop = asyncio.new_event_loop,
    **said: Any,
) -> CompilerPool:
    """Use a workshop, close it, and see that nothing of it is left."""
    settings: dict[str, Any] = {"target": TARGET, "workers": 1, "cpu_seconds": LONG}
    shop = CompilerPool(**settings | said)

    async def go() -> None:
        pids: list[int] = []
        try:
            async with asyncio.timeout(LONG):
                await use(shop)
                pids = shop.pids
        finally:
            await shop.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert shop.pids == []
        assert not alive(pids)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(go())
    return shop


async def refusal(shop: CompilerPool, wanted: GrammarSpec) -> DragomanError:
    with pytest.raises(DragomanError) as refused:
        await shop.compile(wanted)
    return refused.value


class Held:
    """An order that is being worked on until it is let go."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self.pipe = pipe
        self.order = order("hold", str(pipe))
        self._end: int | None = None

    async def begun(self) -> None:
        """Opening a pipe waits for the other side."""
        self._end = await asyncio.to_thread(os.open, self.pipe, os.O_WRONLY)

    def let_go(self) -> None:
        if self._end is not None:
            os.write(self._end, b"held")
            os.close(self._end)
            self._end = None


@asynccontextmanager
async def held(
    shop: CompilerPool, path: Path
) -> AsyncGenerator[asyncio.Task[CompiledGrammar], None]:
    """While this is open, one worker is busy."""
    hold = Held(path / "held")
    task = asyncio.create_task(shop.compile(hold.order))
    await hold.begun()
    try:
        yield task
    finally:
        hold.let_go()
    await asyncio.wait({task})


async def joined(shop: CompilerPool, count: int) -> None:
    """Until so many orders wait for a worker, or for a compile of the same order."""
    await wait_until(lambda: shop.stats.waiting + shop.stats.hits >= count)


# --- making and remembering


def test_a_grammar_is_made_once(loop: Loop) -> None:
    async def use(shop: CompilerPool) -> None:
        assert shop.pids == []  # nothing is started before it is needed
        first = await shop.compile(order("name", "a"))
        assert first == CompiledGrammar("start: 'a'", ("warning of 'a'",))
        assert await shop.compile(order("name", "a")) is first
        assert (await shop.compile(order("nothing"))).grammar is None
        stats = shop.stats
        assert (stats.entries, stats.hits, stats.misses, stats.restarts) == (2, 1, 2, 0)
        assert stats.bytes > 0
        assert (stats.working, stats.waiting) == (0, 0)

    run(use, loop)


@pytest.mark.parametrize(
    "value", [10**30, -(10**30), 1.5, "\U0001f600\x00", [None, True, {"": {}}], {"b": 1, "a": 2}]
)
def test_what_a_schema_holds_arrives_as_it_was(value: Any) -> None:
    async def use(shop: CompilerPool) -> None:
        assert (await shop.compile(order("name", value))).grammar == f"start: {value!r}"

    run(use)


def test_orders_of_tools_alone() -> None:
    async def use(shop: CompilerPool) -> None:
        tools = (Tool(name="f", parameters={"type": "object"}),)
        made = await shop.compile(
            GrammarSpec(tools=tools, tool_format="hermes_json", special_tokens={"<a>": 1})
        )
        assert made.grammar == "start: 'tools'"

    run(use)


def test_the_cache_is_bounded_by_number() -> None:
    async def use(shop: CompilerPool) -> None:
        for start in range(0, 3000, 200):
            wanted = [order("name", n) for n in range(start, start + 200)]
            made = await asyncio.gather(*map(shop.compile, wanted))
            assert [each.grammar for each in made] == [
                f"start: {n}" for n in range(start, start + 200)
            ]
        assert (shop.stats.entries, shop.stats.misses, shop.stats.restarts) == (50, 3000, 0)
        await shop.compile(order("name", 2999))
        assert shop.stats.hits == 1
        await shop.compile(order("name", 0))
        assert shop.stats.misses == 3001

    run(use, workers=2, cache_entries=50)


def test_a_hundred_thousand_entries_do_not_fill_the_cache() -> None:
    cache = GrammarCache(512, 1 << 20)
    one = bytes(32)
    cache.put(one, CompiledGrammar("kept"))
    most = 0
    for n in range(100_000):
        cache.put(n.to_bytes(32, "little") + b"x", CompiledGrammar(f"start: {n}"))
        assert cache.get(one) == CompiledGrammar("kept")  # what is used stays
        most = max(most, len(cache))
    assert most == len(cache) == 512


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_the_cache_is_bounded_by_bytes(letter: str) -> None:
    limit = 1 << 20
    cache = GrammarCache(10_000, limit)
    for n in range(1000):
        text = letter * (n * 20)
        kept = CompiledGrammar(text, (text,)) if n % 2 else SerializedError("BadRequest", text)
        cache.put(n.to_bytes(32, "little"), kept)
        assert cache.size <= limit
    assert cache.get((999).to_bytes(32, "little")) is not None
    assert cache.get((1).to_bytes(32, "little")) is None
    whole, count = cache.size, len(cache)
    cache.put(b"huge", CompiledGrammar("x" * (limit // 2)))
    assert (cache.size, len(cache)) == (whole, count)  # it pushed out nobody
    cache.put((999).to_bytes(32, "little"), CompiledGrammar("small"))
    assert cache.size < whole
    assert len(cache) == count


# --- waiting


def test_the_same_order_is_compiled_once(tmp_path: Path, loop: Loop) -> None:
    async def use(shop: CompilerPool) -> None:
        async with held(shop, tmp_path) as first:
            same = order("hold", str(tmp_path / "held"))
            others = [asyncio.create_task(shop.compile(same)) for _ in range(20)]
            await joined(shop, 20)
            others[3].cancel()
            first.cancel()  # who asked first may leave as well
            await asyncio.wait({first, others[3]})
        done = await asyncio.gather(*others, return_exceptions=True)
        assert isinstance(done.pop(3), asyncio.CancelledError)
        assert done == [CompiledGrammar("held")] * 19
        assert (shop.stats.misses, shop.stats.restarts) == (1, 0)

    run(use, loop)


def test_a_compile_that_all_have_left_is_still_remembered(tmp_path: Path) -> None:
    async def use(shop: CompilerPool) -> None:
        async with held(shop, tmp_path) as task:
            task.cancel()
            await asyncio.wait({task})
        same = order("hold", str(tmp_path / "held"))
        assert await shop.compile(same) == CompiledGrammar("held")
        assert (shop.stats.misses, shop.stats.working) == (1, 0)

    run(use)


def test_the_queue_is_bounded_and_who_leaves_it_makes_room(tmp_path: Path) -> None:
    async def use(shop: CompilerPool) -> None:
        shop.queue_limit = 2
        async with held(shop, tmp_path):
            waiting = [asyncio.create_task(shop.compile(order("name", n))) for n in range(2)]
            await joined(shop, 2)
            refused = await refusal(shop, order("name", "third"))
            assert isinstance(refused, Overloaded)
            assert refused.retry_after is not None
            waiting[0].cancel()
            await asyncio.wait({waiting[0]})
            assert shop.stats.waiting == 1
            again = asyncio.create_task(
                shop.compile(order("name", 0))
            )  # boards a flight of its own
            await joined(shop, 2)
        assert (await again).grammar == "start: 0"
        assert (await waiting[1]).grammar == "start: 1"
        assert (shop.stats.waiting, shop.stats.restarts) == (0, 0)

    run(use)


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    async def use(shop: CompilerPool) -> None:
        async with held(shop, tmp_path):
            shop.queue_timeout = 0.0
            assert isinstance(await refusal(shop, order("name", "a")), Overloaded)
            assert shop.stats.waiting == 0
            shop.queue_timeout = LONG
            later = asyncio.create_task(shop.compile(order("name", "a")))  # it is not remembered
            await joined(shop, 1)
        assert (await later).grammar == "start: 'a'"

    run(use)


def test_a_slow_order_holds_up_nobody_while_a_worker_is_free(tmp_path: Path, loop: Loop) -> None:
    async def use(shop: CompilerPool) -> None:
        async with held(shop, tmp_path) as slow:
            made = await asyncio.gather(*(shop.compile(order("name", n)) for n in range(100)))
            assert len(made) == 100
            assert not slow.done()
        assert await slow == CompiledGrammar("held")

    run(use, loop, workers=2)


# --- failing


def test_what_is_refused_is_remembered() -> None:
    async def use(shop: CompilerPool) -> None:
        first = await refusal(shop, order("refuse", "schema"))
        again = await refusal(shop, order("refuse", "schema"))
        for refused in (first, again):
            assert type(refused) is BadRequest
            assert refused.message == "No schema."
            assert refused.param == "response_format.schema"
            assert refused.code == "no_schema"
        assert first is not again  # each reader has a traceback of its own
        other = await refusal(shop, order("unsupported", "schema"))
        assert (other.code, other.param) == ("unsupported_parameter", None)
        assert (shop.stats.hits, shop.stats.misses, shop.stats.restarts) == (1, 2, 0)

    run(use)


TOO_COMPLEX = "constraint_too_complex"
FAILING = [
    # what is done, the code it is refused with, words of the message, whether the worker goes
    (("recurse", None), TOO_COMPLEX, "nested too deep", False),
    (("eat", 1 << 20), TOO_COMPLEX, "too large", True),
    (("eat", 1 << 40), TOO_COMPLEX, "too large", True),
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


@pytest.mark.parametrize(("does", "code", "says", "goes"), FAILING, ids=lambda value: str(value))
def test_failing_costs_one_order_and_is_remembered(
    does: tuple[str, Any], code: str | None, says: str, goes: bool, loop: Loop
) -> None:
    async def use(shop: CompilerPool) -> None:
        before = (await shop.compile(order("pid", "before"))).grammar
        for _ in range(2):
            refused = await refusal(shop, order(*does))
            assert type(refused) is BadRequest
            assert (refused.code, refused.param) == (code, "response_format")
            assert says in refused.message
            assert "internals" not in refused.message
        assert (shop.stats.hits, shop.stats.misses) == (1, 2)
        after = (await shop.compile(order("pid", "after"))).grammar
        assert (before != after) or not goes

    shop = run(use, loop, cpu_seconds=1.0, worker_memory=1 << 28)
    assert shop.stats.restarts <= goes


def test_what_tools_are_to_blame_for_is_blamed_on_tools() -> None:
    async def use(shop: CompilerPool) -> None:
        tools = (Tool(name="f"),)
        refused = await refusal(shop, GrammarSpec(tools=tools))
        assert (refused.code, refused.param) == (None, "tools")

    run(use, target="tests.support.compiler_targets:broken")


def test_a_process_killed_from_outside_says_nothing_about_the_order() -> None:
    async def use(shop: CompilerPool) -> None:
        for misses in (1, 2):
            assert (await refusal(shop, order("shot"))).code == TOO_COMPLEX
            assert (shop.stats.misses, shop.stats.entries) == (misses, 0)

    run(use)


def test_time_on_the_wall_is_limited_too(tmp_path: Path, loop: Loop) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody will ever open the other end

    async def use(shop: CompilerPool) -> None:
        hung = order("hold", str(tmp_path / "pipe"))
        refused = await refusal(shop, hung)
        assert refused.code == TOO_COMPLEX
        assert "took too long" in refused.message
        assert shop.stats.entries == 0  # it may have been the machine
        assert (await shop.compile(order("name", 1))).grammar == "start: 1"

    run(use, loop, cpu_seconds=SHORT)


def test_others_are_served_while_orders_overrun() -> None:
    async def use(shop: CompilerPool) -> None:
        await shop.warm_up()
        bad = [refusal(shop, order("spin", n)) for n in range(4)]
        good = [shop.compile(order("name", n)) for n in range(50)]
        refused, made = await asyncio.gather(asyncio.gather(*bad), asyncio.gather(*good))
        assert {error.code for error in refused} == {TOO_COMPLEX}
        assert [each.grammar for each in made] == [f"start: {n}" for n in range(50)]

    run(use, workers=2, cpu_seconds=SHORT)


def test_workers_are_replaced_over_and_over() -> None:
    async def use(shop: CompilerPool) -> None:
        for n in range(10):
            await refusal(shop, order("exit", n))
            assert await shop.compile(order("name", n))
        assert len(shop.pids) <= 2

    shop = run(use)
    assert 9 <= shop.stats.restarts <= 10


def test_a_worker_that_has_grown_too_large_is_replaced() -> None:
    async def use(shop: CompilerPool) -> None:
        for n in range(5):  # together these would not fit in one
            assert (await shop.compile(order("keep", (160 << 20) + n))).grammar == "kept"

    shop = run(use, worker_memory=1 << 28)
    assert shop.stats.restarts >= 4


def test_what_a_library_prints_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dragoman.grammar")

    async def use(shop: CompilerPool) -> None:
        assert (await shop.compile(order("chatter"))).grammar == "spoken"
        assert (await shop.compile(order("name", 1))).grammar == "start: 1"
        assert shop.stats.restarts == 0

    run(use)
    assert "printed" in caplog.text
    assert "complained" in caplog.text


@pytest.mark.parametrize(
    "target", ["tests.support.compiler_targets:missing", "no.such.module:compiled"]
)
def test_a_workshop_without_tools_says_so(target: str, caplog: pytest.LogCaptureFixture) -> None:
    async def use(shop: CompilerPool) -> None:
        for _ in range(2):
            refused = await asyncio.gather(*(refusal(shop, order("name", n)) for n in range(3)))
            assert [type(error) for error in refused] == [Unavailable] * 3
            assert {error.message for error in refused} == {
                "Constraints cannot be compiled at the moment."
            }
        assert (shop.stats.entries, shop.stats.restarts) == (0, 0)
        assert shop.pids == []

    run(use, target=target)
    assert "did not start" in caplog.text


def test_a_program_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def use(shop: CompilerPool) -> None:
        assert isinstance(await refusal(shop, order("name")), Unavailable)

    run(use)


# --- coming and going


def gone(pid: int) -> bool:
    """Wait for a process that is not our child to end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], LONG)[0])
    finally:
        os.close(handle)


def test_warming_starts_all_and_one_to_spare(loop: Loop) -> None:
    async def use(shop: CompilerPool) -> None:
        await shop.warm_up()
        pids = shop.pids
        assert len(pids) == 3
        assert int((await shop.compile(order("pid"))).grammar or 0) in pids
        assert set(shop.pids) == set(pids)

    run(use, loop, workers=2)


def test_idle_workers_that_died_are_replaced_when_needed() -> None:
    async def use(shop: CompilerPool) -> None:
        await shop.warm_up()
        for pid in shop.pids:
            os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not shop.pids)
        assert shop.stats.restarts == 2
        assert (await shop.compile(order("name", 1))).grammar == "start: 1"

    run(use)


def test_closing_ends_what_is_under_way(tmp_path: Path, loop: Loop) -> None:
    async def use(shop: CompilerPool) -> None:
        hold = Held(tmp_path / "held")
        working = asyncio.create_task(shop.compile(hold.order))
        await hold.begun()
        waiting = asyncio.create_task(shop.compile(order("name", 1)))
        await joined(shop, 1)
        pids = shop.pids
        await shop.aclose()
        for task in (working, waiting):
            with pytest.raises(Draining):
                await task
        assert not alive(pids)
        assert isinstance(await refusal(shop, order("name", 2)), Draining)
        assert (shop.stats.waiting, shop.stats.working, shop.stats.restarts) == (0, 0, 0)
        with pytest.raises(BrokenPipeError):
            hold.let_go()

    run(use, loop)


def test_closing_while_workers_start(loop: Loop) -> None:
    async def use(shop: CompilerPool) -> None:
        early = asyncio.create_task(shop.compile(order("name", 1)))
        await joined(shop, 1)
        await shop.aclose()
        with pytest.raises(Draining):
            await early

    run(use, loop, workers=2)


def test_closing_what_was_never_used() -> None:
    async def use(shop: CompilerPool) -> None:
        await shop.aclose()
        assert shop.pids == []

    run(use)


PARENT = """
import asyncio
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from tests.grammar.test_compiler_pool import order

async def main():
    shop = CompilerPool(workers=1, cpu_seconds={seconds}, target="tests.support.compiler_targets:compiled")
    await shop.warm_up()
    task = asyncio.create_task(shop.compile(order({do!r})))
    await asyncio.sleep(0)
    print(*shop.pids, flush=True)
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
    assert all(map(gone, pids))


def test_a_workshop_costs_nothing_until_it_is_used() -> None:
    code = (
        "import sys, dragoman.grammar.compiler.compiler_pool as w; shop = w.CompilerPool()\n"
        "assert 1 <= shop.workers <= 2 and not shop.pids\n"
        "print(sorted(m for m in sys.modules if m.startswith(('llguidance', 'dragoman.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "llguidance" not in done.stdout
    assert "'dragoman.grammar.compiler.compile'" not in done.stdout
