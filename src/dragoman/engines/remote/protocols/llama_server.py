"""llama-server's `/completion`.

It names no token until its text is whole characters: a frame may stand for several tokens and name
the last. The others are found from the bytes, as for the embedded engine. `stop_token_ids` do not
exist there: the answer is cut here, and the connection closed. Requests wait there without a limit
and without a 429, so `slots` limits how many are sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman.engines.grammar import allow_ends, check_tokens_allowed
from dragoman.engines.llamacpp import SAMPLING_FIELDS
from dragoman.engines.llamacpp.choice import ChoiceProgress
from dragoman.engines.llamacpp.params import (
    SEED_COUNT,
    NativeEvent,
    NativeRequest,
    TokenEvent,
    build_payload,
    convert_logprob,
    event_decoder,
    token_decoder,
)
from dragoman.engines.llamacpp.partial_characters import PieceIndex, ends_inside_character
from dragoman.engines.remote.answer import AnswerParts, check_range
from dragoman.engines.remote.failures import DECODE_ERRORS, NO_IDS, InvalidFrame, StatusFailure
from dragoman.engines.remote.http.frames import decode_frame
from dragoman.engines.remote.protocols.api import (
    FrameReader,
    UpstreamRequest,
    make_token_capabilities,
)
from dragoman.engines.remote.settings import Upstream
from dragoman.engines.token_mask import make_dead_end_error
from dragoman.errors import EngineFailed
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Capabilities, Job, Json, Logprob, Step

PATH = "/completion"
# `min_tokens` would take a second request, whose place in a shared cache nobody promises
MISSING_FIELDS = frozenset({"min_tokens"})
MAX_LOST_TOKENS = 3  # a character has at most four bytes, so it can miss three of its tokens
ENDLESS = 1 << 30
NO_TOKEN = TokenEvent()
decode_token = token_decoder.decode
FindIds: TypeAlias = Callable[[NativeEvent, int], list[int] | None]


class LlamaServerApi:
    """llama-server's own API."""

    def __init__(self, upstream: Upstream, vocabulary: Vocabulary) -> None:
        self._upstream = upstream
        self._vocabulary = vocabulary
        self._pieces: PieceIndex | None = None

    def make_capabilities(self) -> Capabilities:
        fields = SAMPLING_FIELDS - MISSING_FIELDS
        return make_token_capabilities(self._upstream, fields, cache_scopes=False)

    def check_job(self, job: Job) -> None:
        """Accept every value: those out of range are limited alike by the embedded engine."""

    def build_requests(self, job: Job) -> list[UpstreamRequest]:
        seed = job.sampling.seed
        first = random.randrange(SEED_COUNT) if seed is None else seed
        return [
            UpstreamRequest(path=PATH, body=self._build_body(job, first + choice), choices=[choice])
            for choice in range(job.n)
        ]

    def _build_body(self, job: Job, seed: int) -> dict[str, Json]:
        limit = limit_answer(job, self._upstream.context)
        request = NativeRequest(prompt=list_ids(job), max_tokens=limit, seed=seed)
        context = self._upstream.context or ENDLESS
        body = build_payload(job, request, context, self._upstream.adapters)
        if self._upstream.model:
            body["model"] = self._upstream.model  # a router in front of several selects by it
        if job.grammar is not None:
            body["grammar"] = allow_ends(job.grammar, self._vocabulary.eos_ids, job.cache_scope)
        return body

    def make_reader(self, request: UpstreamRequest, parts: AnswerParts) -> FrameReader:
        limit = limit_answer(parts.job, self._upstream.context)
        return LlamaReader(parts, request.choices[0], limit, self.find_ids)

    def find_ids(self, event: NativeEvent, count: int) -> list[int] | None:
        """Return the ids of all tokens that the event reports; None if they are not known."""
        last = event.tokens[-1]
        if count == 1:
            return [last]
        if len(event.tokens) == count:
            return event.tokens
        self._check_gap(event, count - 1)
        if self._pieces is None:
            self._pieces = PieceIndex(self._vocabulary.pieces)
        missing = self._pieces.find_missing(event.content, last, count - 1)
        return None if missing is None else [*missing, last]

    def _check_gap(self, event: NativeEvent, missing: int) -> None:
        """Raise unless tokens may go without a name: all belong to an unfinished character."""
        last, pieces = event.tokens[-1], self._vocabulary.pieces
        before = event.content.encode().removesuffix(pieces[last])
        is_cut = bool(before) and (ends_inside_character(before) or "\ufffd" in event.content)
        is_end = last in self._vocabulary.eos_ids and missing <= MAX_LOST_TOKENS
        if not (is_cut or is_end):
            raise InvalidFrame(f"a frame of {missing + 1} tokens names {len(event.tokens)}")

    def build_tokenize(self, text: str, special: bool) -> tuple[str, Json]:
        body = {"content": text, "add_special": False, "parse_special": special}
        return "/tokenize", body


class LlamaReader:
    """Reads the frames of one choice."""

    def __init__(self, parts: AnswerParts, choice: int, limit: int, find_ids: FindIds) -> None:
        self._parts = parts
        self._grammar = parts.get_grammar(choice)
        self._find_ids = find_ids
        self._size = parts.vocabulary_size
        self._is_plain = self._grammar is None and parts.job.logprobs is None
        self._progress = ChoiceProgress(choice, limit, parts.stop_ids)
        self._progress.start_request(limit)
        self._progress.prompt_tokens = parts.prompt_tokens if choice == 0 else None

    @property
    def is_complete(self) -> bool:
        return self._progress.finish is not None

    def read(self, frame: bytes) -> list[Step]:
        progress = self._progress
        if progress.finish is not None:
            return []
        if self._is_plain:  # most frames are one token, and nothing else of them is needed
            try:
                token = decode_token(frame)
            except DECODE_ERRORS:
                token = NO_TOKEN  # the error is that of the whole event
            ids = token.tokens
            is_whole = len(ids) == 1 and not token.stop and token.error is None
            if is_whole and 0 <= ids[0] < self._size:
                steps = progress.add_next_token(ids, token.tokens_predicted)
                if steps is not None:
                    return steps
        event = decode_frame(event_decoder.decode, frame)
        if event.error is not None:
            raise StatusFailure(event.error.code, frame, {})
        if event.prompt_progress is not None:
            if progress.prompt_tokens is not None:
                progress.cached_tokens = event.prompt_progress.cache
            return []
        count = progress.count_new_tokens(event)
        if event.stop:
            return self._end(event, count)
        return self._add_tokens(event, count) if count > 0 else []

    def _add_tokens(self, event: NativeEvent, count: int) -> list[Step]:
        if not event.tokens:
            raise InvalidFrame(NO_IDS)
        check_range(event.tokens, self._size)
        ids = self._find_ids(event, count)
        if ids is None:
            return self._progress.add_text(event.content, count, event.tokens[-1])
        if self._grammar is not None:
            check_tokens_allowed(self._grammar, ids, self._parts.stop_ids)
        return self._progress.add_tokens(ids, self._convert_logprobs(ids, event))

    def _convert_logprobs(self, ids: Sequence[int], event: NativeEvent) -> list[Logprob]:
        """Return a logprob for each token; tokens that were not named have an unknown one."""
        top = self._parts.job.logprobs
        if top is None:
            return []
        known = [convert_logprob(native, top) for native in event.completion_probabilities]
        if len(known) != len(ids) and len(known) != 1:
            raise InvalidFrame(f"{len(known)} logprobs for {len(ids)} tokens")
        return [*(Logprob(token, None) for token in ids[: -len(known)]), *known]

    def _end(self, event: NativeEvent, lost: int) -> list[Step]:
        """End the choice; tokens of half a character at its end are counted but never named."""
        if lost > MAX_LOST_TOKENS:
            raise InvalidFrame(f"{lost} tokens at the end of the answer were not named")
        progress = self._progress
        match event.stop_type:
            case "limit":
                return progress.end_by_length(min(lost, progress.remaining))
            case "eos" | "word":
                if self._grammar is not None and not self._grammar.is_accepting:
                    raise make_dead_end_error()
                return progress.end_by_stop(lost)
        raise EngineFailed("The upstream server stopped before the answer was finished.")


def limit_answer(job: Job, context: int | None) -> int:
    """Return how many tokens an answer may have: what the job says, within the context."""
    room = ENDLESS if context is None else max(0, context - len(job.prompt))
    limit = job.sampling.max_tokens
    return room if limit is None else min(limit, room)


def list_ids(job: Job) -> list[int]:
    return job.prompt if isinstance(job.prompt, list) else []
