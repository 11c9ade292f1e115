"""Whose turn it is: shares by weight, priorities, no starvation, nothing idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.pipeline.admission.fair_queue import (
    ACTIVE_SECONDS,
    AGED_TURN,
    AGEING_SECONDS,
    FairQueue,
    SlotClaim,
    TokenCounts,
)
from dragoman.types.limits import PRIORITIES, Priority


class SimulatedJob(SlotClaim):
    """A job that generates a token on each of its slots in every step, up to its length."""

    def __init__(
        self, owner: str, length: int, priority: Priority = "live", wanted: int = 1
    ) -> None:
        super().__init__(owner, priority, wanted)
        self.length = length
        self.generated = 0
        self.count_generated = lambda: self.generated

    @property
    def is_finished(self) -> bool:
        return self.generated >= self.length * self.slots


class Simulation:
    """An engine with slots that makes a step each second."""

    def __init__(self, slots: int, *, shares_compute: bool = False) -> None:
        self.slots = slots
        self.queue = FairQueue(slots, shares_compute=shares_compute)
        self.waiting: list[SimulatedJob] = []
        self.running: list[SimulatedJob] = []
        self.started: list[SimulatedJob] = []
        self.tokens: Counter[str] = Counter()
        self.finished: list[SimulatedJob] = []
        self.ended: dict[str, int] = {}  # when an owner's last job ended
        self.time = 0

    def push(self, job: SimulatedJob, weight: float = 1.0) -> None:
        self.queue.push(job, weight, self.time)
        self.waiting.append(job)

    def assign_slots(self) -> None:
        free = self.slots - sum(job.slots for job in self.running)
        while free and (job := self.queue.take_turn(self.time, free)) is not None:
            assert isinstance(job, SimulatedJob)
            free -= 1
            if job in self.waiting:
                self.waiting.remove(job)
                self.running.append(job)
                self.started.append(job)
        for job in self.running:
            if job in self.queue.get_account(job.owner).waiting[job.priority]:
                self.queue.start(job)

    def step(self) -> None:
        self.assign_slots()
        for job in list(self.running):
            job.generated += job.slots
            self.tokens[job.owner] += job.slots
            if job.is_finished:
                self.running.remove(job)
                self.finished.append(job)
                self.ended[job.owner] = self.time
                self.queue.remove(job, self.time)
        self.time += 1

    def count_expected_owners(self) -> int:
        """Count the owners that have no job waiting, and are active or were so shortly before."""
        waiting = {job.owner for job in self.waiting}
        active = {job.owner for job in self.running}
        active |= {owner for owner, time in self.ended.items() if self.time < time + ACTIVE_SECONDS}
        return len(active - waiting)

    def run_flood(self, lengths: dict[str, int], weights: dict[str, float], steps: int) -> None:
        """Run with a queue in which every owner always has jobs."""
        for _ in range(steps):
            for owner, length in lengths.items():
                while sum(job.owner == owner for job in self.waiting) < self.slots:
                    self.push(SimulatedJob(owner, length), weights.get(owner, 1.0))
            self.step()


LENGTHS = st.integers(1, 30)
WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])


@settings(max_examples=50)
@given(
    slots=st.integers(1, 6),
    owners=st.dictionaries(st.sampled_from("abcde"), st.tuples(LENGTHS, WEIGHTS), min_size=2),
    shares_compute=st.booleans(),
)
def test_shares_converge_to_weights(
    slots: int, owners: dict[str, tuple[int, float]], shares_compute: bool
) -> None:
    simulation, steps = Simulation(slots, shares_compute=shares_compute), 600
    weights = {owner: weight for owner, (_, weight) in owners.items()}
    simulation.run_flood({owner: length for owner, (length, _) in owners.items()}, weights, steps)
    longest = max(length for length, _ in owners.values())
    for owner, weight in weights.items():
        share = weight / sum(weights.values())
        slack = slots * longest + 0.05 * slots * steps
        assert abs(simulation.tokens[owner] - share * slots * steps) <= slack


@settings(max_examples=50)
@given(
    slots=st.integers(1, 4),
    victim=st.tuples(LENGTHS, st.integers(1, 4)),
    flood=LENGTHS,
    floods=st.integers(1, 3),
)
def test_no_owner_starves(slots: int, victim: tuple[int, int], flood: int, floods: int) -> None:
    """A job waits for no more than the jobs that run, and its share of what it used before."""
    length, wanted = victim
    simulation = Simulation(slots)
    lengths = {f"flood{number}": flood for number in range(floods)}
    simulation.run_flood(lengths, {}, 100)
    for _ in range(5):
        job, waited = SimulatedJob("victim", length, wanted=wanted), 0
        simulation.push(job)
        while job not in simulation.finished:
            simulation.run_flood(lengths, {}, 1)
            waited += 1
        # its own steps, the jobs ahead, and the shares of the others for its tokens
        turns = length * (1 + floods) * (1 + wanted / slots) + 64 * floods
        assert waited <= turns + 2 * (flood + length)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(PRIORITIES), st.integers(1, 8)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 5),
)
def test_no_slot_is_idle_while_a_live_job_waits(
    jobs: Sequence[tuple[str, Priority, int]], slots: int
) -> None:
    """Except for two that each owner finds free if it has just been active, and none waits."""
    simulation = Simulation(slots)
    for owner, priority, length in jobs:
        simulation.push(SimulatedJob(owner, length, priority))
    while simulation.waiting or simulation.running:
        simulation.assign_slots()
        busy = sum(job.slots for job in simulation.running)
        lower = sum(job.slots for job in simulation.running if job.priority != "live")
        busy += 2 * simulation.count_expected_owners()
        if any(job.priority == "live" for job in simulation.waiting):
            assert busy >= slots
        elif simulation.waiting:  # lower priorities leave a slot for live jobs
            assert lower == max(1, slots - 1) or busy >= slots
        simulation.step()
    assert len(simulation.finished) == len(jobs)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(PRIORITIES)), max_size=30),
    st.integers(1, 4),
    st.sets(st.integers(0, 29)),
)
def test_one_owner_is_served_in_order_of_arrival_and_removed_jobs_never_run(
    jobs: Sequence[tuple[str, Priority]], slots: int, cancelled: set[int]
) -> None:
    simulation = Simulation(slots)
    pushed = [SimulatedJob(owner, 3, priority) for owner, priority in jobs]
    for job in pushed:
        simulation.push(job)
    for index in cancelled:
        if index < len(pushed):
            simulation.queue.remove(pushed[index], simulation.time)
            simulation.queue.remove(pushed[index], simulation.time)  # twice is harmless
            simulation.waiting.remove(pushed[index])
    while simulation.waiting or simulation.running:
        simulation.step()
    kept = [job for index, job in enumerate(pushed) if index not in cancelled]
    for owner in "ab":
        for priority in PRIORITIES:
            expected = [job for job in kept if (job.owner, job.priority) == (owner, priority)]
            actual = [job for job in simulation.started if job in expected]
            assert actual == expected
    assert simulation.queue.take_turn(simulation.time) is None


@pytest.mark.parametrize("pause", [0, 1])
@pytest.mark.parametrize("flood", [1, 7, 20])
@pytest.mark.parametrize(("slots", "most"), [(2, 1), (3, 2), (4, 2), (8, 6)])
def test_an_active_owner_finds_a_slot_free(slots: int, most: int, flood: int, pause: int) -> None:
    """One job after the other beside a flood: only the first waits, and few run beside the rest."""
    simulation, length = Simulation(slots), 10
    lengths = {"flood": flood}
    simulation.run_flood(lengths, {}, 50)
    for number in range(6):
        job, steps = SimulatedJob("victim", length), 0
        simulation.push(job)
        while job not in simulation.finished:
            simulation.run_flood(lengths, {}, 1)
            steps += 1
            beside = sum(other.owner == "flood" for other in simulation.running)
            assert beside <= most or number * length <= flood  # what runs is not interrupted
        assert steps == length or (number == 0 and steps <= length + flood)
        simulation.run_flood(lengths, {}, pause)


@pytest.mark.parametrize("flood", [1, 7, 20])
@pytest.mark.parametrize(("others", "weight", "most"), [(1, 1.0, 1), (2, 1.0, 1), (1, 3.0, 3)])
def test_a_flood_does_not_slow_active_owners_that_share_the_compute(
    others: int, weight: float, most: int, flood: int
) -> None:
    """Beside owners with one job at a time, a flood runs as many jobs as its weight allows."""
    simulation, length = Simulation(8, shares_compute=True), 10
    simulation.run_flood({"flood": flood}, {"flood": weight}, 50)
    owners = [f"other{number}" for number in range(others)]
    beside = []
    for _ in range(6):
        jobs = [SimulatedJob(owner, length) for owner in owners]
        for job in jobs:
            simulation.push(job)
        while not all(job in simulation.finished for job in jobs):
            before = simulation.tokens["flood"]
            simulation.run_flood({"flood": flood}, {"flood": weight}, 1)
            beside.append(simulation.tokens["flood"] - before)
    after_flood = beside[flood + length :]  # what runs is not interrupted
    assert set(after_flood) <= set(range(most + 1))
    assert after_flood.count(most) >= len(after_flood) // 2


def test_a_flood_has_every_slot_once_no_other_owner_is_active() -> None:
    simulation = Simulation(4, shares_compute=True)
    simulation.push(SimulatedJob("other", 5))
    simulation.run_flood({"flood": 3}, {}, 60)
    before = simulation.tokens["flood"]
    simulation.run_flood({"flood": 3}, {}, 1)
    assert simulation.tokens["flood"] - before == 4


def test_priorities_are_strict() -> None:
    simulation = Simulation(1)
    for priority in ("batch", "background", "live", "background", "live"):
        simulation.push(SimulatedJob("a", 2, priority))
    while simulation.waiting:
        simulation.step()
    order = [job.priority for job in simulation.started]
    assert order == ["live", "live", "background", "background", "batch"]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_lower_priorities_get_some_turns_after_a_while(slots: int) -> None:
    """Live jobs never end, and yet the others run: one turn in four after a minute."""
    simulation = Simulation(slots)
    lower: list[Priority] = ["background", "batch"] * 3
    for priority in lower:
        simulation.push(SimulatedJob("a", 1, priority))
    while simulation.time < AGEING_SECONDS:
        simulation.run_flood({"b": 1}, {}, 1)
    assert all(job.priority == "live" for job in simulation.started)
    before = len(simulation.started)
    for _ in range(AGED_TURN * len(lower)):
        simulation.run_flood({"b": 1}, {}, 1)
        if all(job.priority == "live" for job in simulation.waiting):
            break
    turns = simulation.started[before:]
    assert [job.priority for job in turns if job.priority != "live"] == lower
    assert len(turns) <= AGED_TURN * len(lower) + slots


def test_lower_priorities_leave_a_slot_for_live_jobs() -> None:
    simulation = Simulation(4)
    for number in range(300):
        simulation.push(SimulatedJob(f"owner{number % 3}", 1000, "background"))
    simulation.step()
    assert len(simulation.running) == 3
    live = SimulatedJob("d", 5)
    simulation.push(live)
    simulation.step()
    assert live in simulation.running


def test_no_second_slot_while_another_owner_has_none() -> None:
    simulation = Simulation(2)
    heavy = [SimulatedJob("heavy", 10), SimulatedJob("heavy", 100_000)]
    for job in [*heavy, SimulatedJob("heavy", 100_000), SimulatedJob("heavy", 100_000)]:
        simulation.push(job)
    simulation.step()
    light = SimulatedJob("light", 5)
    simulation.push(light)
    while light not in simulation.finished:
        simulation.step()
    assert simulation.time <= 20  # until the first slot is free, and its own steps


def test_an_owner_without_a_slot_goes_before_one_that_used_less() -> None:
    simulation = Simulation(2)
    costly = SimulatedJob("costly", 5)
    costly.prompt_tokens = 10_000
    for job in (costly, SimulatedJob("cheap", 100)):
        simulation.push(job)
    while costly not in simulation.finished:
        simulation.step()
    for owner in ("cheap", "costly"):
        simulation.push(SimulatedJob(owner, 5))
    simulation.step()
    assert [job.owner for job in simulation.started[2:]] == ["costly"]


def test_a_job_of_many_choices_takes_the_slots_that_are_free() -> None:
    alone = Simulation(4)
    alone.push(job := SimulatedJob("a", 5, wanted=128))
    alone.step()
    assert job.slots == 4
    shared = Simulation(4)
    shared.push(wide := SimulatedJob("a", 5, wanted=128))
    shared.push(other := SimulatedJob("b", 5, wanted=2))
    shared.step()
    assert (wide.slots, other.slots) == (2, 2)


def test_what_an_owner_used_alone_is_not_held_against_it() -> None:
    simulation = Simulation(1)
    simulation.run_flood({"a": 10}, {}, 1000)
    before = simulation.tokens["a"]
    simulation.run_flood({"a": 10, "b": 10}, {}, 200)
    assert simulation.tokens["a"] - before >= 80


@pytest.mark.parametrize(
    ("counts", "cost"),
    [
        (TokenCounts(), 0),
        (TokenCounts(prompt=100), 10),
        (TokenCounts(prompt=100, cached=90), 1),
        (TokenCounts(prompt=100, cached=200), 0),
        (TokenCounts(prompt=100, cached=100, generated=7), 7),
    ],
)
def test_cost_is_counted_in_generated_tokens(counts: TokenCounts, cost: float) -> None:
    assert counts.cost == pytest.approx(cost)
