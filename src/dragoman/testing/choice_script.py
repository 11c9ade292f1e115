"""How a scripted engine says one choice, and the numbers it makes up on the way.

Every number is a hash of what was said and where, so that two runs agree and a test can tell a
logprob that belongs to its token from one that slipped.
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
    """Says one choice of a reply."""

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

    def steps(self) -> Iterator[Step]:
        if self._limit is not None and self._limit <= 0:
            yield Step(self._choice, finish="length")
            return
        for piece in self._said():
            step = self._text(piece) if isinstance(piece, str) else self._ids(piece)
            yield step
            if step.finish is not None:
                return
        stop_id = None if self._tokenizer is None else self._tokenizer.eos_id
        yield Step(self._choice, finish="stop", stop_id=stop_id)

    def _said(self) -> Iterator[str | list[int]]:
        """The text once, and again for as long as the job forbids an end."""
        yield from self._pieces
        sampling = self._job.sampling
        endless = sampling.ignore_eos and self._limit is not None
        while self._pieces and (endless or self._count < (sampling.min_tokens or 0)):
            yield from self._pieces

    def _full(self) -> bool:
        return self._limit is not None and self._count >= self._limit

    def _text(self, piece: str) -> Step:
        marks = [] if self._job.logprobs is None else self._marks([piece])
        self._count += 1
        finish: StepFinish | None = "length" if self._full() else None
        return Step(self._choice, piece, tokens=1, logprobs=marks, finish=finish)

    def _ids(self, piece: list[int]) -> Step:
        end = next((at for at, token in enumerate(piece) if self._ends(token, at)), None)
        ids = piece[:end]
        if self._limit is not None:
            ids = ids[: self._limit - self._count]
        marks = self._marks(ids)
        self._count += len(ids)
        step = Step(self._choice, ids=ids, tokens=len(ids), logprobs=marks)
        if self._full():
            return msgspec.structs.replace(step, finish="length")
        if end is not None:
            return msgspec.structs.replace(step, finish="stop", stop_id=piece[end])
        return step

    def _ends(self, token: int, ahead: int) -> bool:
        sampling = self._job.sampling
        if self._count + ahead < (sampling.min_tokens or 0):
            return False
        assert self._tokenizer is not None
        if token in self._tokenizer.eos_ids:
            return not sampling.ignore_eos
        return token in (sampling.stop_token_ids or ())

    def _marks(self, tokens: Sequence[int | str]) -> list[Logprob]:
        top = self._job.logprobs
        if top is None:
            return []
        return [make_logprob(token, self._count + at, top) for at, token in enumerate(tokens)]


def cut_ids(tokenizer: ByteTokenizer, reply: Reply, text: str) -> list[list[int]]:
    """Runs of ids; a control token is a run of its own and is never cut."""
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


def make_logprob(token: int | str, position: int, top: int) -> Logprob:
    """A number that depends on nothing but the token and its place; the token leads its top."""
    value = -(zlib.crc32(f"{position}:{token}".encode()) % 2000) / 1000

    def entry(rank: int) -> Logprob:
        logprob = value - rank / 2
        if isinstance(token, int):
            return Logprob((token + 7 * rank) % 256 if rank else token, logprob)
        other = OTHER_WORDS[(rank - 1) % len(OTHER_WORDS)] * (1 + rank // len(OTHER_WORDS))
        return Logprob(-1, logprob, text=other if rank else token)

    best = entry(0)
    return msgspec.structs.replace(best, top=tuple(entry(rank) for rank in range(top)))


def make_vector(text: str, size: int) -> list[float]:
    raw = hashlib.shake_256(text.encode()).digest(2 * size)
    values = [int.from_bytes(raw[at : at + 2]) / 32767.5 - 1 for at in range(0, 2 * size, 2)]
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / length for value in values]
