"""A header is read exactly, and a file that lies about itself is refused with the cause."""

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

MAGIC = b"GGUF"


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


def file(pairs: list[bytes], tensors: list[bytes], data: int = 0, version: int = 3) -> bytes:
    head = MAGIC + u32(version) + u64(len(tensors)) + u64(len(pairs))
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


ARCHITECTURE = pair("general.architecture", 8, text("llama"))
GOOD = file(
    [
        ARCHITECTURE,
        pair("llama.context_length", 4, u32(2048)),
        pair("llama.embedding_length", 10, u64(64)),
        pair("general.file_type", 4, u32(15)),
        pair("flag", 7, b"\x01"),
        pair("tokenizer.ggml.tokens", 9, u32(8) + u64(3) + text("a") + text("é") + text(b"\xff")),
        pair("tokenizer.ggml.scores", 9, u32(6) + u64(2) + struct.pack("<ff", 0.5, -1.0)),
        pair("tokenizer.chat_template", 8, text("{{ messages }}")),
        pair("tokenizer.chat_template.tool_use", 8, text("{{ tools }}")),
    ],
    [tensor("a", (32, 2)), tensor("b", (32,), 2, 256)],
    data=256 + 18,
)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_reads_what_is_there(place: Path) -> None:
    header = gguf.read_header(write(place, GOOD))
    assert header.version == 3
    assert header.size == len(GOOD)
    assert header.architecture == "llama"
    assert (header.context_length, header.embedding_length) == (2048, 64)
    assert header.metadata["flag"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "é", "\udcff"]
    assert list(header.metadata["tokenizer.ggml.scores"]) == [0.5, -1.0]
    assert header.quantisation == "Q4_K_M"
    assert header.chat_template == "{{ messages }}"
    assert header.chat_templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert header.tensors == gguf.TensorSummary(2, 96, 274, {"F32": 64, "Q4_0": 32})
    assert header.parameters == "96"


def test_without_arrays_texts_are_checked_but_not_kept(place: Path) -> None:
    header = gguf.read_header(write(place, GOOD), arrays=False)
    assert "tokenizer.ggml.tokens" not in header.metadata
    assert header.architecture == "llama"
    cut = GOOD[: GOOD.index("é".encode()) + 1]
    with pytest.raises(ModelBroken):
        gguf.read_header(write(place, cut), arrays=False)


def test_reads_every_kind_of_value(place: Path) -> None:
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
        pair(f"k{kind}", kind, struct.pack(layout, value))
        for kind, (layout, value) in numbers.items()
    ]
    pairs += [
        pair(f"l{kind}", 9, u32(kind) + u64(3) + struct.pack(layout, value) * 3)
        for kind, (layout, value) in numbers.items()
    ]
    header = gguf.read_header(write(place, file(pairs, [])))
    for kind, (_, value) in numbers.items():
        assert header.metadata[f"k{kind}"] == value
        assert list(header.metadata[f"l{kind}"]) == [value] * 3


def test_agrees_with_the_reference_writer(place: Path) -> None:
    made = writer_library.GGUFWriter(place, "qwen2")
    made.add_name("A Name")
    made.add_array("tokenizer.ggml.tokens", ["x" * 50] * 30_000)
    made.add_tensor("t", np.ones((64, 32), dtype=np.float16))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    header = gguf.read_header(place)
    assert header.architecture == "qwen2"
    assert header.get_text("general.name") == "A Name"
    assert header.metadata["tokenizer.ggml.tokens"] == ["x" * 50] * 30_000
    assert header.tensors == gguf.TensorSummary(1, 2048, 4096, {"F16": 2048})
    assert header.quantisation == "F16"


def test_reads_the_default_model(default_model: Path) -> None:
    header = gguf.read_header(default_model)
    assert (header.architecture, header.context_length, header.embedding_length) == (
        "llama",
        8192,
        576,
    )
    assert (header.quantisation, header.parameters, header.kind) == ("Q4_1", "135M", "model")
    assert header.tensors.count == 272
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 49152
    assert header.chat_template is not None
    assert "<|im_start|>" in header.chat_template


MANY = 1 << 40
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF"),
    "three bytes": (b"GGU", "not a GGUF"),
    "other magic": (b"PK\x03\x04" + GOOD[4:], "not a GGUF"),
    "magic only": (MAGIC, "cut short"),
    "version 0": (MAGIC + u32(0) + GOOD[8:], "byte order"),
    "version 1": (MAGIC + u32(1) + GOOD[8:], "version 1"),
    "version 4": (MAGIC + u32(4) + GOOD[8:], "version 4"),
    "other byte order": (MAGIC + struct.pack(">I", 3) + GOOD[8:], "byte order"),
    "many tensors": (MAGIC + u32(3) + u64(MANY) + u64(0) + bytes(64), "more tensors"),
    "most tensors": (MAGIC + u32(3) + u64(2**64 - 1) + u64(0) + bytes(64), "more tensors"),
    "many keys": (MAGIC + u32(3) + u64(0) + u64(MANY) + bytes(64), "more metadata keys"),
    "long key": (MAGIC + u32(3) + u64(0) + u64(1) + u64(MANY) + bytes(64), "longer than the file"),
    "endless text": (file([text("k") + u32(8) + u64(2**64 - 1)], []), "longer than the file"),
    "endless list": (file([pair("k", 9, u32(4) + u64(2**62))], []), "values in a list"),
    "endless texts": (file([pair("k", 9, u32(8) + u64(2**61))], []), "texts in a list"),
    "long text in a list": (
        file([pair("k", 9, u32(8) + u64(1) + u64(2**63))], [], 64),
        "cut short",
    ),
    "list of lists": (file([pair("k", 9, u32(9) + u64(1) + u32(0))], [], 64), "value type 9"),
    "unknown value type": (file([pair("k", 77, b"")], []), "value type 77"),
    "key twice": (file([ARCHITECTURE, ARCHITECTURE], []), "there twice"),
    "empty key": (file([pair("", 8, text("x"))], []), "empty"),
    "alignment 0": (file([pair("general.alignment", 4, u32(0))], []), "power of two"),
    "alignment 3": (file([pair("general.alignment", 4, u32(3))], []), "power of two"),
    "alignment text": (file([pair("general.alignment", 8, text("32"))], []), "power of two"),
    "alignment huge": (
        file([pair("general.alignment", 4, u32(2**31))], [tensor("a", (1,))], 64),
        "cut short",
    ),
    "tensor beyond the end": (file([], [tensor("a", (32, 100))], 64), "cut short"),
    "tensor overflow": (file([], [tensor("a", (2**32, 2**32))], 64), "shape"),
    "tensor wraps around": (file([], [tensor("a", (2**63, 2**1, 1, 1))], 64), "shape"),
    "negative dimension": (file([], [tensor("a", (2**64 - 1,))], 64), "shape"),
    "five dimensions": (file([], [tensor("a", (1, 1, 1, 1, 1))], 64), "dimensions"),
    "many dimensions": (file([], [text("a") + u32(2**32 - 1)], 64), "dimensions"),
    "unknown tensor type": (file([], [tensor("a", (32,), 99)], 64), "type 99"),
    "removed tensor type": (file([], [tensor("a", (32,), 4)], 64), "type 4"),
    "half a block": (file([], [tensor("a", (33,), 2)], 64), "shape"),
    "no shape": (file([], [tensor("a", (), 2)], 64), "shape"),
    "offset too far": (file([], [tensor("a", (1,), 0, 2**63)], 64), "is not where"),
    "overlapping": (file([], [tensor("a", (32,)), tensor("b", (32,))], 512), "is not where"),
    "long tensor name": (file([], [tensor("n" * 64, (1,))], 64), "name"),
    "tensor twice": (file([], [tensor("a", (8,)), tensor("a", (8,), 0, 32)], 64), "there twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_d70_a_hostile_file_gives_the_cause(case: str, place: Path) -> None:
    data, cause = HOSTILE[case]
    with pytest.raises(ModelBroken) as caught:
        gguf.read_header(write(place, data))
    assert cause in caught.value.message
    assert str(place.parent) not in caught.value.message


@pytest.mark.parametrize("length", range(0, len(GOOD), 7))
def test_every_cut_is_noticed(length: int, place: Path) -> None:
    with pytest.raises(ModelBroken):
        gguf.read_header(write(place, GOOD[:length]))


def test_one_byte_short_is_noticed(place: Path) -> None:
    with pytest.raises(ModelBroken, match="cut short"):
        gguf.read_header(write(place, GOOD[:-1]))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "none.gguf", tmp_path / "pipe.gguf", "a\0b"):
        with pytest.raises(ModelBroken) as caught:
            gguf.read_header(path)
        assert str(tmp_path) not in caught.value.message


def test_too_many_texts_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_STRINGS", 2)
    with pytest.raises(ModelBroken, match="too many texts"):
        gguf.read_header(write(place, GOOD))


def test_a_header_without_end_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "MAX_HEADER", 1000)
    data = file([pair("k", 8, text("x" * 5000))], [])
    with pytest.raises(ModelBroken, match="larger than any real one"):
        gguf.read_header(write(place, data))


def outcome(path: Path, data: bytes) -> Any:
    """A header or None; whatever else escapes fails the test."""
    try:
        return gguf.read_header(write(path, data))
    except ModelBroken:
        return None


@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_never_escape(place: Path, data: bytes, headed: bool) -> None:
    read = outcome(place, MAGIC + u32(3) + data if headed else data)
    assert read is None or (headed and read.version == 3)


def test_mutations_never_escape_and_never_take_much_memory(place: Path) -> None:
    chance = random.Random(11)
    wild = [0, 1, 0x7F, 0x80, 0xFF]
    tracemalloc.start()
    try:
        for _ in range(6000):
            data = bytearray(GOOD)
            for _ in range(chance.randint(1, 6)):
                at = chance.randrange(len(data))
                width = chance.choice((1, 1, 4, 8))
                value = chance.choice(wild) if chance.random() < 0.7 else chance.randrange(256)
                data[at : at + width] = bytes([value]) * width
            if chance.random() < 0.2:
                del data[chance.randrange(len(data)) :]
            header = outcome(place, bytes(data))
            if header is not None:
                touch_everything(header)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def touch_everything(header: gguf.GgufHeader) -> None:
    """Properties hold for whatever types the metadata has."""
    assert isinstance(header.architecture, str)
    assert isinstance(header.kind, str)
    assert isinstance(header.quantisation, str)
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
def test_size_labels(count: int, label: str) -> None:
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


def test_split_files_must_all_be_there(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{part}-of-00002.gguf" for part in (1, 2))
    write(first, GOOD)
    with pytest.raises(ModelBroken, match="1 of the 2 files"):
        gguf.list_split_files(first)
    write(second, GOOD)
    assert gguf.list_split_files(second) == [first, second]
    assert gguf.list_split_files(tmp_path / "whole.gguf") == [tmp_path / "whole.gguf"]
