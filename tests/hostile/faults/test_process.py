"""Signals, limits, full disks, blocked pipes and wrong clocks (faults 10 to 21)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fake_models import write_models
from tests.support.fault_clients import (
    STREAMS,
    connect,
    encode_request,
    hold_streams,
    make_body,
    read_until,
)
from tests.support.fault_server import FaultServer, ServerPlan, is_running, run_plan
from tests.support.name_spaces import UNSHARE, can_unshare
from tests.support.paths import ROOT
from tests.support.process_cost import read_resident_bytes
from tests.support.server_process import DRAGOMAN
from tests.support.serving import poll_until
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow
LIVE, READY = "/health/live", "/health/ready"
WORDS = " ".join(f"word{number}" for number in range(40))
SCRIPT: list[dict[str, Any]] = [
    {"text": "Hello.", "when": "quick"},
    {"text": "One, two", "when": "hang", "hang_at": 2},
    {"text": WORDS, "pace": 0.025},
]
ENGINE = {"script": SCRIPT}
USER, NEW = "user-key-of-enough-length", "new-key-of-enough-length"


@measures_time
def test_fault_10_sigterm_lets_fifty_streams_finish(count_cases: Callable[[int], None]) -> None:
    plan = ServerPlan(engine=ENGINE, in_child=True, options={"drain": 20})
    with run_plan(plan) as server, hold_streams(server.url, 50, "tell me") as streams:
        children = server.list_children()
        server.send_signal(signal.SIGTERM)
        started_at = time.monotonic()
        poll_until(lambda: server.client.get(READY).status_code == 503)
        assert time.monotonic() - started_at < 5  # 1 s on a machine that has nothing else to do
        assert server.client.get(LIVE).status_code == 200
        refused = server.post("/v1/completions", make_body("/v1/completions"))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        ends = [stream.result(60) for stream in streams]
        assert server.wait() == 0
        assert {end.text for end in ends} == {WORDS}
        assert {(end.error, end.is_complete) for end in ends} == {(None, True)}
    assert children
    assert not any(map(is_running, children))
    count_cases(50)


@measures_time
def test_fault_11_second_sigterm_ends_all_streams_at_once(
    count_cases: Callable[[int], None],
) -> None:
    plan = ServerPlan(engine=ENGINE, options={"drain": 60})
    with run_plan(plan) as server, hold_streams(server.url, 12, "hang") as streams:
        server.send_signal(signal.SIGTERM)
        poll_until(lambda: server.client.get(READY).status_code == 503)
        server.send_signal(signal.SIGTERM)
        started_at = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - started_at < 10  # 2 s on a machine with nothing else to do
        for stream in streams:
            end = stream.result(10)
            assert end.error is not None
            assert end.is_complete
    count_cases(12)


def test_fault_12_killed_server_leaves_port_and_children_free(tmp_path: Path) -> None:
    options = {"store": f"sqlite:///{tmp_path / 'store.db'}"}
    plan = ServerPlan(engine=ENGINE, in_child=True, options=options)
    with run_plan(plan) as server, ExitStack() as stack:
        stored = server.post("/v1/responses", {"model": "scripted", "input": "quick"}).json()
        for path in STREAMS:  # connections that are open when it dies
            client = stack.enter_context(connect(server.port))
            client.sendall(encode_request(path, make_body(path, stream=True)))
            read_until(client, STREAMS[path])
        children = server.list_children()
        server.send_signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        poll_until(lambda: not any(map(is_running, children)))
        plan.options["port"] = server.port
        with run_plan(plan) as again:
            assert again.port == server.port
            again.check_serves()
            response = again.client.get(f"/v1/responses/{stored['id']}")
            assert response.json()["output"] == stored["output"]


def write_configuration(path: Path, *keys: str) -> None:
    entries = "".join(f"\n    - {{name: n{key[:3]}, key: {key}}}" for key in keys)
    replacement = path.with_suffix(".new")
    replacement.write_text(f"keys:\n  entries:{entries}\n")
    replacement.replace(path)


def get_status(server: FaultServer, key: str) -> int:
    return server.client.get("/v1/models", headers={"x-api-key": key}).status_code


BAD_CONFIGURATIONS = {
    "no YAML": "keys: [\n",
    "a text": "keys",
    "unknown section": "keyz:\n  entries: []\n",
    "unknown field": "keys:\n  entries:\n    - {name: a, kee: b}\n",
    "wrong type": "keys:\n  entries: 5\n",
    "no key": "keys:\n  entries:\n    - {name: a}\n",
    "bytes": "\udcff\udcfe\0",
}


def test_fault_13_bad_configuration_keeps_the_old_one(
    tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    path = tmp_path / "dragoman.yaml"
    write_configuration(path, USER)
    plan = ServerPlan(engine=ENGINE, options={"config": str(path)})
    with run_plan(plan) as server:
        for name, text in BAD_CONFIGURATIONS.items():
            before = len(server.lines)
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
            server.send_signal(signal.SIGHUP)
            poll_until(lambda: "dragoman.yaml" in "".join(server.lines[before:]))  # noqa: B023
            assert get_status(server, USER) == 200, name
            assert get_status(server, NEW) == 401, name
            server.check_serves(USER)
        write_configuration(path, USER, NEW)
        server.send_signal(signal.SIGHUP)
        poll_until(lambda: get_status(server, NEW) == 200)
        assert get_status(server, USER) == 200
        assert USER not in server.log
    count_cases(len(BAD_CONFIGURATIONS))


@pytest.mark.parametrize("notifies", [True, False], ids=["SIGHUP", "file alone"])
@measures_time
def test_fault_14_revoked_key_is_refused_soon(tmp_path: Path, notifies: bool) -> None:
    path = tmp_path / "dragoman.yaml"
    write_configuration(path, USER, NEW)
    plan = ServerPlan(engine=ENGINE, options={"config": str(path)})
    with run_plan(plan) as server:
        assert (get_status(server, USER), get_status(server, NEW)) == (200, 200)
        write_configuration(path, NEW)
        if notifies:
            server.send_signal(signal.SIGHUP)
        started_at = time.monotonic()
        poll_until(lambda: get_status(server, USER) == 401)
        seconds = time.monotonic() - started_at
        print(f"refused after {seconds:.2f} s")
        assert seconds < 5  # 2 s on a machine with nothing else to do
        assert get_status(server, NEW) == 200


def set_limit(kind: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (value, value))


def test_fault_15_too_few_file_descriptors(count_cases: Callable[[int], None]) -> None:
    plan = ServerPlan(engine=ENGINE)
    limit = 64
    with run_plan(plan, prepare=set_limit(resource.RLIMIT_NOFILE, limit)) as server:
        server.check_serves()
        with ExitStack() as stack:
            for _ in range(2 * limit):
                stack.enter_context(connect(server.port))
            for _ in range(3):  # a health check has a reserve
                with httpx.Client(base_url=server.url, timeout=20) as client:
                    assert client.get(LIVE).status_code == 200
            assert server.process.poll() is None
        poll_until(lambda: can_serve(server))
        assert "connection" in server.log
        server.check_serves()
    count_cases(2 * limit)


def can_serve(server: FaultServer) -> bool:
    with suppress(httpx.HTTPError), httpx.Client(base_url=server.url, timeout=20) as client:
        response = client.post("/v1/completions", json=make_body("/v1/completions", "quick"))
        return response.status_code == 200
    return False


MEGABYTE = 1 << 20


def test_fault_16_hundred_large_bodies_in_little_memory(count_cases: Callable[[int], None]) -> None:
    """100 bodies of 20 MB at once, in 512 MB: the server answers each, and lives."""
    size, count = 20 * MEGABYTE, 100
    plan = ServerPlan(engine=ENGINE)
    with run_plan(plan, prepare=set_limit(resource.RLIMIT_DATA, 512 * MEGABYTE)) as server:
        server.check_serves()
        head = b'{"model":"scripted","prompt":"'
        request = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        request += b"content-length: %d\r\n\r\n" % size + head

        def send(_: int) -> int:
            with connect(server.port) as client:
                with suppress(ConnectionError):
                    client.sendall(request)
                    for _ in range(size // MEGABYTE):
                        client.sendall(b"x" * MEGABYTE)
                received = b""
                with suppress(ConnectionError):
                    while data := client.recv(65536):
                        received += data
                return int(received.split(b" ")[1]) if received else 0

        with ThreadPoolExecutor(count) as pool:
            statuses = list(pool.map(send, range(count)))
        print({status: statuses.count(status) for status in set(statuses)})
        assert set(statuses) <= {200, 400, 408, 413, 429, 503}
        assert server.process.poll() is None
        server.check_serves()
        assert read_resident_bytes(server.process.pid) < 512 * MEGABYTE
    count_cases(count)


MOUNT = (*UNSHARE, "--mount", "sh", "-c")
MOUNT_TMPFS = 'mount -t tmpfs -o size=6m tmpfs "$0" && exec "$@"'


needs_mount = pytest.mark.skipif(not can_unshare("mount"), reason="needs a name space to mount in")


def run_in_mount(server: FaultServer, script: str, *arguments: str) -> None:
    """Run a command in the name space of the server."""
    target = ["nsenter", "--user", "--mount", "--preserve-credentials", "-t"]
    subprocess.run(
        [*target, str(server.process.pid), "sh", "-c", script, *arguments], check=True, timeout=30
    )


def store_response(server: FaultServer, text: str = "quick") -> httpx.Response:
    return server.post("/v1/responses", {"model": "scripted", "input": text, "store": True})


def check_not_stored(server: FaultServer) -> None:
    """What must be stored is refused, or the answer says that it is not; all else is served."""
    response = store_response(server, "quick" * 100_000)
    if response.status_code == 200:  # the answer exists already, and is not lost
        assert response.json()["store"] is False
    else:
        assert response.status_code == 503, response.text
        assert response.json()["error"]["code"] == "store_unavailable"
    background = {"model": "scripted", "input": "quick" * 100_000, "background": True}
    assert server.post("/v1/responses", background).status_code == 503
    server.check_serves()
    assert server.client.get(READY).status_code == 200


@needs_mount
def test_fault_17_full_disk_stops_only_what_must_be_stored(tmp_path: Path) -> None:
    folder = str(tmp_path)
    options = {"store": f"sqlite:///{folder}/store.db"}
    plan = ServerPlan(engine=ENGINE, options=options)
    with run_plan(plan, prefix=(*MOUNT, MOUNT_TMPFS, folder)) as server:
        kept = store_response(server).json()
        run_in_mount(server, 'head -c 9m /dev/zero > "$0/filler" || true', folder)
        check_not_stored(server)
        assert server.client.get(f"/v1/responses/{kept['id']}").status_code == 200
        assert server.client.get(READY).status_code == 200
        run_in_mount(server, 'rm "$0/filler"', folder)
        poll_until(lambda: store_response(server).status_code == 200)
        assert "no space left" in server.log
        assert "Traceback" not in server.log


MAKE_READ_ONLY = 'mount -o remount,bind,ro / && ! touch "$0/x" 2>/dev/null && exec "$@"'


@needs_mount
def test_fault_18_server_needs_no_file_system_to_write_to(tmp_path: Path) -> None:
    """As in a container whose root file system is read-only, and without a store on disk."""
    engine = {**ENGINE, "grammars": True}
    prefix = (*MOUNT, MAKE_READ_ONLY, str(tmp_path))
    with run_plan(ServerPlan(engine=engine, in_child=True), prefix=prefix) as server:
        server.check_serves()
        stored = store_response(server).json()
        assert server.client.get(f"/v1/responses/{stored['id']}").status_code == 200
        schema = {"name": "a", "schema": {"type": "object"}, "strict": True}
        limits = {"response_format": {"type": "json_schema", "json_schema": schema}}
        body = make_body("/v1/chat/completions", "quick", **limits)
        assert server.post("/v1/chat/completions", body).status_code == 200
        assert server.client.get(READY).status_code == 200
        assert "Traceback" not in server.log


@needs_mount
def test_fault_18_store_on_a_read_only_file_system_is_an_error_at_start(tmp_path: Path) -> None:
    serve = [*DRAGOMAN, "serve", "a", "--port", "0", "--models-dir", str(write_models(tmp_path))]
    serve += ["--store", f"sqlite:///{tmp_path / 'store.db'}"]
    result = subprocess.run(
        [*MOUNT, MAKE_READ_ONLY, str(tmp_path), *serve],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 1, result.stdout
    assert "Traceback" not in result.stderr
    assert "--store" in result.stderr.splitlines()[-1]


def test_fault_19_blocked_output_delays_no_request(count_cases: Callable[[int], None]) -> None:
    """Nobody reads the log: the pipe is full after a few hundred requests."""
    count = 750
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    plan = ServerPlan(engine=ENGINE)
    with run_plan(plan, stderr=writer) as server:
        os.close(writer)
        for _ in range(count):
            assert server.client.get("/v1/models").status_code == 200
        server.check_serves()
        assert len(os.read(reader, 1 << 20)) > 60_000  # the pipe was full
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    os.close(reader)
    count_cases(count)


def test_fault_21_flood_of_metrics_delays_no_stream(count_cases: Callable[[int], None]) -> None:
    """As many requests for /metrics as four clients can send, while streams run."""
    plan = ServerPlan(engine=ENGINE)
    count = 300
    with run_plan(plan) as server:

        def flood(_: int) -> set[int]:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                return {client.get("/metrics").status_code for _ in range(count // 4)}

        started_at = time.monotonic()
        with ThreadPoolExecutor(4) as pool, hold_streams(server.url, 8, "tell me") as streams:
            assert set().union(*pool.map(flood, range(4))) == {200}
            ends = [stream.result(60) for stream in streams]
        print(f"{count / (time.monotonic() - started_at):.0f} requests per second")
        assert {(end.text, end.error) for end in ends} == {(WORDS, None)}
        assert server.client.get(LIVE).status_code == 200
    count_cases(count)


CLOCK_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
#include <sys/time.h>
static long read_offset(void) {
    FILE *file = fopen(OFFSET_FILE, "r");
    long offset = 0;
    if (file) { if (fscanf(file, "%ld", &offset) != 1) offset = 0; fclose(file); }
    return offset;
}
int clock_gettime(clockid_t clock, struct timespec *moment) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, moment);
    if (clock == CLOCK_REALTIME) moment->tv_sec += read_offset();
    return result;
}
"""


def test_fault_20_clock_jumps(tmp_path: Path) -> None:
    """The clock of the system jumps while streams run: nothing ends early, late or not at all."""
    offset, source, library = (tmp_path / name for name in ("offset", "clock.c", "clock.so"))
    source.write_text(CLOCK_SHIM)
    options = ["-shared", "-fPIC", f'-DOFFSET_FILE="{offset}"', "-ldl"]
    compiler = ["cc", *options, "-o", str(library), str(source)]
    try:
        subprocess.run(compiler, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs a C compiler")
    plan = ServerPlan(engine=ENGINE, in_child=True, options={"ping": 0.5, "stall": 5})
    prefix = ("env", f"LD_PRELOAD={library}")
    with run_plan(plan, prefix=prefix) as server:
        before = get_created(server)
        for hours in (1, -1):
            with hold_streams(server.url, 8, "tell me") as streams:
                offset.write_text(str(3600 * hours))
                ends = [stream.result(60) for stream in streams]
            assert {(end.text, end.error) for end in ends} == {(WORDS, None)}
            assert abs(get_created(server) - before - 3600 * hours) < 300  # it did jump
        assert server.client.get(READY).status_code == 200
        stored = store_response(server).json()
        offset.write_text("0")
        assert server.client.get(f"/v1/responses/{stored['id']}").status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def get_created(server: FaultServer) -> int:
    body = make_body("/v1/completions", "quick")
    return int(server.post("/v1/completions", body).json()["created"])
