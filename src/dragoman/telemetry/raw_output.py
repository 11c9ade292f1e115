"""Collects what a model generated, token by token, before anything is parsed or cut.

Only requests that ask for their raw output or for a trace pay for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from dragoman.telemetry.record import RequestRecord
from dragoman.types import Step
from dragoman.types.media_ids import RUN_LENGTH

MEDIA_BYTES, MEDIA_TEXT = b"\xff", b"[media]"  # of an id that stands for media; of a whole item


def decode_tokens(ids: Sequence[int], pieces: Sequence[bytes]) -> str:
    """Return the text of tokens, special tokens included."""
    known = (token for token in ids if token < len(pieces))
    data = b"".join(MEDIA_BYTES if token < 0 else pieces[token] for token in known)
    return data.replace(MEDIA_BYTES * RUN_LENGTH, MEDIA_TEXT).decode(errors="replace")


def format_prompt(prompt: list[int] | str, pieces: Sequence[bytes] | None) -> str:
    """Return a prompt as text; ids of an unknown vocabulary stay numbers."""
    if isinstance(prompt, str):
        return prompt
    return " ".join(map(str, prompt)) if pieces is None else decode_tokens(prompt, pieces)


class RawOutput:
    """The output of one choice."""

    def __init__(self, pieces: Sequence[bytes] | None) -> None:
        self._pieces = pieces
        self._parts: list[str] = []
        self._ids: list[int] = []  # not decoded yet: a character may span several tokens

    def add(self, step: Step) -> None:
        if step.text is not None or self._pieces is None:
            self._flush()
            self._parts.append(step.text or "")
        else:
            self._ids += step.ids
        if step.stop_id is not None:
            self._ids.append(step.stop_id)

    def _flush(self) -> None:
        if self._ids and self._pieces is not None:
            self._parts.append(decode_tokens(self._ids, self._pieces))
        self._ids.clear()

    @property
    def text(self) -> str:
        self._flush()
        self._parts = ["".join(self._parts)]
        return self._parts[0]


class RawOutputs:
    """The outputs of all choices of a generation, in the order of the choices."""

    def __init__(self, record: RequestRecord, pieces: Sequence[bytes] | None) -> None:
        self._record = record
        self._pieces = pieces
        self._outputs: list[RawOutput] = []
        if record.wants_output:
            record.outputs_in_progress.append(self.list_texts)

    def add(self, step: Step) -> None:
        self._record.engine_trace += step.trace
        while len(self._outputs) <= step.choice:
            self._outputs.append(RawOutput(self._pieces))
        self._outputs[step.choice].add(step)

    def list_texts(self) -> list[str]:
        return [output.text for output in self._outputs]


async def collect_steps(
    steps: AsyncGenerator[Step, None], outputs: RawOutputs
) -> AsyncGenerator[Step, None]:
    """Yield the steps of a generation, and collect them. Closing it closes the generation."""
    try:
        async for step in steps:
            outputs.add(step)
            yield step
    finally:
        close = getattr(steps, "aclose", None)  # a bare iterator has nothing to close
        if close is not None:
            await close()
