"""Small models with random weights that embed texts or score pairs of them.

They are BERT encoders with a vocabulary of whole words. A rank model has a head with one output; an
embedding model has none. Weights come from a fixed seed, so that results are the same every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from msgspec import Struct

from dragoman import config, runtime
from dragoman.http.server import make_app
from tests.support.serving import RunningServer, run_app

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP = 2, 3
TOKEN_TYPES = (3, 2, 3, 3, 3)
_WORDS = (
    "the cat sat on mat dog ran fast blue sky is what where who red apple tree river sun moon a of "
    "in and to it was house water fire stone wind green light dark day night one two three"
)
WORDS = tuple(_WORDS.split())
LETTERS = "abcdefghijklmnopqrstuvwxyz"
MEAN, CLS_POOLING, LAST, RANK = 1, 2, 3, 4


class EncoderShape(Struct, frozen=True, kw_only=True):
    """The size of an encoder."""

    width: int = 32
    layers: int = 1
    heads: int = 2
    feed_forward: int = 64
    context: int = 128
    outputs: int = 1  # of a rank head
    labels: tuple[str, ...] = ()


SMALL = EncoderShape()


def write_encoder(path: Path, pooling: int, shape: EncoderShape = SMALL) -> Path:
    """Write an encoder with this type of pooling."""
    writer = GGUFWriter(path, "bert")
    words = [f"\u2581{word}" for word in (*WORDS, *LETTERS[1:])] + list(LETTERS)
    _add_metadata(writer, [*SPECIALS, *words], pooling, shape)
    _add_tensors(writer, len(SPECIALS) + len(words), shape, has_head=pooling == RANK)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def serve_file(path: Path, **options: Any) -> Iterator[RunningServer]:
    """Serve a model file, which is loaded."""
    settings = config.load({"port": 0, "store": "sqlite://", "threads": 1} | options)
    models = runtime.build_models(settings, str(path))
    with run_app(make_app(runtime.build_runtime(models, settings), local=True)) as server:
        server.run_coroutine(models.load(path.stem))
        yield server


def _add_metadata(writer: GGUFWriter, tokens: list[str], pooling: int, shape: EncoderShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_uint32("bert.pooling_type", pooling)
    if shape.labels:
        writer.add_array("bert.classifier.output_labels", list(shape.labels))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([*TOKEN_TYPES, *(1 for _ in tokens[len(SPECIALS) :])])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(SEP)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)


def _add_tensors(writer: GGUFWriter, tokens: int, shape: EncoderShape, *, has_head: bool) -> None:
    width, wide = shape.width, shape.feed_forward
    draw = np.random.default_rng(5).normal

    def add(name: str, *size: int) -> None:
        writer.add_tensor(name, draw(0, 0.3, size).astype(np.float32))

    def add_layer(name: str, rows: int, columns: int) -> None:
        add(f"{name}.weight", rows, columns)
        add(f"{name}.bias", rows)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(width, np.float32))

    add("token_embd.weight", tokens, width)
    add("token_types.weight", 2, width)
    add("position_embd.weight", shape.context, width)
    add_norm("token_embd_norm")
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add_layer(block + name, width, width)
        add_layer(block + "ffn_up", wide, width)
        add_layer(block + "ffn_down", width, wide)
        add_norm(block + "attn_output_norm")
        add_norm(block + "layer_output_norm")
    if has_head:
        add_layer("cls", width, width)
        add_layer("cls.output", shape.outputs, width)
