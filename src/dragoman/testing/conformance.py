"""Checks that an engine meets the contract; use it for your own engine, too.

    results = asyncio.run(check_engine(MyEngine()))

Each check tests one thing that the pipeline relies on. All of them run, unless the engine fails a
basic one; then one `NotConformant` (an `AssertionError`) lists the failures. A check of something
that the engine does not claim to support is skipped, with the reason. The checks use only the
engine's own methods. The engine is closed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from dragoman.engines.adapter import adapt
from dragoman.testing.engine_checks import BASIC_CHECKS, CHECKS, Check
from dragoman.testing.subject import CheckSkipped, EngineUnderTest, JobFactory


class CheckResult(Struct, frozen=True):
    """The outcome of one check; `note` says why it failed or was skipped."""

    name: str
    about: str
    outcome: Literal["passed", "failed", "skipped"]
    note: str = ""


class NotConformant(AssertionError):
    """At least one check failed; `results` has all of them."""

    def __init__(self, results: Sequence[CheckResult]) -> None:
        self.results = list(results)
        failed = [result for result in results if result.outcome == "failed"]
        lines = [f"- {result.name}: {result.note}" for result in failed]
        super().__init__("\n".join(["The engine does not keep the contract:", *lines]))


async def check_engine(
    engine: object,
    *,
    make_job: JobFactory | None = None,
    step_timeout: float = 30.0,
    deterministic: bool = True,
) -> list[CheckResult]:
    """Run all checks over an engine; raise `NotConformant` if one fails.

    `engine` is anything that `dragoman.serve` takes.
    `make_job` turns a text into a job, for an engine that needs more than a prompt; it may be
    async. `step_timeout` is how many seconds a step may take. Pass `deterministic=False` for an
    engine whose greedy answers are not always the same.
    """
    try:
        adapted = adapt(engine)
    except TypeError as problem:
        about = "The object has the methods of an engine, and can do what it declares."
        raise NotConformant([CheckResult("is_an_engine", about, "failed", str(problem))]) from None
    subject = EngineUnderTest(adapted, make_job, step_timeout, deterministic)
    results: list[CheckResult] = []
    for check in CHECKS:
        result = await _run_check(check, subject)
        results.append(result)
        if result.outcome == "failed" and check in BASIC_CHECKS:
            break
    if any(result.outcome == "failed" for result in results):
        raise NotConformant(results)
    return results


async def _run_check(check: Check, subject: EngineUnderTest) -> CheckResult:
    name = check.__name__
    about = (check.__doc__ or "").partition("\n")[0]
    try:
        await check(subject)
    except CheckSkipped as reason:
        return CheckResult(name, about, "skipped", str(reason))
    except AssertionError as error:
        return CheckResult(name, about, "failed", str(error))
    except Exception as error:
        notes = getattr(error, "__notes__", [f"{type(error).__name__} was raised: {error}"])
        return CheckResult(name, about, "failed", "; ".join(notes))
    return CheckResult(name, about, "passed")
