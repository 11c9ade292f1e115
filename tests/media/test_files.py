"""Files of text and PDF files become text; others are rejected by name."""

from __future__ import annotations

import sys

import pytest

from dragoman.errors import BadRequest, Unsupported
from dragoman.media.limits import MediaLimits
from dragoman.types import AudioPart, FilePart, ImagePart, MediaPart, TextPart
from tests.support.media_files import (
    READER,
    get_items,
    make_image,
    make_pdf,
    make_sound,
    read_content,
    to_base64,
    to_data_url,
)


def make_file(
    data: bytes, media_type: str | None = None, name: str | None = "notes.txt"
) -> FilePart:
    return FilePart(
        wire_type="file",
        param="p",
        field="file",
        data=to_base64(data),
        media_type=media_type,
        name=name,
    )


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        ("Grüße\n".encode(), "text/plain"),
        ("\ufeffGrüße\n".encode(), "text/plain"),
        ("\ufeffGrüße\n".encode("utf-16-le"), "text/plain"),
        ("Grüße\n".encode(), "application/json"),
        ("Grüße\n".encode(), "text/x-python; charset=utf-8"),
        ("Grüße\n".encode(), None),
    ],
)
def test_text_files_become_text_with_their_name(data: bytes, media_type: str | None) -> None:
    assert read_content(make_file(data, media_type)) == (TextPart("notes.txt\nGrüße\n"),)
    assert read_content(make_file(data, media_type, name=None)) == (TextPart("Grüße\n"),)


def test_an_empty_line_separates_files_from_other_text() -> None:
    first, second = make_file(b"one", name="1"), make_file(b"two\n", name="2")
    content = read_content(TextPart("Compare:"), first, second, TextPart("Which is longer?"))
    assert content == (TextPart("Compare:\n\n1\none\n\n2\ntwo\nWhich is longer?"),)


def test_a_pdf_becomes_text() -> None:
    part = FilePart(
        wire_type="input_file",
        param="p",
        url=to_data_url(make_pdf(), "application/pdf"),
        name="a.pdf",
    )
    assert read_content(part) == (TextPart("a.pdf\nHello from a PDF."),)


@pytest.mark.parametrize(
    "data", [b"%PDF-1.4\n", make_pdf()[:200], b"%PDF-1.7\n" + bytes(1000), make_pdf("")]
)
def test_an_invalid_pdf_is_an_error(data: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        read_content(make_file(data, "application/pdf"))
    assert caught.value.code == "file_parse_error"


def test_pictures_and_sounds_in_files_are_read_if_the_model_can() -> None:
    parts = make_file(make_image(), "image/png"), make_file(make_sound())
    content = read_content(*parts)
    assert [type(part) for part in content] == [ImagePart, AudioPart]
    assert len(get_items(content)) == 2
    for part in parts:
        with pytest.raises(Unsupported, match="This model does not support"):
            read_content(part, modalities=("text",))


VIDEOS = {
    "MP4": b"\0\0\0\x18ftypisom" + bytes(20),
    "QuickTime": b"\0\0\0\x14ftypqt  " + bytes(20),
    "WebM": b"\x1a\x45\xdf\xa3" + bytes(20),
    "AVI": b"RIFF\0\0\0\0AVI LIST" + bytes(20),
    "FLV": b"FLV\x01" + bytes(20),
    "MPEG": b"\0\0\1\xba" + bytes(20),
}


@pytest.mark.parametrize("name", VIDEOS)
@pytest.mark.parametrize("part_type", [FilePart, ImagePart, AudioPart])
def test_video_is_rejected_by_name(name: str, part_type: type[MediaPart]) -> None:
    part = part_type(wire_type="file", param="p", data=to_base64(VIDEOS[name]))
    with pytest.raises(Unsupported, match="Video is not supported"):
        read_content(part)  # type: ignore[arg-type]


def test_a_declared_video_is_not_even_decoded() -> None:
    for part in (
        FilePart(wire_type="video_url", param="p", media_type="video/*"),
        ImagePart(wire_type="image_url", param="p", url="data:video/jpeg;base64,****"),
    ):
        with pytest.raises(Unsupported, match="Video is not supported"):
            read_content(part)


@pytest.mark.parametrize(
    "part",
    [
        make_file(VIDEOS["MP4"]),
        FilePart(wire_type="file", param="p", file_id="file-1"),
        ImagePart(wire_type="image", param="p", url="https://a.example/a.png"),
    ],
)
def test_what_cannot_be_read_or_had_here_stays_in_tool_results(part: FilePart) -> None:
    assert read_content(part, role="tool") == (part,)


def test_what_is_damaged_does_not_stay_in_tool_results() -> None:
    with pytest.raises(BadRequest):
        read_content(FilePart(wire_type="file", param="p", data="QUJ"), role="tool")


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (make_file(b"\0\1\2\3"), "unsupported_file_media_type"),
        (make_file(b""), "empty_file"),
        (make_file(b"hello", "application/pdf"), "invalid_file_format"),
        (make_file(b"hello", "image/png"), "invalid_file_format"),
        (FilePart(wire_type="file", param="p", data="QUJ"), "invalid_base64_file"),
        (FilePart(wire_type="file", param="p"), "invalid_file"),
        (FilePart(wire_type="file", param="p", file_id="file-1"), "file_not_found"),
        (ImagePart(wire_type="image", param="p", file_id="file-1"), "image_file_not_found"),
        (ImagePart(wire_type="image", param="p", url="https://a.example/"), "invalid_image_url"),
        (ImagePart(wire_type="image", param="p", url="file:///etc/passwd"), "invalid_image_url"),
        (ImagePart(wire_type="image", param="p", data=""), "empty_image_file"),
    ],
)
def test_problems_have_codes(part: FilePart | ImagePart, code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_content(part)
    assert caught.value.code == code


def test_sizes_and_numbers_are_limited() -> None:
    limits = MediaLimits(items=2, size=100, text=50)
    small, large, long = make_file(b"a" * 30), make_file(b"a" * 101), make_file(b"a" * 60)
    assert read_content(small, small, limits=limits)
    for parts, code in (
        ((small, small, small), "too_many_images"),
        ((large,), "file_too_large"),
        ((long,), "file_too_large"),
    ):
        with pytest.raises(BadRequest) as caught:
            read_content(*parts, limits=limits)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("module", "part", "extra"),
    [
        ("PIL", ImagePart(wire_type="image", param="p", data=to_base64(make_image())), "media"),
        ("soundfile", AudioPart(wire_type="a", param="p", data=to_base64(make_sound())), "media"),
        ("pypdf", make_file(make_pdf()), "pdf"),
    ],
)
def test_without_its_library_a_kind_is_rejected_with_the_install_command(
    module: str, part: ImagePart, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    READER.close()  # and its cache
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(Unsupported, match=rf"`pip install 'dragoman\[{extra}\]'`"):
        read_content(part)
