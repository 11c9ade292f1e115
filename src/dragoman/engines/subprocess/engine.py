"""Any engine, run in a child process.

`SubprocessEngine` starts the child, sends it jobs and receives steps, and starts another child when
one dies. So an engine that crashes, hangs or is killed fails the jobs it was working on and nothing
else: each of them fails at once with `EngineDown`, and the next job waits for the new child.

A child that dies repeatedly is restarted after ever longer delays. One that does not answer a ping
within `heartbeat` seconds is killed; pings are answered by the child's event loop, so native work
may take as long as it likes. The first start is different: an engine that cannot be created is the
model's fault, which `start` reports as `ModelBroken`, and nothing is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.engines.step_queue import StepQueue
from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.connection import ChildConnection
from dragoman.errors import EngineDown, ModelBroken
from dragoman.types import Adapter, Capabilities, Job, Step

PINGS_PER_HEARTBEAT = 3
REPORTED_LINES = 10  # of the engine's log, after a crash
EngineState: TypeAlias = Literal["starting", "ready", "restarting", "stopped"]


class Timing(Struct, frozen=True, kw_only=True):
    """Time limits and delays, in seconds."""

    heartbeat: float = 30.0  # silence after which a child counts as hung
    load_timeout: float = 900.0
    restart_wait: float = 5.0  # how long a job waits for an engine that is being restarted
    first_restart_delay: float = 0.1  # doubled each time
    max_restart_delay: float = 30.0
    stable_after: float = 10.0  # a child that lived this long resets the delay
    stop_timeout: float = 5.0  # for a child to stop by itself


class SubprocessEngine:
    """An engine in a child process: `await start()`, then use it like any other."""

    def __init__(
        self,
        factory: str,
        settings: Mapping[str, object],
        *,
        name: str,
        timing: Timing | None = None,
    ) -> None:
        self.name = name
        self.state: EngineState = "stopped"
        self.restarts = 0
        self.capabilities = Capabilities()
        self.on_state_change: list[Callable[[SubprocessEngine], None]] = []
        self._load = messages.LoadEngine(factory, dict(settings))
        self._timing = timing or Timing()
        self._log = logging.getLogger(f"dragoman.engine.{name}")
        self._connection: ChildConnection | None = None
        self._is_up = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._retry_at = 0.0

    @property
    def pid(self) -> int | None:
        """The child's process id, while it is up."""
        if self._connection is None or not self._is_up.is_set():
            return None
        return self._connection.process.pid

    @property
    def last_lines(self) -> list[str]:
        """The last lines that the present child, or the one before it, printed."""
        return [] if self._connection is None else list(self._connection.process.last_lines)

    async def start(self) -> None:
        """Start the child and wait until its engine is created."""
        if self._supervisor is not None:
            raise RuntimeError("the engine is already started")
        self._set_state("starting")
        try:
            connection = await self._connect()
        except BaseException:
            self._set_state("stopped")
            raise
        self._supervisor = asyncio.create_task(self._supervise(connection))

    async def admit(self, job: Job) -> None:
        connection = await self._get_connection()
        await connection.call(lambda number: messages.AdmitJob(number, job), object)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        connection = await self._get_connection()
        number, queue = connection.next_number(), StepQueue()
        connection.queues[number] = queue
        try:
            await connection.send(messages.StartJob(number, job))
            while steps := await queue.take():
                for step in steps:
                    yield step
        finally:
            del connection.queues[number]
            if not queue.ended:
                connection.post(messages.CancelCall(number))

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        connection = await self._get_connection()
        arguments = list(inputs), list(adapters)
        return await connection.call(
            lambda number: messages.EmbedInputs(number, *arguments), list[list[float]]
        )

    async def tokenize(self, text: str, special: bool) -> list[int]:
        connection = await self._get_connection()
        return await connection.call(
            lambda number: messages.TokenizeText(number, text, special), list[int]
        )

    async def aclose(self) -> None:
        """Ask the child to stop, and kill it if it does not."""
        supervisor, self._supervisor = self._supervisor, None
        connection = self._connection
        self._set_state("stopped")
        if supervisor is not None:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervisor
        if connection is not None:
            await self._stop(connection)

    async def _stop(self, connection: ChildConnection) -> None:
        connection.post(messages.Shutdown())
        connection.close(EngineDown("The engine has been stopped."))
        exited = asyncio.ensure_future(connection.wait_exited())
        try:
            await asyncio.wait({exited}, timeout=self._timing.stop_timeout)
        finally:
            connection.process.kill()
            await exited

    async def _connect(self) -> ChildConnection:
        """Start a child and wait until it is ready, or raise why it is not."""
        connection = self._connection = await ChildConnection.open(self._load, self._log)
        try:
            async with asyncio.timeout(self._timing.load_timeout):
                ready = await connection.wait_ready()
        except BaseException as error:
            connection.process.kill()
            await connection.wait_exited()
            self._log_output(connection.process.last_lines)
            if isinstance(error, TimeoutError):
                raise ModelBroken("The engine took too long to load the model.") from None
            raise
        connection.on_close = self._note_disconnect
        self.capabilities = ready.capabilities
        self._set_state("ready")
        return connection

    def _note_disconnect(self) -> None:
        if self.state == "ready":
            self._set_state("restarting")

    async def _supervise(self, connection: ChildConnection) -> None:
        """Watch the child, and replace it whenever it dies."""
        loop, delay = asyncio.get_running_loop(), self._timing.first_restart_delay
        while True:
            started_at = loop.time()
            await self._watch(connection)
            self._report_exit(connection)
            if loop.time() - started_at >= self._timing.stable_after:
                delay = self._timing.first_restart_delay
            while True:
                self._retry_at = loop.time() + delay
                await asyncio.sleep(delay)
                delay = min(delay * 2, self._timing.max_restart_delay)
                self.restarts += 1
                try:
                    connection = await self._connect()
                    break
                except Exception as error:
                    self._log.error("restart %d failed: %r", self.restarts, error)

    async def _watch(self, connection: ChildConnection) -> None:
        """Return when the child has exited; kill it if it hangs."""
        exited = asyncio.ensure_future(connection.wait_exited())
        missed = 0  # pings in a row; one missed ping may be due to a pause of this process
        try:
            while not exited.done():
                received = connection.process.read_count
                connection.post(messages.Ping())
                await asyncio.wait({exited}, timeout=self._timing.heartbeat / PINGS_PER_HEARTBEAT)
                missed = missed + 1 if connection.process.read_count == received else 0
                if missed >= PINGS_PER_HEARTBEAT:
                    self._log.error("the engine does not respond; killing it")
                    connection.process.kill()
            exited.result()
        finally:
            exited.cancel()

    def _report_exit(self, connection: ChildConnection) -> None:
        self._log.error("engine process exited with %s", connection.process.returncode)
        self._log_output(list(connection.process.last_lines)[-REPORTED_LINES:])

    def _log_output(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._log.error("engine log: %s", line)

    async def _get_connection(self) -> ChildConnection:
        """Return the connection to a ready child, or raise `EngineDown` after a short wait."""
        if self.state == "restarting":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.restart_wait):
                    await self._is_up.wait()
        connection = self._connection
        if self.state == "ready" and connection is not None and connection.error is None:
            return connection
        if self.state == "stopped":
            raise EngineDown("The engine has been stopped.")
        remaining = self._retry_at - asyncio.get_running_loop().time()
        raise EngineDown("The engine is being restarted.", retry_after=max(1.0, round(remaining)))

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        if state == "ready":
            self._is_up.set()
        else:
            self._is_up.clear()
        for notify in self.on_state_change:
            notify(self)
