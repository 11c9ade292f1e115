"""A tiny vision model as safetensors, with random weights: Idefics3, for tests with a real vLLM.

It is untrained, so what it answers means nothing; but different pictures give different tokens, and
everything between a request and the engine's KV cache is as with a real model. Large pictures are
cut into tiles, each with tokens around it, so the size of a picture decides how many tokens it has.
Its tokenizer has one token for each byte, and special tokens. Of the architectures of vLLM this is
one that needs no torchvision, which the build of torch for the CPU may not have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.safetensors_model import write_tensors
from tests.support.vision_models import CHATML, list_byte_tokens

Tensors = dict[str, NDArray[np.float32]]
PLACEHOLDER = "<image>"
SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    PLACEHOLDER,
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
TEMPLATE = CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", PLACEHOLDER)
WIDTH = 64  # of embeddings; vLLM's attention on the CPU needs heads of 32 at least
HEADS = 2
PATCH, TILE, SIDE = 8, 32, 128  # pixels of a patch, a tile and of the largest picture
SCALE = 2
TILE_TOKENS = (TILE // PATCH // SCALE) ** 2
CONTEXT = 2048


def write_vision_model(folder: Path, template: str = TEMPLATE) -> Path:
    """Write a directory with weights, tokenizer and image processor."""
    folder.mkdir(parents=True)
    tokens = [*list_byte_tokens(), *SPECIALS, "ab", "ĊĊ"]
    _write_json(folder / "config.json", _make_config(tokens))
    _write_json(folder / "generation_config.json", {"eos_token_id": tokens.index("<|im_end|>")})
    _write_json(folder / "preprocessor_config.json", _make_image_config())
    _write_json(
        folder / "processor_config.json",
        {"processor_class": "Idefics3Processor", "image_seq_len": TILE_TOKENS},
    )
    _write_tokenizer(folder, tokens, template)
    write_tensors(folder / "model.safetensors", _make_tensors(len(tokens)))
    return folder


def _make_config(tokens: list[str]) -> dict[str, Any]:
    shape = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
    }
    ids = {
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "pad_token_id": tokens.index("<|endoftext|>"),
    }
    text = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH // HEADS,
        "max_position_embeddings": CONTEXT,
        "vocab_size": len(tokens),
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    vision = {"model_type": "idefics3_vision", "image_size": TILE, "patch_size": PATCH}
    return ids | {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": tokens.index(PLACEHOLDER),
        "scale_factor": SCALE,
        "tie_word_embeddings": False,
        "text_config": shape | ids | text,
        "vision_config": shape | vision,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _make_image_config() -> dict[str, Any]:
    return {
        "processor_class": "Idefics3Processor",
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": SIDE},
        "max_image_size": {"longest_edge": TILE},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "do_image_splitting": True,
    }


def _make_tensors(vocabulary: int) -> Tensors:
    random = np.random.default_rng(3)

    def make(*shape: int, scale: float = 0.5) -> NDArray[np.float32]:
        return random.normal(0, scale, shape).astype(np.float32)

    text, vision = "model.text_model", "model.vision_model"
    tensors: Tensors = {
        f"{text}.embed_tokens.weight": make(vocabulary, WIDTH, scale=1.0),
        f"{text}.norm.weight": np.ones(WIDTH, np.float32),
        "lm_head.weight": make(vocabulary, WIDTH, scale=1.0),
        f"{vision}.embeddings.patch_embedding.weight": make(WIDTH, 3, PATCH, PATCH),
        f"{vision}.embeddings.patch_embedding.bias": make(WIDTH, scale=0.1),
        f"{vision}.embeddings.position_embedding.weight": make((TILE // PATCH) ** 2, WIDTH),
        "model.connector.modality_projection.proj.weight": make(WIDTH, WIDTH * SCALE**2, scale=3.0),
    }
    layer, block = f"{text}.layers.0", f"{vision}.encoder.layers.0"
    for name in "qkvo":
        tensors[f"{layer}.self_attn.{name}_proj.weight"] = make(WIDTH, WIDTH)
    for name in ("gate", "up"):
        tensors[f"{layer}.mlp.{name}_proj.weight"] = make(2 * WIDTH, WIDTH)
    tensors[f"{layer}.mlp.down_proj.weight"] = make(WIDTH, 2 * WIDTH)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}.{name}.weight"] = np.ones(WIDTH, np.float32)
    linears = {f"{block}.self_attn.{name}_proj": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    linears |= {f"{block}.mlp.fc1": (2 * WIDTH, WIDTH), f"{block}.mlp.fc2": (WIDTH, 2 * WIDTH)}
    for name, shape in linears.items():
        tensors[f"{name}.weight"] = make(*shape)
        tensors[f"{name}.bias"] = make(shape[0], scale=0.1)
    for name in (f"{block}.layer_norm1", f"{block}.layer_norm2", f"{vision}.post_layernorm"):
        tensors[f"{name}.weight"] = np.ones(WIDTH, np.float32)
        tensors[f"{name}.bias"] = np.zeros(WIDTH, np.float32)
    return tensors


def _write_tokenizer(folder: Path, tokens: list[str], template: str) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [
                flags | {"id": tokens.index(text), "content": text, "special": True}
                for text in SPECIALS
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
    _write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
            "processor_class": "Idefics3Processor",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
