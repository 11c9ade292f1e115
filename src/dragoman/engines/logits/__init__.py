"""An engine around a model that only produces logits.

    class MyModel:
        def begin(self, prompt): return state, logits
        def step(self, states, tokens): return logits  # a row for each state

    engine = LogitsEngine(MyModel(), tokenizer, context=4096)

The rest of an engine's contract is implemented here: choices, seeds, most sampling fields, limits,
stop tokens, logprobs, grammars and cancellation. The model keeps what it needs between two tokens
in the state that `begin` returns.

`batches` runs the model: one thread, one forward pass at a time, over all running choices of all
jobs. `choice` turns logits into steps and `sampling` picks tokens; both run in the model's thread,
right after the pass. Other threads compute the masks of grammars during the pass. The event loop
only delivers steps.
"""

from __future__ import annotations

from dragoman.engines.logits.batches import LogitsModel
from dragoman.engines.logits.engine import LogitsEngine
from dragoman.engines.logits.sampling import SAMPLING_FIELDS

__all__ = ["SAMPLING_FIELDS", "LogitsEngine", "LogitsModel"]
