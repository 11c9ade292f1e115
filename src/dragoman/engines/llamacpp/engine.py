"""GGUF models, run by the native server of `xllamacpp` inside this process.

The server reports text; this engine reports token ids, which the pipeline turns into text.
`generation` turns a job into requests to the server; this module loads the model, checks jobs,
assigns slots, embeds and tokenizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec
from msgspec import Struct

from dragoman.engines.grammar import allow_ends, check_grammar
from dragoman.engines.limits import check_prompt_length
from dragoman.engines.llamacpp import SAMPLING_FIELDS
from dragoman.engines.llamacpp.choice import ChoiceProgress, GgufVocabulary, get_stop_ids
from dragoman.engines.llamacpp.client import NativeClient, NativeResponse
from dragoman.engines.llamacpp.generation import GroupGenerator
from dragoman.engines.llamacpp.loading.load_plan import make_load_plan
from dragoman.engines.llamacpp.loading.memory_plan import get_batches
from dragoman.engines.llamacpp.loading.native_params import LoadPlan
from dragoman.engines.llamacpp.loading.server import NativeServer, find_eos_ids, launch
from dragoman.engines.llamacpp.loading.settings import parse_settings
from dragoman.engines.llamacpp.loading.vocabulary import read_vocabulary
from dragoman.engines.llamacpp.logprobs import LogprobProber
from dragoman.engines.llamacpp.media.media_prompts import MediaPrompts
from dragoman.engines.llamacpp.media.trial import open_media_prompts
from dragoman.engines.llamacpp.params import (
    NativeError,
    NativeEvent,
    NativeRequest,
    build_payload,
    convert_error,
    event_decoder,
)
from dragoman.engines.llamacpp.partial_characters import PieceIndex
from dragoman.engines.llamacpp.pooling.server import PoolingServer
from dragoman.engines.llamacpp.prompt_speed import PromptSpeed
from dragoman.engines.llamacpp.saved_states import make_state_store
from dragoman.engines.llamacpp.shared_prefill import SharedPrefills
from dragoman.engines.llamacpp.slot import make_cache_label
from dragoman.engines.llamacpp.slots import SlotLease, SlotPool
from dragoman.engines.llamacpp.validate import GrammarVerifier, check_job
from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import DragomanError, EngineFailed, Unsupported
from dragoman.types import Adapter, Capabilities, Job, Json, MediaItem, Sampling, Step
from dragoman.types.media_ids import PromptCount
from dragoman.types.text_pair import TextPair

log = logging.getLogger("dragoman.llamacpp")

MAX_LOGPROBS = 20
IDLE_TIMEOUT = 5.0  # seconds to wait for the server to become idle before it is closed
PROBE_PATH = "/lora-adapters"  # answered between two steps by the thread that computes them


class _ServerTokens(Struct):
    tokens: list[int]


def create(**settings: object) -> LlamaCppEngine:
    """Load a model; `settings` are the fields of `LlamaCppSettings`."""
    plan = make_load_plan(parse_settings(settings))
    vocabulary = read_vocabulary(plan.header)
    native = launch(plan, special=vocabulary.pieces is not None)
    try:
        started_at = time.process_time()  # unlike wall clock time, not affected by other processes
        vocabulary = msgspec.structs.replace(vocabulary, eos_ids=find_eos_ids(native))
        token_seconds = (time.process_time() - started_at) / plan.threads
        speed = PromptSpeed(get_batches(plan.settings, plan.on_gpu)[0], token_seconds)
        media = open_media_prompts(native.client, vocabulary, plan.projector)
    except BaseException:
        native.close()
        raise
    return LlamaCppEngine(plan, native, vocabulary, speed, media)


class LlamaCppEngine:
    """One loaded model."""

    def __init__(
        self,
        plan: LoadPlan,
        native: NativeServer,
        vocabulary: GgufVocabulary,
        speed: PromptSpeed,
        media: MediaPrompts | None = None,
    ) -> None:
        settings, header = plan.settings, plan.header
        self.speed = speed
        self._media = media
        self.context = plan.memory.context
        self.vocabulary = vocabulary
        self.adapters = {name: number for number, name in enumerate(settings.lora)}
        self._states = make_state_store(plan, native)
        prefills = SharedPrefills(speed.estimate_seconds)
        self.slots = SlotPool(plan.memory.slots, self._states, prefills)
        self.logprobs = LogprobProber(self)
        self._settings = settings
        self._plan = plan
        self._native = native
        self._pooling = PoolingServer(plan, speed, self.parse_error)
        self._is_closed = False
        self._piece_index: PieceIndex | None = None
        self._verifier = GrammarVerifier(self)
        has_pieces = vocabulary.pieces is not None
        self._masker: TokenMasker | None = None
        if vocabulary.pieces is not None:
            self._masker = TokenMasker(
                vocabulary.pieces, vocabulary.eos_ids, vocabulary.control_ids
            )
        self.capabilities = Capabilities(
            context=self.context,
            trained_context=plan.memory.trained_context,
            context_shift=bool(settings.context_shift),
            slots=plan.memory.slots,
            shares_compute=not plan.on_gpu,
            token_prompts=True,
            vocabulary_size=self.vocabulary.size,
            sampling=SAMPLING_FIELDS,
            sampling_defaults=True,
            logprobs=MAX_LOGPROBS if has_pieces else -1,
            prompt_logprobs=has_pieces,
            grammars=True,
            generates=self._pooling.head.generates,
            embeddings=(header.embedding_length or 0) if self._can_embed else 0,
            embedding_context=self._pooling.context,
            scores=settings.embeddings and self._pooling.head.ranks,
            lora=tuple(settings.lora),
            tokenize=True,
            cache_scopes=True,
            public_prefixes=self._states is not None,
            modalities=("text", *(plan.projector.modalities if plan.projector else ())),
            reads_media_as_text=media is not None,
        )

    @property
    def client(self) -> NativeClient:
        return self._native.client

    async def count_prompt(self, prompt: list[int], media: Sequence[MediaItem]) -> PromptCount:
        """Return how many tokens a prompt has, and whether it is read as these ids."""
        if not media:
            return PromptCount(len(prompt))
        if self._media is None:
            raise Unsupported("This model does not read pictures or sound.", param="messages")
        return await self._media.count(prompt, media)

    async def can_continue(self, job: Job, prompt: list[int]) -> bool:
        """Whether a request may continue an answer: with media, the answer is re-read as text."""
        return not job.media or (await self.count_prompt(prompt, job.media)).is_exact

    async def admit(self, job: Job) -> None:
        ids = await self._encode_prompt(job)
        count = await self.count_prompt(ids, job.media)
        check_job(job, ids, count, self)
        if job.grammar is not None:
            await check_grammar(job.grammar, self._masker, job.cache_scope)
            # without a free slot, `generate` verifies it, so that `admit` need not wait
            if self.slots.free and not self._verifier.has_verified(job):
                async with self.slots.acquire(1, make_cache_label(job)) as lease:
                    await self._verifier.verify(job, lease)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if job.grammar is not None:
            await check_grammar(job.grammar, self._masker, job.cache_scope)
        ids = await self._encode_prompt(job)
        tokens = (await self.count_prompt(ids, job.media)).tokens
        check_prompt_length(tokens, self.capabilities)
        label = make_cache_label(job)
        if job.prompt_logprobs is not None:
            async with self.slots.acquire(1, label, ids) as lease:
                await self.prepare_slot(job, ids, lease)
                logprobs = await self.logprobs.probe_prompt(job, ids, lease)
            yield Step(prompt_tokens=len(ids), prompt_logprobs=logprobs)
        choices = await self._create_choices(job, tokens)
        seed = random.getrandbits(32) if job.sampling.seed is None else job.sampling.seed
        width = 1 if job.sampling.min_tokens else self._plan.memory.slots
        for start in range(0, job.n, width):
            group = choices[start : start + width]
            async with self.slots.acquire(len(group), label, ids) as lease:
                if job.grammar is not None:
                    await self._verifier.verify(job, lease)
                await self.prepare_slot(job, ids, lease)
                generator = GroupGenerator(self, job, ids, group, seed, lease)
                async with aclosing(generator.run()) as steps:
                    async for step in steps:
                        yield step

    async def prepare_slot(self, job: Job, ids: list[int], lease: SlotLease) -> None:
        """Fill the slot with as much of the prompt as is cached, or shared with other jobs."""

        async def prefill(prefix: Sequence[int]) -> None:
            request = NativeRequest(prompt=[*prefix], max_tokens=0, seed=0)
            plain = msgspec.structs.replace(job, grammar=None, logprobs=None)
            async with self.stream(self.build_body(plain, request, lease), lease) as response:
                while events := await response.read_events():
                    for event in map(event_decoder.decode, events):
                        self._read_progress(event)

        await lease.prepare(job, ids, prefill)

    def _read_progress(self, event: NativeEvent) -> None:
        if event.error is not None:
            raise self.convert_error(event.error)
        if event.prompt_progress is not None:
            self.speed.add(event.prompt_progress)

    async def _create_choices(self, job: Job, prompt_tokens: int) -> list[ChoiceProgress]:
        max_tokens = self._limit_tokens(prompt_tokens, job.sampling.max_tokens)
        stop_ids = get_stop_ids(job, self.vocabulary)
        choices = [ChoiceProgress(choice, max_tokens, stop_ids) for choice in range(job.n)]
        if job.grammar is not None and self._masker is not None:
            for choice in choices:
                choice.grammar = await asyncio.to_thread(
                    self._masker.start_grammar, job.grammar, stop_ids, job.cache_scope
                )
        if job.prompt_logprobs is None:
            choices[0].prompt_tokens = prompt_tokens
        return choices

    def _limit_tokens(self, prompt_tokens: int, limit: int | None) -> int:
        """Return how many tokens an answer may have: what fits, unless the context shifts."""
        free = self.context - prompt_tokens
        if self._settings.context_shift:
            return self.context if limit is None else limit
        return free if limit is None else min(limit, free)

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        """Return one vector of length 1 for each input."""
        if not self._can_embed:
            raise Unsupported("This model's engine does not support embeddings.", param="model")
        if adapters:
            raise Unsupported("Embeddings cannot be combined with adapters.", param="lora")
        return await self._pooling.embed([await self._encode_input(content) for content in inputs])

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return the relevance of the second text of each pair for the first."""
        if not self.capabilities.scores:
            raise Unsupported("This model's engine does not score texts.", param="model")
        for pair in pairs:
            self._pooling.check_input(pair.ids, self.vocabulary.size, "documents")
        return await self._pooling.score([pair.ids for pair in pairs])

    async def tokenize(self, text: str, special: bool) -> list[int]:
        return await self._tokenize(text, add_special=False, parse_special=special)

    async def probe(self) -> float:
        """Wait until the native threads have answered; return the seconds that a step takes."""
        if self._media is None or not self._media.is_encoding:
            await self._native.client.get(PROBE_PATH)
        await self._pooling.probe(PROBE_PATH)
        return self.speed.step_seconds

    async def aclose(self) -> None:
        """Close the servers once nothing runs on them."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._pooling.aclose()
        if self._states is not None:
            self._states.close()
        try:
            async with asyncio.timeout(IDLE_TIMEOUT):
                await self._wait_idle()
            await asyncio.to_thread(self._native.close)
        except (TimeoutError, EngineFailed):
            log.warning("the native server is still busy; it ends with this process")
            self._native.leave_running()

    async def _wait_idle(self) -> None:
        """Wait until every slot is free, by a request that needs all of them."""
        job = Job(id="idle", prompt=[0], sampling=Sampling(temperature=0.0), cache_prompt=False)
        request = NativeRequest(prompt=[0], max_tokens=1, seed=0, choices=self._plan.memory.slots)
        await self.client.post("/completion", self.build_body(job, request) | {"stream": False})

    @property
    def _can_embed(self) -> bool:
        return self._settings.embeddings and self._pooling.head.embeds

    async def _encode_input(self, content: list[int] | str) -> list[int]:
        """Return the tokens of an input to embed, after checking them."""
        ids = content
        if isinstance(ids, str):
            ids = await self._tokenize(ids, add_special=True, parse_special=True)
        self._pooling.check_input(ids, self.vocabulary.size, "input")
        return ids

    async def _encode_prompt(self, job: Job) -> list[int]:
        if isinstance(job.prompt, list):
            return job.prompt
        return await self._tokenize(job.prompt, add_special=True, parse_special=True)

    async def _tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        request = {"content": text, "add_special": add_special, "parse_special": parse_special}
        status, body = await self.client.post("/tokenize", request)
        if status != 200:
            raise self.parse_error(body)
        return msgspec.json.decode(body, type=_ServerTokens).tokens

    # Called by `generation`, `logprobs` and `validate`

    def find_ids(self, event: NativeEvent, count: int) -> list[int] | None:
        """Return the ids of all tokens that the event reports; None if they are not known."""
        if self.vocabulary.pieces is None:
            return None
        last = event.tokens[-1]
        if count == 1:
            return [last]
        if self._piece_index is None:
            self._piece_index = PieceIndex(self.vocabulary.pieces)
        missing = self._piece_index.find_missing(event.content, last, count - 1)
        return None if missing is None else [*missing, last]

    def build_body(
        self, job: Job, request: NativeRequest, lease: SlotLease | None = None
    ) -> dict[str, Json]:
        """Return the body of a request that runs in the slot of the lease."""
        body = build_payload(job, request, self.context, self.adapters)
        if lease is not None:
            body["id_slot"] = lease.slot.number
            body["cache_prompt"] = job.cache_prompt and lease.may_reuse
        body["n_cache_reuse"] = self._settings.cache_reuse or 0
        body["timings_per_token"] = self._settings.speculation is not None
        if job.grammar is not None:
            body["grammar"] = allow_ends(job.grammar, self.vocabulary.eos_ids, job.cache_scope)
        if job.media:
            body["media"] = job.media
        return body

    async def complete(self, body: dict[str, Json], lease: SlotLease) -> NativeEvent:
        """Run a request whose response is not streamed."""
        answer = await lease.request(body["prompt"], self._post(body))
        return event_decoder.decode(answer)

    async def _post(self, body: dict[str, Json]) -> bytes:
        status, answer = await self.client.post("/completion", self._convert_media(body))
        if status != 200:
            raise self.parse_error(answer)
        return answer

    def _convert_media(self, body: dict[str, Json]) -> dict[str, Json]:
        """Return the body with its media in the form of the server: the prompt becomes a text."""
        media = body.get("media")
        if media is None or self._media is None:
            return body
        self.speed.expect_media(self._media.start_encoding(media))
        prompt = self._media.build(body["prompt"], media)
        return {name: value for name, value in body.items() if name != "media"} | {"prompt": prompt}

    @asynccontextmanager
    async def stream(
        self, body: dict[str, Json], lease: SlotLease
    ) -> AsyncGenerator[NativeResponse, None]:
        """Run a request whose response is streamed. Leaving the context cancels it."""
        response = await lease.request(body["prompt"], self._open(body), NativeResponse.close)
        try:
            yield response
        finally:
            response.close()

    async def _open(self, body: dict[str, Json]) -> NativeResponse:
        response = await self.client.open("/completion", self._convert_media(body))
        if response.status == 200:
            return response
        try:
            raise self.parse_error(await response.read_body())
        finally:
            response.close()

    def parse_error(self, body: bytes) -> DragomanError:
        with contextlib.suppress(msgspec.MsgspecError):
            event = event_decoder.decode(body)
            if event.error is not None:
                return self.convert_error(event.error)
        return self.convert_error(NativeError())

    def convert_error(self, error: NativeError) -> DragomanError:
        log.warning("the native server rejected a request: %d %s", error.code, error.message)
        return convert_error(error, self.capabilities)
