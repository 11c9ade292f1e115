"""An engine process that died leaves no objects behind, without a garbage collection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal

import pytest

from dragoman.engines.subprocess.connection import ChildConnection
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.errors import Unsupported
from dragoman.types import Job
from tests.support.serving import poll_until

pytestmark = pytest.mark.slow

FACTORY = "tests.support.faulty_engines:create_minimal"


def list_connections() -> list[ChildConnection]:
    """List the live connections to processes; cyclic garbage is alive, too."""
    return [thing for thing in gc.get_objects() if isinstance(thing, ChildConnection)]


async def kill_repeatedly(engine: SubprocessEngine) -> None:
    await engine.start()
    for _ in range(3):
        await engine.admit(Job(id="a", prompt="hi"))
        with contextlib.suppress(Unsupported):  # the engine has no such method
            await engine.tokenize("a", False)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await asyncio.to_thread(poll_until, lambda: engine.state != "ready")
    await engine.aclose()


def test_a_process_that_died_leaves_no_objects_behind() -> None:
    engine = SubprocessEngine(FACTORY, {}, name="test", timing=Timing(first_restart_delay=0.01))
    gc.collect()
    gc.disable()
    try:
        asyncio.run(kill_repeatedly(engine))
        poll_until(lambda: len(list_connections()) <= 1)
        assert len(list_connections()) <= 1  # the last one is the engine's own
    finally:
        gc.enable()
