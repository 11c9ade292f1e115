"""What each type of projector needs in its file.

The rules are those of the native library, as far as breaking them would crash it: tensors that it
uses without looking whether they exist, and numbers that it divides by. Types that are not listed
are checked by the trial that follows loading (`trial`), in the engine's process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dragoman.engines.llamacpp.gguf import GgufHeader
from dragoman.errors import ModelBroken

AUDIO_FRAMES = 1500  # of a clip of 30 s, after the two convolutions
MAX_BLOCKS = 1024
MAX_NUMBER = 1 << 20  # of pixels, embeddings and the like

# type of projector -> tensors of the projector itself; the last one makes the embeddings
PROJECTOR_TENSORS: Mapping[str, Sequence[str]] = {
    "mlp": ("mm.0.weight", "mm.0.bias", "mm.2.weight", "mm.2.bias"),
    "mlp_norm": ("mm.0.weight", "mm.1.weight", "mm.3.weight", "mm.4.weight", "mm.3.bias"),
    "idefics3": ("mm.model.fc.weight",),
    "qwen2vl_merger": (
        "v.patch_embd.weight.1",
        "mm.0.weight",
        "mm.0.bias",
        "mm.2.weight",
        "mm.2.bias",
    ),
    "qwen2.5vl_merger": (
        "v.patch_embd.weight.1",
        "mm.0.weight",
        "mm.0.bias",
        "mm.2.weight",
        "mm.2.bias",
    ),
    "qwen3vl_merger": ("mm.0.weight", "mm.0.bias", "mm.2.weight", "mm.2.bias"),
    "gemma3": ("mm.soft_emb_norm.weight", "mm.input_projection.weight"),
    "pixtral": ("mm.1.weight", "mm.2.weight"),
    "internvl": (
        "mm.model.mlp.0.weight",
        "mm.model.mlp.1.weight",
        "mm.model.mlp.3.weight",
    ),
    "llama4": ("mm.model.mlp.1.weight", "mm.model.mlp.2.weight", "mm.model.fc.weight"),
    "ultravox": (
        "mm.a.norm_pre.weight",
        "mm.a.norm_mid.weight",
        "mm.a.mlp.1.weight",
        "mm.a.mlp.2.weight",
    ),
    "voxtral": ("mm.a.mlp.1.weight", "mm.a.mlp.2.weight"),
    "qwen2a": ("mm.a.fc.weight", "mm.a.fc.bias"),
}
NEED_POST_NORM = ("idefics3", "qwen2vl_merger", "gemma3", "ultravox", "voxtral", "qwen2a")
# where a tensor's last dimension is not the length of the embeddings
TRANSPOSED = ("mm.input_projection.weight",)
VARIABLE_WIDTH = ("qwen3vl_merger",)  # embeddings are several times as long as the model's
SCALED = {"idefics3": "scale_factor"}
STACKED = {"ultravox": "stack_factor", "voxtral": "stack_factor"}
NUMBERS = ("embedding_length", "feed_forward_length", "attention.head_count", "block_count")
VISION_NUMBERS = ("image_size", "patch_size")
AUDIO_NUMBERS = ("num_mel_bins",)


def check_rules(header: GgufHeader, part: str, kind: str, width: int | None) -> None:
    """Raise a `ModelBroken` if a projector lacks what its type needs."""
    if kind == "mlp" and "mm.3.weight" in header.tensors.shapes:
        kind = "mlp_norm"  # as the library decides
    if kind in PROJECTOR_TENSORS:
        RuleCheck(header, part, kind).check(width)


class RuleCheck:
    """Checks one encoder of a file and its projector."""

    def __init__(self, header: GgufHeader, part: str, kind: str) -> None:
        self._header = header
        self._shapes = header.tensors.shapes
        self._part = part
        self._kind = kind
        self._prefix = "v" if part == "vision" else "a"

    def check(self, width: int | None) -> None:
        for name in (*NUMBERS, *(VISION_NUMBERS if self._part == "vision" else AUDIO_NUMBERS)):
            self._read_number(name, 0 if name == "block_count" else 1)
        self._check_numbers()
        for name in self._list_tensors():
            if name not in self._shapes:
                raise ModelBroken(f"It lacks the tensor `{name}`.")
        self._check_shapes(width)

    def _read_number(self, name: str, least: int = 1) -> int:
        key = f"clip.{self._part}.{name}"
        value = self._header.get_number(key)
        if value is None or not least <= value <= MAX_NUMBER:
            raise ModelBroken(f"Its `{key}` is missing or out of range.")
        return value

    def _check_numbers(self) -> None:
        length, heads = (
            self._read_number("embedding_length"),
            self._read_number("attention.head_count"),
        )
        if length % heads:
            raise ModelBroken("Its embeddings cannot be divided among its attention heads.")
        if self._read_number("block_count", 0) > MAX_BLOCKS:
            raise ModelBroken("It has too many blocks.")
        epsilon = self._header.metadata.get(f"clip.{self._part}.attention.layer_norm_epsilon")
        if not isinstance(epsilon, float):
            raise ModelBroken(f"Its `clip.{self._part}.attention.layer_norm_epsilon` is missing.")
        if self._part == "vision":
            self._check_vision_numbers()
        if self._kind in STACKED:
            factor = self._read_number(f"projector.{STACKED[self._kind]}")
            if AUDIO_FRAMES % factor:
                raise ModelBroken(f"Its stack factor {factor} does not divide {AUDIO_FRAMES}.")

    def _check_vision_numbers(self) -> None:
        size, patch = self._read_number("image_size"), self._read_number("patch_size")
        if size < patch or size % patch:
            raise ModelBroken("Its picture size is not a multiple of its patch size.")
        for name in ("image_mean", "image_std"):
            values = self._header.metadata.get(f"clip.vision.{name}")
            if values is None or isinstance(values, (str, int, float)) or len(values) < 3:
                raise ModelBroken(f"Its `clip.vision.{name}` must have three values.")
        if self._kind in SCALED:
            factor = self._read_number(f"projector.{SCALED[self._kind]}")
            if (size // patch) % factor:
                raise ModelBroken("Its scale factor does not divide the patches of a side.")

    def _list_tensors(self) -> Iterator[str]:
        prefix = self._prefix
        if self._part == "vision":
            yield "v.patch_embd.weight"
            if self._kind in ("mlp", "mlp_norm", "idefics3", "gemma3", "internvl"):
                yield "v.position_embd.weight"
        else:
            for number in (1, 2):
                yield from (f"a.conv1d.{number}.weight", f"a.conv1d.{number}.bias")
            yield "a.position_embd.weight"
        if self._kind in NEED_POST_NORM:
            yield f"{prefix}.post_ln.weight"
        for block in range(self._read_number("block_count", 0)):
            yield from self._list_block_tensors(f"{prefix}.blk.{block}")
        yield from PROJECTOR_TENSORS[self._kind]

    def _list_block_tensors(self, block: str) -> Iterator[str]:
        if f"{block}.attn_qkv.weight" not in self._shapes:
            yield from (f"{block}.attn_{name}.weight" for name in "qkv")
        yield from (f"{block}.{name}.weight" for name in ("attn_out", "ffn_up", "ffn_down"))
        yield from (f"{block}.{name}.weight" for name in ("ln1", "ln2"))

    def _check_shapes(self, width: int | None) -> None:
        """Compare shapes with the numbers; a GGUF file writes the innermost dimension first."""
        length = self._read_number("embedding_length")
        expected: dict[str, tuple[int, ...]] = {}
        if self._part == "vision":
            patch = self._read_number("patch_size")
            expected["v.patch_embd.weight"] = (patch, patch, 3, length)
            expected["v.patch_embd.weight.1"] = (patch, patch, 3, length)
        else:
            expected["a.conv1d.1.weight"] = (3, self._read_number("num_mel_bins"), length)
            expected["a.conv1d.2.weight"] = (3, length, length)
            expected["a.position_embd.weight"] = (length, AUDIO_FRAMES)
        for block in range(self._read_number("block_count", 0)):
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                expected[f"{self._prefix}.blk.{block}.{name}.weight"] = (length, length)
            for name in ("ln1", "ln2"):
                expected[f"{self._prefix}.blk.{block}.{name}.weight"] = (length,)
        for name, shape in expected.items():
            if self._shapes.get(name, shape) != shape:
                raise ModelBroken(f"Its tensor `{name}` has the wrong shape.")
        self._check_positions(length)
        self._check_output(width)

    def _check_positions(self, length: int) -> None:
        shape = self._shapes.get("v.position_embd.weight")
        if shape is None or self._kind not in ("mlp", "mlp_norm", "idefics3", "gemma3"):
            return
        side = self._read_number("image_size") // self._read_number("patch_size")
        positions = side * side + ("v.class_embd" in self._shapes)
        if shape != (length, positions):
            raise ModelBroken("Its tensor `v.position_embd.weight` has the wrong shape.")

    def _check_output(self, width: int | None) -> None:
        """Compare the embeddings that the projector makes with those of the model."""
        weights = [name for name in PROJECTOR_TENSORS[self._kind] if name.endswith(".weight")]
        last = weights[-1] if self._kind != "mlp_norm" else "mm.3.weight"
        shape = self._shapes[last]
        output = shape[0] if last in TRANSPOSED else shape[-1]
        if width is not None and output != width and self._kind not in VARIABLE_WIDTH:
            raise ModelBroken(
                f"It makes embeddings of length {output}, but those of the model have {width}."
            )
