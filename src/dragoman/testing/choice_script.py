"""Plays one choice of a scripted engine, with made-up logprobs and vectors.

Every number is a hash of a token and its position, so that two runs agree and a test can check that
a logprob belongs to its token.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.testing.replies import Reply, cut_text
from dragoman.types import Job, Logprob, Step, StepFinish

OTHER_WORDS = (" the", " a", "\n", " and", " not", ".", " I", " of")


class ChoiceScript:
    """Plays one choice of a reply."""

    def __init__(
        self,
        job: Job,
        choice: int,
        pieces: list[str] | list[list[int]],
        limit: int | None,
        tokenizer: ByteTokenizer | None,
    ) -> None:
        self._job = job
        self._choice = choice
        self._pieces = pieces
        self._limit = limit
        self._tokenizer = tokenizer
        self._count = 0

    def iter_steps(self) -> Iterator[Step]:
        if self._limit is not None and self._limit <= 0:
            yield Step(self._choice, finish="length")
            return
        for piece in self._iter_pieces():
            step = self._play_text(piece) if isinstance(piece, str) else self._play_ids(piece)
            yield step
            if step.finish is not None:
                return
        stop_id = None if self._tokenizer is None else self._tokenizer.eos_id
        yield Step(self._choice, finish="stop", stop_id=stop_id)

    def _iter_pieces(self) -> Iterator[str | list[int]]:
        """Yield the text once, and again for as long as the job forbids an end."""
        yield from self._pieces
        sampling = self._job.sampling
        is_endless = sampling.ignore_eos and self._limit is not None
        while self._pieces and (is_endless or self._count < (sampling.min_tokens or 0)):
            yield from self._pieces

    def _has_reached_limit(self) -> bool:
        return self._limit is not None and self._count >= self._limit

    def _play_text(self, piece: str) -> Step:
        logprobs = [] if self._job.logprobs is None else self._make_logprobs([piece])
        self._count += 1
        finish: StepFinish | None = "length" if self._has_reached_limit() else None
        return Step(self._choice, piece, tokens=1, logprobs=logprobs, finish=finish)

    def _play_ids(self, piece: list[int]) -> Step:
        end = next((index for index, token in enumerate(piece) if self._is_end(token, index)), None)
        ids = piece[:end]
        if self._limit is not None:
            ids = ids[: self._limit - self._count]
        logprobs = self._make_logprobs(ids)
        self._count += len(ids)
        step = Step(self._choice, ids=ids, tokens=len(ids), logprobs=logprobs)
        if self._has_reached_limit():
            return msgspec.structs.replace(step, finish="length")
        if end is not None:
            return msgspec.structs.replace(step, finish="stop", stop_id=piece[end])
        return step

    def _is_end(self, token: int, index: int) -> bool:
        """Whether a token ends the choice at this index of the piece."""
        sampling = self._job.sampling
        if self._count + index < (sampling.min_tokens or 0):
            return False
        assert self._tokenizer is not None
        if token in self._tokenizer.eos_ids:
            return not sampling.ignore_eos
        return token in (sampling.stop_token_ids or ())

    def _make_logprobs(self, tokens: Sequence[int | str]) -> list[Logprob]:
        top = self._job.logprobs
        if top is None:
            return []
        return [
            make_token_logprob(token, self._count + index, top)
            for index, token in enumerate(tokens)
        ]


def cut_ids(tokenizer: ByteTokenizer, reply: Reply, text: str) -> list[list[int]]:
    """Cut a reply into runs of ids; a control token is a run of its own and is never cut."""
    if reply.pieces:
        return [
            list(piece) if isinstance(piece, bytes) else tokenizer.encode_with_specials(piece)
            for piece in reply.pieces
        ]
    runs: list[list[int]] = []
    for part in tokenizer.split_specials(text):
        if part in tokenizer.specials:
            runs.append([tokenizer.specials[part]])
        elif reply.chunks == "bytes":
            runs.extend([byte] for byte in part.encode())
        else:
            runs.extend(list(piece.encode()) for piece in cut_text(part, reply.chunks))
    return runs


def make_token_logprob(token: int | str, position: int, top: int) -> Logprob:
    """Make a logprob from the token and its position; the token is the first of its `top`."""
    value = -(zlib.crc32(b"%d:%b" % (position, str(token).encode())) % 2000) / 1000
    entries = []  # built without helpers: a long prompt needs thousands on the event loop
    for rank in range(top):
        logprob = value - rank / 2
        if isinstance(token, int):
            entries.append(Logprob((token + 7 * rank) % 256 if rank else token, logprob))
        else:
            other = OTHER_WORDS[(rank - 1) % len(OTHER_WORDS)] * (1 + rank // len(OTHER_WORDS))
            entries.append(Logprob(-1, logprob, text=other if rank else token))
    if isinstance(token, int):
        return Logprob(token, value, top=tuple(entries))
    return Logprob(-1, value, text=token, top=tuple(entries))


def make_vector(text: str, size: int) -> list[float]:
    """Make a vector of length 1 that is a hash of the text."""
    digest = hashlib.shake_256(text.encode()).digest(2 * size)
    values = [
        int.from_bytes(digest[start : start + 2]) / 32767.5 - 1 for start in range(0, 2 * size, 2)
    ]
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / length for value in values]
