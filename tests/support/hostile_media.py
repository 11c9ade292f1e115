"""Requests with URLs of media, for every wire API, and what is tried with them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from tests.support.hostile_samples import MODEL

SECRET = "canary-7f3a-content-of-a-file"

DISGUISES = ["http://ok\\@127.0.0.1:{}/", "http://127.0.0.1:{}\\@ok/", "http://ok@127.0.0.1:{}/"]
DISGUISES += ["http://127.0.0.1:{}#@ok/", "http://ok%40127.0.0.1:{}/", "http:\\\\127.0.0.1:{}/"]
DISGUISES += ["http://ok;@127.0.0.1:{}/", "http://a:b@127.0.0.1:{}/", "http://127.0.0.1:{}%2f@ok/"]

MARKDOWN = [
    *("![]({})", "![a]({} 'b')", "![a][1]\n\n[1]: {}", "[![]({})]({})", "<img src={}>"),
    *('<img src="{}">', "<img srcset='{} 2x'>", "<picture><source srcset={}></picture>"),
    *("<script src={}></script>", "<iframe src={}>", "<link rel=stylesheet href={}>"),
    *(
        "<video src={}>",
        "<audio src={}>",
        "<object data={}>",
        "<embed src={}>",
        "<svg><image href={}>",
    ),
    *("@import url({})", "background: url({})", "<meta http-equiv=refresh content='0;url={}'>"),
    *("{}", "<{}>", "data:text/html,<img src={}>", "<|image|>{}<|/image|>", "[IMG]{}[/IMG]"),
]

SCHEMES = [
    *("file://{}", "file:{}", "file:/{}", "FILE://{}", "file://localhost{}", "file://127.0.0.1{}"),
    *("file:///{}", "file://%00{}", "fi%6ce://{}", " file://{}", "\tfile://{}", "file://./{}"),
    *("local://{}", "path:{}", "{}", "../../../../../../../..{}", "gopher://{}", "ftp://{}"),
    *("jar:file://{}!/", "netdoc://{}", "php://filter/resource={}", "expect://cat {}", "ldap://{}"),
    *("data:text/plain,<file:{}>", "http://localhost/file:{}", "view-source:file://{}", "s3://{}"),
    *("unix://{}", "smb://{}", "dict://{}"),
]
TRAVERSALS = [
    *("../secret", "..%2fsecret", "%2e%2e/secret", "..\\secret", "....//secret", "./../secret"),
    *(
        "%252e%252e/secret",
        "..;/secret",
        "link",
        "a/../../secret",
        "/secret",
        "//secret",
        "\\secret",
    ),
    *(
        "secret\0.png",
        "secret%00.png",
        "..%c0%afsecret",
        "\u2025/secret",
        "~/secret",
        "$HOME/secret",
    ),
    *("/proc/self/root/secret", "/dev/fd/0", "C:\\secret", "\\\\host\\secret", "../secret/.", "*"),
]


def make_data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


FRAMES = [
    ",".join([base64.b64encode(b"\xff\xd8\xff" + bytes(20)).decode()] * 3000),
    "data:video/jpeg;base64," + ",".join(["/9j/"] * 5000),
    make_data_url("image/gif", b"GIF89a" + b"\x01\x00\x01\x00" + b"\x2c" * 10_000),
]


def make_media_requests(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make a request for each place of each API that takes a URL of media, with its path."""

    def chat(part: dict[str, Any], role: str = "user") -> tuple[str, dict[str, Any]]:
        return "/v1/chat/completions", {
            "model": MODEL,
            "messages": [{"role": role, "content": [part]}],
        }

    def message(block: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        messages = [{"role": "user", "content": [block]}]
        return "/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": messages}

    def response(part: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return "/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": [part]}]}

    yield chat({"type": "image_url", "image_url": {"url": url}})
    yield chat({"type": "image_url", "image_url": url})
    yield chat({"type": "image_url", "image_url": {"url": url}}, role="system")
    yield chat({"type": "video_url", "video_url": {"url": url}})
    yield chat({"type": "input_audio", "input_audio": {"data": url, "format": "wav"}})
    yield chat({"type": "file", "file": {"file_data": url, "filename": url}})
    for kind in ("image", "document"):
        yield message({"type": kind, "source": {"type": "url", "url": url}})
        yield message({"type": kind, "source": {"type": "file", "file_id": url}})
    yield response({"type": "input_image", "image_url": url})
    yield response({"type": "input_file", "file_url": url})
    yield response({"type": "input_file", "file_id": url})
