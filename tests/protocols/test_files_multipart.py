"""The parser of multipart forms: any cut gives the same parts, in bounded memory and time."""

from __future__ import annotations

import random

import pytest

from dragoman.errors import InvalidValue
from dragoman.protocols.files import (
    MultipartParser,
    PartStart,
    clean_filename,
    read_boundary,
)

FORM = (
    b'a preamble\r\n--b-x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b"--b-x\r\ncontent-type: text/plain\r\n"
    b'Content-Disposition: form-data; name="file"; filename="a \\"b\\" %22c%22 \xc3\xa9.txt"'
    b"\r\n\r\n"
    b"one\r\n--b-\r\n--b-y\r\n\r\n--b\r\n"
    b"\r\n--b-x\r\ncontent-disposition:form-data;name=empty\r\n\r\n\r\n"
    b"--b-x--\r\nan epilogue --b-x"
)
PARTS = [
    (PartStart("purpose"), b"batch"),
    (PartStart("file", 'a "b" "c" é.txt'), b"one\r\n--b-\r\n--b-y\r\n\r\n--b\r\n"),
    (PartStart("empty"), b""),
]


def parse(boundary: bytes, pieces: list[bytes]) -> list[tuple[PartStart, bytes]]:
    parser = MultipartParser(boundary)
    parts: list[tuple[PartStart, bytes]] = []
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, PartStart):
                parts.append((event, b""))
            else:
                start, data = parts[-1]
                parts[-1] = (start, data + event.data)
    parser.finish()
    return parts


def test_every_cut_gives_the_same_parts() -> None:
    assert parse(b"b-x", [FORM]) == PARTS
    for index in range(len(FORM)):
        assert parse(b"b-x", [FORM[:index], FORM[index:]]) == PARTS
    assert parse(b"b-x", [FORM[i : i + 1] for i in range(len(FORM))]) == PARTS
    source = random.Random(1)
    for _ in range(200):
        cuts = sorted(source.choices(range(len(FORM)), k=6))
        pieces = [FORM[a:b] for a, b in zip([0, *cuts], [*cuts, len(FORM)], strict=True)]
        assert parse(b"b-x", pieces) == PARTS


def make_part(headers: bytes, data: bytes = b"") -> bytes:
    return b"--x\r\n" + headers + b"\r\n\r\n" + data + b"\r\n"


NAMED = b"content-disposition: form-data; name=a"
INVALID: dict[str, bytes] = {
    "empty": b"",
    "no boundary": b"a" * 20_000,
    "no end": make_part(NAMED),
    "no name": make_part(b"content-disposition: form-data") + b"--x--",
    "no disposition": make_part(b"content-type: text/plain") + b"--x--",
    "two dispositions": make_part(NAMED + b"\r\n" + NAMED) + b"--x--",
    "attachment": make_part(b"content-disposition: attachment; name=a") + b"--x--",
    "endless headers": b"--x\r\n" + b"a: b\r\n" * 10_000,
    "long headers": make_part(NAMED + b"\r\na: " + b"b" * 9_000) + b"--x--",
    "many parts": make_part(NAMED) * 33 + b"--x--",
    "data after a boundary": b"--xyz\r\n\r\n\r\n--x--",
    "bare line feeds": make_part(NAMED).replace(b"\r\n", b"\n") + b"--x--",
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_forms_are_rejected(name: str) -> None:
    for size in (1 << 20, 1000, 1):
        body = INVALID[name]
        with pytest.raises(InvalidValue):
            parse(b"x", [body[i : i + size] for i in range(0, len(body), size)])


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('multipart/form-data; charset=utf-8; Boundary="a b\'c"; x=y', b"a b'c"),
        (
            "multipart/form-data; boundary=----WebKitFormBoundary7MA4YWxk",
            b"----WebKitFormBoundary7MA4YWxk",
        ),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ('multipart/form-data; boundary=""', None),
        ('multipart/form-data; boundary="a "', None),
        ("multipart/form-data; boundary=" + "x" * 71, None),
        ("multipart/form-data; boundary=a\x00b", None),
        ("multipart/form-data; boundary=é", None),
    ],
)
def test_boundaries(content_type: str, boundary: bytes | None) -> None:
    if boundary is not None:
        assert read_boundary(content_type) == boundary
        return
    with pytest.raises(InvalidValue):
        read_boundary(content_type)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a.jsonl", "a.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\a.txt", "a.txt"),
        ("/etc/", "file"),
        ("..", "file"),
        ("", "file"),
        (None, "file"),
        ("a\0b\r\nc\x1b[31m.txt", "abc[31m.txt"),
        ("\u202etxt.exe", "txt.exe"),
        ("\ud800x", "x"),
        ("é" * 400, "é" * 255),
    ],
)
def test_names_of_files_are_labels(sent: str | None, kept: str) -> None:
    assert clean_filename(sent) == kept


def test_an_extended_name_wins() -> None:
    headers = NAMED + b"; filename=x; filename*=UTF-8''%e2%82%ac.txt"
    [(start, _)] = parse(b"x", [make_part(headers) + b"--x--"])
    assert start.filename == "€.txt"
