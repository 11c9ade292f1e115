"""Small models with random weights that embed texts or score pairs of them.

They are BERT encoders with a vocabulary of words and letters. A rank model has a head with one
output; an embedding model has none. Weights come from a fixed seed, so that results are the same
every time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from msgspec import Struct
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from dragoman import config, runtime
from dragoman.http.server import make_app
from tests.support.gguf_files import finish_file
from tests.support.safetensors_model import Floats, write_tensors
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
    tokens = _list_tokens()
    _add_metadata(writer, tokens, pooling, shape)
    for name, values in _make_tensors(len(tokens), shape, has_head=pooling == RANK).items():
        writer.add_tensor(name, values)
    return finish_file(writer, path)


def _list_tokens() -> list[str]:
    words = [f"\u2581{word}" for word in (*WORDS, *LETTERS[1:])]
    return [*SPECIALS, *words, *LETTERS]


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


def _make_tensors(tokens: int, shape: EncoderShape, *, has_head: bool) -> dict[str, Floats]:
    """Return the weights by their names in a GGUF file."""
    width, wide = shape.width, shape.feed_forward
    draw = np.random.default_rng(5).normal
    tensors: dict[str, Floats] = {}

    def add(name: str, *size: int) -> None:
        tensors[name] = draw(0, 0.3, size).astype(np.float32)

    def add_layer(name: str, rows: int, columns: int) -> None:
        add(f"{name}.weight", rows, columns)
        add(f"{name}.bias", rows)

    def add_norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(width, np.float32)
        tensors[f"{name}.bias"] = np.zeros(width, np.float32)

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
    return tensors


# the names of the same weights in a directory of safetensors
SAFETENSORS_NAMES = {
    "token_embd_norm": "bert.embeddings.LayerNorm",
    "token_embd": "bert.embeddings.word_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "position_embd": "bert.embeddings.position_embeddings",
    "blk": "bert.encoder.layer",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output_norm": "attention.output.LayerNorm",
    "attn_output": "attention.output.dense",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
    "cls": "bert.pooler.dense",
}


def write_cross_encoder(folder: Path, shape: EncoderShape = SMALL) -> Path:
    """Write the rank model as a directory of safetensors; all tokens have one type in effect."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = _list_tokens()
    tensors = {
        _rename(name): values
        for name, values in _make_tensors(len(tokens), shape, has_head=True).items()
    }
    types = tensors["bert.embeddings.token_type_embeddings.weight"]
    types[1] = types[0]
    write_tensors(folder / "model.safetensors", tensors)
    settings = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feed_forward,
        "max_position_embeddings": shape.context,
        "vocab_size": len(tokens),
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "id2label": {"0": "LABEL_0"},
        "layer_norm_eps": 1e-12,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(settings))
    words = {token.removeprefix("\u2581"): number for number, token in enumerate(tokens)}
    backend = Backend(models.WordLevel(words, unk_token=SPECIALS[1]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(SPECIALS))
    backend.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    backend.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": SPECIALS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def _rename(name: str) -> str:
    if name.startswith("cls.output."):
        return name.replace("cls.output", "classifier")
    return ".".join(SAFETENSORS_NAMES.get(part, part) for part in name.split("."))
