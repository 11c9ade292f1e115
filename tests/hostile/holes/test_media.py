"""Media in requests to a model that reads pictures and sound: what strangers send and refer to."""

from __future__ import annotations

import gzip
import itertools
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from dragoman.media.fetch import MediaFetcher
from dragoman.testing import ScriptedEngine
from tests.support.file_server import FileAnswer, serve_files
from tests.support.forbidden_port import watch_port
from tests.support.forbidden_urls import list_forbidden_urls
from tests.support.hostile_http import HostileServer, serve_hostile
from tests.support.hostile_media import (
    DISGUISES,
    FRAMES,
    MARKDOWN,
    SCHEMES,
    SECRET,
    TRAVERSALS,
    make_media_requests,
)
from tests.support.hostile_samples import MODEL
from tests.support.media_files import (
    encode_image,
    make_gif,
    make_image,
    make_pdf,
    make_png,
    make_png_chunk,
    make_rotated,
    make_sound,
    make_wav_header,
    to_base64,
    to_data_url,
)
from tests.support.serving import make_chat

MEGABYTE = 1 << 20
CHAT = "/v1/chat/completions"
REDIRECTS = (301, 302, 303, 307, 308)


def make_engine() -> ScriptedEngine:
    modalities = ("text", "image", "audio")
    return ScriptedEngine("Hello there!", tokens=True, context=65536, modalities=modalities)


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with serve_hostile(make_engine()) as hostile:
        yield hostile


@pytest.fixture(scope="module")
def fetching_server() -> Iterator[HostileServer]:
    """A server that may fetch from a host, which does not exist."""
    hosts = ["ok.invalid", "ok"]
    with serve_hostile(make_engine(), media_hosts=hosts, media_http=True) as hostile:
        yield hostile


def list_url_requests(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make a request for each place of each API that takes a URL, those of tool results, too."""
    yield from make_media_requests(url)
    part = {"type": "image_url", "image_url": {"url": url}}
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": "c", "type": "function", "function": function}]
    user: dict[str, Any] = {"role": "user", "content": "a"}
    assistant = {"role": "assistant", "content": None, "tool_calls": calls}
    tool = {"role": "tool", "tool_call_id": "c", "content": [part]}
    yield CHAT, {"model": MODEL, "messages": [user, assistant, tool]}
    audio = {"type": "audio_url", "audio_url": {"url": url}}
    yield CHAT, {"model": MODEL, "messages": [{"role": "user", "content": [audio]}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for output in (
        {"type": "input_image", "image_url": url},
        {"type": "input_file", "file_url": url},
    ):
        item = {"type": "function_call_output", "call_id": "c", "output": [output]}
        yield "/v1/responses", {"model": MODEL, "input": [user, call, item], "store": False}
    image = {"type": "image", "source": {"type": "url", "url": url}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [image]}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    turns = [user, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    yield "/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": turns}
    yield "/v1/messages/count_tokens", {"model": MODEL, "messages": turns}
    yield "/apply-template", {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    yield "/api/chat", {"model": MODEL, "messages": [{**user, "images": [url]}]}
    yield "/api/generate", {"model": MODEL, "prompt": "a", "images": [url]}


def check_rejected(server: HostileServer, url: str, step: int = 1) -> int:
    """Check that every place rejects a URL; with a `step`, only some places for each URL.

    In the result of a tool, a sentence may stand in the place of what the URL refers to.
    """
    requests = list(list_url_requests(url))[zlib.crc32(url.encode()) % step :: step]
    for path, body in requests:
        started = server.engine.started
        response = server.send("POST", path, json=body)
        assert SECRET not in response.text
        if response.status_code == 200 and is_in_tool_result(body):
            warning = response.headers.get("x-dragoman-warning", "")
            assert "is not shown to the model" in warning or path.endswith("count_tokens")
            assert not any(job.media for job in server.engine.jobs)
            continue
        assert response.status_code == 400, (path, body, response.text)
        assert server.engine.started == started
    return len(requests)


def is_in_tool_result(body: dict[str, Any]) -> bool:
    return any(name in json.dumps(body) for name in ("tool_call_id", "call_output", "tool_result"))


def test_hole_45_urls_are_not_fetched_for_a_model_that_reads_pictures(
    server: HostileServer, fetching_server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    with watch_port() as (port, connections):
        urls = [f"http://{host}:{port}/a.png" for host in ("127.0.0.1", "localhost", "[::1]")]
        count = sum(check_rejected(server, url) for url in urls)
        count += sum(check_rejected(fetching_server, url) for url in urls)
        assert not connections
    count_cases(count)


def test_hole_46_no_spelling_passes_the_list_of_hosts(
    fetching_server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    with watch_port() as (port, connections):
        urls = [url for url in list_forbidden_urls(port) if "example" not in url.lower()]
        count = sum(check_rejected(fetching_server, url, step=21) for url in urls)
        assert not connections
    assert len(urls) > 150
    count_cases(count)


@pytest.mark.parametrize("form", DISGUISES)
def test_hole_47_allowed_hosts_before_or_after_a_backslash_or_an_at_sign(
    fetching_server: HostileServer, form: str
) -> None:
    with watch_port() as (port, connections):
        check_rejected(fetching_server, form.format(port), step=4)
        assert not connections


def test_hole_48_every_field_uses_the_same_fetcher(count_cases: Callable[[int], None]) -> None:
    """Each place that takes a URL fetches it from an allowed host, once, and from no other."""
    with serve_files({"/a.png": FileAnswer(make_image())}) as files:
        hosts = [files.host]
        with serve_hostile(make_engine(), media_hosts=hosts, media_http=True) as server:
            fetched = 0
            for path, body in list_url_requests(f"http://{files.host}/a.png"):
                before = len(files.log.requests)
                response = server.send("POST", path, json=body)
                fetches = len(files.log.requests) - before
                assert fetches <= 1
                assert fetches == 1 or response.status_code == 400, (path, body)
                fetched += fetches
    assert fetched >= 12
    count_cases(fetched)


@pytest.mark.parametrize("status", REDIRECTS)
def test_hole_49_redirects_of_media_are_checked(status: int) -> None:
    with watch_port() as (port, connections):
        targets = [f"http://127.0.0.1:{port}/", f"http://localhost:{port}/", "file:///etc/passwd"]
        targets += [f"http://[::1]:{port}/", "http://169.254.169.254/", "http://10.0.0.1/"]
        answers = {
            f"/{index}": FileAnswer(SECRET.encode(), status, {"location": target})
            for index, target in enumerate(targets)
        }
        with serve_files(answers) as files:
            options: dict[str, Any] = {"media_hosts": [files.host], "media_http": True}
            with serve_hostile(make_engine(), **options) as server:
                for path in answers:
                    check_rejected(server, f"http://{files.host}{path}", step=7)
        assert not connections


def test_hole_50_metadata_services_are_not_reached_by_pictures(
    fetching_server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    urls = ["http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/"]
    urls += ["http://[fd00:ec2::254]/latest/", "http://168.63.129.16/", "http://100.100.100.200/"]
    count_cases(sum(check_rejected(fetching_server, url, step=3) for url in urls))


def test_hole_51_a_name_that_changes_leads_to_no_private_address(
    monkeypatch: pytest.MonkeyPatch, count_cases: Callable[[int], None]
) -> None:
    """The resolver of an allowed name alternates; each place connects to public addresses only."""
    addresses = itertools.cycle(["93.184.216.34", "127.0.0.1", "10.0.0.1", "169.254.169.254"])
    lookups, hosts = itertools.count(), set()

    async def resolve(host: str, port: int) -> list[str]:
        next(lookups)
        return [next(addresses)]

    async def fail_to_connect(_: object, request: httpx2.Request) -> httpx2.Response:
        hosts.add(request.url.host)
        raise httpx2.ConnectError("no")

    assert MediaFetcher.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(MediaFetcher.__init__.__kwdefaults__, "resolve", resolve)
    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", fail_to_connect)
    with serve_hostile(make_engine(), media_hosts=["rebind.example"]) as server:
        count = sum(
            check_rejected(server, f"https://rebind.example/{number}.png") for number in range(8)
        )
    assert hosts == {"93.184.216.34"}
    assert next(lookups) > 50
    count_cases(count)


def test_hole_52_text_causes_no_fetch_where_fetching_is_allowed(
    count_cases: Callable[[int], None],
) -> None:
    with serve_files({"/a.png": FileAnswer(make_image())}) as files:
        hosts = [files.host]
        with serve_hostile(make_engine(), media_hosts=hosts, media_http=True) as server:
            for form in MARKDOWN:
                text = form.replace("{}", f"http://{files.host}/a.png")
                assert server.send("POST", CHAT, json=make_chat(text)).status_code == 200
                document = {"type": "file", "file": {"file_data": to_data_url(text.encode())}}
                document["file"] = {"file_data": to_data_url(text.encode(), "text/markdown")}
                body = {"model": MODEL, "messages": [{"role": "user", "content": [document]}]}
                assert server.send("POST", CHAT, json=body).status_code == 200
        assert not files.log.requests
    count_cases(2 * len(MARKDOWN))


def test_hole_53_what_is_fetched_has_limits_and_is_not_echoed() -> None:
    answers = {
        "/endless": FileAnswer(bytes(65536), chunks=True),
        "/text": FileAnswer(SECRET.encode()),
        "/gzip": FileAnswer(gzip.compress(make_image()), headers={"content-encoding": "gzip"}),
        "/bomb": FileAnswer(make_png(50_000, 50_000)),
        "/error": FileAnswer(SECRET.encode(), status=500),
    }
    with serve_files(answers) as files:
        options: dict[str, Any] = {"media_hosts": [files.host], "media_http": True}
        with serve_hostile(make_engine(), media_size=MEGABYTE, **options) as server:
            for path in answers:
                url = f"http://{files.host}{path}"
                part = {"type": "image_url", "image_url": {"url": url}}
                body = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
                response = server.send("POST", CHAT, json=body)
                assert response.status_code == 400
                assert SECRET not in response.text
            assert not server.engine.started


@pytest.mark.parametrize("index", range(len(FRAMES)))
def test_hole_54_frames_are_rejected_by_a_model_that_reads_pictures(
    server: HostileServer, index: int
) -> None:
    for path, body in make_media_requests(FRAMES[index]):
        assert server.send("POST", path, json=body).status_code == 400
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        body = make_chat("Hi", **{name: {"video": {"num_frames": 10**9, "fps": 1e9}}})
        assert server.send("POST", CHAT, json=body).status_code == 400


def make_jpeg_bomb() -> bytes:
    """A small JPEG whose header declares 65,500 pixels in both directions."""
    data = bytearray(make_image("JPEG"))
    position = data.index(b"\xff\xc0") + 5
    data[position : position + 4] = struct.pack(">HH", 65_500, 65_500)
    return bytes(data)


def make_text_bomb() -> bytes:
    """A PNG with compressed text of 64 MB."""
    packed = zlib.compress(bytes(64 * MEGABYTE), 9)
    chunk = make_png_chunk(b"zTXt", b"a\0\0" + packed)
    data = make_image()
    return data[:33] + chunk + data[33:]


def make_profile_bomb() -> bytes:
    """A PNG with a compressed colour profile of 64 MB."""
    chunk = make_png_chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(64 * MEGABYTE), 9))
    data = make_image()
    return data[:33] + chunk + data[33:]


def make_pdf_bomb() -> bytes:
    """A PDF whose page is compressed, and becomes 64 MB."""
    stream = zlib.compress(b"q " * (32 * MEGABYTE), 9)
    body = make_pdf()
    head, _, rest = body.partition(b"<</Length ")
    tail = rest[rest.index(b"endobj") :]
    content = b"<</Filter/FlateDecode/Length %d>>\nstream\n" % len(stream)
    return head + content + stream + b"\nendstream\n" + tail


def make_mp3_bomb() -> bytes:
    """An MP3 that does not declare its length, and is as long as its frames are."""
    data = make_sound("MP3", seconds=2)
    return data.replace(b"Xing", bytes(4)).replace(b"Info", bytes(4)) * 900


def make_webp_bomb() -> bytes:
    data = bytearray(encode_image(Image.new("RGB", (8, 8)), "WEBP", lossless=True))
    data[21:25] = struct.pack("<I", 0x3FFF | 0x3FFF << 14)
    return bytes(data)


BOMBS: dict[str, tuple[str, bytes | Callable[[], bytes]]] = {
    "PNG of 50,000 × 50,000": ("image", make_png(50_000, 50_000, rows=10)),
    "PNG of 2 billion × 1": ("image", make_png(2**31 - 1, 1)),
    "PNG of text": ("image", make_text_bomb),
    "PNG of a profile": ("image", make_profile_bomb),
    "JPEG of 65,500 × 65,500": ("image", make_jpeg_bomb()),
    "GIF of 100,000 frames": ("image", make_gif(4, 4, 100_000)),
    "GIF of 65,535 × 65,535": ("image", make_gif(65_535, 65_535, 1)),
    "GIF in a small screen": (
        "image",
        b"GIF89a\x01\0\x01\0\0\0\0\x2c" + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\2\0",
    ),
    "WebP of 16,384 × 16,384": ("image", make_webp_bomb()),
    "BMP of 2 billion × 2 billion": (
        "image",
        make_image("BMP")[:18] + struct.pack("<ii", 2**31 - 1, -(2**31)) + make_image("BMP")[26:],
    ),
    "TIFF": ("image", b"II*\0\x08\0\0\0\xff\xff" + bytes(200)),
    "WAV that declares 4 GB": ("audio", make_wav_header(48_000, 2, 0xF0000000, bytes(100))),
    "WAV of a stream": ("audio", make_wav_header(48_000, 2, 0xFFFFFFFF, bytes(100))),
    "WAV of 65,535 channels": ("audio", make_wav_header(48_000, 65_535, 1000, bytes(1000))),
    "FLAC of 68 billion samples": (
        "audio",
        make_sound("FLAC")[:21] + b"\x1f\xff\xff\xff\xff" + make_sound("FLAC")[26:],
    ),
    "MP3 of six minutes": ("audio", make_mp3_bomb()),
    "PDF that becomes 64 MB": ("file", make_pdf_bomb),
    "zlib": ("file", lambda: zlib.compress(bytes(64 * MEGABYTE))),
}
HARMLESS = ("GIF of 100,000 frames", "WAV of a stream")  # which have little content


def make_bomb_request(kind: str, data: bytes) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": to_data_url(data, "image/*")}}
    if kind == "audio":
        part = {"type": "input_audio", "input_audio": {"data": to_base64(data)}}
    elif kind == "file":
        part = {"type": "file", "file": {"file_data": to_base64(data)}}
    part["image_url"] = {"url": f"data:;base64,{to_base64(data)}"}
    return {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}


def read_peak_memory(pid: int) -> int:
    """Return the most memory that a process ever had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize("name", BOMBS)
def test_hole_55_bombs_cost_little(server: HostileServer, name: str) -> None:
    """Neither the server nor a worker takes 64 MB more than before; both go on."""
    kind, bomb = BOMBS[name]
    body = make_bomb_request(kind, bomb() if callable(bomb) else bomb)
    media = server.running.app.runtime.services.media
    small = make_bomb_request("image", make_image())
    assert server.send("POST", CHAT, json=small).status_code == 200
    before = max(map(read_peak_memory, media.worker_pids))
    tracemalloc.start()
    try:
        response = server.send("POST", CHAT, json=body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == (200 if name in HARMLESS else 400), response.text
    assert peak < 64 * MEGABYTE
    assert max(map(read_peak_memory, media.worker_pids), default=0) - before < 64 * MEGABYTE
    assert server.send("POST", CHAT, json=small).status_code == 200


ODD_IMAGES = {
    "one pixel": (make_image(size=(1, 1)), 200),
    "one column": (make_png(1, 65_535, rows=65_535), 200),
    "one row": (make_png(65_535, 1, rows=1), 200),
    "no bytes": (b"", 400),
    "no pixels": (make_png(0, 0), 400),
    "no height": (make_png(5, 0), 400),
    "truncated": (make_image()[:40], 400),
    "CMYK": (encode_image(Image.new("CMYK", (8, 8)), "JPEG"), 200),
    "16 bit": (encode_image(Image.new("I;16", (8, 8), 40_000)), 200),
    "palette": (encode_image(Image.new("P", (8, 8)), transparency=0), 200),
    "transparent": (encode_image(Image.new("RGBA", (8, 8))), 200),
    "rotated": (make_rotated(6), 200),
    "not an image": (b"%PDF-1.4", 400),
}


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_hole_56_odd_images_are_normalised_or_rejected(server: HostileServer, name: str) -> None:
    data, status = ODD_IMAGES[name]
    response = server.send("POST", CHAT, json=make_bomb_request("image", data))
    assert response.status_code == status, response.text
    if status == 200:
        [item] = server.engine.jobs[-1].media
        assert item.data.startswith(b"\x89PNG")
        assert item.width
        assert item.height


def test_hole_58_no_byte_of_a_file_is_read(
    fetching_server: HostileServer, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    urls = [form.replace("{}", str(path)) for form in SCHEMES]
    count_cases(sum(check_rejected(fetching_server, url, step=6) for url in urls))


def test_hole_59_local_media_cannot_be_named_where_fetching_is_allowed(
    fetching_server: HostileServer, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    names = [f"file://{tmp_path}/media/{name}" for name in TRAVERSALS] + TRAVERSALS
    count_cases(sum(check_rejected(fetching_server, name, step=8) for name in names))


def get_digest(server: HostileServer, data: bytes, **fields: Any) -> str:
    body = make_bomb_request("image", data)
    body["messages"][0]["content"][0] |= fields
    assert server.send("POST", CHAT, json=body).status_code == 200
    [item] = server.engine.jobs[-1].media
    return item.digest


def test_hole_76_pictures_of_the_same_pixels_but_other_sizes_differ(server: HostileServer) -> None:
    sizes = [(2, 8), (8, 2), (4, 4), (16, 1), (1, 16)]
    digests = {get_digest(server, make_image(size=size)) for size in sizes}
    digests |= {get_digest(server, make_image(size=(4, 4), colour=c)) for c in ("blue", "#fe0000")}
    assert len(digests) == len(sizes) + 2


def test_hole_78_clients_do_not_choose_the_key_of_a_picture(server: HostileServer) -> None:
    digests = set()
    for colour in ("red", "blue"):
        for name in ("uuid", "hash", "digest", "cache_key", "item", "multi_modal_uuids"):
            fields: dict[str, Any] = {name: {"digest": "0"} if name == "item" else "0"}
            digests.add(get_digest(server, make_image(colour=colour), **fields))
    assert len(digests) == 2


def test_hole_80_errors_of_decoders_show_nothing_of_the_server(server: HostileServer) -> None:
    """`send` checks every error for addresses, paths and class names."""
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        data = make_image(kind)
        for cut in (len(data) // 2, len(data) - 5):
            body = make_bomb_request("image", data[:cut] + bytes(40))
            response = server.send("POST", CHAT, json=body)
            assert "BytesIO" not in response.text
            assert "PIL" not in response.text
