"""What goes wrong between an engine and its upstream server, fault by fault.

The numbers are those of the list of faults that a fleet must survive; here there is one server, so
"elsewhere" means once more.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.engines.remote import response_stream
from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.errors import (
    BadRequest,
    ContextOverflow,
    DragomanError,
    EngineDown,
    EngineFailed,
    ModelBroken,
    Overloaded,
    Unavailable,
    Unsupported,
)
from dragoman.testing import Reply, ScriptedWorker, WorkerFaults
from dragoman.types import Json
from tests.support.remote_engines import (
    VARIANTS,
    Variant,
    collect_ids,
    get_vocabulary,
    in_event_loop,
    make_job,
    make_settings,
    make_upstream,
    make_worker,
    open_remote,
    wait_for,
)
from tests.support.timing import measures_time

TEXT = "one two three four five six seven"
IDS = list(TEXT.encode())
LETTERS = Reply(TEXT, chunks="characters")
STALL = {"stall_timeout": 0.2, "prefill_rate": 1e6}


@pytest.fixture(params=["llama-server", "vllm-generate", "sglang-cumulative"])
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@pytest.fixture(params=VARIANTS)
def each_variant(request: pytest.FixtureRequest) -> Variant:
    """Return each way to read an answer, where its content is what matters."""
    return VARIANTS[request.param]


async def fail(engine: RemoteEngine, **changes: Json) -> tuple[int, DragomanError]:
    """Run a job that must fail; return how many tokens came before, and the error."""
    job, count = make_job(**changes), 0
    try:
        await engine.admit(job)
        async for step in engine.generate(job):
            assert step.finish is None, "an answer that failed was finished"
            count += step.tokens
    except DragomanError as error:
        return count, error
    raise AssertionError("the job did not fail")


async def check_nothing_left(engine: RemoteEngine, worker: ScriptedWorker) -> None:
    """The server answers nobody any more, and no request is counted as running."""
    await worker.wait_until(lambda worker: worker.generating == 0)
    assert engine.running_requests == 0


# 1, 17: nobody listens


@in_event_loop
async def test_a_refused_connection_is_tried_once_more_and_then_fails_quickly(
    variant: Variant,
) -> None:
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        await worker.stop()
        _, error = await fail(engine)
        assert isinstance(error, EngineDown)
        assert error.retry_after is not None
        assert engine.state == "unreachable"
        assert engine.health.failures == 1
        _, error = await fail(engine)  # at once, without a connection
        assert isinstance(error, EngineDown)
        await worker.start()
        await engine.health.wait_ready()
        assert await collect_ids(engine, make_job()) == IDS
        assert engine.health.failures == 1


@in_event_loop
async def test_a_key_file_that_is_missing_for_a_while_stops_nothing_for_good(
    variant: Variant, tmp_path: Path
) -> None:
    """A file may be away while an operator replaces it."""
    file = tmp_path / "key"
    file.write_text("secret")
    async with (
        make_worker(variant, LETTERS, api_key="secret") as worker,
        open_remote(variant, worker, api_key_file=str(file)) as engine,
    ):
        file.unlink()
        _, error = await fail(engine)
        assert isinstance(error, EngineDown)
        assert "key" not in error.message
        file.write_text("secret")
        await engine.health.wait_ready()
        assert await collect_ids(engine, make_job()) == IDS


async def collect(engine: RemoteEngine) -> list[int]:
    return [token async for step in engine.generate(make_job()) for token in step.ids]


# 2, 3: closed before the first token


@pytest.mark.parametrize(
    "faults",
    [WorkerFaults(closes_before_headers=True, times=1), WorkerFaults(close_at=0, times=1)],
    ids=["before the headers", "before the first token"],
)
@in_event_loop
async def test_a_request_is_sent_once_more_before_its_first_token(
    variant: Variant, faults: WorkerFaults
) -> None:
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        worker.set_faults(faults)
        assert await collect_ids(engine, make_job()) == IDS
        assert worker.count_requests(variant.path) == 2
        assert engine.state == "ready"


@pytest.mark.parametrize("faults", [{"closes_before_headers": True}, {"close_at": 0}])
@in_event_loop
async def test_a_request_is_sent_at_most_twice(variant: Variant, faults: dict[str, Json]) -> None:
    async with (
        make_worker(variant, LETTERS) as worker,
        open_remote(variant, worker, first_retry_delay=0.2) as engine,
    ):
        worker.close_idle()
        await collect_ids(engine, make_job())  # on a new connection
        worker.requests.clear()
        worker.set_faults(WorkerFaults(**faults))
        _, error = await fail(engine)
        assert isinstance(error, EngineDown)
        # a kept connection that breaks at once may have been dead: that try does not count
        assert worker.count_requests(variant.path) <= 3


# 4: dies in the middle


@in_event_loop
async def test_an_answer_that_breaks_off_fails_and_is_not_repeated(each_variant: Variant) -> None:
    async with (
        make_worker(each_variant, LETTERS) as worker,
        open_remote(each_variant, worker) as engine,
    ):
        worker.set_faults(WorkerFaults(close_at=6))
        count, error = await fail(engine)
        assert isinstance(error, EngineDown)
        assert 0 < count <= 6
        assert worker.count_requests(each_variant.path) == 1
        worker.set_faults(None)
        assert await collect_ids(engine, make_job()) == IDS


@in_event_loop
async def test_an_error_inside_a_stream_fails_the_answer(each_variant: Variant) -> None:
    async with (
        make_worker(each_variant, LETTERS) as worker,
        open_remote(each_variant, worker) as engine,
    ):
        worker.set_faults(WorkerFaults(error_at=4))
        count, error = await fail(engine)
        assert isinstance(error, EngineFailed)
        assert 0 < count <= 4
        assert engine.state == "ready"


# 5, 6, 8, 21: silence


@pytest.mark.slow
@pytest.mark.parametrize("pings", [False, True], ids=["silent", "with pings"])
@pytest.mark.parametrize("hang_at", [0, 5], ids=["before the first token", "in the middle"])
@in_event_loop
async def test_a_server_that_makes_no_progress_is_given_up(
    variant: Variant, hang_at: int, pings: bool
) -> None:
    """Its health route answers all the time, and so do comments inside the stream."""
    async with (
        make_worker(variant, LETTERS) as worker,
        open_remote(variant, worker, **STALL) as engine,
    ):
        worker.set_faults(WorkerFaults(hang_at=hang_at, sends_pings=pings))
        count, error = await fail(engine)
        assert isinstance(error, EngineDown)
        assert error.retry_after is not None
        assert (count > 0) == (hang_at > 0)
        assert engine.state == "unreachable"
        await check_nothing_left(engine, worker)
        worker.set_faults(None)  # it continues
        await engine.health.wait_ready()


@in_event_loop
async def test_a_request_may_wait_while_the_server_works_for_others(variant: Variant) -> None:
    """A server that is busy is not taken for one that hangs."""
    async with (
        make_worker(variant, Reply("x" * 60, chunks="characters"), pace=0.006) as worker,
        open_remote(variant, worker, **STALL) as engine,
    ):
        worker.set_faults(WorkerFaults(hang_at=0, times=1))
        waiting = asyncio.create_task(collect(engine))
        await worker.wait_until(lambda worker: worker.generating == 1)
        assert len(await collect_ids(engine, make_job())) == 60
        worker.release()
        assert len(await waiting) == 60
        assert engine.health.failures == 0


# 9: the health route hangs


@in_event_loop
async def test_a_server_whose_health_route_hangs_is_used(variant: Variant) -> None:
    async with make_worker(variant, LETTERS) as worker:
        worker.hanging_paths.add("/health")
        async with open_remote(variant, worker) as engine:
            assert await collect_ids(engine, make_job()) == IDS
            assert worker.count_requests("/health") == 0


# 11, 12, 14: ids


@pytest.mark.parametrize("fault", ["out_of_range", "text", "missing", "fewer"])
@in_event_loop
async def test_wrong_ids_fail_the_answer_and_exclude_the_server(
    each_variant: Variant, fault: str
) -> None:
    async with (
        make_worker(each_variant, LETTERS) as worker,
        open_remote(each_variant, worker) as engine,
    ):
        worker.set_faults(WorkerFaults(ids=fault))  # type: ignore[arg-type]
        _, error = await fail(engine)
        assert isinstance(error, EngineFailed)
        assert engine.state == "unreachable"
        assert engine.failure == "invalid"
        _, error = await fail(engine)
        assert isinstance(error, EngineDown)
        worker.set_faults(None)
        await engine.health.wait_ready()
        assert await collect_ids(engine, make_job()) == IDS


@in_event_loop
async def test_a_version_that_returns_no_ids_is_refused_by_name(each_variant: Variant) -> None:
    async with make_worker(each_variant, LETTERS) as worker:
        worker.set_faults(WorkerFaults(ids="missing"))
        with pytest.raises(ModelBroken, match="returns no token ids"):
            await connect(
                make_settings(worker), make_upstream(each_variant, worker), get_vocabulary(worker)
            )


# 13: another model or tokenizer


@pytest.mark.parametrize("change", ["tokenizer", "model"])
@in_event_loop
async def test_another_server_at_the_same_address_is_refused(variant: Variant, change: str) -> None:
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        await worker.stop()
        if change == "tokenizer":
            worker.token_offset = 1
        else:
            worker.model = "another"
        await worker.start()
        _, error = await fail(engine)
        assert isinstance(error, EngineDown)
        assert "another model" in error.message
        assert worker.count_requests(variant.path) == 0
        worker.token_offset, worker.model = 0, "scripted"
        await engine.health.wait_ready()
        assert await collect_ids(engine, make_job()) == IDS


@in_event_loop
async def test_a_server_that_restarts_with_another_context(variant: Variant) -> None:
    """A larger one changes nothing; a smaller one breaks what clients were promised."""
    async with (
        make_worker(variant, LETTERS, context=2048) as worker,
        open_remote(variant, worker) as engine,
    ):
        for context in (4096, 1024, 2048):
            await worker.stop()
            worker.engine.settings = replace(worker.engine.settings, context=context)
            await worker.start()
            if context == 1024:
                _, error = await fail(engine)
                assert isinstance(error, EngineDown)
                assert "smaller context" in error.message
            else:
                await engine.health.wait_ready()
                assert await collect_ids(engine, make_job()) == IDS


@in_event_loop
async def test_a_server_with_another_tokenizer_is_refused_at_the_start(variant: Variant) -> None:
    async with make_worker(variant, LETTERS) as worker:
        upstream = make_upstream(variant, worker, probe_ids={"abc": [1, 2, 3]})
        with pytest.raises(ModelBroken, match="another tokenizer"):
            await connect(make_settings(worker), upstream, get_vocabulary(worker))
        upstream = make_upstream(variant, worker, model="unknown")
        with pytest.raises(ModelBroken, match="does not list"):
            await connect(make_settings(worker), upstream, get_vocabulary(worker))


# 15: grammars

GRAMMAR = "%llguidance {}\nstart: /[a-z ]+/"


@in_event_loop
async def test_a_llama_server_of_unknown_build_gets_no_grammar(each_variant: Variant) -> None:
    async with (
        make_worker(each_variant, LETTERS) as worker,
        open_remote(each_variant, worker) as engine,
    ):
        is_tried = each_variant.protocol != "llama-server"
        assert engine.capabilities.grammars == is_tried
        if not is_tried:
            with pytest.raises(Unsupported):
                await engine.admit(make_job(grammar=GRAMMAR))
            assert not any("grammar" in body for _, body in worker.requests)


@in_event_loop
async def test_a_server_that_ignores_grammars_has_none(each_variant: Variant) -> None:
    async with make_worker(each_variant, LETTERS) as worker:
        worker.enforces_grammars = False
        async with open_remote(each_variant, worker, grammars=True) as engine:
            assert not engine.capabilities.grammars
        async with open_remote(each_variant, worker, grammars=False) as engine:
            assert not engine.capabilities.grammars


@in_event_loop
async def test_an_answer_that_breaks_its_grammar_fails(each_variant: Variant) -> None:
    async with (
        make_worker(each_variant, [Reply(TEXT, when="good"), "12345"]) as worker,
        open_remote(each_variant, worker, grammars=True) as engine,
    ):
        assert await collect_ids(engine, make_job("good", grammar=GRAMMAR)) == IDS
        count, error = await fail(engine, grammar=GRAMMAR)
        assert isinstance(error, BadRequest)
        assert count == 0
        assert engine.state == "ready"


@in_event_loop
async def test_an_answer_that_ends_before_its_grammar_fails(each_variant: Variant) -> None:
    async with (
        make_worker(each_variant, LETTERS) as worker,
        open_remote(each_variant, worker, grammars=True) as engine,
    ):
        _, error = await fail(engine, grammar='%llguidance {}\nstart: /[a-z ]+/ "!"')
        assert isinstance(error, BadRequest)


# 16, 17, 18: answers with a status


@pytest.mark.parametrize(
    ("status", "expected"),
    [(429, Overloaded), (503, Unavailable), (502, Unavailable), (500, EngineFailed)],
)
@in_event_loop
async def test_a_status_is_passed_on_once(
    variant: Variant, status: int, expected: type[DragomanError]
) -> None:
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        worker.set_faults(WorkerFaults(status=status, retry_after="7"))
        _, error = await fail(engine)
        assert type(error) is expected
        if status != 500:
            assert error.retry_after == 7
        assert worker.count_requests(variant.path) == 1
        assert engine.state == "ready"
        assert engine.health.failures == 0
        worker.set_faults(None)
        assert await collect_ids(engine, make_job()) == IDS


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens.",
        "the request exceeds the available context size",
        "The input (5000 tokens) is longer than the maximum allowed length",
    ],
)
@in_event_loop
async def test_a_prompt_that_the_server_finds_too_long_is_the_clients_fault(
    variant: Variant, message: str
) -> None:
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        worker.set_faults(WorkerFaults(status=400, message=message))
        _, error = await fail(engine)
        assert isinstance(error, ContextOverflow)
        assert worker.count_requests(variant.path) == 1
        assert engine.state == "ready"


# 19: the client leaves


@pytest.mark.parametrize("taken", [0, 3], ids=["before the first token", "in the middle"])
@in_event_loop
async def test_closing_a_job_closes_its_connection(variant: Variant, taken: int) -> None:
    script = [Reply(TEXT, when="Say", chunks="characters", hang_at=taken), Reply(TEXT)]
    async with make_worker(variant, script) as worker, open_remote(variant, worker) as engine:
        async with aclosing(engine.generate(make_job())) as steps:
            reading = asyncio.create_task(anext(steps))
            await worker.wait_until(lambda worker: worker.generating == 1)
            if taken:
                await reading
            else:
                reading.cancel()
                await asyncio.wait([reading])
        await check_nothing_left(engine, worker)
        assert worker.engine.cancelled == 1
        assert worker.count_requests(variant.path) == 1


@measures_time
def test_a_server_learns_within_100_ms_that_its_client_left() -> None:
    assert close_and_measure(VARIANTS["llama-server"]) < 0.1


@in_event_loop
async def close_and_measure(variant: Variant) -> float:
    """Return how many seconds after its client has left a server learns of it."""
    script = [Reply(TEXT, when="Say", chunks="characters", hang_at=3), Reply(TEXT)]
    async with make_worker(variant, script) as worker, open_remote(variant, worker) as engine:
        steps = engine.generate(make_job())
        await anext(steps)
        closed_at = time.perf_counter()
        await steps.aclose()
        await worker.wait_until(lambda worker: worker.generating == 0)
        return time.perf_counter() - closed_at


@in_event_loop
async def test_nothing_is_sent_for_a_client_that_left_between_two_tries(variant: Variant) -> None:
    async with (
        make_worker(variant, LETTERS) as worker,
        open_remote(variant, worker, first_retry_delay=5.0) as engine,
    ):
        worker.set_faults(WorkerFaults(close_at=0))
        reading = asyncio.create_task(collect(engine))
        await wait_for(lambda: engine.retries == 1)
        reading.cancel()
        await asyncio.wait([reading])
        worker.set_faults(None)
        sent = worker.count_requests(variant.path)
        await wait_for(lambda: engine.running_jobs == 0)
        await check_nothing_left(engine, worker)
        assert worker.count_requests(variant.path) == sent


@in_event_loop
async def test_a_connection_that_is_being_opened_is_given_up_with_its_job() -> None:
    variant = VARIANTS["vllm-generate"]
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        worker.hanging_paths.add("/v1/models")  # after a lost connection, this comes first
        worker.close_idle()
        await engine.client.wait_all_lost()
        reading = asyncio.create_task(collect(engine))
        await worker.wait_until(lambda worker: worker.count_requests("/v1/models") == 1)
        reading.cancel()
        await asyncio.wait([reading])
        await engine.client.wait_all_lost()
        assert worker.count_requests(variant.path) == 0


# 20: a slow client


@in_event_loop
async def test_a_slow_reader_makes_the_server_wait_and_nobody_else(
    variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_stream, "MAX_BACKLOG", 1 << 14)
    script = [Reply("x" * 2000, when="long", chunks="characters"), Reply(TEXT)]
    async with make_worker(variant, script) as worker, open_remote(variant, worker) as engine:
        async with aclosing(engine.generate(make_job("long"))) as steps:
            count = (await anext(steps)).tokens
            await wait_for(lambda: engine.paused_requests == 1)
            assert await collect_ids(engine, make_job()) == IDS
            assert engine.paused_requests == 1
            count += sum([len(step.ids) async for step in steps])
        assert count == 2000
        assert engine.paused_requests == 0


# 21: stale connections


@in_event_loop
async def test_a_kept_connection_that_is_dead_costs_nobody_an_answer(variant: Variant) -> None:
    async with make_worker(variant, LETTERS) as worker, open_remote(variant, worker) as engine:
        for _ in range(5):
            worker.close_idle()
            assert await collect_ids(engine, make_job()) == IDS
        assert engine.health.failures == 0


@in_event_loop
async def test_connections_are_used_again(each_variant: Variant) -> None:
    async with (
        make_worker(each_variant, LETTERS) as worker,
        open_remote(each_variant, worker) as engine,
    ):
        for _ in range(5):
            assert await collect_ids(engine, make_job()) == IDS
        assert worker.accepted_connections == 1
