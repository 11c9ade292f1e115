"""Engines in a child process: their answers, their crashes, and processes left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.errors import (
    ContextOverflow,
    EngineDown,
    EngineFailed,
    ModelBroken,
    Unsupported,
)
from dragoman.testing import check_engine
from dragoman.types import Job
from dragoman.types.cache_scope import restore_cache_scope
from tests.support.faulty_engines import PRINTED_LINE

pytestmark = pytest.mark.slow

T = TypeVar("T")
SCRIPTED = "dragoman.testing.scripted:create"
FAULTY = "tests.support.faulty_engines"
FAST = Timing(first_restart_delay=0.01, stop_timeout=5.0)


def make_engine(script: Any = "Hello there, this is a test.", **settings: Any) -> SubprocessEngine:
    timing = settings.pop("timing", FAST)
    return SubprocessEngine(SCRIPTED, {"script": script, **settings}, name="test", timing=timing)


def make_faulty_engine(name: str) -> SubprocessEngine:
    return SubprocessEngine(f"{FAULTY}:{name}", {}, name=name, timing=FAST)


def run_with(engine: SubprocessEngine, use: Callable[[SubprocessEngine], Awaitable[T]]) -> T:
    async def go() -> T:
        await engine.start()
        try:
            async with asyncio.timeout(30):
                return await use(engine)
        finally:
            await engine.aclose()

    return asyncio.run(go())


async def generate_text(engine: SubprocessEngine, **fields: Any) -> str:
    job = Job(id="job", prompt="hi", **fields)
    return "".join([step.text or "" async for step in engine.generate(job)])


def test_it_keeps_the_contract_of_an_engine() -> None:
    async def go() -> None:
        engine = make_engine(tokens=True, context=200, lora=["a"])
        await engine.start()
        results = await check_engine(engine)
        assert [result.name for result in results if result.outcome == "failed"] == []

    asyncio.run(go())


def test_answers_come_from_the_engine_in_the_child() -> None:
    assert run_with(make_engine(), generate_text) == "Hello there, this is a test."


def test_capabilities_come_from_the_child() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert engine.capabilities.context == 77
        assert engine.state == "ready"
        assert engine.pid != os.getpid()

    run_with(make_engine(context=77), use)


def test_calls_return_results_and_errors() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert await engine.tokenize("a b", False)
        assert [len(vector) for vector in await engine.embed(["a", "b"])] == [16, 16]
        with pytest.raises(ContextOverflow):
            await engine.admit(Job(id="long", prompt="x " * 500))

    run_with(make_engine(context=77), use)


def test_a_method_that_the_engine_lacks_is_unsupported() -> None:
    async def use(engine: SubprocessEngine) -> None:
        with pytest.raises(Unsupported):
            await engine.tokenize("a", False)

    run_with(make_faulty_engine("create_minimal"), use)


def test_the_cache_scope_reaches_the_child() -> None:
    async def use(engine: SubprocessEngine) -> None:
        for scope in ("ann", "", "robert"):
            restore_cache_scope(scope)
            assert (await engine.count_prompt([1], [])).tokens == len(scope)
            await engine.admit(Job(id="a", prompt="hi", cache_scope=scope))
            assert await generate_text(engine, cache_scope=scope) == scope

    run_with(make_faulty_engine("create_scope_reader"), use)


def test_closing_a_job_closes_it_in_the_child() -> None:
    async def use(engine: SubprocessEngine) -> None:
        for _ in range(50):
            async with aclosing(engine.generate(Job(id="a", prompt="hi"))) as steps:
                await anext(steps)
        connection = engine._connection
        assert connection is not None
        assert connection.queues == {}
        assert await engine.tokenize("running", False) == [0]

    run_with(make_faulty_engine("create_counting"), use)


def test_a_slow_reader_slows_no_other_job() -> None:
    async def use(engine: SubprocessEngine) -> None:
        async with aclosing(engine.generate(Job(id="slow", prompt="hi"))) as slow:
            first = (await anext(slow)).text or ""
            for _ in range(3):
                assert await generate_text(engine) == "x" * 2000
            rest = [step.text or "" async for step in slow]
        assert first + "".join(rest) == "x" * 2000
        assert len(rest) < 500

    run_with(make_engine("x" * 2000), use)


@pytest.mark.parametrize("fatal_signal", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_crash_fails_the_running_jobs_and_nothing_else(fatal_signal: signal.Signals) -> None:
    async def use(engine: SubprocessEngine) -> None:
        started = [asyncio.Event() for _ in range(16)]

        async def run_job(event: asyncio.Event) -> None:
            async for _ in engine.generate(Job(id="a", prompt="hi")):
                event.set()

        jobs = [asyncio.create_task(run_job(event)) for event in started]
        await asyncio.gather(*(event.wait() for event in started))
        first = engine.pid
        assert first is not None
        os.kill(first, fatal_signal)
        async with asyncio.timeout(1):
            errors = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(error) for error in errors] == [EngineDown] * 16
        assert {str(error) for error in errors} == {
            "The engine stopped unexpectedly while it worked on this request. "
            "It is being restarted."
        }
        await engine.admit(Job(id="b", prompt="hi"))
        assert engine.state == "ready"
        assert engine.pid not in (None, first)
        assert engine.restarts == 1

    run_with(make_engine("x" * 5000, pace=0.01), use)


def test_state_changes_are_reported() -> None:
    states: list[str] = []

    async def use(engine: SubprocessEngine) -> None:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDown):
            await generate_text(engine)
        await engine.admit(Job(id="b", prompt="hi"))

    engine = make_engine(pace=None)
    engine.on_state_change.append(lambda engine: states.append(engine.state))
    run_with(engine, use)
    assert states == ["starting", "ready", "restarting", "ready", "stopped"]


def test_while_it_restarts_jobs_fail_with_a_retry_time() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert engine.pid is not None
        retry_times = []
        engine.on_state_change.append(lambda changed: retry_times.append(changed.retry_after))
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDown):
            await generate_text(engine)
        assert retry_times == [30]  # from the moment on at which it is gone
        with pytest.raises(EngineDown) as failed:
            await engine.admit(Job(id="b", prompt="hi"))
        assert failed.value.retry_after is not None
        assert 20 <= failed.value.retry_after <= 30

    slow = Timing(first_restart_delay=30.0, restart_wait=0.01)
    run_with(make_engine(pace=None, timing=slow), use)


def test_a_hung_child_is_replaced() -> None:
    async def use(engine: SubprocessEngine) -> None:
        restarted = asyncio.Event()
        engine.on_state_change.append(
            lambda engine: restarted.set() if engine.state == "ready" else None
        )
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await restarted.wait()
        assert engine.pid != first
        assert await generate_text(engine)

    impatient = Timing(hang_timeout=0.3, first_restart_delay=0.01)
    run_with(make_engine(timing=impatient), use)


def test_a_failed_restart_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    async def use(engine: SubprocessEngine) -> None:
        flag.touch()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDown):
            await generate_text(engine)
        while engine.restarts < 2:
            with pytest.raises(EngineDown):
                await engine.admit(Job(id="b", prompt="hi"))
        flag.unlink()
        while engine.state != "ready":
            try:
                await engine.admit(Job(id="b", prompt="hi"))
            except EngineDown:
                continue

    timing = Timing(first_restart_delay=0.01, restart_wait=0.05, max_restarts=1000)
    settings = {"flag": str(flag)}
    run_with(
        SubprocessEngine(f"{FAULTY}:create_unless", settings, name="f", timing=timing),
        use,
    )


@pytest.mark.parametrize(
    ("factory", "settings", "message"),
    [
        (f"{FAULTY}:raise_model_broken", {}, "The file holds no model."),
        (f"{FAULTY}:raise_exception", {}, "The engine could not be started."),
        (
            f"{FAULTY}:raise_missing_library",
            {},
            "The engine needs the system library libgomp.so.1, which is not installed. "
            "On Debian and Ubuntu: apt install libgomp1.",
        ),
        (f"{FAULTY}:abort_process", {}, "The engine stopped while it loaded the model."),
        (
            "no.such.module:create",
            {},
            "There is no module `no`, which the engine `no.such.module:create` needs.",
        ),
        ("json:missing", {}, "The module `json` has no function `missing`."),
        (SCRIPTED, {"nosuch": 1}, "The engine could not be started."),
    ],
)
def test_an_engine_that_cannot_be_created_is_not_restarted(
    factory: str, settings: dict[str, Any], message: str
) -> None:
    async def go() -> None:
        engine = SubprocessEngine(factory, settings, name="broken", timing=FAST)
        with pytest.raises(ModelBroken) as failed:
            await engine.start()
        assert failed.value.message == message
        assert engine.state == "stopped"
        assert engine.restarts == 0
        await engine.aclose()

    asyncio.run(go())


def test_an_exception_fails_one_job_only() -> None:
    async def use(engine: SubprocessEngine) -> None:
        pid = engine.pid
        with pytest.raises(EngineFailed) as failed:
            await generate_text(engine)
        assert failed.value.message == "The engine failed while processing this request."
        assert await engine.embed(["a"]) == [[1.0]]
        assert engine.pid == pid

    run_with(make_faulty_engine("create_raising"), use)


def wait_for_exit(pid: int, timeout: float = 10.0) -> bool:
    """Wait for a process that is not our child; return whether it has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def test_the_child_has_exited_after_closing() -> None:
    async def use(engine: SubprocessEngine) -> int:
        assert engine.pid is not None
        return engine.pid

    pid = run_with(make_engine(), use)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_no_process_is_left_when_its_start_is_cancelled(turns: int) -> None:
    """At any turn of the event loop: while it is created, connected, or loads the engine."""

    async def go() -> None:
        before = list_children()
        start = asyncio.create_task(make_engine().start())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert list_children() <= before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(go())


def list_children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_closing_kills_a_child_that_does_not_stop() -> None:
    async def go() -> int:
        timing = Timing(stop_timeout=0.05)
        engine = SubprocessEngine(f"{FAULTY}:create_unclosable", {}, name="s", timing=timing)
        await engine.start()
        pid = engine.pid
        await engine.aclose()
        with pytest.raises(EngineDown):
            await engine.admit(Job(id="a", prompt="hi"))
        assert pid is not None
        return pid

    assert not Path(f"/proc/{asyncio.run(go())}").exists()


PARENT = """
import asyncio, sys
from dragoman.engines.subprocess.engine import SubprocessEngine

async def main():
    engine = SubprocessEngine("dragoman.testing.scripted:create", {"pace": None}, name="orphan")
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_child_does_not_outlive_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent:
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.kill()
    assert wait_for_exit(child)


def list_sockets(pid: int) -> set[str]:
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    return inodes


def test_the_child_inherits_no_sockets() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert engine.pid is not None
        inode = str(os.fstat(listener.fileno()).st_ino)
        assert inode in list_sockets(os.getpid())
        assert inode not in list_sockets(engine.pid)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        run_with(make_engine(), use)


def test_the_output_of_the_child_is_logged_and_stored(caplog: pytest.LogCaptureFixture) -> None:
    async def use(engine: SubprocessEngine) -> None:
        await engine.embed(["a"])
        while PRINTED_LINE not in engine.last_lines:
            await engine.embed(["a"])

    with caplog.at_level("DEBUG", logger="dragoman.engine.create_printing"):
        run_with(make_faulty_engine("create_printing"), use)
    assert PRINTED_LINE in [record.getMessage() for record in caplog.records]
