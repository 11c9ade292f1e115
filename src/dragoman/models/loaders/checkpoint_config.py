"""What the config.json of a Hugging Face checkpoint says about a model.

The quantization is named as people name it: AWQ, GPTQ and FP8 with their bits, and the format of
compressed-tensors.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from dragoman.types import Json

MAX_BYTES = 1 << 20
ENCODERS = {"vision_config": "image", "audio_config": "audio"}  # -> what the encoder reads
TYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # as in GGUF files


class CheckpointConfig(Struct, frozen=True, kw_only=True):
    """The parts of a configuration that are shown."""

    architecture: str | None = None
    context: int | None = None
    quantization: str | None = None
    modalities: tuple[str, ...] = ("text",)


def read_checkpoint_config(directory: Path) -> CheckpointConfig:
    """Read the configuration of a checkpoint, or raise `OSError` or `ValueError`."""
    config = json.loads((directory / "config.json").read_bytes()[:MAX_BYTES])
    fields: dict[str, Json] = config if isinstance(config, dict) else {}
    text = fields.get("text_config")
    inner: dict[str, Json] = text if isinstance(text, dict) else {}  # of a model with media
    classes = fields.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else fields.get("model_type")
    context = fields.get("max_position_embeddings", inner.get("max_position_embeddings"))
    return CheckpointConfig(
        architecture=first if isinstance(first, str) else None,
        context=context if isinstance(context, int) else None,
        quantization=_name_quantization(fields, inner),
        modalities=("text", *_list_encoders(fields)),
    )


def _list_encoders(fields: dict[str, Json]) -> list[str]:
    """List what a model reads besides text; some checkpoints have the parts in `thinker_config`."""
    thinker = fields.get("thinker_config")
    parts = thinker if isinstance(thinker, dict) else fields
    return [kind for name, kind in ENCODERS.items() if isinstance(parts.get(name), dict)]


def _name_quantization(fields: dict[str, Json], inner: dict[str, Json]) -> str | None:
    quantization = fields.get("quantization_config", inner.get("quantization_config"))
    if not isinstance(quantization, dict):
        kind = next(
            (value for key in ("dtype", "torch_dtype") if (value := fields.get(key))),
            inner.get("dtype"),
        )
        return TYPE_NAMES.get(kind, kind.upper()) if isinstance(kind, str) else None
    method = quantization.get("quant_method")
    name = method if isinstance(method, str) else "quantized"
    if name == "compressed-tensors":
        layout = quantization.get("format")
        return f"{name} ({layout})" if isinstance(layout, str) else name
    bits = quantization.get("bits", quantization.get("w_bit"))
    return f"{name.upper()} {bits}-bit" if isinstance(bits, int) else name.upper()
