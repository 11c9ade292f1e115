"""Tiny models that see and hear, as safetensors with random weights, for tests with a real vLLM.

They are untrained, so what they answer means nothing; but different pictures give different tokens,
and everything between a request and the engine's KV cache is as with a real model. The one that
sees is an Idefics3: large pictures are cut into tiles, each with tokens around it, so the size of a
picture decides how many tokens it has. The one that hears is a Qwen2-Audio. Of the architectures of
vLLM these are some that need no torchvision, which the build of torch for the CPU may not have. The
tokenizers have one token for each byte, and special tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.safetensors_model import write_tensors
from tests.support.vision_models import CHATML, list_byte_tokens

Tensors = dict[str, NDArray[np.float32]]
PLACEHOLDER, SOUND_PLACEHOLDER = "<image>", "<|audio_bos|><|AUDIO|><|audio_eos|>"
CHAT_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIALS = (
    *CHAT_SPECIALS,
    PLACEHOLDER,
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
SOUND_SPECIALS = (*CHAT_SPECIALS, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
MEDIA_BRANCH = "part.type == 'image' or 'image_url' in part"
VISION_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"  # in the template of ChatML
WIDTH = 64  # of embeddings; vLLM's attention on the CPU needs heads of 32 at least
HEADS = 2
PATCH, TILE, SIDE = 8, 32, 128  # pixels of a patch, a tile and of the largest picture
SCALE = 2
TILE_TOKENS = (TILE // PATCH // SCALE) ** 2
MEL_BINS, FRAMES = 80, 1500  # of 30 s of sound, after the two convolutions
CONTEXT = 2048
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
}


class Weights:
    """Random tensors by their names."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._random = np.random.default_rng(3)

    def add(self, name: str, *shape: int, scale: float = 0.5) -> None:
        self.tensors[name] = self._random.normal(0, scale, shape).astype(np.float32)

    def add_linear(self, name: str, rows: int, columns: int, *, has_bias: bool = True) -> None:
        self.add(f"{name}.weight", rows, columns)
        if has_bias:
            self.add(f"{name}.bias", rows, scale=0.1)

    def add_norm(self, name: str, *, has_bias: bool = True) -> None:
        self.tensors[f"{name}.weight"] = np.ones(WIDTH, np.float32)
        if has_bias:
            self.tensors[f"{name}.bias"] = np.zeros(WIDTH, np.float32)

    def add_text_model(self, prefix: str, head: str, vocabulary: int, *, has_bias: bool) -> None:
        """Add a text model of one layer; Qwen's has biases of queries, keys and values."""
        self.add(f"{prefix}.embed_tokens.weight", vocabulary, WIDTH, scale=1.0)
        self.add(f"{head}.weight", vocabulary, WIDTH, scale=1.0)
        self.add_norm(f"{prefix}.norm", has_bias=False)
        layer = f"{prefix}.layers.0"
        for name in "qkv":
            self.add_linear(f"{layer}.self_attn.{name}_proj", WIDTH, WIDTH, has_bias=has_bias)
        self.add_linear(f"{layer}.self_attn.o_proj", WIDTH, WIDTH, has_bias=False)
        for name in ("gate", "up"):
            self.add_linear(f"{layer}.mlp.{name}_proj", 2 * WIDTH, WIDTH, has_bias=False)
        self.add_linear(f"{layer}.mlp.down_proj", WIDTH, 2 * WIDTH, has_bias=False)
        for name in ("input_layernorm", "post_attention_layernorm"):
            self.add_norm(f"{layer}.{name}", has_bias=False)

    def add_encoder_layer(self, prefix: str, names: Mapping[str, Sequence[str]]) -> None:
        """Add a layer of an encoder, whose norms and feed-forward parts have these names."""
        for name in ("q", "k", "v", "out"):
            has_bias = name != "k" or "mlp.fc1" in names["linear"]  # Whisper's keys have none
            self.add_linear(f"{prefix}.self_attn.{name}_proj", WIDTH, WIDTH, has_bias=has_bias)
        first, second = names["linear"]
        self.add_linear(f"{prefix}.{first}", 2 * WIDTH, WIDTH)
        self.add_linear(f"{prefix}.{second}", WIDTH, 2 * WIDTH)
        for name in names["norm"]:
            self.add_norm(f"{prefix}.{name}")


def write_vision_model(folder: Path) -> Path:
    """Write a model that sees: weights, tokenizer and image processor."""
    folder.mkdir(parents=True)
    tokens = _list_tokens(SPECIALS)
    vision = {"model_type": "idefics3_vision", "image_size": TILE, "patch_size": PATCH}
    _write_config(
        folder,
        {
            "architectures": ["Idefics3ForConditionalGeneration"],
            "model_type": "idefics3",
            "image_token_id": tokens.index(PLACEHOLDER),
            "scale_factor": SCALE,
            "text_config": _make_text_config("llama", tokens),
            "vision_config": SHAPE | vision,
        },
        tokens,
    )
    processor = {"processor_class": "Idefics3Processor"}
    image_fields = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": SIDE},
        "max_image_size": {"longest_edge": TILE},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "do_image_splitting": True,
    }
    _write_json(folder / "preprocessor_config.json", processor | image_fields)
    _write_json(folder / "processor_config.json", processor | {"image_seq_len": TILE_TOKENS})
    _write_tokenizer(folder, tokens, processor)
    template = CHATML.replace(VISION_PLACEHOLDER, PLACEHOLDER)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_tensors(folder / "model.safetensors", _make_vision_tensors(len(tokens)))
    return folder


def write_audio_model(folder: Path) -> Path:
    """Write a model that hears: weights, tokenizer and feature extractor."""
    folder.mkdir(parents=True)
    tokens = _list_tokens(SOUND_SPECIALS)
    audio = {
        "model_type": "qwen2_audio_encoder",
        "d_model": WIDTH,
        "encoder_attention_heads": HEADS,
        "encoder_layers": 1,
        "encoder_ffn_dim": 2 * WIDTH,
        "num_mel_bins": MEL_BINS,
        "max_source_positions": FRAMES,
    }
    _write_config(
        folder,
        {
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "model_type": "qwen2_audio",
            "audio_token_index": tokens.index("<|AUDIO|>"),
            "text_config": _make_text_config("qwen2", tokens),
            "audio_config": audio,
        },
        tokens,
    )
    processor = {"processor_class": "Qwen2AudioProcessor"}
    sound_fields = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MEL_BINS,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    _write_json(folder / "preprocessor_config.json", processor | sound_fields)
    _write_tokenizer(folder, tokens, processor)
    template = CHATML.replace(VISION_PLACEHOLDER, SOUND_PLACEHOLDER)
    template = template.replace(MEDIA_BRANCH, "part.type == 'audio'")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_tensors(folder / "model.safetensors", _make_audio_tensors(len(tokens)))
    return folder


def _list_tokens(specials: Sequence[str]) -> list[str]:
    return [*list_byte_tokens(), *specials, "ab", "ĊĊ"]


def _make_ids(tokens: list[str]) -> dict[str, Any]:
    return {
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "pad_token_id": tokens.index("<|endoftext|>"),
    }


def _make_text_config(model_type: str, tokens: list[str]) -> dict[str, Any]:
    fields = {
        "model_type": model_type,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "vocab_size": len(tokens),
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    return SHAPE | _make_ids(tokens) | fields


def _write_config(folder: Path, fields: dict[str, Any], tokens: list[str]) -> None:
    types = {"dtype": "float32", "torch_dtype": "float32", "tie_word_embeddings": False}
    _write_json(folder / "config.json", _make_ids(tokens) | types | fields)
    _write_json(folder / "generation_config.json", {"eos_token_id": tokens.index("<|im_end|>")})


def _make_vision_tensors(vocabulary: int) -> Tensors:
    weights = Weights()
    weights.add_text_model("model.text_model", "lm_head", vocabulary, has_bias=False)
    vision = "model.vision_model"
    weights.add(f"{vision}.embeddings.patch_embedding.weight", WIDTH, 3, PATCH, PATCH)
    weights.add(f"{vision}.embeddings.patch_embedding.bias", WIDTH, scale=0.1)
    weights.add(f"{vision}.embeddings.position_embedding.weight", (TILE // PATCH) ** 2, WIDTH)
    names = {"linear": ("mlp.fc1", "mlp.fc2"), "norm": ("layer_norm1", "layer_norm2")}
    weights.add_encoder_layer(f"{vision}.encoder.layers.0", names)
    weights.add_norm(f"{vision}.post_layernorm")
    # large, so that pictures decide what the model answers
    projection = "model.connector.modality_projection.proj.weight"
    weights.add(projection, WIDTH, WIDTH * SCALE**2, scale=3.0)
    return weights.tensors


def _make_audio_tensors(vocabulary: int) -> Tensors:
    weights = Weights()
    prefix = "language_model"
    weights.add_text_model(f"{prefix}.model", f"{prefix}.lm_head", vocabulary, has_bias=True)
    for number, inputs in ((1, MEL_BINS), (2, WIDTH)):
        weights.add(f"audio_tower.conv{number}.weight", WIDTH, inputs, 3)
        weights.add(f"audio_tower.conv{number}.bias", WIDTH)
    weights.add("audio_tower.embed_positions.weight", FRAMES, WIDTH, scale=0.1)
    norms = ("self_attn_layer_norm", "final_layer_norm")
    weights.add_encoder_layer("audio_tower.layers.0", {"linear": ("fc1", "fc2"), "norm": norms})
    weights.add_norm("audio_tower.layer_norm")
    weights.add("multi_modal_projector.linear.weight", WIDTH, WIDTH, scale=2.0)
    weights.add("multi_modal_projector.linear.bias", WIDTH)
    return weights.tensors


def _write_tokenizer(folder: Path, tokens: list[str], processor: dict[str, str]) -> None:
    specials = [text for text in tokens if text in (*SPECIALS, *SOUND_SPECIALS)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [
                flags | {"id": tokens.index(text), "content": text, "special": True}
                for text in specials
            ],
            "pre_tokenizer": byte_level | {"use_regex": True},
            "decoder": byte_level | {"use_regex": True},
            "model": {
                "type": "BPE",
                "vocab": {text: token for token, text in enumerate(tokens)},
                "merges": [["a", "b"], ["Ċ", "Ċ"]],
            },
        },
    )
    fields = {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write_json(folder / "tokenizer_config.json", fields | processor)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
