"""Finds and refuses requests that crash an engine.

When an engine dies, every call that it was working on is a suspect, known by a digest of what the
engine gets: prompt, sampling, grammar, adapters, and no id. A suspect that comes again is tried
once more, one suspect at a time, concurrently with ordinary requests. So the next death has only
one suspect: an innocent request finishes this time, and is no longer suspected. A request that was
running in two deaths is refused with `PoisonRequest`, without reaching the engine.

What a death proves depends on its cause, which is known once the process has exited:

- A *crash* (a fatal signal, an exit) comes from what the engine was doing. A request that was
  running in two of them is refused for an hour.
- An engine that *hangs* or is *killed* (SIGKILL) may have been stopped or killed by a request, by
  exhausting the memory for example, but also by an operator or another process, and then all
  requests are innocent. Requests are refused for a short time that doubles with each such death, so
  that a popular prompt works again soon after an operator has killed the engine twice. A kill
  counts only for requests without a token, which allocate memory; a hang for all.

Owners whose requests make the engine die again and again are refused, too (see `crash_owners`).
Once a death is counted against one owner, other owners' requests that ran at the same time as its
requests in each death are no longer suspected.

Digests are computed only when an engine dies, and for new requests while there are suspects. They
are forgotten after an hour, so that innocent requests are not suspected for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.engines.subprocess.crash_owners import CrashOwners
from dragoman.engines.subprocess.messages import CountPrompt
from dragoman.engines.subprocess.progress import CallContent, RunningCall
from dragoman.errors import PoisonRequest
from dragoman.types import Job
from dragoman.types.bounded_cache import BoundedCache

MAX_DEATHS = 2
MAX_SUSPECTS = 1024
REMEMBER_SECONDS = 3600.0
MINUTES_PER_HOUR = 60
FIRST_REFUSAL = 10.0  # seconds, where it is unclear why the engine died; doubled with each death
DeathCause: TypeAlias = Literal["crashed", "hung", "killed"]
# What of a job can crash an engine. A client may send another seed with each try.
JOB_FIELDS = (
    "prompt",
    "sampling",
    "n",
    "logprobs",
    "prompt_logprobs",
    "grammar",
    "lora",
    "cache_prompt",
)

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def compute_digest(content: CallContent) -> bytes:
    """Return a digest of everything in a request that can crash an engine."""
    fields: object
    if isinstance(content, Job):
        sampling = msgspec.structs.replace(content.sampling, seed=None)
        fields = [getattr(content, name) for name in JOB_FIELDS if name != "sampling"], sampling
    else:
        if isinstance(content, CountPrompt):
            content = msgspec.structs.replace(content, cache_scope="")
        fields = type(content).__name__, msgspec.structs.replace(content, number=0)
    return hashlib.blake2b(_encoder.encode(fields), digest_size=16).digest()


class Suspect(Struct):
    """A request that was running when an engine died."""

    digest: bytes
    owners: frozenset[str]  # who sent it
    concurrent_owners: frozenset[str]  # whose requests were running in each of its deaths
    deaths: int = 0  # deaths that count against it
    has_crashed: bool = False  # at least one of these deaths was a crash
    last_death: float = 0.0

    @property
    def refusal_seconds(self) -> float:
        """For how long it is refused after its last death."""
        if self.deaths < MAX_DEATHS:
            return 0.0
        if self.has_crashed:
            return REMEMBER_SECONDS
        return min(REMEMBER_SECONDS, FIRST_REFUSAL * 2.0 ** min(self.deaths - MAX_DEATHS, 30))


class TrialOutcome(Struct):
    """What is known about a call of a suspect: whether it did no harm."""

    is_harmless: bool = False
    has_answered: Callable[[], bool] = bool  # whether a job has yielded steps
    check: Callable[[], None] = lambda: None  # call it when the cause of the last death is known


class Death(Struct):
    """The last death, whose cause is not known yet."""

    digests: dict[bytes, bool]  # of what was running; whether it had no token yet
    starters: frozenset[str]  # owners of requests without a token
    involved: frozenset[str]  # owners of all that was running
    answered: frozenset[str]  # owners to whom the process has given something


class CrashSuspects:
    """The suspects of one engine, across its restarts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._suspects = BoundedCache[bytes, Suspect](max_entries=MAX_SUSPECTS)
        self._turn = asyncio.Lock()
        self._death: Death | None = None
        self.owners = CrashOwners(clock)

    def record_death(self, calls: Iterable[RunningCall], answered: Collection[str] = ()) -> None:
        """Record which calls an engine was working on when it died, before the cause is known.

        `answered` are the owners to whom this process of the engine has given tokens or results.
        """
        senders: dict[bytes, set[str]] = {}
        digests: dict[bytes, bool] = {}
        starters, given = set[str](), set(answered)
        for call in calls:
            if call.content is not None:
                digest = compute_digest(call.content)
                senders.setdefault(digest, set()).add(call.owner)
                digests[digest] = digests.get(digest, False) or not call.has_answered
                (given if call.has_answered else starters).add(call.owner)
        involved = frozenset[str]().union(*senders.values())
        self._death = Death(digests, frozenset(starters), involved, frozenset(given))
        now = self._clock()
        for digest, owners in senders.items():
            suspect = self._find(digest) or Suspect(digest, frozenset(), involved)
            suspect.owners |= owners
            suspect.concurrent_owners &= involved
            suspect.last_death = now
            self._suspects.put(digest, suspect)

    def count_death(self, cause: DeathCause) -> None:
        """Count the last death against requests and owners, now that its cause is known."""
        death, self._death = self._death, None
        if death is None:
            return
        for digest, is_starting in death.digests.items():
            suspect = self._find(digest)
            if suspect is not None and (is_starting or cause != "killed"):
                suspect.deaths += 1
                suspect.has_crashed |= cause == "crashed"
        if cause == "crashed":
            culprit = self.owners.blame(death.starters or death.involved)
        else:
            culprit = self.owners.blame_unclear(death.starters, death.answered)
        if culprit:
            self._clear_others(culprit)

    def _clear_others(self, culprit: str) -> None:
        """Forget the suspects of others that ran beside this owner's requests each time."""
        for suspect in self._suspects.values():
            if culprit in suspect.concurrent_owners and culprit not in suspect.owners:
                self._suspects.pop(suspect.digest)

    @asynccontextmanager
    async def try_call(self, content: CallContent) -> AsyncGenerator[TrialOutcome, None]:
        """Run a call inside this block; a suspect waits for its turn or is refused.

        A suspect whose outcome is harmless is no longer suspected.
        """
        outcome = TrialOutcome()
        digest = compute_digest(content) if len(self._suspects) else b""
        if not digest or self._find(digest) is None:
            yield outcome
            return
        self._check(digest)
        async with self._turn:
            self._check(digest)  # the same request may have been tried meanwhile
            outcome.check = lambda: self._check(digest)
            try:
                yield outcome
            except (GeneratorExit, asyncio.CancelledError):  # the answer was cut, or is not wanted
                outcome.is_harmless = outcome.has_answered()
                raise
            finally:
                if outcome.is_harmless:
                    self._suspects.pop(digest)

    def _check(self, digest: bytes) -> None:
        suspect = self._find(digest)
        if suspect is None:
            return
        seconds = suspect.last_death + suspect.refusal_seconds - self._clock()
        if suspect.deaths >= MAX_DEATHS and seconds > 0:
            raise PoisonRequest(
                f"The engine crashed, hung or was killed {suspect.deaths} times while it processed "
                f"this request, so the request is refused. Change it, or try again in "
                f"{format_wait(seconds)}."
            )

    def _find(self, digest: bytes) -> Suspect | None:
        suspect = self._suspects.get(digest)
        if suspect is not None and self._clock() - suspect.last_death > REMEMBER_SECONDS:
            self._suspects.pop(digest)
            return None
        return suspect


def format_wait(seconds: float) -> str:
    """Return a duration in words, rounded up."""
    minutes = math.ceil(seconds / 60)
    if minutes >= MINUTES_PER_HOUR:
        return "an hour"
    return f"{minutes} minutes" if minutes > 1 else f"{math.ceil(seconds)} seconds"
