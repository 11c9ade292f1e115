"""What every engine must keep to, as a function anybody can run over theirs.

    results = asyncio.run(check_engine(MyEngine()))

Each check asks for one thing the pipeline builds on. All of them are run, unless the engine cannot
be asked at all, and then one `NotConformant` (an `AssertionError`) tells what was not kept. A check
of something the engine does not claim to do is skipped, and says so. The checks ask only through
the engine's own methods. The engine is closed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from dragoman.testing.engine_checks import BASIC_CHECKS, CHECKS, Check
from dragoman.testing.subject import CheckSkipped, EngineUnderTest, MakeJob
from dragoman.types import Engine


class CheckResult(Struct, frozen=True):
    """How one check came out."""

    name: str
    about: str
    outcome: Literal["kept", "broken", "skipped"]
    note: str = ""


class NotConformant(AssertionError):
    """At least one check failed; `results` has all of them."""

    def __init__(self, results: Sequence[CheckResult]) -> None:
        self.results = list(results)
        broken = [result for result in results if result.outcome == "broken"]
        lines = [f"- {result.name}: {result.note}" for result in broken]
        super().__init__("\n".join(["The engine does not keep to the contract:", *lines]))


async def check_engine(
    engine: Engine,
    *,
    make_job: MakeJob | None = None,
    patience: float = 30.0,
    deterministic: bool = True,
) -> list[CheckResult]:
    """Run all checks over an engine; `NotConformant` if it breaks one.

    `make_job` turns a text into a job, for an engine that wants more than a prompt; it may be
    async. `patience` is how many seconds a step may take. An engine whose greedy answers are not
    always the same says so with `deterministic=False`.
    """
    subject = EngineUnderTest(engine, make_job, patience, deterministic)
    results: list[CheckResult] = []
    for check in CHECKS:
        result = await _run(check, subject)
        results.append(result)
        if result.outcome == "broken" and check in BASIC_CHECKS:
            break
    if any(result.outcome == "broken" for result in results):
        raise NotConformant(results)
    return results


async def _run(check: Check, subject: EngineUnderTest) -> CheckResult:
    name = check.__name__
    about = (check.__doc__ or "").partition("\n")[0]
    try:
        await check(subject)
    except CheckSkipped as reason:
        return CheckResult(name, about, "skipped", str(reason))
    except AssertionError as error:
        return CheckResult(name, about, "broken", str(error))
    except Exception as error:
        return CheckResult(name, about, "broken", f"{type(error).__name__} was raised: {error}")
    return CheckResult(name, about, "kept")
