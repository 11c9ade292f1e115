"""A registry of fake models, and a runner for scenarios with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.model import Model, report_progress
from dragoman.models.registry import ModelPolicy, ModelRegistry
from dragoman.prompt.renderer import PromptRenderer
from dragoman.types import Capabilities, Job, Step
from tests.support.model_files import write_model_file

TIMEOUT = 30.0  # seconds, more than any test should need


class FakeEngine:
    """An engine that counts how often it is closed, and closes when a test allows it."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = Capabilities(**capabilities)
        self.closed = 0
        self.state = "ready"
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def admit(self, job: Job) -> None: ...

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="x", finish="stop")

    async def aclose(self) -> None:
        await self.may_close.wait()
        self.closed += 1


class FakeLoader:
    """Loads fake models, each when its gate is open, and counts the loads."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.engines: dict[str, FakeEngine] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}

    async def __call__(
        self, source: ModelSource, hang_timeout: float = 0.0, settings: object = None
    ) -> Model:
        self.loads.append(source.id)
        report_progress("half way", 0.5)
        if source.id in self.gates:
            await self.gates[source.id].wait()
        if source.id in self.errors:
            raise self.errors[source.id]
        engine = self.engines[source.id] = FakeEngine(context=64, slots=3)
        return Model(
            id="anything",
            engine=engine,
            capabilities=engine.capabilities,
            renderer=PromptRenderer(None, None),
        )


def write_models(root: Path) -> Path:
    """Write three small models and a big one."""
    for name, size in (("a", 10), ("b", 10), ("c", 10), ("big", 1000)):
        write_model_file(root / f"{name}.gguf", size=size)
    return root


def get_size(root: Path, name: str) -> int:
    return (root / f"{name}.gguf").stat().st_size


Scenario = Callable[[ModelRegistry, FakeLoader], Awaitable[None]]


def run_scenario(root: Path, scenario: Scenario, *, yaml: str = "", **policy: Any) -> None:
    """Run a scenario with a new registry, and close it."""
    (root / "models.yaml").write_text(yaml)

    async def run() -> None:
        loader = FakeLoader()
        models = ModelRegistry(
            ModelCatalog(root, root / "models.yaml"), loader, ModelPolicy(**policy)
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                await scenario(models, loader)
        finally:
            await models.aclose()
        assert [engine for engine in loader.engines.values() if not engine.closed] == []

    asyncio.run(run())


async def wait_until(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


def get_state(models: ModelRegistry, name: str) -> str:
    return models.get(name).state
