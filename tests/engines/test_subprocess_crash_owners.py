"""Which owners are refused because their requests crash an engine again and again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman.engines.subprocess.crash_owners import (
    FIRST_PAUSE,
    FIRST_TURN,
    MAX_PAUSE,
    REMEMBER_OWNER_SECONDS,
    SEPARATE_SECONDS,
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
            self.owners.note_restart()

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


def test_candidates_take_turns_from_the_second_death_on() -> None:
    engine = Engine()
    engine.die(POISONER, OTHER)
    assert [engine.owners.compute_wait(owner) for owner in ALL] == [0, 0, 0]
    engine.die(POISONER, OTHER)
    turns = []
    for _ in range(4):
        waits = {owner: engine.owners.compute_wait(owner) for owner in ALL}
        turns.append([owner for owner in ALL if not waits[owner]])
        assert set(waits.values()) == {0.0, FIRST_TURN}
        engine.now += FIRST_TURN
    assert turns[0] != turns[1]
    assert turns[:2] == turns[2:]
    assert all(THIRD in owners and len(owners) == 2 for owners in turns)
    engine.now += SEPARATE_SECONDS
    assert [engine.owners.compute_wait(owner) for owner in ALL] == [0, 0, 0]


@pytest.mark.parametrize("count", [2, 3, 8, 33])
def test_the_one_of_many_who_crashes_it_is_found(count: int) -> None:
    """Everybody starts requests whenever it may; one of them crashes the engine at once."""
    names = [f"{number:02}" for number in range(count)]
    for poisoner in (names[0], names[-1]):
        engine = Engine(names)
        deaths = 0
        while not engine.get_pause(poisoner):
            running = {name for name in names if not engine.owners.compute_wait(name)}
            if poisoner in running:
                engine.die(*running)
                deaths += 1
            else:
                engine.now += engine.owners.compute_wait(poisoner)
            assert not any(engine.get_pause(name) for name in names if name != poisoner)
        assert deaths <= 2 + count.bit_length()
