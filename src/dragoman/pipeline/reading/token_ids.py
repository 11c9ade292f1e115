"""Reads one choice for a client that wants the ids of its tokens, such as another Dragoman."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.events import Delta
from dragoman.pipeline.reader import Reader
from dragoman.types import Step


class TokenIdReader(Reader):
    """Reads a choice whose steps all become deltas, also those without text of their own.

    Logprobs come with the ids of their step, not with the text, which may be held back.
    """

    def feed(self, step: Step) -> list[Delta]:
        if self.is_finished:
            return []
        first, counted = len(self.ids), self.completion_tokens
        deltas = super().feed(step)
        last = deltas[-1] if deltas else Delta(self._index)
        ids = self.ids[first:]
        unnamed = self.completion_tokens - counted - len(ids)
        if last.finish is not None and last.stop is not None and last.stop == step.stop_id:
            ids.append(step.stop_id)
            unnamed = max(0, unnamed - 1)  # engines may count the stop token or not
        return [
            replace(
                last,
                text="".join([delta.text for delta in deltas]),
                tokens=tuple(map(self._detokenizer.make_token, step.logprobs[: len(ids)])),
                ids=tuple(ids),
                unnamed_tokens=max(0, unnamed),
            )
        ]
