"""GGUF models, run by the native server of `xllamacpp` inside this process.

A job is one request to the server for as many choices as there are slots, which share the reading
of the prompt. What the server cannot do in one request is done in several, each going on where the
one before it ended, on a prompt that is still in memory:

- `min_tokens`: a first request in which nothing may end the answer, then one without that rule.
- Tokens that were lost at the end of a request, inside a character: asked for again.
- A logprob of a token that the server did not tell of: one step from the same place.
- Logprobs of the prompt: the prompt is generated again under a grammar that allows nothing else.

The server tells of text; we tell of token ids, which the reader of an answer turns into text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman.engines.limits import check_prompt_length, make_context_overflow
from dragoman.engines.llamacpp import SAMPLING_FIELDS, gguf
from dragoman.engines.llamacpp.choice import ChoiceProgress, GgufVocabulary, get_stop_ids
from dragoman.engines.llamacpp.client import EventStream, NativeClient
from dragoman.engines.llamacpp.grammar import allow_ends, check_grammar, check_tokens_allowed
from dragoman.engines.llamacpp.logprobs import LogprobProber
from dragoman.engines.llamacpp.params import (
    SEED_STRIDE,
    NativeError,
    NativeEvent,
    NativeRequest,
    build_payload,
    convert_error,
    convert_logprob,
    event_decoder,
)
from dragoman.engines.llamacpp.partial_characters import PieceIndex
from dragoman.engines.llamacpp.server import (
    LlamaCppSettings,
    NativeServer,
    find_eos_ids,
    get_context_size,
    launch,
)
from dragoman.engines.llamacpp.slots import SlotPool
from dragoman.engines.llamacpp.validate import GrammarVerifier, check_job, check_tokens
from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import BadRequest, DragomanError, EngineFailed, ModelBroken, Unsupported
from dragoman.types import Adapter, Capabilities, Job, Logprob, Sampling, Step

log = logging.getLogger("dragoman.llamacpp")

MAX_LOGPROBS = 20
SPARE = 3  # tokens asked for beyond the limit under a grammar, to complete a character
IDLE = 5.0  # seconds to wait for the server to come to rest before it is let go
CONTROL = 3  # token type in a GGUF file


def create(**settings: Any) -> LlamaCppEngine:
    """Load a model; `settings` are the fields of `Settings`."""
    try:
        chosen = msgspec.convert(settings, LlamaCppSettings)
    except msgspec.ValidationError as error:
        raise ModelBroken(f"The engine's settings are wrong: {error}") from None
    header = gguf.read_header(chosen.path)
    vocabulary = _vocabulary(header)
    native = launch(chosen, header, special=vocabulary.pieces is not None)
    known = msgspec.structs.replace(vocabulary, ends=find_eos_ids(native))
    return LlamaCppEngine(chosen, header, native, known)


def _vocabulary(header: gguf.GgufHeader) -> GgufVocabulary:
    """Bytes of the tokens, where they can be told, and a few tokens of use."""
    from dragoman.tokenizers.from_gguf import pieces_from_gguf

    size = len(header.metadata.get("tokenizer.ggml.tokens", ()))
    types = header.metadata.get("tokenizer.ggml.token_type", ())
    controls = tuple(token for token, kind in enumerate(types) if kind == CONTROL)
    try:
        pieces = pieces_from_gguf(header.metadata)
    except Exception as error:
        log.warning("tokens of this model are told as text only: %r", error)
        return GgufVocabulary(size, frozenset(), control_ids=controls)
    plain = next((at for at, piece in enumerate(pieces) if piece.isalpha() and piece.isascii()), 0)
    return GgufVocabulary(size, frozenset(), pieces, plain, controls)


class LlamaCppEngine:
    """One model, ready to answer."""

    def __init__(
        self,
        settings: LlamaCppSettings,
        header: gguf.GgufHeader,
        native: NativeServer,
        vocabulary: GgufVocabulary,
    ) -> None:
        self.context = get_context_size(settings, header)
        self.vocabulary = vocabulary
        self.adapters = {name: number for number, name in enumerate(settings.lora)}
        self.slots = SlotPool(settings.slots)
        self._settings = settings
        self._header = header
        self._native = native
        self._embedder: NativeServer | None = None
        self._closed = False
        self._starting = asyncio.Lock()
        self._embedding = asyncio.Lock()
        self._pieces: PieceIndex | None = None
        self._marks = LogprobProber(self)
        self._grammars = GrammarVerifier(self)
        self._masker: TokenMasker | None = None
        if vocabulary.pieces is not None:
            self._masker = TokenMasker(
                vocabulary.pieces, vocabulary.eos_ids, vocabulary.control_ids
            )
        self.capabilities = Capabilities(
            context=self.context,
            slots=settings.slots,
            token_prompts=True,
            sampling=SAMPLING_FIELDS,
            logprobs=MAX_LOGPROBS if vocabulary.pieces is not None else -1,
            prompt_logprobs=vocabulary.pieces is not None,
            grammars=True,
            embeddings=(header.embedding_length or 0) if settings.embeddings else 0,
            lora=tuple(settings.lora),
            tokenize=True,
        )

    @property
    def client(self) -> NativeClient:
        return self._native.client

    async def admit(self, job: Job) -> None:
        ids = await self._ids(job)
        check_job(job, ids, self)
        if job.grammar is not None:
            await check_grammar(job.grammar, self._masker)
            if self.slots.free:  # else it would wait for a slot here
                await self._grammars.check(job.grammar)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if job.grammar is not None:
            await check_grammar(job.grammar, self._masker)
        ids = await self._ids(job)
        check_prompt_length(len(ids), self.context)
        told = False
        if job.prompt_logprobs is not None:
            async with self.slots.acquire(1):
                marks = await self._marks.probe_prompt(job, ids)
            yield Step(prompt_tokens=len(ids), prompt_logprobs=marks)
            told = True
        room = self.context - len(ids)
        wanted = job.sampling.max_tokens
        budget = room if wanted is None else min(wanted, room)
        stops = get_stop_ids(job, self.vocabulary)
        tracks = [ChoiceProgress(choice, budget, stops) for choice in range(job.n)]
        if job.grammar is not None and self._masker is not None:
            for track in tracks:
                track.grammar = await asyncio.to_thread(
                    self._masker.start_grammar, job.grammar, stops
                )
        tracks[0].prompt_tokens = None if told else len(ids)
        seed = random.getrandbits(32) if job.sampling.seed is None else job.sampling.seed
        width = 1 if job.sampling.min_tokens else self._settings.slots
        for at in range(0, job.n, width):
            group = tracks[at : at + width]
            async with (
                self.slots.acquire(len(group)),
                aclosing(self._group(job, ids, group, seed)) as steps,
            ):
                if job.grammar is not None:
                    await self._grammars.check(job.grammar)
                async for step in steps:
                    yield step

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        """Vectors of length 1, one for each input."""
        if not self._settings.embeddings:
            raise Unsupported("This model's engine does not embed.", param="model")
        if adapters:
            raise Unsupported("Embeddings cannot be made with an adapter.", param="lora")
        contents = [await self._input(content) for content in inputs]
        if not contents:
            return []
        native = await self._start_embedder()
        async with self._embedding:  # one at a time, so that leaving stops what has not begun
            return [await self._vector(native, content) for content in contents]

    async def _vector(self, native: NativeServer, content: list[int]) -> list[float]:
        status, body = await native.client.post("/v1/embeddings", {"input": [content]})
        if status != 200:
            raise self.parse_error(body)
        vector: list[float] = msgspec.json.decode(body)["data"][0]["embedding"]
        return vector

    async def tokenize(self, text: str, special: bool) -> list[int]:
        asked = {"content": text, "add_special": False, "parse_special": special}
        return await self._tokens(asked)

    async def aclose(self) -> None:
        """Let the servers go once nothing runs on them."""
        if self._closed:
            return
        self._closed = True
        if self._embedder is not None:
            await asyncio.to_thread(self._embedder.close)
        try:
            async with asyncio.timeout(IDLE):
                await self._rest()
            await asyncio.to_thread(self._native.close)
        except (TimeoutError, EngineFailed):
            log.warning("the server is still busy; it ends with this process")
            self._native.leave_running()

    async def _rest(self) -> None:
        """Wait until every slot is free: a request for all of them only runs then."""
        job = Job(id="rest", prompt=[0], sampling=Sampling(temperature=0.0), cache_prompt=False)
        ask = NativeRequest(prompt=[0], max_tokens=1, seed=0, choices=self._settings.slots)
        await self.client.post("/completion", self.build_body(job, ask) | {"stream": False})

    async def _start_embedder(self) -> NativeServer:
        async with self._starting:
            if self._embedder is None:
                started = asyncio.to_thread(launch, self._settings, self._header, embedding=True)
                self._embedder = await started
            return self._embedder

    async def _input(self, content: list[int] | str) -> list[int]:
        """A text to embed, as tokens that are all there and fit."""
        ids = content
        if isinstance(ids, str):
            ids = await self._tokens({"content": ids, "add_special": True, "parse_special": True})
        if not ids:
            raise BadRequest("The input is empty.", param="input")
        check_tokens(ids, self.vocabulary, "input")
        limit = min(self.context, self._settings.embed_context)
        if len(ids) > limit:
            raise make_context_overflow(len(ids), limit, "input")
        return ids

    async def _ids(self, job: Job) -> list[int]:
        if isinstance(job.prompt, list):
            return job.prompt
        asked = {"content": job.prompt, "add_special": True, "parse_special": True}
        return await self._tokens(asked)

    async def _tokens(self, asked: dict[str, Any]) -> list[int]:
        status, body = await self.client.post("/tokenize", asked)
        if status != 200:
            raise self.parse_error(body)
        ids: list[int] = msgspec.json.decode(body)["tokens"]
        return ids

    async def _group(
        self, job: Job, ids: list[int], tracks: list[ChoiceProgress], seed: int
    ) -> AsyncGenerator[Step, None]:
        """Choices that begin together; those that one request does not finish go on alone."""
        if tracks[0].remaining <= 0:
            for track in tracks:
                yield track.end_by_length()[0]
            return
        ask = self._ask(job, ids, tracks[0], seed)
        together = msgspec.structs.replace(ask, choices=len(tracks))
        async with aclosing(self._leg(job, together, tracks)) as steps:
            async for step in steps:
                yield step
        for track in tracks:
            leg = 0
            while track.finish is None:
                leg += 1
                ask = self._ask(job, ids, track, seed + leg * SEED_STRIDE)
                async with aclosing(self._go_on(job, ask, track)) as steps:
                    async for step in steps:
                        yield step

    def _ask(self, job: Job, ids: list[int], track: ChoiceProgress, seed: int) -> NativeRequest:
        """The next request for a choice, which has come so far."""
        owed = min((job.sampling.min_tokens or 0) - len(track.ids), track.remaining)
        return NativeRequest(
            prompt=ids + track.ids,
            max_tokens=owed if owed > 0 else track.remaining + (0 if job.grammar is None else SPARE),
            seed=seed + track.choice,
            forbid_end=owed > 0,
        )

    async def _go_on(
        self, job: Job, ask: NativeRequest, track: ChoiceProgress
    ) -> AsyncGenerator[Step, None]:
        """What follows a request that ended before its choice did."""
        if track.lost_tokens and job.grammar is None and self.vocabulary.pieces is not None:
            found = await self._again(job, ask, min(track.lost_tokens, track.remaining))
            marks = await self._marks.complete(job, ask.prompt, found, [])
            track.start_request(len(found))
            for step in track.add_tokens(found, marks):
                yield step
        elif track.lost_tokens or track.ended_early:
            yield track.end_by_length(min(track.lost_tokens, track.remaining))[0]  # the context is full
        else:
            async with aclosing(self._leg(job, ask, [track])) as steps:
                async for step in steps:
                    yield step

    async def _again(self, job: Job, ask: NativeRequest, count: int) -> list[int]:
        """So many tokens from here on, all of them named."""
        few = msgspec.structs.replace(ask, tokens=count)
        asked = self.build_body(msgspec.structs.replace(job, logprobs=None), few) | {
            "stream": False
        }
        return (await self.complete(asked)).tokens

    async def _leg(
        self, job: Job, ask: NativeRequest, tracks: Sequence[ChoiceProgress]
    ) -> AsyncGenerator[Step, None]:
        """One request, read until it has no more for anybody."""
        for track in tracks:
            track.start_request(ask.max_tokens)
        async with self.client.stream("/completion", self.build_body(job, ask)) as stream:
            if not isinstance(stream, EventStream):
                raise self.parse_error(stream)
            while events := await stream.read_events():
                for event in map(event_decoder.decode, events):
                    for step in await self._read(job, ask, tracks, event):
                        yield step
                if all(track.request_ended for track in tracks):
                    return
        raise EngineFailed("The engine stopped before the answer was finished.")

    async def _read(
        self, job: Job, ask: NativeRequest, tracks: Sequence[ChoiceProgress], event: NativeEvent
    ) -> list[Step]:
        if event.error is not None:
            raise self.convert_error(event.error)
        track = tracks[event.index]
        if event.prompt_progress is not None:
            if track.prompt_tokens is not None and track.cached_tokens is None:
                track.cached_tokens = event.prompt_progress.cache
            return []
        if event.stop or track.request_ended:
            track.end_request(event)
            return []
        fresh = track.count_new_tokens(event)
        if fresh < 1:
            return []
        ids = self._named(event, fresh)
        if ids is None:
            return track.add_text(event.content, fresh, event.tokens[-1])
        if track.grammar is not None:
            check_tokens_allowed(track.grammar, ids, track.stop_ids)
        marks: list[Logprob] = []
        if job.logprobs is not None:
            known = [
                convert_logprob(prob, job.logprobs) for prob in event.completion_probabilities[-1:]
            ]
            marks = await self._marks.complete(job, ask.prompt + track.ids, ids, known)
        return track.add_tokens(ids, marks)

    def _named(self, event: NativeEvent, count: int) -> list[int] | None:
        """The ids of all tokens that the event stands for; None if they cannot be told."""
        if self.vocabulary.pieces is None:
            return None
        last = event.tokens[-1]
        if count == 1:
            return [last]
        if self._pieces is None:
            self._pieces = PieceIndex(self.vocabulary.pieces)
        missing = self._pieces.find_missing(event.content, last, count - 1)
        return None if missing is None else [*missing, last]

    def build_body(self, job: Job, ask: NativeRequest) -> dict[str, Any]:
        body = build_payload(job, ask, self.context, self.adapters)
        if job.grammar is not None:
            body["grammar"] = allow_ends(job.grammar, self.vocabulary.eos_ids)
        return body

    async def complete(self, body: dict[str, Any]) -> NativeEvent:
        """A request that is answered in one piece."""
        status, answer = await self.client.post("/completion", body)
        if status != 200:
            raise self.parse_error(answer)
        return event_decoder.decode(answer)

    def parse_error(self, body: bytes) -> DragomanError:
        with contextlib.suppress(msgspec.MsgspecError):
            event = event_decoder.decode(body)
            if event.error is not None:
                return self.convert_error(event.error)
        return self.convert_error(NativeError())

    def convert_error(self, fault: NativeError) -> DragomanError:
        log.warning("the server refused a request: %d %s", fault.code, fault.message)
        return convert_error(fault, self.context)
