"""Reading GGUF headers exactly, and rejecting files that contradict themselves."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf as writer_library
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.engines.llamacpp import gguf
from dragoman.errors import ModelBroken
from tests.support.gguf_files import finish_file

pytestmark = pytest.mark.slow

MAGIC = b"GGUF"


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def encode_text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def encode_pair(key: str, kind: int, value: bytes) -> bytes:
    return encode_text(key) + u32(kind) + value


def encode_tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return encode_text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


def build_file(pairs: list[bytes], tensors: list[bytes], data: int = 0, version: int = 3) -> bytes:
    head = MAGIC + u32(version) + u64(len(tensors)) + u64(len(pairs))
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


ARCHITECTURE = encode_pair("general.architecture", 8, encode_text("llama"))
VALID = build_file(
    [
        ARCHITECTURE,
        encode_pair("llama.context_length", 4, u32(2048)),
        encode_pair("llama.embedding_length", 10, u64(64)),
        encode_pair("general.file_type", 4, u32(15)),
        encode_pair("flag", 7, b"\x01"),
        encode_pair(
            "tokenizer.ggml.tokens",
            9,
            u32(8) + u64(3) + encode_text("a") + encode_text("é") + encode_text(b"\xff"),
        ),
        encode_pair(
            "tokenizer.ggml.scores",
            9,
            u32(6) + u64(2) + struct.pack("<ff", 0.5, -1.0),
        ),
        encode_pair("tokenizer.chat_template", 8, encode_text("{{ messages }}")),
        encode_pair("tokenizer.chat_template.tool_use", 8, encode_text("{{ tools }}")),
    ],
    [encode_tensor("a", (32, 2)), encode_tensor("b", (32,), 2, 256)],
    data=256 + 18,
)


def write_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_a_header_is_read_completely(path: Path) -> None:
    header = gguf.read_header(write_file(path, VALID))
    assert header.version == 3
    assert header.size == len(VALID)
    assert header.architecture == "llama"
    assert (header.context_length, header.embedding_length) == (2048, 64)
    assert header.metadata["flag"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "é", "\udcff"]
    assert list(header.metadata["tokenizer.ggml.scores"]) == [0.5, -1.0]
    assert header.quantization == "Q4_K_M"
    assert header.chat_template == "{{ messages }}"
    assert header.chat_templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert header.tensors == gguf.TensorSummary(
        *(2, 96, 274, {"F32": 64, "Q4_0": 32}, {"a": (32, 2), "b": (32,)}),
        {"a": "F32", "b": "Q4_0"},
    )
    assert header.parameters == "96"


def test_without_arrays_texts_are_checked_but_not_stored(path: Path) -> None:
    header = gguf.read_header(write_file(path, VALID), arrays=False)
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert header.architecture == "llama"
    truncated = VALID[: VALID.index("é".encode()) + 1]
    with pytest.raises(ModelBroken):
        gguf.read_header(write_file(path, truncated), arrays=False)


def test_every_type_of_value_is_read(path: Path) -> None:
    numbers = {
        0: ("<B", 200),
        1: ("<b", -3),
        2: ("<H", 60000),
        3: ("<h", -30000),
        4: ("<I", 4_000_000_000),
        5: ("<i", -2_000_000_000),
        6: ("<f", 0.5),
        10: ("<Q", 2**63),
        11: ("<q", -(2**62)),
        12: ("<d", 1e300),
    }
    pairs = [
        encode_pair(f"k{kind}", kind, struct.pack(layout, value))
        for kind, (layout, value) in numbers.items()
    ]
    pairs += [
        encode_pair(f"l{kind}", 9, u32(kind) + u64(3) + struct.pack(layout, value) * 3)
        for kind, (layout, value) in numbers.items()
    ]
    header = gguf.read_header(write_file(path, build_file(pairs, [])))
    for kind, (_, value) in numbers.items():
        assert header.metadata[f"k{kind}"] == value
        assert list(header.metadata[f"l{kind}"]) == [value] * 3


def test_a_file_of_the_reference_writer_is_read(path: Path) -> None:
    writer = writer_library.GGUFWriter(path, "qwen2")
    writer.add_name("A Name")
    writer.add_array("tokenizer.ggml.tokens", ["x" * 50] * 30_000)
    writer.add_tensor("t", np.ones((64, 32), dtype=np.float16))
    finish_file(writer, path)
    header = gguf.read_header(path)
    assert header.architecture == "qwen2"
    assert header.get_text("general.name") == "A Name"
    assert header.metadata["tokenizer.ggml.tokens"] == ["x" * 50] * 30_000
    assert header.tensors == gguf.TensorSummary(
        1, 2048, 4096, {"F16": 2048}, {"t": (32, 64)}, {"t": "F16"}
    )
    assert header.quantization == "F16"


def test_the_default_model_is_read(default_model: Path) -> None:
    header = gguf.read_header(default_model)
    assert (header.architecture, header.context_length, header.embedding_length) == (
        "llama",
        8192,
        576,
    )
    assert (header.quantization, header.parameters, header.kind) == ("Q4_1", "135M", "model")
    assert header.tensors.count == 272
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 49152
    assert header.chat_template is not None
    assert "<|im_start|>" in header.chat_template


MANY = 1 << 40
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF"),
    "three bytes": (b"GGU", "not a GGUF"),
    "other magic": (b"PK\x03\x04" + VALID[4:], "not a GGUF"),
    "magic only": (MAGIC, "truncated"),
    "version 0": (MAGIC + u32(0) + VALID[8:], "byte order"),
    "version 1": (MAGIC + u32(1) + VALID[8:], "version 1"),
    "version 4": (MAGIC + u32(4) + VALID[8:], "version 4"),
    "other byte order": (MAGIC + struct.pack(">I", 3) + VALID[8:], "byte order"),
    "many tensors": (
        MAGIC + u32(3) + u64(MANY) + u64(0) + bytes(64),
        "more tensors",
    ),
    "most tensors": (
        MAGIC + u32(3) + u64(2**64 - 1) + u64(0) + bytes(64),
        "more tensors",
    ),
    "many keys": (
        MAGIC + u32(3) + u64(0) + u64(MANY) + bytes(64),
        "more metadata keys",
    ),
    "long key": (
        MAGIC + u32(3) + u64(0) + u64(1) + u64(MANY) + bytes(64),
        "longer than the file",
    ),
    "endless text": (
        build_file([encode_text("k") + u32(8) + u64(2**64 - 1)], []),
        "longer than the file",
    ),
    "endless list": (
        build_file([encode_pair("k", 9, u32(4) + u64(2**62))], []),
        "values in a list",
    ),
    "endless texts": (
        build_file([encode_pair("k", 9, u32(8) + u64(2**61))], []),
        "texts in a list",
    ),
    "long text in a list": (
        build_file([encode_pair("k", 9, u32(8) + u64(1) + u64(2**63))], [], 64),
        "truncated",
    ),
    "list of lists": (
        build_file([encode_pair("k", 9, u32(9) + u64(1) + u32(0))], [], 64),
        "value type 9",
    ),
    "unknown value type": (build_file([encode_pair("k", 77, b"")], []), "value type 77"),
    "key twice": (build_file([ARCHITECTURE, ARCHITECTURE], []), "occurs twice"),
    "empty key": (build_file([encode_pair("", 8, encode_text("x"))], []), "empty"),
    "alignment 0": (
        build_file([encode_pair("general.alignment", 4, u32(0))], []),
        "power of two",
    ),
    "alignment 3": (
        build_file([encode_pair("general.alignment", 4, u32(3))], []),
        "power of two",
    ),
    "alignment text": (
        build_file([encode_pair("general.alignment", 8, encode_text("32"))], []),
        "power of two",
    ),
    "alignment huge": (
        build_file(
            [encode_pair("general.alignment", 4, u32(2**31))], [encode_tensor("a", (1,))], 64
        ),
        "truncated",
    ),
    "tensor beyond the end": (build_file([], [encode_tensor("a", (32, 100))], 64), "truncated"),
    "tensor overflow": (build_file([], [encode_tensor("a", (2**32, 2**32))], 64), "shape"),
    "tensor wraps around": (build_file([], [encode_tensor("a", (2**63, 2**1, 1, 1))], 64), "shape"),
    "negative dimension": (build_file([], [encode_tensor("a", (2**64 - 1,))], 64), "shape"),
    "five dimensions": (build_file([], [encode_tensor("a", (1, 1, 1, 1, 1))], 64), "dimensions"),
    "many dimensions": (
        build_file([], [encode_text("a") + u32(2**32 - 1)], 64),
        "dimensions",
    ),
    "unknown tensor type": (build_file([], [encode_tensor("a", (32,), 99)], 64), "type 99"),
    "removed tensor type": (build_file([], [encode_tensor("a", (32,), 4)], 64), "type 4"),
    "half a block": (build_file([], [encode_tensor("a", (33,), 2)], 64), "shape"),
    "no shape": (build_file([], [encode_tensor("a", (), 2)], 64), "shape"),
    "offset too far": (
        build_file([], [encode_tensor("a", (1,), 0, 2**63)], 64),
        "does not start where",
    ),
    "overlapping": (
        build_file([], [encode_tensor("a", (32,)), encode_tensor("b", (32,))], 512),
        "does not start where",
    ),
    "long tensor name": (build_file([], [encode_tensor("n" * 64, (1,))], 64), "name"),
    "tensor twice": (
        build_file([], [encode_tensor("a", (8,)), encode_tensor("a", (8,), 0, 32)], 64),
        "occurs twice",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_rejected_with_the_cause(case: str, path: Path) -> None:
    data, cause = HOSTILE[case]
    with pytest.raises(ModelBroken) as caught:
        gguf.read_header(write_file(path, data))
    assert cause in caught.value.message
    assert str(path.parent) not in caught.value.message


@pytest.mark.parametrize("length", range(0, len(VALID), 7))
def test_every_truncation_is_noticed(length: int, path: Path) -> None:
    with pytest.raises(ModelBroken):
        gguf.read_header(write_file(path, VALID[:length]))


def test_one_missing_byte_is_noticed(path: Path) -> None:
    with pytest.raises(ModelBroken, match="truncated"):
        gguf.read_header(write_file(path, VALID[:-1]))


def test_paths_that_are_not_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "none.gguf", tmp_path / "pipe.gguf", "a\0b"):
        with pytest.raises(ModelBroken) as caught:
            gguf.read_header(path)
        assert str(tmp_path) not in caught.value.message


def test_too_many_texts_are_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_STRINGS", 2)
    with pytest.raises(ModelBroken, match="too many texts"):
        gguf.read_header(write_file(path, VALID))


def test_a_header_that_is_too_large_is_rejected(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "MAX_HEADER", 1000)
    data = build_file([encode_pair("k", 8, encode_text("x" * 5000))], [])
    with pytest.raises(ModelBroken, match="too large"):
        gguf.read_header(write_file(path, data))


def read_or_none(path: Path, data: bytes) -> Any:
    """Return a header or None; any error but `ModelBroken` fails the test."""
    try:
        return gguf.read_header(write_file(path, data))
    except ModelBroken:
        return None


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_raise_no_other_error(path: Path, data: bytes, has_magic: bool) -> None:
    header = read_or_none(path, MAGIC + u32(3) + data if has_magic else data)
    assert header is None or (has_magic and header.version == 3)


def test_mutations_raise_no_other_error_and_take_little_memory(path: Path) -> None:
    generator = random.Random(11)
    extremes = [0, 1, 0x7F, 0x80, 0xFF]
    tracemalloc.start()
    try:
        for _ in range(6000):
            data = bytearray(VALID)
            for _ in range(generator.randint(1, 6)):
                start = generator.randrange(len(data))
                width = generator.choice((1, 1, 4, 8))
                is_extreme = generator.random() < 0.7
                value = generator.choice(extremes) if is_extreme else generator.randrange(256)
                data[start : start + width] = bytes([value]) * width
            if generator.random() < 0.2:
                del data[generator.randrange(len(data)) :]
            header = read_or_none(path, bytes(data))
            if header is not None:
                read_properties(header)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def read_properties(header: gguf.GgufHeader) -> None:
    """Check that properties work whatever types the metadata has."""
    assert isinstance(header.architecture, str)
    assert isinstance(header.kind, str)
    assert isinstance(header.quantization, str)
    assert isinstance(header.parameters, str)
    assert header.context_length is None or isinstance(header.context_length, int)
    assert header.embedding_length is None or isinstance(header.embedding_length, int)
    assert header.chat_template is None or isinstance(header.chat_template, str)


@pytest.mark.parametrize(
    ("count", "label"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (134_515_008, "135M"),
        (1_700_000_000, "1.7B"),
        (7_000_000_000, "7B"),
        (70_600_000_000, "71B"),
        (1_000_000_000_000, "1T"),
    ],
)
def test_parameter_counts(count: int, label: str) -> None:
    assert gguf.format_parameter_count(count) == label


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        ("big-00001-of-00003", ("big", 1, 3)),
        ("a-00002-of-00009-00003-of-00003", ("a-00002-of-00009", 3, 3)),
        ("big-00004-of-00003", None),
        ("big-00000-of-00003", None),
        ("big-1-of-3", None),
        ("big", None),
    ],
)
def test_split_names(stem: str, split: tuple[str, int, int] | None) -> None:
    assert gguf.parse_split_name(stem) == split


def test_all_split_files_must_exist(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{part}-of-00002.gguf" for part in (1, 2))
    write_file(first, VALID)
    with pytest.raises(ModelBroken, match="1 of the 2 files"):
        gguf.list_split_files(first)
    write_file(second, VALID)
    assert gguf.list_split_files(second) == [first, second]
    assert gguf.list_split_files(tmp_path / "whole.gguf") == [tmp_path / "whole.gguf"]
