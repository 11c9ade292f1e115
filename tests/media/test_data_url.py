"""Base64 and data URLs are read strictly."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.media.data_url import SLICE, check_base64_length, decode_base64, parse_data_url
from dragoman.media.errors import MediaError
from tests.support.media_files import to_base64


@given(st.binary(max_size=300))
def test_base64_is_decoded(data: bytes) -> None:
    assert asyncio.run(decode_base64(to_base64(data))) == data


@pytest.mark.parametrize("extra", range(-3, 4))
def test_base64_of_several_slices_is_decoded(extra: int) -> None:
    data = bytes(range(256)) * (SLICE // 128)
    data = data[: SLICE * 3 // 4 + extra]
    assert asyncio.run(decode_base64(to_base64(data))) == data


@pytest.mark.parametrize(
    "text",
    [
        "QUJ",
        "QUJD=",
        "QUJDRA",
        "QUJDR===",
        "====",
        "QQ==QQ==",
        "QQ==" + "A" * SLICE,
        "A" * (SLICE - 4) + "QQ==" + "AAAA",
        "QUJD\n",
        "QUJD\nQUJD",
        " QUJD",
        "QUJDRA=\n",
        "QUJ-",
        "QU_D",
        "QUJ*",
        "QÜJD",
        "QUJD\0AAA",
        "％QUJ",
    ],
)
def test_other_base64_is_rejected(text: str) -> None:
    with pytest.raises(MediaError) as caught:
        asyncio.run(decode_base64(text))
    assert caught.value.problem == "base64"


@pytest.mark.parametrize(
    ("url", "media_type"),
    [
        ("data:image/png;base64,QUJD", "image/png"),
        ("DATA:image/PNG;base64,QUJD", "image/png"),
        ("data:;base64,QUJD", None),
        ("data:text/plain;charset=utf-8;base64,QUJD", "text/plain"),
        ("data:image/svg+xml;BASE64,QUJD", "image/svg+xml"),
    ],
)
def test_data_urls_are_split(url: str, media_type: str | None) -> None:
    parsed = parse_data_url(url)
    assert (parsed.media_type, parsed.base64) == (media_type, "QUJD")


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png,QUJD",
        "data:image/png;base64",
        "data:image/png;base64 ,QUJD",
        "data:image png;base64,QUJD",
        "data:,",
        "data:text/plain,hello",
        "data:" + "a" * 300 + "/png;base64,QUJD",
        "data:image/png;base64;x=y,QUJD",
    ],
)
def test_other_data_urls_are_rejected(url: str) -> None:
    with pytest.raises(MediaError):
        parse_data_url(url)


def test_the_length_is_checked_before_decoding() -> None:
    check_base64_length(to_base64(bytes(100)), 100)
    with pytest.raises(MediaError) as caught:
        check_base64_length("*" * 200, 100)
    assert caught.value.problem == "file_too_large"
    with pytest.raises(MediaError) as caught:
        check_base64_length("", 100)
    assert caught.value.problem == "empty"
