"""Makes a directory of safetensors and a GGUF file with the same float weights from a Llama GGUF.

Run as a program, it writes both: `python -m tests.support.safetensors_model GGUF DIRECTORY`.
Quantized weights are expanded to 32-bit floats. Neither torch nor transformers is needed. The
tokenizer is that of SmolLM2: byte-level BPE that splits digits.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray

from tests.support.gguf_files import finish_file

Floats = NDArray[np.float32]
# of a model that up to eight workers can divide
SMALL_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 40960,
}
CONTROL = 3  # type of a token in a GGUF file
# names of the tensors of a layer in a GGUF file -> names in a Llama checkpoint
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROOT_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class LlamaFile:
    """A GGUF file of the Llama architecture."""

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)
        self.fields = {name: field.contents() for name, field in self.reader.fields.items()}

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get_parameter(self, name: str) -> Any:
        return self.fields[f"llama.{name}"]

    def read_tensors(self) -> Iterator[tuple[str, Floats]]:
        """Yield names and weights, as the file orders the heads of queries and keys."""
        for tensor in self.reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            yield tensor.name, values.reshape(tuple(reversed([int(n) for n in tensor.shape])))


def write_directory(source: Path, folder: Path) -> Path:
    """Write a Hugging Face directory with the weights and the tokenizer of a GGUF file."""
    file = LlamaFile(source)
    folder.mkdir(parents=True, exist_ok=True)
    heads = {
        "attn_q": int(file.get_parameter("attention.head_count")),
        "attn_k": int(file.get_parameter("attention.head_count_kv")),
    }
    tensors = {
        _rename(name): _restore_heads(values, heads.get(name.split(".")[-2], 0))
        for name, values in file.read_tensors()
    }
    write_tensors(folder / "model.safetensors", tensors)
    _write_json(folder / "config.json", _make_config(file, "lm_head.weight" not in tensors))
    ids = {name: int(file[f"tokenizer.ggml.{name}_token_id"]) for name in ("bos", "eos")}
    _write_json(
        folder / "generation_config.json",
        {f"{name}_token_id": token for name, token in ids.items()},
    )
    _write_tokenizer(file, folder)
    return folder


def write_tokenizer(source: Path, folder: Path) -> Path:
    """Write the tokenizer of a GGUF file as it is on Hugging Face, without the weights."""
    folder.mkdir(parents=True)
    _write_tokenizer(LlamaFile(source), folder)
    return folder


def write_small_directory(source: Path, folder: Path) -> Path:
    """Write a small model with random weights, the tokenizer of a GGUF file, and eight heads."""
    file = LlamaFile(source)
    write_tokenizer(source, folder)
    config = _make_config(file, is_tied=True) | SMALL_SIZES
    _write_json(folder / "config.json", config)
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for layer in range(config["num_hidden_layers"]):
        sizes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.o_proj": (width, heads),
            "mlp.down_proj": (width, inner),
        }
        sizes |= {f"self_attn.{name}_proj": (heads, width) for name in "qkv"}
        sizes |= {f"mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
        shapes |= {f"model.layers.{layer}.{name}.weight": size for name, size in sizes.items()}
    random = np.random.default_rng(0)
    tensors = {
        name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()
    }
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def write_float_gguf(source: Path, path: Path) -> Path:
    """Write the same model with 32-bit floats."""
    file = LlamaFile(source)
    writer = GGUFWriter(path, "llama")
    for name, field in file.reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(0)
    for name, values in file.read_tensors():
        writer.add_tensor(name, values)
    return finish_file(writer, path)


def _rename(name: str) -> str:
    if name in ROOT_NAMES:
        return ROOT_NAMES[name]
    _, number, part, _ = name.split(".")
    return f"model.layers.{number}.{LAYER_NAMES[part]}.weight"


def _restore_heads(values: Floats, heads: int) -> Floats:
    """Undo the order of rows that converters to GGUF give to queries and keys."""
    if not heads:
        return values
    rows, columns = values.shape
    grouped = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(grouped.swapaxes(1, 2).reshape(rows, columns))


def write_tensors(path: Path, tensors: Mapping[str, Floats]) -> None:
    """Write a file of safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        for values in tensors.values():
            stream.write(values.tobytes())


def _make_config(file: LlamaFile, is_tied: bool) -> dict[str, Any]:
    theta = float(file.get_parameter("rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": int(file.get_parameter("embedding_length")),
        "intermediate_size": int(file.get_parameter("feed_forward_length")),
        "num_hidden_layers": int(file.get_parameter("block_count")),
        "num_attention_heads": int(file.get_parameter("attention.head_count")),
        "num_key_value_heads": int(file.get_parameter("attention.head_count_kv")),
        "head_dim": int(file.get_parameter("rope.dimension_count")),
        "max_position_embeddings": int(file.get_parameter("context_length")),
        "rms_norm_eps": float(file.get_parameter("attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "vocab_size": int(file.get_parameter("vocab_size")),
        "bos_token_id": int(file["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(file["tokenizer.ggml.eos_token_id"]),
        "tie_word_embeddings": is_tied,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _write_tokenizer(file: LlamaFile, folder: Path) -> None:
    tokens: list[str] = file["tokenizer.ggml.tokens"]
    types: list[int] = file["tokenizer.ggml.token_type"]
    flags: dict[str, Any] = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    byte_level: dict[str, Any] = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [
                flags | {"id": token, "content": text, "special": True}
                for token, text in enumerate(tokens)
                if types[token] == CONTROL
            ],
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    byte_level | {"add_prefix_space": False},
                ],
            },
            "decoder": byte_level | {"add_prefix_space": True},
            "model": {
                "type": "BPE",
                "vocab": {text: token for token, text in enumerate(tokens)},
                "merges": [merge.split(" ") for merge in file["tokenizer.ggml.merges"]],
            },
        },
    )
    template = file["tokenizer.chat_template"]
    roles = {role: tokens[file[f"tokenizer.ggml.{role}_token_id"]] for role in ("bos", "eos")}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": roles["bos"],
            "eos_token": roles["eos"],
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(file.get_parameter("context_length")),
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    write_directory(source, folder / "smollm2-135m")
    write_float_gguf(source, folder / "smollm2-135m-f32.gguf")


if __name__ == "__main__":
    main()
