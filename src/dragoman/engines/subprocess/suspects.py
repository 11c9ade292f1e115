"""Requests that may have crashed an engine.

When an engine dies, every call that it was working on is a suspect, known by a digest of what the
engine gets: prompt, sampling, grammar, adapters, and no id. A suspect that comes again is tried
once more, one suspect at a time, beside ordinary requests. So the next death has one suspect only:
a request that merely ran beside the one that crashes the engine finishes this time, and is no
suspect any more. A request that was running in two deaths is refused with `PoisonRequest`, without
reaching the engine.

Owners whose requests crash the engine again and again are refused, too (see `crash_owners`). Once a
death is counted against one owner, requests of others that ran beside its requests each time are no
suspects any more.

Digests are computed only when an engine dies, and for new requests while there are suspects. They
are forgotten after an hour, so that bad luck does not count for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

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
    """Return what identifies a request as the engine sees it."""
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
    deaths: int
    last_death: float
    owners: frozenset[str]  # who sent it
    beside: frozenset[str]  # whose requests were running each time


class TrialOutcome(Struct):
    """Whether a call that may have been a suspect did no harm."""

    is_harmless: bool = False
    has_answered: Callable[[], bool] = bool  # whether a job has yielded steps


class CrashSuspects:
    """The suspects of one engine, across its restarts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._suspects = BoundedCache[bytes, Suspect](max_entries=MAX_SUSPECTS)
        self._turn = asyncio.Lock()
        self._starters = frozenset[str]()  # whom the last death may be counted against
        self.owners = CrashOwners(clock)

    def blame(self, calls: Iterable[RunningCall]) -> None:
        """Note which calls an engine was working on when it died."""
        senders: dict[bytes, set[str]] = {}
        starters: set[str] = set()  # owners of requests without a token
        for call in calls:
            if call.content is not None:
                senders.setdefault(compute_digest(call.content), set()).add(call.owner)
                if not call.has_answered:
                    starters.add(call.owner)
        involved = frozenset[str]().union(*senders.values())
        for digest, owners in senders.items():
            earlier = self._find(digest) or Suspect(digest, 0, 0.0, frozenset(), involved)
            suspect = Suspect(
                digest,
                earlier.deaths + 1,
                self._clock(),
                earlier.owners | owners,
                earlier.beside & involved,
            )
            self._suspects.put(digest, suspect)
        self._starters = frozenset(starters) or involved

    def blame_owners(self) -> None:
        """Count the last death against owners; call it once the death is known to be a crash."""
        if culprit := self.owners.blame(self._starters):
            self._clear_others(culprit)

    def _clear_others(self, culprit: str) -> None:
        """Forget the suspects of others that ran beside this owner's requests each time."""
        for suspect in self._suspects.values():
            if culprit in suspect.beside and culprit not in suspect.owners:
                self._suspects.pop(suspect.digest)

    @asynccontextmanager
    async def try_call(self, content: CallContent) -> AsyncGenerator[TrialOutcome, None]:
        """Run a call inside this block; a suspect waits for its turn or is refused.

        A suspect whose outcome is harmless is none any more.
        """
        outcome = TrialOutcome()
        digest = compute_digest(content) if len(self._suspects) else b""
        if not digest or self._find(digest) is None:
            yield outcome
            return
        self._check(digest)
        async with self._turn:
            self._check(digest)  # the same request may have been tried meanwhile
            try:
                yield outcome
            except GeneratorExit:  # its answer is cut, at a stop string for example
                outcome.is_harmless = outcome.has_answered()
                raise
            finally:
                if outcome.is_harmless:
                    self._suspects.pop(digest)

    def _check(self, digest: bytes) -> None:
        suspect = self._find(digest)
        if suspect is not None and suspect.deaths >= MAX_DEATHS:
            raise PoisonRequest(
                f"The engine crashed or hung {suspect.deaths} times while it processed this "
                "request, so the request is refused. Change it, or try again in an hour."
            )

    def _find(self, digest: bytes) -> Suspect | None:
        suspect = self._suspects.get(digest)
        if suspect is not None and self._clock() - suspect.last_death > REMEMBER_SECONDS:
            self._suspects.pop(digest)
            return None
        return suspect
