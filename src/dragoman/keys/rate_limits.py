"""Limits per owner: requests and tokens per minute, and requests at the same time.

Requests and tokens have a token bucket each, which holds what one minute allows and fills up
evenly. A request takes one request and a place among the concurrent ones when it begins. When its
prompt is known, it reserves the tokens of the prompt and of the answers it may get; at its end, the
tokens that it did not use go back. Tokens that it used beyond its reservation, because nobody has
limited its answers, are taken from the next minutes: the owner waits until the bucket has made up
for them. Otherwise requests without a limit of tokens would be as good as free.

A `Charge` is what one request holds. A background response that outlives its request shares the
charge of that request, so it is counted once, and what belongs to the charge is released once, when
both have ended. Everything runs on one event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

from dragoman.errors import ExceedsLimit, Overloaded
from dragoman.types.limits import (
    FindLimits,
    KeyLimits,
    RateLimit,
    RateLimitStatus,
    find_no_limits,
)

MINUTE = 60.0
DEFAULT_ANSWER = 1024  # tokens reserved for an answer whose length the client does not limit
CONCURRENCY_RETRY = 1.0  # seconds
MAX_OWNERS = 10_000  # whose counts are held; idle ones are forgotten first
now = time.monotonic


class RateBucket:
    """What is left of a limit per minute."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._level = float(limit)  # below zero by what was used beyond reservations
        self._updated = now()

    def resize(self, limit: int) -> None:
        """Change the limit; what was used stays used."""
        if limit != self.limit:
            level = self._refill()
            self._level = max(min(0.0, level), limit - (self.limit - level))
            self.limit = limit

    @property
    def remaining(self) -> float:
        return max(0.0, self._refill())

    def _refill(self) -> float:
        moment = now()
        refilled = (moment - self._updated) * self.limit / MINUTE
        self._updated = moment
        self._level = min(float(self.limit), self._level + refilled)
        return self._level

    def take(self, amount: float) -> float:
        """Take this much, or all that is left; return how much that was."""
        taken = min(amount, self.remaining)
        self._level -= taken
        return taken

    def overdraw(self, amount: float) -> None:
        """Take this much, whether it is left or not."""
        self._level = self._refill() - amount

    def refund(self, amount: float) -> None:
        self._level = min(float(self.limit), self._refill() + amount)

    def compute_wait(self, amount: float) -> float:
        """Return how long it takes until this much is left."""
        return max(0.0, amount - self._refill()) * MINUTE / self.limit

    def get_status(self) -> RateLimit:
        return RateLimit(self.limit, math.floor(self.remaining), self.compute_wait(self.limit))


class OwnerUsage:
    """What one owner uses now."""

    def __init__(self) -> None:
        self.requests: RateBucket | None = None
        self.tokens: RateBucket | None = None
        self.running = 0  # requests
        self.total_requests = 0
        self.total_refusals = 0  # because of a limit
        self.total_tokens = 0

    def apply(self, limits: KeyLimits) -> None:
        """Use these limits from now on."""
        self.requests = _resize(self.requests, limits.requests_per_minute)
        self.tokens = _resize(self.tokens, limits.tokens_per_minute)

    @contextmanager
    def count_refusals(self) -> Iterator[None]:
        try:
            yield
        except Overloaded:
            self.total_refusals += 1
            raise

    @property
    def is_idle(self) -> bool:
        buckets = (self.requests, self.tokens)
        return not self.running and all(
            bucket is None or bucket.remaining >= bucket.limit for bucket in buckets
        )


def _resize(bucket: RateBucket | None, limit: int | None) -> RateBucket | None:
    if limit is None:
        return None
    if bucket is None:
        return RateBucket(limit)
    bucket.resize(limit)
    return bucket


class Charge:
    """What one request holds of its owner's limits: a place among the concurrent requests."""

    def __init__(self, usage: OwnerUsage | None) -> None:
        self.on_release: list[Callable[[], None]] = []  # called once nobody holds it any more
        self._usage = usage
        self._holders = 1
        if usage is not None:
            usage.running += 1

    @contextmanager
    def share(self) -> Iterator[None]:
        """Hold the charge for work that may outlive the request."""
        if self._holders == 0 and self._usage is not None:
            self._usage.running += 1
        self._holders += 1
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        self._holders -= 1
        if self._holders:
            return
        if self._usage is not None:
            self._usage.running -= 1
        while self.on_release:
            self.on_release.pop()()


class TokenReservation:
    """Tokens that a request has reserved. It is settled once."""

    def __init__(self, usage: OwnerUsage | None = None, tokens: float = 0) -> None:
        self._usage = usage
        self._tokens = tokens

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Use all tokens, or none if the work has failed."""
        self.settle(0 if kind is not None else math.ceil(self._tokens))

    def settle(self, used: int) -> None:
        """Give back the tokens that were not used, or take those that were used beyond."""
        usage, self._usage = self._usage, None
        if usage is None:
            return
        usage.total_tokens += used
        bucket = usage.tokens
        if bucket is None:
            return
        if used <= self._tokens:
            bucket.refund(self._tokens - used)
        else:
            bucket.overdraw(used - self._tokens)


NO_CHARGE = Charge(None)
NO_RESERVATION = TokenReservation()
_current_charge: ContextVar[Charge] = ContextVar("dragoman_charge", default=NO_CHARGE)


def get_charge() -> Charge:
    """Return what the current request holds."""
    return _current_charge.get()


def release_with_charge(release: Callable[[], None]) -> bool:
    """Call a function when the current charge is released; False if there is none."""
    charge = get_charge()
    if charge is NO_CHARGE:
        return False
    charge.on_release.append(release)
    return True


class RunningRequest:
    """A request that is counted: inside its block, its charge is the current one."""

    __slots__ = ("_charge", "_token")

    def __init__(self, charge: Charge) -> None:
        self._charge = charge

    def __enter__(self) -> None:
        self._token = _current_charge.set(self._charge)

    def __exit__(self, *_: object) -> None:
        _current_charge.reset(self._token)
        self._charge.release()

    def cancel(self) -> None:
        """Release the charge of a request whose block is never entered."""
        self._charge.release()


class RateLimiter:
    """Counts what owners use, and refuses what exceeds their limits."""

    def __init__(self, find_limits: FindLimits = find_no_limits) -> None:
        self._find_limits = find_limits
        self._owners: dict[str, OwnerUsage] = {}

    def find_limits(self, owner: str) -> KeyLimits:
        return self._find_limits(owner)

    def start_request(self, owner: str, *, is_concurrent: bool = True) -> RunningRequest:
        """Count a request, or raise `Overloaded`.

        If it `is_concurrent`, it counts as one of the concurrent requests until the block of
        the returned context manager ends.
        """
        return RunningRequest(self._charge(owner, is_concurrent))

    def _charge(self, owner: str, is_concurrent: bool) -> Charge:
        limits = self._find_limits(owner)
        usage = self._get_usage(owner, limits)
        if usage is None:
            return Charge(None)
        with usage.count_refusals():
            self._check_requests(usage, limits.concurrent_requests if is_concurrent else None)
        usage.total_requests += 1
        return Charge(usage if is_concurrent else None)

    @staticmethod
    def _check_requests(usage: OwnerUsage, allowed: int | None) -> None:
        if allowed is not None and usage.running >= allowed:
            noun = "request" if allowed == 1 else "requests"
            raise Overloaded(
                f"This API key may have {allowed} {noun} at the same time. "
                "Wait until one has finished.",
                retry_after=CONCURRENCY_RETRY,
            )
        if usage.requests is not None:
            if usage.requests.remaining < 1:
                raise Overloaded(
                    f"This API key has reached its limit of {usage.requests.limit:,} requests "
                    "per minute.",
                    retry_after=_round_up(usage.requests.compute_wait(1)),
                )
            usage.requests.take(1)

    def reserve_tokens(
        self,
        owner: str,
        prompt: int,
        answer: int | None,
        *,
        choices: int = 1,
        already_admitted: bool = False,
    ) -> TokenReservation:
        """Reserve the tokens of the prompts of a request and its answers, or raise `Overloaded`.

        `answer` is None where nobody limits it; then it is estimated for each of the `choices`. A
        request that was `already_admitted` continues an answer and is not rejected.
        """
        usage = self._get_usage(owner, self._find_limits(owner))
        if usage is None or usage.tokens is None:
            return TokenReservation(usage)
        bucket = usage.tokens
        if answer is None:
            answer = min(choices * DEFAULT_ANSWER, max(0, bucket.limit - prompt))
        if not already_admitted:
            with usage.count_refusals():
                _check_tokens(bucket, prompt, prompt + answer)
        return TokenReservation(usage, bucket.take(prompt + answer))

    def get_status(self, owner: str) -> RateLimitStatus | None:
        """Return what is left for an owner; None without limits per minute."""
        usage = self._get_usage(owner, self._find_limits(owner))
        if usage is None or (usage.requests is None and usage.tokens is None):
            return None
        return RateLimitStatus(
            requests=usage.requests.get_status() if usage.requests else None,
            tokens=usage.tokens.get_status() if usage.tokens else None,
        )

    def get_usage(self, owner: str) -> OwnerUsage:
        """Return what an owner has used; nothing if it is unknown."""
        return self._owners.get(owner) or OwnerUsage()

    def drop_owners(self, owners: Iterable[str]) -> None:
        """Drop what owners have used, unless they still have running requests."""
        for owner in owners:
            usage = self._owners.get(owner)
            if usage is not None and not usage.running:
                del self._owners[owner]

    def _get_usage(self, owner: str, limits: KeyLimits) -> OwnerUsage | None:
        """Return the usage of an owner under its current limits; without keys there is none."""
        if not owner:
            return None
        usage = self._owners.get(owner)
        if usage is None:
            if len(self._owners) >= MAX_OWNERS:
                self.drop_owners([name for name, other in self._owners.items() if other.is_idle])
            usage = self._owners[owner] = OwnerUsage()
        usage.apply(limits)
        return usage


def _check_tokens(bucket: RateBucket, prompt: int, tokens: int) -> None:
    if tokens > bucket.limit:
        rest = bucket.limit - prompt
        advice = "Shorten the prompt"
        if rest > 0:
            advice = f"Limit its answers to {rest:,} tokens in all"
        raise ExceedsLimit(
            f"This request may use {tokens:,} tokens, and the limit of this API key is "
            f"{bucket.limit:,} tokens per minute. {advice}.",
            retry_after=MINUTE,
        )
    if bucket.remaining < tokens:
        raise Overloaded(
            f"This API key has reached its limit of {bucket.limit:,} tokens per minute: "
            f"{math.floor(bucket.remaining):,} are left, and this request may use {tokens:,}.",
            retry_after=_round_up(bucket.compute_wait(tokens)),
        )


def _round_up(seconds: float) -> float:
    return float(max(1, math.ceil(seconds)))
