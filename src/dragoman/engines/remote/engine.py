"""The engine: one model on an upstream server.

A job becomes one or several requests (`protocols`). What arrives is read where it arrives
(`response_stream`): no task is woken for a token. A request that fails before its first step has
left is sent once more, if the connection was the reason; later, nothing is ever sent twice. Closing
a job closes its connections, which tells servers to stop generating.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.engines.grammar import check_grammar
from dragoman.engines.limits import (
    check_adapters,
    check_grammar_sampling,
    check_logprobs,
    check_prompt_length,
    check_token_ids,
)
from dragoman.engines.remote.answer import AnswerParts
from dragoman.engines.remote.failures import (
    ConnectionFailure,
    InvalidFrame,
    StatusFailure,
    UpstreamFailure,
    convert_failure,
    make_refusal,
)
from dragoman.engines.remote.health import UpstreamHealth
from dragoman.engines.remote.http.client import UpstreamClient
from dragoman.engines.remote.identity import (
    NOT_LISTED,
    PROBE_TEXTS,
    ServerIdentity,
    fetch_tokens,
    read_identity,
)
from dragoman.engines.remote.probes import make_grammar_probe, make_token_probe, may_try_grammar
from dragoman.engines.remote.protocols import make_api
from dragoman.engines.remote.protocols.api import UpstreamRequest
from dragoman.engines.remote.response_stream import ResponseStream, StallWatch
from dragoman.engines.remote.settings import RemoteSettings, Upstream
from dragoman.engines.step_queue import StepConsumer, StepQueue
from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import (
    ENGINE_FAILURE,
    BadRequest,
    DragomanError,
    EngineFailed,
    ModelBroken,
    Unsupported,
)
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Capabilities, Job, Step

log = logging.getLogger("dragoman.remote")

MAX_CHOICES, MAX_INVALID_TEXTS = 128, 2
encode = msgspec.json.Encoder().encode


async def connect(
    settings: RemoteSettings, upstream: Upstream, vocabulary: Vocabulary
) -> RemoteEngine:
    """Return the engine of a server that keeps what it promises, or raise `ModelBroken`."""
    try:
        engine = RemoteEngine(settings, upstream, vocabulary)
    except ValueError as error:
        raise ModelBroken(f"Invalid settings of the upstream server: {error}.") from None
    try:
        await engine.prepare()
    except BaseException:
        await asyncio.shield(engine.aclose())
        raise
    return engine


class RemoteEngine:
    """One model on one server."""

    def __init__(
        self, settings: RemoteSettings, upstream: Upstream, vocabulary: Vocabulary
    ) -> None:
        self.upstream = upstream
        self.vocabulary = vocabulary
        self.client = UpstreamClient(settings)
        self.health = UpstreamHealth(settings.url, settings, self._try_again)
        self._settings = settings
        self._api = make_api(upstream, vocabulary)
        self.capabilities: Capabilities = self._api.make_capabilities()
        self._masker = TokenMasker(vocabulary.pieces, vocabulary.eos_ids, vocabulary.control)
        self._size = max(upstream.vocabulary_size or 0, len(vocabulary.pieces))
        self._watch = StallWatch(settings.stall_timeout)
        self.retries = 0  # requests that were sent once more
        self._identity: ServerIdentity | None = None
        self._verified_epoch = -1
        self._verified_at = float("-inf")
        self._verifying = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()  # of jobs

    @property
    def state(self) -> str:
        return self.health.state

    @property
    def failure(self) -> str | None:
        return self.health.failure

    @property
    def retry_after(self) -> float:
        return self.health.retry_after

    @property
    def running_requests(self) -> int:
        """Requests whose responses are being read."""
        return len(self._watch)

    @property
    def running_jobs(self) -> int:
        return len(self._tasks)

    @property
    def paused_requests(self) -> int:
        """Requests whose server has to wait for a slow reader."""
        return self._watch.count_paused()

    async def prepare(self) -> None:
        """Check what this server returns; raise `ModelBroken` if it cannot be used."""
        try:
            await self._verify()
            self._check_identity()
            await self._run_probe(make_token_probe(self.upstream, self.vocabulary))
        except UpstreamFailure as failure:
            reason = self._settings.hide_key(failure)
            log.error("upstream server %s cannot be used: %s", self._settings.url, reason)
            raise make_refusal(failure, self.capabilities) from None
        if may_try_grammar(self._settings, self.upstream):
            self.capabilities = replace(self.capabilities, grammars=await self._try_grammar())

    def _check_identity(self) -> None:
        """Compare the server's tokens with those that the tokenizer has for the same texts."""
        if self._identity is None:
            return
        if self._identity.listed == NOT_LISTED:
            raise ModelBroken(f"The upstream server does not list a model `{self.upstream.model}`.")
        for text, ids in self._identity.probe_ids.items():
            if self.upstream.probe_ids.get(text, ids) != ids:
                raise ModelBroken("The upstream server has another tokenizer than the given one.")

    async def _try_grammar(self) -> bool:
        """Return whether the server enforces a grammar that leaves it no choice."""
        try:
            await self._run_probe(make_grammar_probe(self.vocabulary))
        except (UpstreamFailure, DragomanError) as error:
            reason = self._settings.hide_key(error)
            log.warning(
                "upstream server %s does not enforce grammars: %s", self._settings.url, reason
            )
            return False
        return True

    async def _run_probe(self, job: Job) -> None:
        """Run a job to its end, without a second try."""
        parts = await self._make_parts(job)
        for request in self._api.build_requests(job):
            stream = self._make_stream(request, parts, StepQueue())
            await self._send_and_read(request, stream, fresh=False)

    async def _try_again(self) -> None:
        """See whether a server is back: the same one, and able to generate."""
        await self._verify()
        await self._run_probe(make_token_probe(self.upstream, self.vocabulary))

    # the contract of an engine

    async def admit(self, job: Job) -> None:
        self._check_job(job)
        if job.grammar is not None:
            if not self.capabilities.grammars:
                raise Unsupported("This model's server enforces no grammars.", param="grammar")
            check_grammar_sampling(job.sampling)
            await check_grammar(job.grammar, self._masker, job.cache_scope)
        try:
            await self._ensure_ready()
        except UpstreamFailure as failure:
            raise self._convert(failure, job) from failure

    def _check_job(self, job: Job) -> None:
        prompt, takes_ids = job.prompt, self.capabilities.token_prompts
        if isinstance(prompt, str) == takes_ids:
            expected = "token ids" if takes_ids else "text"
            raise BadRequest(f"This model's engine takes {expected}.", param="prompt")
        if not prompt:
            raise BadRequest("The prompt is empty.", param="prompt")
        if isinstance(prompt, list):
            check_token_ids(prompt, self._size, "prompt")
            check_prompt_length(len(prompt), self.capabilities)
        if not 1 <= job.n <= MAX_CHOICES:
            raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
        check_logprobs(job.logprobs, self.capabilities.logprobs)
        if job.prompt_logprobs is not None:
            raise Unsupported("This model's server reports no logprobs of prompts.", param="echo")
        check_token_ids(job.sampling.logit_bias or (), self._size, "logit_bias")
        check_token_ids(job.sampling.stop_token_ids or (), self._size, "stop_token_ids")
        check_adapters(job.lora, self.capabilities.lora)
        self._api.check_job(job)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        with self._start_job(job) as queue:
            while steps := await queue.take():
                for step in steps:
                    yield step

    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        """Run a job like `generate`, and call a consumer with its steps where they arrive."""
        with self._start_job(job) as queue:
            await queue.deliver(consumer)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        try:
            ids = await fetch_tokens(self.client, self._api, text, special)
        except UpstreamFailure as failure:
            raise convert_failure(failure, self.capabilities, 0) from failure
        if ids is None:
            raise Unsupported("This model's server has no route for tokens.")
        return ids

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.health.aclose()
        await self.client.aclose()

    # running jobs

    @contextlib.contextmanager
    def _start_job(self, job: Job) -> Generator[StepQueue, None, None]:
        """Run a job inside this block; leaving it closes the job's connections."""
        queue = StepQueue()
        task = asyncio.create_task(self._run_job(job, queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            yield queue
            self.health.mark_valid()
        finally:
            task.cancel()

    async def _run_job(self, job: Job, queue: StepQueue) -> None:
        """Run all requests of a job; end the queue with the first error."""
        try:
            requests = self._api.build_requests(job)
            if len(requests) == 1:
                await self._run_request(job, requests[0], queue)
            else:
                await run_together([self._run_request(job, item, queue) for item in requests])
            queue.end()
        except UpstreamFailure as failure:
            queue.end(self._convert(failure, job))
        except DragomanError as error:
            queue.end(error)
        except Exception:
            log.exception("a request to the upstream server failed")
            queue.end(EngineFailed(ENGINE_FAILURE))

    async def _run_request(self, job: Job, request: UpstreamRequest, queue: StepQueue) -> None:
        """Run one request; send it once more if the connection breaks before the first step."""
        may_retry, fresh = True, False
        while True:
            stream: ResponseStream | None = None
            try:
                await self._ensure_ready()
                stream = self._make_stream(request, await self._make_parts(job), queue)
                await self._send_and_read(request, stream, fresh=fresh)
                return
            except ConnectionFailure as failure:
                if not failure.is_broken or (stream is not None and stream.has_steps):
                    raise
                is_stale = stream is not None and stream.is_stale
                if not (may_retry or is_stale):
                    raise ConnectionFailure("refused", str(failure)) from failure
                log.warning("upstream server %s: %s; trying again", self._settings.url, failure)
                if not is_stale:
                    may_retry = False
                    self.retries += 1
                    await asyncio.sleep(self._settings.first_retry_delay)
                fresh = True

    def _make_stream(
        self, request: UpstreamRequest, parts: AnswerParts, queue: StepQueue
    ) -> ResponseStream:
        settings = self._settings
        limit = settings.stall_timeout + parts.prompt_tokens / settings.prefill_rate
        return ResponseStream(self._api.make_reader(request, parts), queue, limit)

    async def _send_and_read(
        self, request: UpstreamRequest, stream: ResponseStream, *, fresh: bool
    ) -> None:
        """Send a request, and return when all of its choices have finished."""
        data = self.client.build_request(request.path, encode(request.body))
        connection = await self.client.acquire(fresh=fresh)
        with self._watch.watch(stream):
            try:
                stream.start(connection, data)
                await stream.done
            finally:
                stream.close()

    async def _make_parts(self, job: Job) -> AnswerParts:
        parts = AnswerParts(job=job, vocabulary=self.vocabulary, vocabulary_size=self._size)
        if job.grammar is None:
            return parts
        grammar, scope = job.grammar, job.cache_scope
        grammars = await asyncio.to_thread(
            lambda: [
                self._masker.start_grammar(grammar, parts.stop_ids, scope) for _ in range(job.n)
            ]
        )
        return replace(parts, grammars=grammars)

    def _convert(self, failure: UpstreamFailure, job: Job) -> DragomanError:
        """Update the server's health from a failure, and return the error of the request."""
        reason = self._settings.hide_key(failure)
        log.warning("upstream server %s, request %s: %s", self._settings.url, job.id, reason)
        match failure:
            case ConnectionFailure(kind="closed"):  # in the middle of an answer
                self._verified_epoch = -1
            case ConnectionFailure():
                self.health.mark_down(failure.kind, failure)
            case InvalidFrame():
                allowed = 0 if self.capabilities.token_prompts else MAX_INVALID_TEXTS
                self.health.count_invalid(failure, allowed)
            case StatusFailure() if failure.is_temporary or failure.status == 404:
                self._verified_epoch = -1  # a proxy may have another server behind it now
        error = convert_failure(failure, self.capabilities, len(job.prompt))
        if isinstance(failure, ConnectionFailure) and self.health.state != "ready":
            error.retry_after = self.health.retry_after
        return error

    # the server's identity

    async def _ensure_ready(self) -> None:
        """Raise `EngineDown` unless the server is up, and still the one that it was."""
        self.health.check()
        if not self._is_verified():
            await self._verify()

    def _is_verified(self) -> bool:
        if self._verified_epoch == self.client.epoch:
            return True
        age = asyncio.get_running_loop().time() - self._verified_at
        return self._verified_epoch >= 0 and age < self._settings.identity_interval

    async def _verify(self) -> None:
        """Compare the server with the one that was found first."""
        async with self._verifying:
            if self._is_verified():
                return
            found = await self._read_identity()
            difference = None
            if self._identity is None:
                self._identity = found
            else:
                difference = self._identity.find_difference(found)
            if difference is not None:
                self.health.mark_replaced(difference)
                raise self.health.make_error()
            self._verified_epoch = self.client.epoch
            self._verified_at = asyncio.get_running_loop().time()

    async def _read_identity(self) -> ServerIdentity:
        upstream = self.upstream
        return await read_identity(
            self.client,
            self._api,
            upstream.model,
            upstream.probe_ids or PROBE_TEXTS,
            timeout=self._settings.connect_timeout,
        )


async def run_together(calls: Sequence[Coroutine[object, object, None]]) -> None:
    """Run all; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for pending in tasks:
            pending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
