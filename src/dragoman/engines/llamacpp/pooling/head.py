"""Reads from a model file how the model pools: whether it embeds texts or scores pairs of them.

A model with rank pooling has a head that scores a pair of texts. A head with one output gives a
logit, one with two outputs (`yes` and `no`) gives two. The native library applies a softmax for the
Qwen3 family and nothing for others; the rest is done here, so that a score is always between 0 and
1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from dragoman.engines.llamacpp.gguf import GgufHeader

NO_POOLING, RANK_POOLING = 0, 4
MAX_OUTPUTS = 2  # more are the classes of a classifier
POSITIVE_LABELS = ("yes", "relevant", "true")
NORMALIZED_FAMILY = "qwen3"  # of architectures, whose outputs have a softmax already


class PoolingHead(Struct, frozen=True):
    """How the states of a model's tokens become its result."""

    kind: int | None = None  # as the file says it; None: the file has no pooling
    outputs: int = 1  # of a rank head
    positive: int = 0  # the output that stands for relevance
    is_normalized: bool = False
    is_encoder: bool = False  # every token sees every other; such a model cannot generate

    @property
    def ranks(self) -> bool:
        """Whether the model scores pairs of texts."""
        return self.kind == RANK_POOLING and self.outputs <= MAX_OUTPUTS

    @property
    def generates(self) -> bool:
        """Whether the model is for generating text."""
        return self.kind in (None, NO_POOLING) and not self.is_encoder

    @property
    def embeds(self) -> bool:
        return self.kind != RANK_POOLING

    def compute_score(self, vector: Sequence[float]) -> float:
        """Return the relevance between 0 and 1; values after the outputs are ignored."""
        values = list(vector[: self.outputs])
        if self.is_normalized:
            return values[self.positive]
        if len(values) == 1:
            return _sigmoid(values[0])
        return _sigmoid(values[self.positive] - values[1 - self.positive])


def read_head(header: GgufHeader) -> PoolingHead:
    """Read how a model pools."""
    architecture = header.architecture
    labels = [
        str(label).lower()
        for label in header.metadata.get(f"{architecture}.classifier.output_labels") or ()
    ]
    shape = header.tensors.shapes.get("cls.output.weight", ())
    outputs = len(labels) or (shape[-1] if len(shape) > 1 else 1)
    positive = next((index for index, label in enumerate(labels) if label in POSITIVE_LABELS), 0)
    return PoolingHead(
        header.get_number(f"{architecture}.pooling_type"),
        outputs,
        positive,
        is_normalized=architecture.startswith(NORMALIZED_FAMILY) and outputs > 1,
        is_encoder=header.metadata.get(f"{architecture}.attention.causal") is False,
    )


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))
