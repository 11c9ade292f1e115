"""Reads the header of a GGUF file, and rejects a file that contradicts itself.

A model file is untrusted: wrong counts and sizes have crashed native loaders. So every count,
length, type and offset is checked here against the length of the file before an engine sees it. The
file is read in pieces through a plain file descriptor, never mapped into memory (a mapped file that
shrinks kills the process), and never further than the header. Memory is bounded: numbers stay
packed, and a header that needs too much memory is rejected. The only error that leaves this module
is `ModelBroken`, whose message holds the cause and never the path.

This module needs no engine: the catalog of models and `explain` read headers with it, too.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from array import array
from math import prod
from pathlib import Path
from struct import Struct as Layout
from typing import Any, NoReturn

from msgspec import Struct

from dragoman.engines.llamacpp.gguf_types import FILE_TYPES as FILE_TYPES
from dragoman.engines.llamacpp.gguf_types import TENSOR_TYPES as TENSOR_TYPES
from dragoman.errors import ModelBroken

MAX_HEADER = 128 << 20  # bytes; the largest real ones are near 30 MB
MAX_STRINGS = 4 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_NAME = 63
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
LFS_START = b"vers"  # of a pointer of Git LFS, which a clone without its files has
FIRST_READ = 1 << 20

STRING, ARRAY, BOOL = 8, 9, 7
U32, U64 = Layout("<I"), Layout("<Q")
# value type -> layout of one value, and the type code of a packed array of them
SCALARS = {
    0: (Layout("<B"), "B"),
    1: (Layout("<b"), "b"),
    2: (Layout("<H"), "H"),
    3: (Layout("<h"), "h"),
    4: (Layout("<I"), "I"),
    5: (Layout("<i"), "i"),
    6: (Layout("<f"), "f"),
    BOOL: (Layout("<B"), "B"),
    10: (Layout("<Q"), "Q"),
    11: (Layout("<q"), "q"),
    12: (Layout("<d"), "d"),
}
SPLIT = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})$")
QUANTIZATION = re.compile(
    r"[.\-_](?:ud-)?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|mxfp4(?:_moe)?|nvfp4|bf16|f16|f32|fp16|fp8)$",
    re.IGNORECASE,
)


def replace_invalid(text: str) -> str:
    """Return a text of a file without what is not UTF-8, which no JSON can hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class TensorSummary(Struct, frozen=True):
    """The totals of a file's tensors."""

    count: int = 0
    parameters: int = 0
    bytes: int = 0
    types: dict[str, int] = {}  # name of the type -> number of parameters
    shapes: dict[str, tuple[int, ...]] = {}  # by the tensor's name
    kinds: dict[str, str] = {}  # the name of each tensor's type


class GgufHeader(Struct, frozen=True):
    """The header of a GGUF file. Metadata values of a wrong type count as missing."""

    version: int
    metadata: dict[str, Any]
    tensors: TensorSummary
    size: int  # bytes of the file

    def get_text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return replace_invalid(value) if isinstance(value, str) and value else None

    def get_number(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def tokens(self) -> list[str]:
        """The texts of all tokens; empty if the file has no vocabulary."""
        value = self.metadata.get("tokenizer.ggml.tokens")
        return value if isinstance(value, list) else []

    @property
    def architecture(self) -> str:
        return self.get_text("general.architecture") or "unknown"

    @property
    def kind(self) -> str:
        """`model`, `adapter`, `mmproj`, …; older files of projectors do not say it."""
        if self.architecture == "clip":
            return "mmproj"
        return self.get_text("general.type") or "model"

    @property
    def context_length(self) -> int | None:
        return self.get_number(f"{self.architecture}.context_length")

    @property
    def embedding_length(self) -> int | None:
        return self.get_number(f"{self.architecture}.embedding_length")

    @property
    def quantization(self) -> str:
        file_type = self.get_number("general.file_type")
        if file_type is not None and file_type in FILE_TYPES:
            return FILE_TYPES[file_type]
        types = self.tensors.types
        return max(types, key=lambda name: types[name]) if types else "unknown"

    @property
    def parameters(self) -> str:
        """A label like `135M`: the file's own, or from the number of its parameters."""
        label = self.get_text("general.size_label")
        return label or format_parameter_count(self.tensors.parameters)

    @property
    def chat_templates(self) -> dict[str, str]:
        """Templates by name; the one without a name is called `default`."""
        prefix = "tokenizer.chat_template"
        return {
            key.removeprefix(prefix).lstrip(".") or "default": value
            for key, value in self.metadata.items()
            if (key == prefix or key.startswith(prefix + ".")) and isinstance(value, str) and value
        }

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")


def format_parameter_count(parameters: int) -> str:
    """Format a number of parameters as people write it: 135M, 1.7B, 70B."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            amount = f"{parameters / unit:.{0 if parameters >= 10 * unit else 1}f}"
            return amount.removesuffix(".0") + name
    return str(parameters)


def strip_quantization(stem: str) -> str:
    """Return the name of a file without the quantization at its end."""
    return QUANTIZATION.sub("", stem)


def parse_split_name(stem: str) -> tuple[str, int, int] | None:
    """Parse `name-00002-of-00003` into name, part and number of parts."""
    match = SPLIT.match(stem)
    if match is None:
        return None
    part, parts = int(match["part"]), int(match["parts"])
    return (match["stem"], part, parts) if 1 <= part <= parts else None


def list_split_files(path: Path) -> list[Path]:
    """Return all files of a model that is split into several, or its only file."""
    split = parse_split_name(path.stem)
    if split is None:
        return [path]
    stem, _, parts = split
    names = (f"{stem}-{part:05}-of-{parts:05}{path.suffix}" for part in range(1, parts + 1))
    files = [path.with_name(name) for name in names]
    if missing := sum(not file.is_file() for file in files):
        raise ModelBroken(f"{missing} of the {parts} files of this model are missing.")
    return files


def read_header(path: Path | str, *, arrays: bool = True) -> GgufHeader:
    """Check and read a header. Without `arrays`, lists of text are checked but not stored."""
    try:
        # non-blocking, so that a named pipe cannot block us
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ModelBroken(f"The file cannot be opened{_explain(error)}.") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ModelBroken("It is not a regular file.")
        return _HeaderReader(handle, status.st_size, arrays).read_header()
    except OSError as error:
        raise ModelBroken(f"The file cannot be read{_explain(error)}.") from None
    finally:
        os.close(handle)


def _explain(error: Exception) -> str:
    """Return why the system refuses a file, without its path, which clients must not see."""
    return f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""


def _raise_damaged(cause: str) -> NoReturn:
    raise ModelBroken(f"The file is damaged: {cause}.")


class _HeaderReader:
    """Reads the header once, front to back, through a buffer that grows as needed."""

    def __init__(self, handle: int, size: int, arrays: bool) -> None:
        self.handle = handle
        self.size = size
        self.arrays = arrays
        self.buffer = bytearray()
        self.position = 0
        self.strings_left = MAX_STRINGS

    def read_header(self) -> GgufHeader:
        start = self.read_bytes(min(self.size, 4))
        if start == LFS_START:
            raise ModelBroken(
                "The file is not a GGUF file, but a Git LFS pointer: run `git lfs pull`."
            )
        if start.lstrip().startswith(b"<"):
            raise ModelBroken(
                "The file is not a GGUF file, but a web page: download the file that it links to."
            )
        if start != b"GGUF":
            raise ModelBroken("The file is not a GGUF file.")
        version = self.read_u32()
        if version & 0xFFFF == 0:
            raise ModelBroken("The file has the wrong byte order.")
        if version not in (2, 3):
            raise ModelBroken(f"GGUF version {version} is not supported; 2 and 3 are.")
        tensor_count = self.read_count(MAX_TENSORS, 24, "tensors")
        key_count = self.read_count(MAX_KEYS, 13, "metadata keys")
        metadata = self.read_metadata(key_count)
        tensors = self.read_tensors(tensor_count, self.get_alignment(metadata))
        return GgufHeader(version, metadata, tensors, self.size)

    def read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        seen = set()
        for _ in range(count):
            key = self.read_string("a metadata key")
            if not key or key in seen:
                _raise_damaged("a metadata key is empty or occurs twice")
            seen.add(key)
            kind = self.read_u32()
            value = self.read_array() if kind == ARRAY else self.read_value(kind)
            if value is not None:
                metadata[key] = value
        return metadata

    def read_value(self, kind: int) -> Any:
        if kind == STRING:
            return self.read_string("a text")
        layout = self.get_scalar(kind)[0]
        value = layout.unpack(self.read_bytes(layout.size))[0]
        return value != 0 if kind == BOOL else value

    def get_scalar(self, kind: int) -> tuple[Layout, str]:
        known = SCALARS.get(kind)
        return known if known is not None else _raise_damaged(f"unknown value type {kind}")

    def read_array(self) -> array[Any] | list[str] | None:
        kind = self.read_u32()
        if kind == STRING:
            return self.read_strings(self.read_count(self.strings_left, 8, "texts in a list"))
        layout, code = self.get_scalar(kind)
        count = self.read_count(MAX_HEADER, layout.size, "values in a list")
        values = array(code)
        values.frombytes(self.read_bytes(count * layout.size))
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def read_strings(self, count: int) -> list[str] | None:
        """Read a list of texts; it is most of a header, so this loop uses local variables."""
        self.strings_left -= count
        texts: list[str] = []
        position, data, end = self.position, self.buffer, len(self.buffer)
        unpack_length = U64.unpack_from
        for _ in range(count):
            start = position + 8
            if start > end:
                end = self.fill_buffer(start)
            position = start + unpack_length(data, position)[0]
            if position > end:
                end = self.fill_buffer(position)
            if self.arrays:
                # tokens may hold any bytes; those that are not UTF-8 must survive a round trip
                texts.append(data[start:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return texts if self.arrays else None

    def get_alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            _raise_damaged("its alignment is not a power of two")
        return alignment

    def read_tensors(self, count: int, alignment: int) -> TensorSummary:
        shapes: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, str] = {}
        types: dict[str, int] = {}
        expected = end = 0
        for _ in range(count):
            name = self.read_string("a tensor's name")
            if len(name.encode()) > MAX_NAME or name in shapes:
                _raise_damaged("a tensor's name is too long or occurs twice")
            kind, shapes[name], size, offset = self.read_tensor()
            kinds[name] = kind
            if offset != expected:
                _raise_damaged("a tensor does not start where the one before it ends")
            types[kind] = types.get(kind, 0) + prod(shapes[name])
            end = offset + size
            expected = end + -end % alignment
        start = self.position + -self.position % alignment
        if count and start + end > self.size:
            raise ModelBroken("The file is truncated. Download it again.")
        return TensorSummary(count, sum(types.values()), end, types, shapes, kinds)

    def read_tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        dims = self.read_u32()
        if dims > MAX_DIMS:
            _raise_damaged("a tensor has too many dimensions")
        shape = [self.read_u64() for _ in range(dims)]
        kind, offset = self.read_u32(), self.read_u64()
        if kind not in TENSOR_TYPES:
            raise ModelBroken(f"The file has tensors of the unknown type {kind}.")
        name, block, size = TENSOR_TYPES[kind]
        parameters = prod(shape)
        if parameters >= 1 << 63 or (shape and shape[0] % block):
            _raise_damaged("a tensor has an impossible shape")
        if not shape and block != 1:
            _raise_damaged("a tensor has an impossible shape")
        return name, tuple(shape), parameters // block * size, offset

    def read_count(self, maximum: int, min_bytes: int, what: str) -> int:
        """Read a number of items, each of which takes at least `min_bytes` of the file."""
        count = self.read_u64()
        if count * min_bytes > self.size - self.position:
            _raise_damaged(f"it claims more {what} than fit into it")
        if count > maximum:
            raise ModelBroken(f"The file has too many {what}.")
        return count

    def read_string(self, what: str) -> str:
        length = self.read_u64()
        if length > self.size - self.position:
            _raise_damaged(f"{what} is longer than the file")
        return self.read_bytes(length).decode("utf-8", "replace")

    def read_u32(self) -> int:
        return int(U32.unpack(self.read_bytes(4))[0])

    def read_u64(self) -> int:
        return int(U64.unpack(self.read_bytes(8))[0])

    def read_bytes(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self.buffer):
            self.fill_buffer(end)
        piece = bytes(memoryview(self.buffer)[self.position : end])
        self.position = end
        return piece

    def fill_buffer(self, end: int) -> int:
        """Read until the buffer contains the bytes up to `end`; return the length of the buffer."""
        if end > self.size:
            raise ModelBroken("The file is truncated, in its header. Download it again.")
        if end > MAX_HEADER:
            raise ModelBroken("The header of the file is too large.")
        target = min(self.size, MAX_HEADER, max(end, FIRST_READ, 2 * len(self.buffer)))
        while len(self.buffer) < target:
            piece = os.pread(self.handle, target - len(self.buffer), len(self.buffer))
            if not piece:
                raise ModelBroken("The file became shorter while it was being read.")
            self.buffer += piece
        return len(self.buffer)
