"""Fabricated models that see and hear: small GGUF files with random weights, and their projectors.

They are untrained, so what they answer means nothing; but different pictures give different
tokens, and everything between a request and the engine's KV cache is as with a real model. The text
model has one token for each byte and a few special tokens, its context is short, and the projectors
have the fewest tensors that the engine accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.support.gguf_files import finish_file

WIDTH = 32  # of embeddings, of text and media alike
PATCH, SIDE = 8, 16  # pixels of a patch, and of a side of the picture that `mlp` sees
MLP_TOKENS = (SIDE // PATCH) ** 2
AUDIO_TOKENS = 375  # of every clip, which is padded to 30 s
SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
USER_DEFINED = ("<image>", "<tool_call>", "</tool_call>")
# in the manner of Qwen's models with vision: tools, results in user turns, content as text or parts
CHATML = """\
{%- macro write(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}{%- for part in content -%}
{%- if part.type == 'image' or 'image_url' in part -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0].role == 'system' -%}{{ write(messages[0].content) + '\\n\\n' }}{%- endif -%}
{{- '# Tools\\n\\n<tools>' -}}
{%- for tool in tools -%}{{ '\\n' + tool | tojson }}{%- endfor -%}
{{- '\\n</tools><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + write(messages[0].content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and message.tool_calls -%}
{{- '<|im_start|>assistant' + ('\\n' + write(message.content) if message.content else '') -}}
{%- for call in message.tool_calls -%}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + write(message.content) -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- elif not (message.role == 'system' and loop.first) -%}
{{- '<|im_start|>' + message.role + '\\n' + write(message.content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def list_byte_tokens() -> list[str]:
    """Return the characters that stand for the 256 bytes in a `gpt2` vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    known = {byte: chr(byte) for byte in printable}
    known |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [known[byte] for byte in range(256)]


class Changes(NamedTuple):
    """What is different in a file that a test damages."""

    without: str = ""  # a tensor or a key
    shapes: Mapping[str, tuple[int, ...]] = {}
    texts: Mapping[str, str] = {}


NO_CHANGES = Changes()


class WeightWriter:
    """Writes a GGUF file of random tensors."""

    def __init__(self, path: Path, architecture: str, seed: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.file = gguf.GGUFWriter(str(path), architecture)
        self._random = np.random.default_rng(seed)
        self._tensors: dict[str, NDArray[Any]] = {}

    def add(self, name: str, *shape: int, scale: float = 0.5, half: bool = False) -> None:
        values = self._random.normal(0, scale, shape)
        self._tensors[name] = values.astype(np.float16 if half else np.float32)

    def add_norm(self, name: str, width: int = WIDTH, bias: bool = False) -> None:
        self._tensors[f"{name}.weight"] = np.ones(width, np.float32)
        if bias:
            self._tensors[f"{name}.bias"] = np.zeros(width, np.float32)

    def close(self, changes: Changes = NO_CHANGES) -> Path:
        for name, values in self._tensors.items():
            if name != changes.without:
                shape = changes.shapes.get(name, values.shape)
                self.file.add_tensor(name, np.resize(values, shape))
        self.file.kv_data[0].pop(changes.without, None)
        for key, text in changes.texts.items():
            self.file.kv_data[0].pop(key, None)
            self.file.add_string(key, text)
        return finish_file(self.file, self.path)


def write_text_model(
    path: Path,
    template: str = CHATML,
    *,
    architecture: str = "llama",
    context: int = 4096,
    add_bos: bool = False,
    has_pieces: bool = False,
) -> Path:
    """Write a text model: one layer, a token for each byte, and the special tokens.

    With `has_pieces` its tokenizer is one of SentencePiece, which puts a space before every text.
    """
    writer = WeightWriter(path, architecture, seed=1)
    file = writer.file
    file.add_name(path.stem)
    file.add_context_length(context)
    file.add_embedding_length(WIDTH)
    file.add_block_count(1)
    file.add_feed_forward_length(2 * WIDTH)
    file.add_head_count(2)
    file.add_head_count_kv(2)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(WIDTH // 2)
    if architecture == "qwen2vl":
        file.add_rope_dimension_sections([2, 3, 3, 0])
    tokens = _add_pieces(file) if has_pieces else _add_bytes(file)
    file.add_eos_token_id(tokens.index("<|im_end|>"))
    file.add_bos_token_id(tokens.index("<|endoftext|>"))
    file.add_add_bos_token(add_bos)
    file.add_chat_template(template)
    _add_text_tensors(writer, len(tokens), architecture)
    return writer.close()


def _add_bytes(file: gguf.GGUFWriter) -> list[str]:
    """Add a vocabulary of bytes; return its tokens."""
    tokens = [*list_byte_tokens(), *SPECIALS, *USER_DEFINED, "ab", "ĊĊ"]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list(tokens)
    file.add_token_types([1] * 256 + [3] * len(SPECIALS) + [4] * len(USER_DEFINED) + [1] * 2)
    file.add_token_merges(["a b", "Ċ Ċ"])
    return tokens


def _add_pieces(file: gguf.GGUFWriter) -> list[str]:
    """Add a vocabulary of SentencePiece; return its tokens."""
    letters = [chr(code) for code in range(97, 123)]
    pieces = ["▁", *letters, *(f"▁{letter}" for letter in letters), "ab", "▁what", "▁is"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *SPECIALS, *USER_DEFINED]
    kinds = [2] + [6] * 256 + [3] * len(SPECIALS) + [4] * len(USER_DEFINED)
    file.add_tokenizer_model("llama")
    file.add_token_list([*tokens, *pieces])
    file.add_token_scores([0.0] * len(tokens) + [-float(rank) for rank in range(len(pieces))])
    file.add_token_types([*kinds, *[1] * len(pieces)])
    file.add_unk_token_id(0)
    file.add_add_space_prefix(True)
    return [*tokens, *pieces]


def _add_text_tensors(writer: WeightWriter, vocabulary: int, architecture: str) -> None:
    writer.add("token_embd.weight", vocabulary, WIDTH, scale=1.0)
    writer.add_norm("output_norm")
    writer.add("output.weight", vocabulary, WIDTH, scale=1.0)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add(f"blk.0.{name}.weight", WIDTH, WIDTH)
    if architecture == "qwen2vl":
        for name in ("attn_q", "attn_k", "attn_v"):
            writer.add(f"blk.0.{name}.bias", WIDTH, scale=0.1)
    writer.add_norm("blk.0.attn_norm")
    writer.add_norm("blk.0.ffn_norm")
    writer.add("blk.0.ffn_gate.weight", 2 * WIDTH, WIDTH)
    writer.add("blk.0.ffn_up.weight", 2 * WIDTH, WIDTH)
    writer.add("blk.0.ffn_down.weight", WIDTH, 2 * WIDTH)


def _start_projector(path: Path, kind: str, modality: str = "vision") -> WeightWriter:
    writer = WeightWriter(path, "clip", seed=2)
    file = writer.file
    file.add_name(path.stem)
    file.add_bool(f"clip.has_{modality}_encoder", True)
    file.add_string("clip.projector_type", kind)
    file.add_uint32(f"clip.{modality}.embedding_length", WIDTH)
    file.add_uint32(f"clip.{modality}.feed_forward_length", 2 * WIDTH)
    file.add_uint32(f"clip.{modality}.projection_dim", WIDTH)
    file.add_uint32(f"clip.{modality}.attention.head_count", 2)
    file.add_float32(f"clip.{modality}.attention.layer_norm_epsilon", 1e-5)
    if modality == "vision":
        file.add_uint32("clip.vision.image_size", SIDE)
        file.add_uint32("clip.vision.patch_size", PATCH)
        file.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
        file.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
        writer.add("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
        if kind != "qwen2vl_merger":
            writer.add("v.position_embd.weight", MLP_TOKENS, WIDTH)
    return writer


def write_mlp_projector(path: Path, changes: Changes = NO_CHANGES) -> Path:
    """Write the smallest projector, of LLaVA."""
    writer = _start_projector(path, "mlp")
    writer.file.add_uint32("clip.vision.block_count", 0)
    for name in ("mm.0", "mm.2"):
        writer.add(f"{name}.weight", WIDTH, WIDTH)
        writer.add(f"{name}.bias", WIDTH, scale=0.1)
    return writer.close(changes)


def _add_blocks(writer: WeightWriter, prefix: str, without_bias: Sequence[str] = ()) -> None:
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        writer.add(f"{prefix}.blk.0.{name}.weight", WIDTH, WIDTH)
        if name not in without_bias:
            writer.add(f"{prefix}.blk.0.{name}.bias", WIDTH, scale=0.1)
    writer.add(f"{prefix}.blk.0.ffn_up.weight", 2 * WIDTH, WIDTH)
    writer.add(f"{prefix}.blk.0.ffn_up.bias", 2 * WIDTH, scale=0.1)
    writer.add(f"{prefix}.blk.0.ffn_down.weight", WIDTH, 2 * WIDTH)
    writer.add(f"{prefix}.blk.0.ffn_down.bias", WIDTH, scale=0.1)
    writer.add_norm(f"{prefix}.blk.0.ln1", bias=True)
    writer.add_norm(f"{prefix}.blk.0.ln2", bias=True)


def write_idefics3_projector(path: Path, changes: Changes = NO_CHANGES) -> Path:
    """Write the projector of SmolVLM, which cuts large pictures into tiles."""
    writer = _start_projector(path, "idefics3")
    file = writer.file
    file.add_uint32("clip.vision.block_count", 1)
    file.add_bool("clip.use_gelu", True)
    file.add_uint32("clip.vision.projector.scale_factor", 2)
    file.add_uint32("clip.vision.preproc_image_size", 4 * SIDE)
    writer.add("v.patch_embd.bias", WIDTH, scale=0.1)
    _add_blocks(writer, "v")
    writer.add_norm("v.post_ln", bias=True)
    writer.add("mm.model.fc.weight", WIDTH, 4 * WIDTH)
    return writer.close(changes)


def write_qwen2vl_projector(path: Path, changes: Changes = NO_CHANGES) -> Path:
    """Write the projector of Qwen2-VL, whose number of tokens depends on the picture's size."""
    writer = _start_projector(path, "qwen2vl_merger")
    file = writer.file
    file.add_uint32("clip.vision.block_count", 1)
    writer.add("v.patch_embd.weight.1", WIDTH, 3, PATCH, PATCH)
    _add_blocks(writer, "v")
    writer.add_norm("v.post_ln", bias=True)
    writer.add("mm.0.weight", 4 * WIDTH, 4 * WIDTH)
    writer.add("mm.0.bias", 4 * WIDTH, scale=0.1)
    writer.add("mm.2.weight", WIDTH, 4 * WIDTH)
    writer.add("mm.2.bias", WIDTH, scale=0.1)
    return writer.close(changes)


def write_ultravox_projector(path: Path, changes: Changes = NO_CHANGES) -> Path:
    """Write an audio projector."""
    writer = _start_projector(path, "ultravox", "audio")
    file = writer.file
    file.add_uint32("clip.audio.block_count", 1)
    file.add_uint32("clip.audio.num_mel_bins", 80)
    file.add_uint32("clip.audio.projector.stack_factor", 4)
    for number, inputs in ((1, 80), (2, WIDTH)):
        writer.add(f"a.conv1d.{number}.weight", WIDTH, inputs, 3, scale=0.1, half=True)
        writer.add(f"a.conv1d.{number}.bias", WIDTH, 1, scale=0.1)
    writer.add("a.position_embd.weight", 1500, WIDTH)
    _add_blocks(writer, "a", without_bias=("attn_k",))
    writer.add_norm("a.post_ln", bias=True)
    writer.add("mm.a.mlp.1.weight", 2 * WIDTH, 4 * WIDTH)
    writer.add("mm.a.mlp.2.weight", WIDTH, WIDTH)
    writer.add_norm("mm.a.norm_pre", 4 * WIDTH)
    writer.add_norm("mm.a.norm_mid")
    return writer.close(changes)
