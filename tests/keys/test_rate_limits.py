"""Token buckets of owners: never below zero, never above the limit, exact at the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dragoman.errors import ExceedsLimit, Overloaded
from dragoman.keys import rate_limits
from dragoman.keys.rate_limits import RateLimiter, get_charge
from dragoman.types.limits import KeyLimits

ANN = "ann"


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(rate_limits, "now", clock)
    return clock


def make_limiter(**limits: Any) -> RateLimiter:
    return RateLimiter(lambda owner: KeyLimits(**limits))


def count_started(limiter: RateLimiter, owner: str = ANN) -> int:
    """Start requests until one is refused."""
    started = 0
    while True:
        try:
            with limiter.start_request(owner):
                started += 1
        except Overloaded:
            return started


def test_requests_per_minute_refill_evenly(clock: ManualClock) -> None:
    limiter = make_limiter(requests_per_minute=60)
    assert count_started(limiter) == 60
    assert count_started(limiter, "bob") == 60  # each owner has its own
    clock.seconds += 5
    assert count_started(limiter) == 5
    clock.seconds += 3600
    assert count_started(limiter) == 60


def test_a_refusal_says_when_to_try_again(clock: ManualClock) -> None:
    limiter = make_limiter(requests_per_minute=6)
    count_started(limiter)
    with pytest.raises(Overloaded) as refusal, limiter.start_request(ANN):
        pass
    assert refusal.value.retry_after == 10
    clock.seconds += 10
    assert count_started(limiter) == 1


def test_concurrent_requests_are_held_until_they_end() -> None:
    limiter = make_limiter(concurrent_requests=2)
    with limiter.start_request(ANN), limiter.start_request(ANN):
        assert limiter.get_usage(ANN).running == 2
        with pytest.raises(Overloaded, match="2 requests at the same time"):
            limiter.start_request(ANN).__enter__()
    assert limiter.get_usage(ANN).running == 0


def test_work_that_outlives_its_request_is_counted_once() -> None:
    limiter = make_limiter(concurrent_requests=1)
    with limiter.start_request(ANN):
        work = get_charge().share()
        work.__enter__()
        assert limiter.get_usage(ANN).running == 1
    assert limiter.get_usage(ANN).running == 1
    with pytest.raises(Overloaded), limiter.start_request(ANN):
        pass
    work.__exit__(None, None, None)
    assert limiter.get_usage(ANN).running == 0


def test_unused_tokens_go_back(clock: ManualClock) -> None:
    limiter = make_limiter(tokens_per_minute=1000)
    reservation = limiter.reserve_tokens(ANN, 100, 500)
    assert get_tokens(limiter) == 400
    reservation.settle(150)
    reservation.settle(150)  # twice is once
    assert get_tokens(limiter) == 850


def test_tokens_beyond_a_reservation_are_taken_from_the_next_minutes(clock: ManualClock) -> None:
    limiter = make_limiter(tokens_per_minute=1000)
    limiter.reserve_tokens(ANN, 100, 100).settle(4000)
    assert get_tokens(limiter) == 0
    with pytest.raises(Overloaded) as refusal:
        limiter.reserve_tokens(ANN, 100, 0)
    assert refusal.value.retry_after == 60 * 3.1
    clock.seconds += 180
    assert get_tokens(limiter) == 0
    clock.seconds += 30
    assert get_tokens(limiter) == 500


def test_answers_without_a_limit_are_estimated_for_each_choice(clock: ManualClock) -> None:
    limiter = make_limiter(tokens_per_minute=10_000)
    limiter.reserve_tokens(ANN, 100, None, choices=4)
    assert get_tokens(limiter) == 10_000 - 100 - 4 * 1024
    limiter.reserve_tokens(ANN, 0, 100, choices=4)  # of all choices together
    assert get_tokens(limiter) == 10_000 - 100 - 4 * 1024 - 100


@pytest.mark.parametrize("limits", [[1000, 500], [1000, 500, 100]])
def test_new_limits_do_not_cancel_what_was_used_beyond(
    clock: ManualClock, limits: list[int]
) -> None:
    current = {ANN: KeyLimits(tokens_per_minute=limits[0])}
    limiter = RateLimiter(lambda owner: current[owner])
    limiter.reserve_tokens(ANN, 100, 100).settle(4000)
    for limit in limits[1:]:
        current[ANN] = KeyLimits(tokens_per_minute=limit)
        assert get_tokens(limiter) == 0
    clock.seconds += 60
    assert get_tokens(limiter) == 0


def get_tokens(limiter: RateLimiter) -> int:
    status = limiter.get_status(ANN)
    assert status is not None
    assert status.tokens is not None
    return status.tokens.remaining


def test_a_request_that_cannot_fit_is_told_so(clock: ManualClock) -> None:
    limiter = make_limiter(tokens_per_minute=1000)
    with pytest.raises(ExceedsLimit, match="to 800 tokens"):
        limiter.reserve_tokens(ANN, 200, 900)
    with pytest.raises(ExceedsLimit, match="Shorten the prompt"):
        limiter.reserve_tokens(ANN, 2000, None)
    limiter.reserve_tokens(ANN, 900, None)  # an answer without a limit is estimated to fit
    with pytest.raises(Overloaded, match="0 are left"):
        limiter.reserve_tokens(ANN, 1, 0)
    limiter.reserve_tokens(ANN, 500, 500, already_admitted=True)


def test_new_limits_apply_at_once_and_what_was_used_stays_used(clock: ManualClock) -> None:
    limits = {ANN: KeyLimits(requests_per_minute=10)}
    limiter = RateLimiter(lambda owner: limits[owner])
    assert count_started(limiter) == 10
    limits[ANN] = KeyLimits(requests_per_minute=15)
    assert count_started(limiter) == 5
    limits[ANN] = KeyLimits(requests_per_minute=2)
    assert count_started(limiter) == 0
    limits[ANN] = KeyLimits()
    with limiter.start_request(ANN):
        pass


def test_without_an_owner_nothing_is_counted() -> None:
    limiter = make_limiter(requests_per_minute=1, tokens_per_minute=1, concurrent_requests=1)
    for _ in range(3):
        with limiter.start_request(""):
            limiter.reserve_tokens("", 100, 100).settle(200)
    assert limiter.get_status("") is None


@pytest.mark.parametrize("seed", range(20))
def test_a_bucket_stays_between_zero_and_its_limit(clock: ManualClock, seed: int) -> None:
    chance = random.Random(seed)
    limiter = make_limiter(tokens_per_minute=500)
    open_reservations: list[Any] = []
    actions: list[Callable[[], object]] = [
        lambda: open_reservations.append(
            limiter.reserve_tokens(ANN, chance.randrange(200), chance.choice([None, 0, 100, 299]))
        ),
        lambda: open_reservations.append(
            limiter.reserve_tokens(ANN, chance.randrange(900), 100, already_admitted=True)
        ),
        lambda: open_reservations and open_reservations.pop().settle(chance.randrange(600)),
        lambda: setattr(clock, "seconds", clock.seconds + chance.random() * 10),
    ]
    for _ in range(300):
        with suppress(Overloaded):
            chance.choice(actions)()
        assert 0 <= get_tokens(limiter) <= 500
    for reservation in open_reservations:
        reservation.settle(0)
    clock.seconds += 60 * 300  # more than was ever used beyond
    assert get_tokens(limiter) == 500


def test_many_owners_do_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_OWNERS", 10)
    limiter = make_limiter(concurrent_requests=1)
    for number in range(100):
        with limiter.start_request(f"owner {number}"):
            pass
    assert len(limiter._owners) <= 11
