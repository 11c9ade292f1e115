"""Makes small LoRA adapters for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.support.gguf_files import finish_file

RANK = 2


def make_adapter(path: Path, *, seed: int, width: int = 576, strength: float = 10.0) -> Path:
    """Make an adapter that changes the output of a llama-type model, differently for each seed."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(str(path), "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for block in (0, 7, 15):
        name = f"blk.{block}.attn_output.weight"
        down = rng.standard_normal((RANK, width)).astype(np.float32)
        up = rng.standard_normal((width, RANK)).astype(np.float32)
        writer.add_tensor(f"{name}.lora_a", down / width**0.5 * strength)
        writer.add_tensor(f"{name}.lora_b", up / RANK**0.5)
    return finish_file(writer, path)
