"""Which owners are refused because their requests crash an engine again and again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman.engines.subprocess.crash_owners import (
    FIRST_PAUSE,
    MAX_PAUSE,
    REMEMBER_OWNER_SECONDS,
    CrashOwners,
)
from dragoman.errors import TooManyCrashes

POISONER, OTHER, THIRD = "a", "b", "c"
ALL = (POISONER, OTHER, THIRD)


class Engine:
    """Owners with a clock that tests move; everybody has used the engine."""

    def __init__(self, owners: Sequence[str] = ALL) -> None:
        self.now = 1000.0
        self.owners = CrashOwners(lambda: self.now)
        for owner in owners:
            self.owners.check(owner)

    def die(self, *owners: str, times: int = 1) -> None:
        for _ in range(times):
            self.owners.blame(owners)

    def stop(self, starters: str, answered: str) -> None:
        """Die for an unclear reason."""
        self.owners.blame_unclear([*starters], [*answered])

    def get_pause(self, owner: str) -> float:
        try:
            self.owners.check(owner)
        except TooManyCrashes as error:
            return error.retry_after or 0.0
        return 0.0

    def list_paused(self) -> list[str]:
        return [owner for owner in ALL if self.get_pause(owner)]


A, B, C = ALL


@pytest.mark.parametrize(
    ("deaths", "paused"),
    [
        pytest.param([{A}, {A}], [], id="two deaths may be one request"),
        pytest.param([{A}, {A}, {A}], [A], id="alone each time"),
        pytest.param([{A, B}, {A, C}, {A}], [A], id="others beside it, each once"),
        pytest.param([{A, B}, {A, B}, {A, B}, {A, B}], [], id="two that cannot be told apart"),
        pytest.param([{A, B}, {A, B}, {A, C}], [A], id="told apart in the end"),
        pytest.param([{A}, {B}, {A}, {B}, {A}], [A], id="another one in between"),
        pytest.param([{A, B}, {B, C}, {A, C}], [], id="nobody was there each time"),
        pytest.param([{A, B}, {C, B}, {A, B}], [B], id="beside two who take turns"),
        pytest.param([{A, B}, {C, B}, {A, B}, {C}], [], id="cleared by a death without it"),
        pytest.param([{A}, {A}, {A}, {C}], [A], id="not cleared, since it was alone"),
        pytest.param([{"", A}, {"", A}, {"", A}], [], id="beside calls without an owner"),
        pytest.param([{""}, {""}, {""}], [], id="without keys"),
        pytest.param([set(), set(), set()], [], id="died idle"),
    ],
)
def test_who_is_paused(deaths: list[set[str]], paused: list[str]) -> None:
    engine = Engine()
    for owners in deaths:
        engine.die(*owners)
    assert engine.list_paused() == paused


def test_pauses_double_and_end() -> None:
    engine = Engine()
    engine.die(POISONER, times=2)
    for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        engine.die(POISONER)
        assert engine.get_pause(POISONER) == pause
        engine.now += pause
        assert not engine.get_pause(POISONER)
    engine.die(POISONER, times=50)
    assert engine.get_pause(POISONER) == MAX_PAUSE
    engine.now += REMEMBER_OWNER_SECONDS + 1
    engine.die(POISONER, times=2)
    assert not engine.get_pause(POISONER), "it starts again"


def test_an_owner_that_is_alone_on_the_engine_is_not_paused() -> None:
    engine = Engine([POISONER])
    engine.die(POISONER, times=5)
    assert not engine.get_pause(POISONER)
    engine.owners.check(OTHER)
    assert engine.get_pause(POISONER)


# the owners of requests without a token, and those that the dead process had answered
@pytest.mark.parametrize(
    ("deaths", "paused"),
    [
        pytest.param([("a", "b")] * 2, [], id="two deaths may be one request"),
        pytest.param([("a", "b")] * 3, [A], id="only others are answered"),
        pytest.param([("a", "b"), ("a", ""), ("a", "")], [A], id="others were answered once"),
        pytest.param([("a", "")] * 5, [], id="nobody is answered"),
        pytest.param([("a", "ab")] * 5, [], id="it is answered, too, so it merely was there"),
        pytest.param([("ab", "ab")] * 5, [], id="all are busy"),
        pytest.param([("abc", "c")] * 5, [], id="two that cannot be told apart"),
        pytest.param([("ab", "c"), ("ac", "b"), ("a", "bc")], [A], id="told apart in the end"),
        pytest.param([("a", "b"), ("a", "b"), ("a", "ab"), ("a", "b")], [], id="answered between"),
        pytest.param([("", "ab")] * 5, [], id="nothing was starting"),
        pytest.param([("b", "")] * 2 + [("a", "b")] * 2, [], id="another one in between"),
    ],
)
def test_who_is_paused_after_deaths_of_unclear_cause(
    deaths: list[tuple[str, str]], paused: list[str]
) -> None:
    engine = Engine()
    for starters, answered in deaths:
        engine.stop(starters, answered)
    assert engine.list_paused() == paused


def test_deaths_of_unclear_cause_do_not_clear_an_owner_that_crashes_the_engine() -> None:
    engine = Engine()
    for _ in range(3):
        engine.die(POISONER)
        engine.stop(THIRD, POISONER + OTHER)
    assert engine.list_paused() == [POISONER, THIRD]
