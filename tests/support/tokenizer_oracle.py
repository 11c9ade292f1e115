"""A tokenizer oracle for tests: the engine library's own tokenizer, over a local socket.

`write_tiny_model` writes a real, loadable model file of a few kilobytes with any vocabulary. So
every kind of tokenizer can be compared with the engine's for the same metadata.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.gguf_files import finish_file


class LocalConnection(http.client.HTTPConnection):
    """HTTP over a socket file; reconnects when the server closes the connection."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost")
        self.address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.address)


class Oracle:
    """Asks a running engine for the ids of a text."""

    def __init__(self, address: str) -> None:
        self.connection = LocalConnection(address)

    def __call__(self, text: str, special: bool = False) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": special}
        self.connection.request(
            "POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"}
        )
        response = json.loads(self.connection.getresponse().read())
        return [int(token) for token in response["tokens"]]

    async def tokenize(self, text: str, special: bool) -> list[int]:
        return self(text, special)

    def close(self) -> None:
        self.connection.close()


@contextmanager
def start_oracle(model: Path, folder: Path) -> Iterator[Oracle]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel, params.n_ctx = 1, 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port = [str(folder / "o.sock")], 0
    params.ui, params.verbosity, params.warmup = False, -1, False
    (folder / "o.sock").unlink(missing_ok=True)
    server = xllamacpp.Server(params)
    running = Oracle(str(folder / "o.sock"))
    try:
        yield running
    finally:
        running.close()
        del server


def write_tiny_model(path: Path, vocabulary: dict[str, Any]) -> Path:
    """Write a model of one small layer with these `tokenizer.ggml.*` keys."""
    import gguf
    import numpy as np

    width, hidden, tokens = 32, 32, len(vocabulary["tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 2)
    for key, value in vocabulary.items():
        _add_value(writer, f"tokenizer.ggml.{key}", value)
    shapes = {
        "token_embd.weight": (tokens, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (hidden, width),
        "blk.0.ffn_up.weight": (hidden, width),
        "blk.0.ffn_down.weight": (width, hidden),
    }
    shapes |= {f"blk.0.attn_{name}.weight": (width, width) for name in ("q", "k", "v", "output")}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.full(shape, 0.01, dtype=np.float32))
    return finish_file(writer, path)


def _add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def train_byte_level_vocabulary(texts: Iterable[str], pretokenizer: str) -> dict[str, Any]:
    """Train a small byte-level vocabulary that merges across words, so that every split shows."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(list(texts) * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=lambda text: int(model["vocab"][text]))
    return {
        "model": "gpt2",
        "pre": pretokenizer,
        "tokens": [*tokens, "<|im_start|>", "<|im_end|>", "<tool_call>", "<table>"],
        "token_type": [1] * len(tokens) + [3, 3, 4, 4],
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": len(tokens),
        "eos_token_id": len(tokens) + 1,
    }


def train_scored_vocabulary(texts: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Train a small vocabulary with scores and bytes, and return its merges, too."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False)
    backend.train_from_iterator(list(texts) * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    words = sorted(model["vocab"], key=lambda text: int(model["vocab"][text]))
    # Some characters are missing, so that bytes are needed in their place
    characters = ["\u2581", *(word for word in words if len(word) == 1 and " " < word < "\u1000")][
        :120
    ]
    known = set(characters)
    longer = [word for word in words if len(word) > 1 and known.issuperset(word)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    count = len(tokens)
    tokens += [*longer, *characters, "<tool_call>", "\n\n", "  ", "<table>"]
    ranks = [-float(rank) for rank in range(len(longer) + len(characters))]
    vocabulary = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(ranks) + [4] * 4,
        "scores": [0.0] * count + ranks + [-1000.0] * 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    merges = [" ".join(merge) for merge in model["merges"] if known.issuperset("".join(merge))]
    return vocabulary, merges
