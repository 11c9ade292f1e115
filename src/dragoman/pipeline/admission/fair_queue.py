"""Whose turn it is: weighted fair queueing of owners, with priorities.

A `SlotClaim` is what one job wants: a slot for each of its choices. Claims wait by priority, and
within a priority by owner; those of one owner are served in order of arrival. Each call of
`take_turn` assigns one slot:

- Priorities are strict: live before background before batch. To prevent starvation, each
  `AGED_TURN`th turn goes to the claim that has waited longest, once a claim of a lower priority has
  waited for `AGEING_SECONDS`. Lower priorities leave one slot free for live requests, if there are
  several.
- Among owners, one that holds fewer slots than its share (slots × its weight ÷ the weights of all
  owners with work) goes first. So no owner gets a second slot while another one with an equal
  weight waits for its first.
- Otherwise the owner with the lowest virtual time goes first: the tokens that it has used, divided
  by its weight. An owner is charged the expected cost when its turn comes, and the real cost as the
  job goes on. A prompt token costs a tenth of a generated one, about what it costs engines; a
  cached one costs nothing. An owner that was idle starts at the virtual time of the others, so it
  accumulates no credit while idle, and no debt while it runs alone.
- For each active owner, slots of its share stay free: one for its next request, and one more. So
  it need not wait for jobs of others to end, and fewer of them run at the same time and slow it
  down. An owner is active while a live job of it runs, and for `ACTIVE_SECONDS` after its last one.
- Where all running jobs share the compute of the engine, as on a CPU, an owner that has a job gets
  no other slot if an active owner would then have less than its share of the slots in use. That
  protects owners that ask for no more slots than their share; others get them anyway.

Running jobs are not preempted. So a claim waits at most until a job of the owners ahead of it ends,
and a short job on an engine with one slot may wait for one long job. This module uses neither
asyncio nor a clock; `Gate` does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from dragoman.types.limits import PRIORITIES, Priority

AGEING_SECONDS = 60.0  # of waiting, after which claims of lower priorities get some turns
AGED_TURN = 4  # every n-th turn goes to the oldest claim
PROMPT_TOKEN_COST = 0.1  # of a generated token
EXPECTED_TOKENS = 64.0  # of an answer, until an owner has had one
SMOOTHING = 0.2  # of moving averages
ACTIVE_SECONDS = 2.0  # within which the next request of an owner is expected
MIN_WEIGHT = 1e-3
ROUNDING = 1e-9


class TokenCounts(Struct, frozen=True):
    """How many tokens a job has used so far."""

    prompt: int = 0
    cached: int = 0  # of the prompt
    generated: int = 0

    @property
    def cost(self) -> float:
        """What it costs an owner, in generated tokens."""
        return PROMPT_TOKEN_COST * max(0, self.prompt - self.cached) + self.generated


class SlotClaim:
    """One job's claim on slots: it waits for them, then holds as many as it was assigned."""

    def __init__(
        self, owner: str, priority: Priority, wanted: int = 1, prompt_tokens: int = 0
    ) -> None:
        self.owner = owner
        self.priority: Priority = priority
        self.wanted = wanted
        self.max_tokens = math.inf  # of each choice
        self.slots = 0  # assigned so far
        self.charged = 0.0
        self.arrived = self.started = 0.0  # times
        self.number = 0  # in order of arrival
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.count_generated: Callable[[], int] = int  # by the running job; 0 until it runs

    def count_tokens(self) -> TokenCounts:
        return TokenCounts(self.prompt_tokens, self.cached_tokens, self.count_generated())


class OwnerAccount:
    """The claims of one owner, and what it has used."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.virtual_time = 0.0
        self.slots = 0  # held by its claims
        self.mean_tokens: float | None = None  # of a choice, a moving average
        self.waiting: dict[Priority, dict[SlotClaim, None]] = {name: {} for name in PRIORITIES}
        self.running: dict[SlotClaim, None] = {}
        self.expected_until = 0.0  # when it no longer counts as active

    @property
    def expected_tokens(self) -> float:
        """How long the next answer may become."""
        return EXPECTED_TOKENS if self.mean_tokens is None else self.mean_tokens

    @property
    def has_work(self) -> bool:
        return bool(self.running) or _has_waiting(self)

    def is_active(self, now: float) -> bool:
        """Whether it has live requests, or another one is expected."""
        live = PRIORITIES[0]
        return (
            now < self.expected_until
            or bool(self.waiting[live])
            or any(claim.priority == live for claim in self.running)
        )

    def compute_turn_time(self) -> float:
        """Return the virtual time that decides whose turn it is: charges count as used."""
        over = sum(max(0.0, claim.count_tokens().cost - claim.charged) for claim in self.running)
        return self.virtual_time + over / self.weight

    def compute_used_time(self) -> float:
        """Return the virtual time of what was really used so far."""
        unused = sum(claim.charged - claim.count_tokens().cost for claim in self.running)
        return self.virtual_time - unused / self.weight

    def charge(self, claim: SlotClaim, cost: float) -> None:
        claim.charged += cost
        self.virtual_time += cost / self.weight


class FairQueue:
    """The claims on the slots of one engine (None: any number of slots)."""

    def __init__(self, slots: int | None = None, *, shares_compute: bool = False) -> None:
        self._slots = math.inf if slots is None else slots
        self._shares_compute = shares_compute
        self._accounts: dict[str, OwnerAccount] = {}
        self._virtual_time = 0.0
        self.wanted_slots = 0  # by waiting claims, and not assigned yet
        self._claim_count = 0  # that wait or run
        self._lower_slots = 0  # held by claims of lower priorities
        self._turns_since_aged = 0
        self._numbers = itertools.count()

    def get_account(self, owner: str) -> OwnerAccount:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = OwnerAccount()
        return account

    def list_running(self) -> Iterable[SlotClaim]:
        return (claim for account in self._accounts.values() for claim in account.running)

    def push(self, claim: SlotClaim, weight: float, now: float) -> None:
        """Add a claim at the end of its owner's queue."""
        account = self.get_account(claim.owner)
        account.weight = max(MIN_WEIGHT, weight)
        if not account.waiting[claim.priority]:
            account.virtual_time = max(account.virtual_time, self._find_start_time(account))
        claim.arrived, claim.number = now, next(self._numbers)
        self._expect_next(account, claim, now)
        account.waiting[claim.priority][claim] = None
        self.wanted_slots += claim.wanted
        self._claim_count += 1

    def _find_start_time(self, account: OwnerAccount) -> float:
        """Return the virtual time at which an owner without claims starts."""
        if self._slots == math.inf or len(self._accounts) == 1:
            return self._virtual_time
        running = [other for other in self._accounts.values() if other.running]
        if account in running or not running:
            return self._virtual_time
        return max(self._virtual_time, min(other.compute_used_time() for other in running))

    @staticmethod
    def _expect_next(account: OwnerAccount, claim: SlotClaim, now: float) -> None:
        if claim.priority == PRIORITIES[0]:
            account.expected_until = now + ACTIVE_SECONDS

    def take_turn(
        self, now: float, free: float = math.inf, kept: Collection[str] = ()
    ) -> SlotClaim | None:
        """Assign one of the `free` slots to the claim whose turn it is, and return it.

        The claim waits on, and may get more slots, until `start`. Some owners have a slot `kept`
        for them besides the free ones.
        """
        if not self.wanted_slots:
            return None
        account, priority = self._find_sole_account(), PRIORITIES[0]
        if account is None:
            chosen = self._choose_priority(now)
            if chosen is None:
                return None
            priority = chosen
            account = self._choose_account(priority, now)
            if free <= self._count_reserved(account, now, kept):
                return None
        claim = _find_next(account, priority)
        if claim is None:
            return None
        self._virtual_time = max(self._virtual_time, account.virtual_time)
        expected = min(claim.max_tokens, account.expected_tokens)
        prompt = 0 if claim.slots else PROMPT_TOKEN_COST * claim.prompt_tokens
        account.charge(claim, expected + prompt)
        claim.slots += 1
        account.slots += 1
        self.wanted_slots -= 1
        self._lower_slots += priority != PRIORITIES[0]
        return claim

    def start(self, claim: SlotClaim) -> None:
        """Let a claim run with the slots that it was assigned."""
        account = self._accounts[claim.owner]
        del account.waiting[claim.priority][claim]
        self.wanted_slots -= claim.wanted - claim.slots
        account.running[claim] = None

    def remove(self, claim: SlotClaim, now: float) -> None:
        """Remove a claim that ends, or that no longer waits. Removing it twice is harmless."""
        account = self._accounts.get(claim.owner)
        if account is None:
            return
        if claim in account.running:
            del account.running[claim]
            if self._claim_count > 1:  # else nothing is left of the account
                self._settle(account, claim)
                self._expect_next(account, claim, now)
        elif claim in account.waiting[claim.priority]:
            del account.waiting[claim.priority][claim]
            self.wanted_slots -= claim.wanted - claim.slots
        else:
            return
        self._claim_count -= 1
        account.slots -= claim.slots
        self._lower_slots -= claim.slots * (claim.priority != PRIORITIES[0])
        claim.slots = 0
        if not self._claim_count:
            self._accounts, self._virtual_time = {}, 0.0  # no owner has credit or debt

    def goes_first(self, owner: str) -> bool:
        """Whether another live job of an owner without claims would run before all waiting ones."""
        account = self._accounts.get(owner)
        others = [other for other in self._accounts.values() if other.has_work]
        if account is None or account.has_work:
            return False
        total = account.weight + sum(other.weight for other in others)
        end = account.virtual_time + account.expected_tokens / account.weight
        own_rank = self._exceeds_share(account, total), end
        rivals = [other for other in others if other.waiting[PRIORITIES[0]]]
        return any(map(_has_waiting, others)) and all(
            own_rank <= (self._exceeds_share(rival, total), rival.compute_turn_time())
            for rival in rivals
        )

    def compute_share(self, owner: str, weight: float) -> float:
        """Return the part of all slots that an owner gets while the present ones have work."""
        others = sum(
            account.weight
            for name, account in self._accounts.items()
            if name != owner and account.has_work
        )
        return weight / (weight + others)

    @staticmethod
    def _settle(account: OwnerAccount, claim: SlotClaim) -> None:
        """Replace the charges of a claim by what it has used."""
        counts = claim.count_tokens()
        account.charge(claim, counts.cost - claim.charged)
        tokens = counts.generated / max(1, claim.slots)
        mean = tokens if account.mean_tokens is None else account.mean_tokens
        account.mean_tokens = mean + SMOOTHING * (tokens - mean)

    def _find_sole_account(self) -> OwnerAccount | None:
        """Return the only owner, if only live claims wait: then there is nothing to choose."""
        if len(self._accounts) != 1:
            return None
        (account,) = self._accounts.values()
        live, *lower = account.waiting.values()
        return account if live and not any(lower) else None

    def _choose_priority(self, now: float) -> Priority | None:
        """Return the priority of the next turn."""
        limit = max(1, self._slots - 1)  # of slots for lower priorities
        open_priorities = PRIORITIES if self._lower_slots < limit else PRIORITIES[:1]
        oldest = {
            name: claim
            for name in open_priorities
            if (claim := self._find_oldest(name)) is not None
        }
        if not oldest:
            return None
        first, *lower = oldest
        aged = [name for name in lower if now - oldest[name].arrived >= AGEING_SECONDS]
        self._turns_since_aged = self._turns_since_aged + 1 if aged else 0
        if self._turns_since_aged < AGED_TURN:
            return first
        self._turns_since_aged = 0
        return min(aged, key=lambda name: oldest[name].number)

    def _find_oldest(self, priority: Priority) -> SlotClaim | None:
        """Return the claim of a priority that has waited longest."""
        claims = [
            claim
            for account in self._accounts.values()
            if (claim := _find_next(account, priority)) is not None
        ]
        return min(claims, key=lambda claim: claim.number, default=None)

    def _choose_account(self, priority: Priority, now: float) -> OwnerAccount:
        heads = {
            account: claim
            for account in self._accounts.values()
            if (claim := _find_next(account, priority)) is not None
        }
        if len(heads) == 1:
            return next(iter(heads))
        total = self._sum_weights(now)

        def rank(account: OwnerAccount) -> tuple[bool, float, int]:
            turn_time = account.compute_turn_time()
            return self._exceeds_share(account, total), turn_time, heads[account].number

        return min(heads, key=rank)

    def _sum_weights(self, now: float) -> float:
        accounts = self._accounts.values()
        return sum(each.weight for each in accounts if each.has_work or each.is_active(now))

    def _count_reserved(self, account: OwnerAccount, now: float, kept: Collection[str]) -> float:
        """Count the slots that an owner must leave free for others."""
        total = self._sum_weights(now)
        held = {
            other: other.slots + (owner in kept)
            for owner, other in self._accounts.items()
            if other is not account and other.is_active(now)
        }
        if self._shares_compute and account.slots and self._slows_down(held, total):
            return math.inf
        if not self._exceeds_share(account, total):
            return 0
        reserved = 0
        for other, slots in held.items():
            if not any(_find_next(other, priority) for priority in PRIORITIES):
                share = self._count_share(other, total)
                reserved += max(0, min(share, max(1, slots) + 1) - slots)
        return reserved

    def _slows_down(self, held: dict[OwnerAccount, int], total_weight: float) -> bool:
        """Whether one more job leaves an active owner less than its share of the slots in use."""
        modest = {
            owner: max(1, wanted)
            for owner, slots in held.items()
            if (wanted := slots + _count_wanted(owner))
            <= max(1, self._count_share(owner, total_weight))
        }
        rest = sum(account.slots for account in self._accounts.values() if account not in modest)
        in_use = rest + 1 + sum(modest.values())
        return any(
            slots / in_use + ROUNDING < owner.weight / total_weight
            for owner, slots in modest.items()
        )

    def _count_share(self, account: OwnerAccount, total_weight: float) -> int:
        return int(self._slots * account.weight / total_weight + ROUNDING)

    def _exceeds_share(self, account: OwnerAccount, total_weight: float) -> bool:
        """Whether one more slot would be more than an owner's share."""
        return account.slots + 1 > self._slots * account.weight / total_weight + ROUNDING


def _find_next(account: OwnerAccount, priority: Priority) -> SlotClaim | None:
    """Return the first claim of an owner that wants another slot."""
    for claim in account.waiting[priority]:
        if claim.slots < claim.wanted:
            return claim
    return None


def _count_wanted(account: OwnerAccount) -> int:
    """Count the slots that the live claims of an owner wait for."""
    return sum(claim.wanted - claim.slots for claim in account.waiting[PRIORITIES[0]])


def _has_waiting(account: OwnerAccount) -> bool:
    return any(account.waiting.values())
