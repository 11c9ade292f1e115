"""An engine around a model that only gives logits.

    class Mine:
        def begin(self, prompt): return state, logits
        def step(self, states, tokens): return logits  # a row for each state

    engine = LogitsEngine(Mine(), tokenizer, context=4096)

All the rest of an engine's contract is done here: choices, seeds, every way of sampling, limits,
stops, logprobs, grammars and cancelling. What a model remembers between two tokens is its own
affair: it is kept in the state that it gave.

`rounds` runs the model: one thread, one forward pass at a time, over all choices of all jobs that
are under way. `choice` makes an answer of the logits, `sampling` picks tokens. Both are done in the
model's thread, right after the pass; the masks of grammars are made by other threads during it. The
event loop only hands out steps.
"""

from __future__ import annotations

from dragoman.engines.logits.batches import LogitsModel
from dragoman.engines.logits.engine import LogitsEngine

__all__ = ["LogitsEngine", "LogitsModel"]
