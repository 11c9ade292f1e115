"""Any engine, in a process of its own.

`Isolated` is an engine whose work is done by a child process. It starts the child, hands jobs over
and steps back, and starts another child when one dies. So an engine that crashes, hangs or is
killed costs the jobs it was working on and nothing else: each of them fails at once with
`EngineDown`, and the next job waits for the new child.

A child that dies over and over is started again ever more slowly. One that does not answer a ping
within `heartbeat` seconds is killed: pings are answered by the child's event loop, so native work
may take as long as it likes. The very first start is different: if the engine cannot be made, that
is the model's fault, it is told as `ModelBroken`, and nothing is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from dragoman.engines.step_queue import StepQueue
from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.connection import ChildConnection, checked
from dragoman.errors import EngineDown, ModelBroken
from dragoman.types import Adapter, Capabilities, Job, Step

ROUNDS = 3  # pings in a heartbeat
State: TypeAlias = Literal["starting", "ready", "restarting", "stopped"]


class Timing(Struct, frozen=True, kw_only=True):
    """How long to wait for what, in seconds."""

    heartbeat: float = 30.0  # silence after which a child counts as hung
    load_timeout: float = 900.0  # for making the engine
    restart_wait: float = 5.0  # how long a job waits for an engine that is being restarted
    first_restart_delay: float = 0.1  # before a restart; doubled each time
    max_restart_delay: float = 30.0
    stable_after: float = 10.0  # a child that lived this long makes the next pause the first again
    stop_timeout: float = 5.0  # for a child that was asked to stop


class SubprocessEngine:
    """An engine behind a process boundary: `await start()`, then use it like any other."""

    def __init__(
        self, factory: str, settings: dict[str, Any], *, name: str, timing: Timing | None = None
    ) -> None:
        self.name = name
        self.state: State = "stopped"
        self.restarts = 0
        self.capabilities = Capabilities()
        self.on_state_change: list[Callable[[SubprocessEngine], None]] = []
        self._hello = messages.LoadEngine(factory, settings)
        self._timing = timing or Timing()
        self._log = logging.getLogger(f"dragoman.engine.{name}")
        self._connection: ChildConnection | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._retry_at = 0.0

    @property
    def pid(self) -> int | None:
        """The child's process id, while it is up."""
        return self._connection.process.pid if self._connection is not None and self._up.is_set() else None

    @property
    def last_lines(self) -> list[str]:
        """What the present child, or the one before it, printed last."""
        return [] if self._connection is None else list(self._connection.said)

    async def start(self) -> None:
        """Start the child and wait until its engine is made."""
        if self._keeper is not None:
            raise RuntimeError("the engine was started before")
        self._change("starting")
        try:
            line = await self._open()
        except BaseException:
            self._change("stopped")
            raise
        self._keeper = asyncio.create_task(self._keep(line))

    async def admit(self, job: Job) -> None:
        line = await self._wait()
        await line.ask(lambda number: messages.AdmitJob(number, job))

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        line = await self._wait()
        number, box = line.number(), StepQueue()
        line.queues[number] = box
        try:
            await line.send(messages.StartJob(number, job))
            while steps := await box.take():
                for step in steps:
                    yield step
        finally:
            del line.queues[number]
            if not box.ended:
                line.post(messages.CancelCall(number))

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        line = await self._wait()
        asked = list(inputs), list(adapters)
        answer = await line.ask(lambda number: messages.EmbedInputs(number, *asked))
        vectors: list[list[float]] = checked(answer, list[list[float]])
        return vectors

    async def tokenize(self, text: str, special: bool) -> list[int]:
        line = await self._wait()
        answer = await line.ask(lambda number: messages.TokenizeText(number, text, special))
        ids: list[int] = checked(answer, list[int])
        return ids

    async def aclose(self) -> None:
        """Stop the child: politely, then not."""
        keeper, self._keeper = self._keeper, None
        line = self._connection
        self._change("stopped")
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if line is not None:
            await self._stop(line)

    async def _stop(self, line: ChildConnection) -> None:
        line.post(messages.Shutdown())
        line.fail(EngineDown("The engine has been stopped."))
        ending = asyncio.ensure_future(line.finished())
        try:
            await asyncio.wait({ending}, timeout=self._timing.stop_timeout)
        finally:
            line.kill()
            await ending

    async def _open(self) -> ChildConnection:
        """A child that is ready, or the reason there is none."""
        line = self._connection = await ChildConnection.open(self._hello, self._log)
        try:
            async with asyncio.timeout(self._timing.load_timeout):
                ready = await line.ready()
        except BaseException as error:
            line.kill()
            await line.finished()
            for text in line.said:
                self._log.error("its last words: %s", text)
            if isinstance(error, TimeoutError):
                raise ModelBroken("The engine took too long to load the model.") from None
            raise
        line.on_down = self._lost
        self.capabilities = ready.capabilities
        self._change("ready")
        return line

    def _lost(self) -> None:
        if self.state == "ready":
            self._change("restarting")

    async def _keep(self, line: ChildConnection) -> None:
        """Watch the child, and replace it whenever it dies."""
        loop, pause = asyncio.get_running_loop(), self._timing.first_restart_delay
        while True:
            born = loop.time()
            await self._watch(line)
            self._report(line)
            if loop.time() - born >= self._timing.stable_after:
                pause = self._timing.first_restart_delay
            while True:
                self._retry_at = loop.time() + pause
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._timing.max_restart_delay)
                self.restarts += 1
                try:
                    line = await self._open()
                    break
                except Exception as error:
                    self._log.error("restart %d failed: %r", self.restarts, error)

    async def _watch(self, line: ChildConnection) -> None:
        """Until the child is gone; kill it if it hangs."""
        ending = asyncio.ensure_future(line.finished())
        missed = 0  # rounds in a row; by rounds, so that a pause of ours is not blamed on the child
        try:
            while not ending.done():
                heard = line.heard
                line.post(messages.Ping())
                await asyncio.wait({ending}, timeout=self._timing.heartbeat / ROUNDS)
                missed = missed + 1 if line.heard == heard else 0
                if missed >= ROUNDS:
                    self._log.error("the engine does not answer any more: it is killed")
                    line.kill()
            ending.result()
        finally:
            ending.cancel()

    def _report(self, line: ChildConnection) -> None:
        self._log.error("the engine's process ended with %s", line.process.returncode)
        for text in list(line.said)[-10:]:
            self._log.error("its last words: %s", text)

    async def _wait(self) -> ChildConnection:
        """The line to a child that is up, soon, or `EngineDown`."""
        if self.state == "restarting":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.restart_wait):
                    await self._up.wait()
        line = self._connection
        if self.state == "ready" and line is not None and line.down is None:
            return line
        if self.state == "stopped":
            raise EngineDown("The engine has been stopped.")
        left = self._retry_at - asyncio.get_running_loop().time()
        raise EngineDown("The engine is being restarted.", retry_after=max(1.0, round(left)))

    def _change(self, state: State) -> None:
        self.state = state
        if state == "ready":
            self._up.set()
        else:
            self._up.clear()
        for tell in self.on_state_change:
            tell(self)
