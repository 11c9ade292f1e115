"""An engine that sleeps while it is idle, in a child process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.types import Capabilities, Job, Step


class SleepyEngine:
    """Fails a job that it gets while it sleeps; answers with how often it slept."""

    capabilities = Capabilities(can_sleep=True)

    def __init__(self) -> None:
        self.is_asleep = False
        self.naps = 0

    async def admit(self, job: Job) -> None:
        assert not self.is_asleep

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        assert not self.is_asleep
        yield Step(text=str(self.naps), tokens=1, finish="stop")

    async def sleep(self) -> None:
        assert not self.is_asleep
        await asyncio.sleep(0.01)
        self.is_asleep = True
        self.naps += 1

    async def wake(self) -> None:
        assert self.is_asleep
        self.is_asleep = False


def create() -> SleepyEngine:
    return SleepyEngine()


async def count_naps(engine: SubprocessEngine) -> int:
    job = Job(id="j", prompt="Hi")
    await engine.admit(job)
    steps = [step async for step in engine.generate(job)]
    return int(steps[0].text or "")


def test_the_next_call_wakes_the_engine() -> None:
    async def run() -> list[int]:
        engine = SubprocessEngine(f"{__name__}:create", {}, name="sleepy")
        await engine.start()
        try:
            counts = [await count_naps(engine)]
            await engine.sleep()
            counts.append(await count_naps(engine))
            asleep = asyncio.create_task(engine.sleep())
            await asyncio.sleep(0)  # let it begin
            counts += await asyncio.gather(count_naps(engine), count_naps(engine))
            await asleep
            return counts
        finally:
            await engine.aclose()

    assert asyncio.run(run()) == [0, 1, 2, 2]
