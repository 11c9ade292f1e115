"""A registry of fake models, and a stage to play scenarios on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.registry import Model, ModelPolicy, ModelRegistry, report_progress
from dragoman.prompt.renderer import PromptRenderer
from dragoman.types import Capabilities, Job, Step
from tests.support.model_files import put

LONG = 30.0  # a patience that no test should need


class Engine:
    """An engine that only notes whether it was closed, and closes when it is let."""

    def __init__(self, **can: Any) -> None:
        self.capabilities = Capabilities(**can)
        self.closed = 0
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def admit(self, job: Job) -> None: ...

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="x", finish="stop")

    async def aclose(self) -> None:
        await self.may_close.wait()
        self.closed += 1


class Loader:
    """Loads fakes, each when its gate is open, and counts."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.engines: dict[str, Engine] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}

    async def __call__(self, source: ModelSource) -> Model:
        self.loads.append(source.id)
        report_progress("half way", 0.5)
        if source.id in self.gates:
            await self.gates[source.id].wait()
        if source.id in self.errors:
            raise self.errors[source.id]
        engine = self.engines[source.id] = Engine(context=64, slots=3)
        return Model(
            id="anything",
            engine=engine,
            capabilities=engine.capabilities,
            renderer=PromptRenderer(None, None),
        )


def fill(root: Path) -> Path:
    """Three small models and a big one."""
    for name, size in (("a", 10), ("b", 10), ("c", 10), ("big", 1000)):
        put(root / f"{name}.gguf", size=size)
    return root


def size_of(root: Path, name: str) -> int:
    return (root / f"{name}.gguf").stat().st_size


Scenario = Callable[[ModelRegistry, Loader], Awaitable[None]]


def play(root: Path, scenario: Scenario, *, yaml: str = "", **policy: Any) -> None:
    """Run a scenario against a fresh registry, and close it."""
    (root / "models.yaml").write_text(yaml)

    async def run() -> None:
        loader = Loader()
        models = ModelRegistry(
            ModelCatalog(root, root / "models.yaml"), loader, ModelPolicy(**policy)
        )
        try:
            async with asyncio.timeout(LONG):
                await scenario(models, loader)
        finally:
            await models.aclose()
        assert [engine for engine in loader.engines.values() if not engine.closed] == []

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


def state(models: ModelRegistry, name: str) -> str:
    return models.get(name).state
