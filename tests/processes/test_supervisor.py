"""Child processes: their frames, their output, their exit and their own children."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable

import pytest

from dragoman.processes.supervisor import ChildProcess

log = logging.getLogger("dragoman.test_child")
PREAMBLE = """
import os, signal, subprocess, sys, time
from dragoman.processes.child import ignore_interrupts, limit_memory, open_parent_connection
from dragoman.processes.framing import encode_frame, read_frame
stream = open_parent_connection().makefile("rwb")
def send(body):
    stream.write(encode_frame(body))
    stream.flush()
"""


def run_child(
    code: str,
    use: Callable[[ChildProcess, list[bytes]], Awaitable[None]],
    frame_limit: int = 1000,
) -> ChildProcess:
    async def go() -> ChildProcess:
        frames: list[bytes] = []
        child = ChildProcess(log, frame_limit=frame_limit, on_frame=frames.append)
        await child.start([sys.executable, "-c", PREAMBLE + code])
        try:
            async with asyncio.timeout(30):
                await use(child, frames)
                await child.exited
        finally:
            child.kill()
            await child.exited
        return child

    return asyncio.run(go())


async def wait_exit(child: ChildProcess, frames: list[bytes]) -> None:
    await child.exited


def test_the_first_frame_says_ready_and_the_others_are_delivered() -> None:
    async def use(child: ChildProcess, frames: list[bytes]) -> None:
        assert await child.ready == b"ready"
        child.send(b"ping")
        await child.drain()
        await child.exited
        assert frames == [b"pong: ping", b"last"]
        assert child.read_count >= 2

    child = run_child(
        "send(b'ready'); send(b'pong: ' + read_frame(stream)); send(b'last'); os._exit(3)", use
    )
    assert child.returncode == 3


def test_a_child_that_ends_before_it_is_ready_is_never_ready() -> None:
    async def use(child: ChildProcess, frames: list[bytes]) -> None:
        assert await child.ready is None

    run_child("os._exit(0)", use)


def test_a_program_that_does_not_exist_has_exited() -> None:
    async def go() -> None:
        child = ChildProcess(log, frame_limit=1000, on_frame=lambda body: None)
        with pytest.raises(OSError):
            await child.start(["/no/such/program"])
        assert await child.ready is None
        await child.exited
        child.send(b"nobody reads this")
        assert child.pid is None

    asyncio.run(go())


def test_output_is_logged_line_by_line_and_the_end_of_it_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("DEBUG", logger=log.name):
        child = run_child(
            "print('out'); print('err', file=sys.stderr); print('no newline', end='')", wait_exit
        )
    messages = {record.getMessage() for record in caplog.records}
    assert set(child.last_lines) == {"out", "err", "no newline"} <= messages


def test_the_child_cannot_read_frames_from_its_standard_input() -> None:
    child = run_child("print(repr(sys.stdin.read()))", wait_exit)
    assert list(child.last_lines) == ["''"]


def test_a_frame_above_the_limit_kills_the_child() -> None:
    child = run_child("send(bytes(1001)); time.sleep(60)", wait_exit)
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_closes_its_connection_is_killed() -> None:
    child = run_child("stream.close(); os.closerange(3, 100); time.sleep(60)", wait_exit)
    assert child.returncode == -signal.SIGKILL


def test_killing_a_child_kills_the_processes_it_started() -> None:
    async def use(child: ChildProcess, frames: list[bytes]) -> None:
        body = await child.ready
        assert body is not None
        grandchild = os.pidfd_open(int(body))
        child.kill()
        await child.exited
        try:
            assert select.select([grandchild], [], [], 10)[0]
        finally:
            os.close(grandchild)

    code = "send(str(subprocess.Popen(['sleep', '60']).pid).encode()); time.sleep(60)"
    assert run_child(code, use).returncode == -signal.SIGKILL


def test_output_that_another_process_holds_open_is_not_waited_for() -> None:
    async def use(child: ChildProcess, frames: list[bytes]) -> None:
        body = await child.ready
        assert body is not None
        try:
            async with asyncio.timeout(10):
                await child.exited
        finally:
            os.kill(int(body), signal.SIGKILL)

    run_child("send(str(subprocess.Popen(['sleep', '60']).pid).encode()); os._exit(0)", use)


def test_the_terminal_s_interrupt_is_ignored() -> None:
    child = run_child(
        "ignore_interrupts(); os.kill(os.getpid(), signal.SIGINT); print('alive')", wait_exit
    )
    assert list(child.last_lines) == ["alive"]


def test_memory_is_limited() -> None:
    child = run_child(
        "limit_memory(512 << 20)\ntry:\n    bytes(1 << 30)\nexcept MemoryError:\n    print('full')",
        wait_exit,
    )
    assert list(child.last_lines) == ["full"]
