"""The numbers in a GGUF header that decide how much memory the model needs to run.

What a header does not say counts as more memory rather than less: layers of unknown kind have a
whole context, and compressed attention (MLA) counts keys and values.
"""

from __future__ import annotations

from array import array
from typing import Any

from msgspec import Struct

from dragoman.engines.llamacpp.gguf import GgufHeader

DEFAULT_TRAINED_CONTEXT = 4096  # of a file that does not say it
# Every n-th layer of these architectures has a whole context, the others a sliding window. Headers
# of other architectures contain the pattern.
WINDOW_PATTERNS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "cohere2": 4,
    "gpt-oss": 2,
    "exaone4": 4,
    "llama4": 4,
    "smallthinker": 4,
}


class LayerCache(Struct, frozen=True):
    """Numbers that layers store for each token."""

    keys: int = 0
    values: int = 0


class ModelShape(Struct, frozen=True, kw_only=True):
    """What a model stores for each token and each slot, and the widths of its layers."""

    weights: int  # bytes of all files
    trained_context: int
    full: LayerCache = LayerCache()  # layers that keep the whole context
    windowed: LayerCache = LayerCache()  # layers that keep the last `window` tokens
    window: int = 0
    state: int = 0  # bytes for each slot, of recurrent layers
    embedding: int = 0
    feed_forward: int = 0
    heads: int = 0
    vocabulary: int = 0


def read_shape(header: GgufHeader, size: int | None = None) -> ModelShape:
    """Return the shape of a model; `size` is the size of its files if there are several."""
    reader = _ShapeReader(header)
    full, windowed = reader.read_caches()
    return ModelShape(
        weights=header.size if size is None else size,
        trained_context=find_trained_context(header),
        full=full,
        windowed=windowed,
        window=reader.window,
        state=reader.read_state(),
        embedding=reader.embedding,
        feed_forward=reader.read_feed_forward(),
        heads=max(reader.read_layers("attention.head_count", 1), default=1),
        vocabulary=reader.read_vocabulary(),
    )


def find_trained_context(header: GgufHeader) -> int:
    """Return the context that a model was trained for, including the RoPE scaling in its file."""
    prefix = f"{header.architecture}.rope.scaling"
    trained = header.context_length or DEFAULT_TRAINED_CONTEXT
    factor = header.metadata.get(f"{prefix}.factor")
    original = header.get_number(f"{prefix}.original_context_length")
    if isinstance(factor, int | float) and original is not None and 1 <= factor <= 1024:
        return max(trained, int(original * factor))
    return trained


class _ShapeReader:
    """Reads numbers that are given for the whole model or for each of its layers."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.architecture = header.architecture
        self.layers = min(self.get("block_count", 0), 4096)
        self.embedding = self.get("embedding_length", 0)
        self.window = self.get("attention.sliding_window", 0)
        if self.architecture == "llama4":
            self.window = self.get("attention.chunk_size", 8192)

    def get(self, key: str, default: int) -> int:
        value = self.header.get_number(f"{self.architecture}.{key}")
        return default if value is None else max(0, value)

    def read_layers(self, key: str, default: int) -> list[int]:
        """Return a number for each layer."""
        value: Any = self.header.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, array) and len(value) and value.typecode not in "fd":
            values = [max(0, item) for item in value[: self.layers]]
            return values + values[-1:] * (self.layers - len(values))
        return [self.get(key, default)] * self.layers

    def read_caches(self) -> tuple[LayerCache, LayerCache]:
        """Return what is stored for each token by layers without and with a window."""
        heads = self.read_layers("attention.head_count", 1)
        kv_heads = self.read_layers("attention.head_count_kv", heads[0] if heads else 0)
        head_size = self.embedding // max(1, *heads) if heads else 0
        sums = {False: [0, 0], True: [0, 0]}
        stored = self.layers - self.get("attention.shared_kv_layers", 0)
        for layer, is_windowed in enumerate(self.find_windowed_layers()[:stored]):
            if not self.has_attention(layer):
                continue
            suffix = "_swa" if is_windowed else ""
            keys = self.get(f"attention.key_length{suffix}", 0)
            values = self.get(f"attention.value_length{suffix}", 0)
            keys = keys or self.get("attention.key_length", head_size)
            values = values or self.get("attention.value_length", head_size)
            sums[is_windowed][0] += kv_heads[layer] * keys
            sums[is_windowed][1] += kv_heads[layer] * values
        return LayerCache(*sums[False]), LayerCache(*sums[True])

    def find_windowed_layers(self) -> list[bool]:
        if not self.window:
            return [False] * self.layers
        key = "attention.sliding_window_pattern"
        if isinstance(self.header.metadata.get(f"{self.architecture}.{key}"), array):
            return [value > 0 for value in self.read_layers(key, 0)]
        period = self.get(key, WINDOW_PATTERNS.get(self.architecture, 1))
        return [layer % max(1, period) < period - 1 for layer in range(self.layers)]

    def has_attention(self, layer: int) -> bool:
        """Whether a layer stores keys and values; in hybrid models only every n-th does."""
        period = self.get("full_attention_interval", 1)
        return self.get("attention.head_count", 1) > 0 and (layer + 1) % max(1, period) == 0

    def read_state(self) -> int:
        """Return the bytes of the state of recurrent layers (Mamba, RWKV, linear attention)."""
        inner, size = self.get("ssm.inner_size", 0), self.get("ssm.state_size", 0)
        groups = self.get("ssm.group_count", 1)
        convolution = max(0, self.get("ssm.conv_kernel", 0) - 1) * (inner + 2 * groups * size)
        head_size = self.get("wkv.head_size", 0)
        wkv = self.embedding * (head_size + 2) if head_size else 0
        return 4 * self.layers * (convolution + inner * size + wkv)

    def read_feed_forward(self) -> int:
        dense = max(self.read_layers("feed_forward_length", 0), default=0)
        experts = self.get("expert_used_count", 0) * self.get("expert_feed_forward_length", 0)
        return max(dense, experts)

    def read_vocabulary(self) -> int:
        return self.get("vocab_size", len(self.header.tokens))
