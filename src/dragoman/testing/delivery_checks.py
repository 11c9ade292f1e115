"""Checks that an engine which delivers steps delivers those that it yields."""

from __future__ import annotations

from dragoman.testing.subject import CheckSkipped, EngineUnderTest, get_output
from dragoman.types import Step


class StepCollector:
    """A reader that collects the steps that an engine delivers."""

    def __init__(self, choices: int) -> None:
        self.steps: list[Step] = []
        self._unfinished = choices

    @property
    def is_complete(self) -> bool:
        return self._unfinished <= 0

    def consume(self, steps: list[Step]) -> None:
        self.steps += steps
        self._unfinished -= sum(step.finish is not None for step in steps)


async def delivers_what_it_yields(subject: EngineUnderTest) -> None:
    """`deliver_steps`, if there is one, delivers the steps that `generate` yields."""
    deliver = getattr(subject.engine, "deliver_steps", None)
    if deliver is None:
        raise CheckSkipped("the engine has no `deliver_steps`")
    if not subject.deterministic:
        raise CheckSkipped("the engine is not deterministic")
    for n in (1, 2):
        expected = await subject.collect(await subject.make_job(n=n))
        collector = StepCollector(n)
        job = await subject.make_job(n=n)
        await subject.wait(deliver(job, collector), "`deliver_steps` did not return")
        for choice in range(n):
            outputs = [get_output(steps, choice) for steps in (expected, collector.steps)]
            assert outputs[0] == outputs[1], f"delivered {outputs[1]!r}, yielded {outputs[0]!r}"
