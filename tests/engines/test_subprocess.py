"""Engines in a process of their own: what they say, how they die, who is left behind."""

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

from dragoman.engines.subprocess.engine import SubprocessEngine, Timing
from dragoman.errors import (
    ContextOverflow,
    EngineDown,
    EngineFailed,
    ModelBroken,
    Unsupported,
)
from dragoman.testing import check_engine
from dragoman.types import Job

T = TypeVar("T")
SCRIPTED = "dragoman.testing.scripted:create"
QUICK = Timing(first_restart_delay=0.01, stop_timeout=5.0)


def isolated(script: Any = "Hello there, this is a test.", **said: Any) -> SubprocessEngine:
    timing = said.pop("timing", QUICK)
    return SubprocessEngine(SCRIPTED, {"script": script, **said}, name="test", timing=timing)


def with_engine(engine: SubprocessEngine, use: Callable[[SubprocessEngine], Awaitable[T]]) -> T:
    async def go() -> T:
        await engine.start()
        try:
            async with asyncio.timeout(30):
                return await use(engine)
        finally:
            await engine.aclose()

    return asyncio.run(go())


async def text_of(engine: SubprocessEngine, **said: Any) -> str:
    job = Job(id="job", prompt="hi", **said)
    return "".join([step.text or "" async for step in engine.generate(job)])


def test_it_keeps_the_contract_of_an_engine() -> None:
    async def go() -> None:
        engine = isolated(tokens=True, context=200, lora=["a"])
        await engine.start()
        results = await check_engine(engine)
        assert [r.name for r in results if r.outcome == "broken"] == []

    asyncio.run(go())


def test_it_says_what_the_engine_says() -> None:
    assert with_engine(isolated(), text_of) == "Hello there, this is a test."


def test_capabilities_come_from_the_child() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert engine.capabilities.context == 77
        assert engine.state == "ready"
        assert engine.pid != os.getpid()

    with_engine(isolated(context=77), use)


def test_calls_are_answered_and_refused() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert await engine.tokenize("a b", False)
        assert [len(vector) for vector in await engine.embed(["a", "b"])] == [16, 16]
        with pytest.raises(ContextOverflow):
            await engine.admit(Job(id="long", prompt="x " * 500))

    with_engine(isolated(context=77), use)


def test_an_engine_without_a_method_says_so() -> None:
    async def use(engine: SubprocessEngine) -> None:
        with pytest.raises(Unsupported):
            await engine.tokenize("a", False)

    bare = SubprocessEngine("tests.support.odd_engines:create", {}, name="bare", timing=QUICK)
    with_engine(bare, use)


def test_d1_closing_a_job_closes_it_over_there() -> None:
    async def use(engine: SubprocessEngine) -> None:
        for _ in range(50):
            async with aclosing(engine.generate(Job(id="a", prompt="hi"))) as steps:
                await anext(steps)
        line = engine._connection
        assert line is not None
        assert line.queues == {}
        assert await engine.tokenize("open", False) == [0]

    endless = SubprocessEngine("tests.support.odd_engines:counting", {}, name="count", timing=QUICK)
    with_engine(endless, use)


def test_d2_a_slow_reader_slows_nobody() -> None:
    async def use(engine: SubprocessEngine) -> None:
        async with aclosing(engine.generate(Job(id="slow", prompt="hi"))) as slow:
            first = (await anext(slow)).text or ""
            for _ in range(3):
                assert await text_of(engine) == "x" * 2000
            rest = [step.text or "" async for step in slow]
        assert first + "".join(rest) == "x" * 2000
        assert len(rest) < 500

    with_engine(isolated("x" * 2000), use)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_fails_all_that_is_in_flight_and_nothing_else(death: signal.Signals) -> None:
    async def use(engine: SubprocessEngine) -> None:
        started = [asyncio.Event() for _ in range(16)]

        async def one(event: asyncio.Event) -> None:
            async for _ in engine.generate(Job(id="a", prompt="hi")):
                event.set()

        jobs = [asyncio.create_task(one(event)) for event in started]
        await asyncio.gather(*(event.wait() for event in started))
        first = engine.pid
        assert first is not None
        os.kill(first, death)
        async with asyncio.timeout(1):
            ended = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(error) for error in ended] == [EngineDown] * 16
        assert {str(error) for error in ended} == {
            "The engine stopped unexpectedly while it worked on this request. "
            "It is being restarted."
        }
        await engine.admit(Job(id="b", prompt="hi"))
        assert engine.state == "ready"
        assert engine.pid not in (None, first)
        assert engine.restarts == 1

    with_engine(isolated("x" * 5000, pace=0.01), use)


def test_changes_are_told() -> None:
    told: list[str] = []

    async def use(engine: SubprocessEngine) -> None:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDown):
            await text_of(engine)
        await engine.admit(Job(id="b", prompt="hi"))

    engine = isolated(pace=None)
    engine.on_state_change.append(lambda each: told.append(each.state))
    with_engine(engine, use)
    assert told == ["starting", "ready", "restarting", "ready", "stopped"]


def test_while_it_is_down_jobs_are_told_when_to_come_back() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDown):
            await text_of(engine)
        with pytest.raises(EngineDown) as refused:
            await engine.admit(Job(id="b", prompt="hi"))
        assert refused.value.retry_after is not None
        assert 20 <= refused.value.retry_after <= 30

    slow = Timing(first_restart_delay=30.0, restart_wait=0.01)
    with_engine(isolated(pace=None, timing=slow), use)


def test_a_hung_child_is_replaced() -> None:
    async def use(engine: SubprocessEngine) -> None:
        back = asyncio.Event()
        engine.on_state_change.append(lambda each: back.set() if each.state == "ready" else None)
        first = engine.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await back.wait()
        assert engine.pid != first
        assert await text_of(engine)

    hasty = Timing(heartbeat=0.3, first_restart_delay=0.01)
    with_engine(isolated(timing=hasty), use)


def test_a_restart_that_fails_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "broken"

    async def use(engine: SubprocessEngine) -> None:
        flag.touch()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDown):
            await text_of(engine)
        while engine.restarts < 2:
            with pytest.raises(EngineDown):
                await engine.admit(Job(id="b", prompt="hi"))
        flag.unlink()
        while engine.state != "ready":
            try:
                await engine.admit(Job(id="b", prompt="hi"))
            except EngineDown:
                continue

    timing = Timing(first_restart_delay=0.01, restart_wait=0.05)
    settings = {"flag": str(flag)}
    with_engine(
        SubprocessEngine("tests.support.odd_engines:fragile", settings, name="f", timing=timing),
        use,
    )


@pytest.mark.parametrize(
    ("factory", "said", "cause"),
    [
        ("tests.support.odd_engines:broken", {}, "The file holds no model."),
        ("tests.support.odd_engines:nonsense", {}, "The engine could not be started."),
        ("tests.support.odd_engines:dies", {}, "The engine stopped while it loaded the model."),
        ("no.such.module:create", {}, "The engine could not be started."),
        (SCRIPTED, {"nosuch": 1}, "The engine could not be started."),
    ],
)
def test_d70_an_engine_that_cannot_be_made_is_not_tried_again(
    factory: str, said: dict[str, Any], cause: str
) -> None:
    async def go() -> None:
        engine = SubprocessEngine(factory, said, name="broken", timing=QUICK)
        with pytest.raises(ModelBroken) as refused:
            await engine.start()
        assert refused.value.message == cause
        assert engine.state == "stopped"
        assert engine.restarts == 0
        await engine.aclose()

    asyncio.run(go())


def test_d73_an_exception_fails_one_job_only() -> None:
    async def use(engine: SubprocessEngine) -> None:
        pid = engine.pid
        with pytest.raises(EngineFailed) as failed:
            await text_of(engine)
        assert failed.value.message == "The engine failed during this request."
        assert await engine.embed(["a"]) == [[1.0]]
        assert engine.pid == pid

    with_engine(
        SubprocessEngine("tests.support.odd_engines:raising", {}, name="r", timing=QUICK), use
    )


def gone(pid: int, within: float = 10.0) -> bool:
    """Wait for a process that is not our child to end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)


def test_the_child_is_gone_after_closing() -> None:
    async def use(engine: SubprocessEngine) -> int:
        assert engine.pid is not None
        return engine.pid

    pid = with_engine(isolated(), use)
    assert not Path(f"/proc/{pid}").exists()


def test_closing_ends_a_child_that_does_not_want_to() -> None:
    async def go() -> int:
        stubborn = Timing(stop_timeout=0.05)
        engine = SubprocessEngine(
            "tests.support.odd_engines:stubborn", {}, name="s", timing=stubborn
        )
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
    assert gone(child)


def sockets(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def test_the_child_inherits_no_socket_of_ours() -> None:
    async def use(engine: SubprocessEngine) -> None:
        assert engine.pid is not None
        inode = str(os.fstat(listener.fileno()).st_ino)
        assert inode in sockets(os.getpid())
        assert inode not in sockets(engine.pid)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        with_engine(isolated(), use)


def test_what_the_child_prints_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def use(engine: SubprocessEngine) -> None:
        await engine.embed(["a"])
        while "said on standard error" not in engine.last_lines:
            await engine.embed(["a"])

    with caplog.at_level("DEBUG", logger="dragoman.engine.talker"):
        engine = SubprocessEngine(
            "tests.support.odd_engines:talking", {}, name="talker", timing=QUICK
        )
        with_engine(engine, use)
    assert "said on standard error" in [record.getMessage() for record in caplog.records]
