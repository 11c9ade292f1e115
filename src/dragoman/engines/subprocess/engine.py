"""Any engine, run in a child process.

`SubprocessEngine` starts the child, sends it jobs and receives steps, and starts another child when
one dies. So an engine that crashes, hangs or is killed fails the jobs it was working on and nothing
else: each of them fails at once with `EngineDown`, and the next job waits for the new child.

A child hangs if it has work and makes no progress (see `progress`), or if it has none and its event
loop answers no ping; it is killed. A child that dies repeatedly is restarted after ever longer
delays, and at most five times a minute. Requests that were running each time are refused, and so
are owners whose requests were (see `suspects`). The first start is different: an engine that cannot
be created is the model's fault, which `start` reports as `ModelBroken`, and nothing is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import msgspec

from dragoman.engines.plain_jobs import is_accepted
from dragoman.engines.step_queue import StepConsumer, StepQueue
from dragoman.engines.subprocess import messages
from dragoman.engines.subprocess.connection import ChildConnection
from dragoman.engines.subprocess.interpreter import Interpreter
from dragoman.engines.subprocess.progress import list_calls
from dragoman.engines.subprocess.restart_schedule import RestartSchedule, Timing
from dragoman.engines.subprocess.sleep import EngineSleep
from dragoman.engines.subprocess.suspects import CrashSuspects, DeathCause, TrialOutcome
from dragoman.errors import ENGINE_STOPPED, DragomanError, EngineDown, EngineFailed, ModelBroken
from dragoman.types import Adapter, Capabilities, Job, MediaItem, Step
from dragoman.types.cache_scope import get_cache_scope
from dragoman.types.loop_share import yield_after
from dragoman.types.media_ids import PromptCount
from dragoman.types.text_pair import TextPair

MAX_TICK = 1.0  # seconds between two checks of a child's progress
TICKS_PER_TIMEOUT = 10
REPORTED_LINES = 10  # of the engine's log, after a crash
EngineState: TypeAlias = Literal["starting", "ready", "restarting", "stopped"]
T = TypeVar("T")
EngineFailure: TypeAlias = Literal["died", "hung", "load_failed"]


class SubprocessEngine:
    """An engine in a child process: `await start()`, then use it like any other."""

    def __init__(
        self,
        factory: str,
        settings: Mapping[str, object],
        *,
        name: str,
        timing: Timing | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        self.name = name
        self.state: EngineState = "stopped"
        self.restarts_by_failure: Counter[EngineFailure] = Counter()
        self.failure: EngineFailure | None = None  # why it is being restarted
        self.capabilities = Capabilities()
        self.on_state_change: list[Callable[[SubprocessEngine], None]] = []
        self._load = messages.LoadEngine(factory, dict(settings))
        self._interpreter = interpreter or Interpreter()
        self._timing = timing or Timing()
        self._log = logging.getLogger(f"dragoman.engine.{name}")
        self._connection: ChildConnection | None = None
        self._is_up = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._schedule = RestartSchedule(self._timing)
        self._suspects = CrashSuspects()
        self._sleep = EngineSleep()

    @property
    def pid(self) -> int | None:
        """The child's process id, while it is up."""
        if self._connection is None or not self._is_up.is_set():
            return None
        return self._connection.process.pid

    @property
    def restarts(self) -> int:
        return self.restarts_by_failure.total()

    @property
    def statistics(self) -> dict[str, float]:
        """What the engine measures about itself, as it reported last."""
        return {} if self._connection is None else self._connection.statistics

    @property
    def last_lines(self) -> list[str]:
        """The last lines that the child printed; during a restart, those of the previous child."""
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
        async with self._suspects.try_call(job) as outcome:  # it may still crash when it generates
            connection = await self._get_connection(outcome)
            is_plain = is_accepted(job, self.capabilities)
            await yield_after(len(job.prompt))
            if not is_plain:
                await connection.call(lambda number: messages.AdmitJob(number, job), object)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        async with self._start_job(job) as queue:
            while steps := await queue.take():
                for step in steps:
                    yield step

    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        """Run a job like `generate`, and call a consumer with its steps where they arrive."""
        async with self._start_job(job) as queue:
            await queue.deliver(consumer)

    @contextlib.asynccontextmanager
    async def _start_job(self, job: Job) -> AsyncGenerator[StepQueue, None]:
        async with self._suspects.try_call(job) as outcome:
            connection = await self._get_connection(outcome)
            with connection.open_queue(job) as (number, queue):
                outcome.has_answered = partial(queue.has_changed, queue.get_state())
                await connection.send(messages.StartJob(number, job))
                yield queue
            outcome.is_harmless = True

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        message = messages.EmbedInputs(0, list(inputs), list(adapters))
        return await self._call(message, list[list[float]])

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        return await self._call(messages.ScorePairs(0, list(pairs)), list[float])

    async def tokenize(self, text: str, special: bool) -> list[int]:
        return await self._call(messages.TokenizeText(0, text, special), list[int])

    async def count_prompt(self, prompt: list[int], media: Sequence[MediaItem]) -> PromptCount:
        message = messages.CountPrompt(0, prompt, tuple(media), get_cache_scope())
        return await self._call(message, PromptCount)

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter into an engine that can; a restarted child has it, too."""
        connection = await self._get_connection()
        await connection.call(lambda number: messages.LoadAdapter(number, name, path), object)
        self._set_adapters(self._adapters | {name: path})

    async def unload_adapter(self, name: str) -> None:
        connection = await self._get_connection()
        await connection.call(lambda number: messages.UnloadAdapter(number, name), object)
        self._set_adapters({key: path for key, path in self._adapters.items() if key != name})

    async def sleep(self) -> None:
        """Free the memory of the engine's device; its next call wakes it."""
        connection = await self._get_connection()  # a restarted engine has another `_sleep`
        await self._sleep.sleep(connection)

    @property
    def _adapters(self) -> dict[str, object]:
        adapters = self._load.settings.get("lora")
        return dict(adapters) if isinstance(adapters, Mapping) else {}

    def _set_adapters(self, adapters: dict[str, object]) -> None:
        settings = self._load.settings | {"lora": adapters}
        self._load = msgspec.structs.replace(self._load, settings=settings)
        self.capabilities = msgspec.structs.replace(self.capabilities, lora=tuple(adapters))

    async def _call(self, message: messages.ContentCall, result_type: type[T]) -> T:
        async with self._suspects.try_call(message) as outcome:
            connection = await self._get_connection(outcome)
            result = await connection.call(
                lambda number: msgspec.structs.replace(message, number=number), result_type
            )
            outcome.is_harmless = True
            return result

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
        connection.close(EngineDown(ENGINE_STOPPED))
        exited = asyncio.ensure_future(connection.wait_exited())
        try:
            await asyncio.wait({exited}, timeout=self._timing.stop_timeout)
        finally:
            connection.process.kill()
            await exited

    async def _connect(self) -> ChildConnection:
        """Start a child and wait until it is ready, or raise why it is not."""
        connection = self._connection = await ChildConnection.open(
            self._load, self._interpreter, self._log, self._timing.hang_timeout
        )
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
        self._sleep = EngineSleep()
        connection.on_close = lambda: self._on_disconnect(connection)
        self.capabilities = ready.capabilities
        self._set_state("ready")
        return connection

    def _on_disconnect(self, connection: ChildConnection) -> None:
        if self.state == "ready":
            self.failure = self.failure or "died"
            self._schedule.plan(asyncio.get_running_loop().time())
            self._set_state("restarting")
            watch = connection.watch
            self._suspects.record_death(watch.involved_calls, watch.answered_owners)

    async def _supervise(self, connection: ChildConnection) -> None:
        """Watch the child, and replace it whenever it dies."""
        loop = asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            await self._watch(connection)
            self._report_exit(connection)
            self._suspects.count_death(self._find_cause(connection))
            self._schedule.reset_delay_after(loop.time() - started_at)
            while True:
                await self._wait_for_restart()
                self.restarts_by_failure[self.failure or "died"] += 1
                try:
                    connection = await self._connect()
                    break
                except Exception as error:
                    self.failure = "load_failed"
                    self._log.error("restart failed: %r", error)

    def _find_cause(self, connection: ChildConnection) -> DeathCause:
        if self.failure == "hung":
            return "hung"
        return "killed" if connection.process.returncode == -signal.SIGKILL else "crashed"

    async def _wait_for_restart(self) -> None:
        loop = asyncio.get_running_loop()
        self._schedule.plan(loop.time())
        wait = self._schedule.retry_at - loop.time()
        if wait > self._timing.max_restart_delay:
            self._log.error(
                "%d restarts within %g s; the next one is in %.0f s",
                self._timing.max_restarts,
                self._timing.restart_window,
                wait,
            )
        await asyncio.sleep(wait)
        self._schedule.add_restart(loop.time())

    async def _watch(self, connection: ChildConnection) -> None:
        """Return when the child has exited; kill it if it hangs."""
        loop, timeout = asyncio.get_running_loop(), self._timing.hang_timeout
        interval = min(MAX_TICK, timeout / TICKS_PER_TIMEOUT)
        exited = asyncio.ensure_future(connection.wait_exited())
        probes: set[asyncio.Task[None]] = set()
        silence = 0.0  # seconds without any data from a child that has no work
        try:
            while not exited.done():
                received, started_at = connection.process.read_count, loop.time()
                connection.post(messages.Ping())
                if connection.watch.start_probe():
                    probe = asyncio.create_task(_probe(connection))
                    probes.add(probe)
                    probe.add_done_callback(probes.discard)
                await asyncio.wait({exited}, timeout=interval)
                # if it took longer, this process itself was paused
                elapsed = min(loop.time() - started_at, 2 * interval)
                connection.watch.tick(elapsed)
                has_work = bool(connection.watch.calls)
                is_silent = connection.process.read_count == received and not has_work
                silence = silence + elapsed if is_silent else 0.0
                if connection.watch.is_hung() or silence >= timeout:
                    self._kill_hung(connection)
                self._fail_stuck_calls(connection)
            exited.result()
        finally:
            exited.cancel()
            for probe in probes:
                probe.cancel()

    def _kill_hung(self, connection: ChildConnection) -> None:
        if connection.error is not None:
            return
        watch, slots = connection.watch, self.capabilities.slots
        self._log.error(
            "the engine hangs: no progress for %.1f s; %d of %s slots busy with: %s. Restarting it",
            watch.idle,
            sum(call.kind == "generate" for call in watch.calls.values()),
            "unlimited" if slots is None else slots,
            list_calls(watch.involved_calls),
        )
        self.failure = "hung"
        connection.close(
            EngineDown(
                "The engine made no progress on this request and is being restarted.",
                retry_after=1,
            )
        )
        connection.process.kill()

    def _fail_stuck_calls(self, connection: ChildConnection) -> None:
        for call in connection.watch.find_stuck_calls():
            self._log.error("no progress for %.1f s: %s; failing it", call.idle, call.describe())
            connection.fail_call(
                call.number, EngineFailed("The engine made no progress on this request.")
            )

    def _report_exit(self, connection: ChildConnection) -> None:
        self._log.error("engine process exited with %s", connection.process.returncode)
        self._log_output(list(connection.process.last_lines)[-REPORTED_LINES:])

    def _log_output(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._log.error("engine log: %s", line)

    async def _get_connection(self, outcome: TrialOutcome | None = None) -> ChildConnection:
        """Return the connection to a ready child, or raise `EngineDown` after a short wait."""
        if self.state == "restarting":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.restart_wait):
                    await self._is_up.wait()
        if outcome is not None:
            outcome.check()  # while this waited, the last death may have been counted
        self._suspects.owners.check(get_cache_scope())
        connection = self._connection
        if self.state == "ready" and connection is not None and connection.error is None:
            await self._sleep.wake(connection)
            return connection
        if self.state == "stopped":
            raise EngineDown(ENGINE_STOPPED)
        raise EngineDown("The engine is being restarted.", retry_after=self.retry_after)

    @property
    def retry_after(self) -> float:
        """When the next restart may be over, in seconds from now."""
        return max(1.0, float(round(self._schedule.retry_at - asyncio.get_running_loop().time())))

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        if state == "ready":
            self.failure = None
            self._is_up.set()
        else:
            self._is_up.clear()
        for notify in self.on_state_change:
            notify(self)


async def _probe(connection: ChildConnection) -> None:
    """Probe the engine once. If `probe` itself fails, the engine is not probed again."""
    try:
        seconds = await connection.call(messages.ProbeEngine, float)
    except EngineDown:
        return
    except DragomanError:
        connection.watch.has_probe, seconds = False, 0.0
    connection.watch.end_probe(seconds)
