"""A scripted engine that calls the readers of its steps.

An engine in a child process receives the steps of all its jobs in one message, and calls the
reader of each (see `engines.step_queue`). This engine does the same in one process: each tick of
its clock is one pass over all streams, and no stream has a task to wake.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.engines.step_queue import StepConsumer, StepQueue
from dragoman.testing.replies import Reply
from dragoman.testing.scripted import ScriptedEngine
from dragoman.types import Job


class DeliveringEngine(ScriptedEngine):
    """Plays a script like `ScriptedEngine`; replies with faults are yielded as there."""

    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        index, reply = self._select_reply(job)
        if reply.has_faults or self.is_closed:
            async for step in self.generate(job):
                wait = consumer.consume([step])
                if wait is not None:
                    await wait
                if consumer.is_complete:
                    return
            return
        queue = StepQueue()
        make_step = self._make_stepper(job, index, reply, queue)
        with self._run_job(job, reply, make_step):
            await queue.deliver(consumer)

    def _make_stepper(
        self, job: Job, index: int, reply: Reply, queue: StepQueue
    ) -> Callable[[], None]:
        """Return a function that puts the next step of every choice into a queue."""
        prepared = self._prepare_steps(job, index) if self._is_plain(job, reply) else None
        steps = iter(prepared or self._iter_steps(job, index, reply))

        def make_step() -> None:
            made = next(steps, None)
            if made is None:
                queue.end()
                return
            self._count_step()
            queue.put(made)

        return make_step
