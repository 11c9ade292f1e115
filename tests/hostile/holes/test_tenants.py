"""What one key can do to another, and what leaks into errors, logs and metrics."""

from __future__ import annotations

import json
import logging
import re
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dragoman.http.router import Route
from dragoman.testing import Reply, ScriptedEngine
from tests.support.hostile_http import (
    ADMIN,
    KEYS,
    OTHER,
    USER,
    HostileServer,
    check_no_leaks,
    make_path,
    name_route,
    serve_hostile,
)
from tests.support.hostile_samples import MODEL, SAMPLES, takes_body
from tests.support.logs import collect_logs
from tests.support.serving import make_chat, make_scripted_app, parse_events

ROUTES = make_scripted_app().router.routes
HTTP_ROUTES = [route for route in ROUTES if route.method != "WEBSOCKET"]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with serve_hostile(ScriptedEngine("Hello there!", tokens=True), **KEYS) as hostile:
        yield hostile


def test_hole_68_limits_count_a_key_whatever_header_carries_it(tmp_path: Path) -> None:
    """Used up in one header, the limit holds in the other, too; another key has its own."""
    file = tmp_path / "keys.yaml"
    file.write_text(
        "entries:\n"
        f"- {{name: ann, key: {USER}, limits: {{requests_per_minute: 3}}}}\n"
        f"- {{name: bob, key: {OTHER}}}\n"
    )
    carriers: list[dict[str, str]] = [
        {"authorization": f"Bearer {USER}"},
        {"x-api-key": USER},
        {"authorization": f"bearer {USER}"},
        {"authorization": f"Bearer {USER}", "x-api-key": USER},
        {"authorization": f"Bearer {USER}", "x-forwarded-for": "10.1.2.3"},
    ]
    with serve_hostile("Hello there!", api_key_file=str(file), admin_key=(ADMIN,)) as server:
        statuses = [
            server.send("POST", CHAT, json=make_chat(), headers=headers).status_code
            for headers in [*carriers, *carriers]
        ]
        assert statuses[:3] == [200] * 3
        assert set(statuses[3:]) == {429}
        for path in ("/v1/messages", "/v1/embeddings", "/tokenize"):
            assert server.send("POST", path, key=USER, json=SAMPLES[path]).status_code == 429
        assert server.send("POST", CHAT, key=OTHER, json=make_chat()).status_code == 200


TRAVERSALS = [
    *("../secret", "../../etc/passwd", "/etc/passwd", "..\\..\\secret", "....//secret", "./secret"),
    *("..%2fsecret", "%2e%2e%2fsecret", "secret\0", "~/secret", "file:///etc/passwd", "C:\\secret"),
    *("scripted/../../secret", "scripted\\..\\secret", "models--a--b/../secret", "sha256-../../x"),
    *("sha256:../../x", "//host/share", "\\\\host\\share", "..", ".", "a" * 600, "*", "?"),
    *("\u2025/secret", "\uff0e\uff0e/secret", "$HOME/secret", "`id`", "$(id)", "a;b", "a\nb", "-x"),
]


def test_hole_72_names_of_models_never_become_paths(
    server: HostileServer, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    (tmp_path / "secret").write_text("a secret")
    count = 0
    for name in [*TRAVERSALS, str(tmp_path / "secret")]:
        bodies: list[tuple[str, dict[str, Any], str]] = [
            (CHAT, make_chat(model=name), USER),
            (CHAT, make_chat(lora=[{"name": name}]), USER),
            ("/v1/embeddings", {"model": name, "input": "a"}, USER),
            ("/admin/models/load", {"model": name}, ADMIN),
            ("/admin/models/unload", {"model": name}, ADMIN),
        ]
        for path, body, key in bodies:
            response = server.send("POST", path, key=key, json=body)
            assert response.status_code in (400, 404), (path, body)
            assert "a secret" not in response.text
            count += 1
        quoted = "".join(f"%{byte:02x}" for byte in name.encode())
        response = server.send("GET", f"/v1/models/{quoted}", key=USER)
        assert response.status_code in (400, 404), name
    count_cases(count)


def test_hole_86_names_of_uploads_never_become_paths(
    server: HostileServer, tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    """A name is a label, and an id of a file is looked up in the store alone."""
    (tmp_path / "secret").write_text("a secret")
    names = [*TRAVERSALS, str(tmp_path / "secret")]
    for name in names:
        upload = server.send(
            "POST",
            "/v1/files",
            key=USER,
            data={"purpose": "user_data"},
            files={"file": (name, b"my own")},
        ).json()
        assert "/" not in upload["filename"]
        path = f"/v1/files/{upload['id']}"
        assert server.send("GET", f"{path}/content", key=USER).content == b"my own"
        assert server.send("DELETE", path, key=USER).status_code == 200
        quoted = "".join(f"%{byte:02x}" for byte in name.encode())
        response = server.send("GET", f"/v1/files/{quoted}/content", key=USER)
        assert response.status_code in (400, 404), name
    count_cases(2 * len(names))


def test_hole_86_no_other_route_takes_an_upload(server: HostileServer) -> None:
    """Every body but those of uploads is JSON; an upload never becomes the name of a file."""
    for route in HTTP_ROUTES:
        if not takes_body(route):
            continue
        for kind in ("multipart/form-data; boundary=x", "application/octet-stream", "text/plain"):
            headers = {"content-type": kind}
            response = server.send(
                route.method, make_path(route), key=ADMIN, content=b"--x--", headers=headers
            )
            assert response.status_code == 415


def test_hole_77_constrained_requests_do_not_change_others() -> None:
    """The jobs of an engine share nothing: bans, biases and grammars of one are not in another."""
    engine = ScriptedEngine("Hello there, you!", tokens=True, grammars=True, pace=0.001)
    with serve_hostile(engine) as server, ThreadPoolExecutor(4) as pool:
        alone = server.send("POST", CHAT, json=make_chat("free", seed=1)).json()
        free_job = describe_job(server)

        def send(index: int) -> Any:
            fields: dict[str, Any] = {"seed": 1}
            if index % 2:
                fields |= {"logit_bias": {"104": -100}, "stop_token_ids": [33], "regex": "[a-z]+"}
            text = "constrained" if index % 2 else "free"
            return server.send("POST", CHAT, json=make_chat(text, **fields)).json()

        answers = list(pool.map(send, range(80)))
        jobs = list(engine.jobs)
    for index, answer in enumerate(answers):
        if index % 2 == 0:
            assert answer["choices"] == alone["choices"]
    free = [job for job in jobs if job.grammar is None]
    assert {describe(job) for job in free} == {free_job}
    assert len(free) == 41


def describe(job: Any) -> str:
    return repr({name: getattr(job, name) for name in job.__struct_fields__ if name != "id"})


def describe_job(server: HostileServer) -> str:
    return describe(server.engine.jobs[-1])


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_hole_79_padding_hides_the_lengths_of_tokens(path: str) -> None:
    """With `include_obfuscation`, sizes of frames hardly correlate with lengths of tokens."""
    words = ["a", "of", "the", "word", "words", "longer", "letters", "somewhat", "beginning"]
    pieces = tuple(words[(index * 7) % len(words)] + " " for index in range(400))
    engine = ScriptedEngine([Reply(pieces=pieces)])
    with serve_hostile(engine) as server:
        fields = {"stream": True, "stream_options": {"include_obfuscation": True}}
        body = {**SAMPLES[path], **fields}
        response = server.send("POST", path, json=body)
        lengths, sizes = zip(*measure_frames(response.text), strict=True)
        assert len(lengths) > 300
        assert len(set(lengths)) > 5
        assert len(set(sizes)) <= 2  # one block, or the next
        if len(set(sizes)) > 1:
            assert abs(statistics.correlation(lengths, sizes)) < 0.25


def measure_frames(text: str) -> Iterator[tuple[int, int]]:
    """Yield the length of the text in each frame, and the size of the frame."""
    for frame in text.split("\n\n"):
        data = frame.partition("data: ")[2]
        event = json.loads(data) if data.startswith("{") else {}
        delta = event.get("delta") if "delta" in event else None
        for choice in event.get("choices", []):
            delta = choice["delta"].get("content")
        if isinstance(delta, str) and delta and "obfuscation" in event:
            yield len(delta), len(frame)


# Leaks

MISTAKES: list[bytes] = [
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model":', b'{"model": 5}', b"{}", b'{"a":1}'),
    *(b'{"model":"scripted"}', b'{"model":"\\ud800"}', b'{"model":"' + b"x" * 5000 + b'"}'),
    *(b'{"model":"scripted","messages":5}', b'{"model":"scripted","input":{}}', b"[" * 5000),
    *(b'{"model":"scripted","messages":[{"role":"x","content":"a"}]}', b'{"messages":[[]]}'),
    *(b'{"model":"scripted","prompt":{}}', b'{"model":"scripted","tokens":["a"]}', b"9" * 5000),
]


@pytest.mark.parametrize("route", HTTP_ROUTES, ids=name_route)
def test_hole_80_no_error_shows_internals(
    server: HostileServer, route: Route, count_cases: Callable[[int], None]
) -> None:
    """`HostileServer` checks every error of all these tests; here, every route gets mistakes."""
    count = 0
    for body in MISTAKES if takes_body(route) else MISTAKES[:1]:
        for query in ("", "?limit=x&after=%00&order=1&starting_after=-5&include[]=x"):
            headers = {"content-type": "application/json"}
            response = server.send(
                route.method, make_path(route) + query, key=ADMIN, content=body, headers=headers
            )
            check_no_leaks(response.headers.get("x-dragoman-warning", ""))
            count += 1
    count_cases(count)


def test_hole_80_errors_of_the_engine_show_no_internals() -> None:
    """An exception with a path and an address, raised in the middle of answers."""
    error = RuntimeError("bad thing at 0x7f3a2b1c4d5e in /usr/lib/python3/site-packages/x.py")
    script = [Reply("Half an answer", raise_at=at, when=f"at {at}.", error=error) for at in (0, 2)]
    with serve_hostile(ScriptedEngine(script, tokens=True)) as server:
        for at in (0, 2):
            for streamed in (False, True):
                for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
                    body = json.dumps({**SAMPLES[path], "stream": streamed})
                    body = body.replace('"Hi"', f'"at {at}."')
                    headers = {"content-type": "application/json"}
                    response = server.send(
                        "POST", path, content=body, headers=headers, allowed={500}
                    )
                    assert "error" in response.text
                    check_no_leaks(response.text)


def test_hole_81_secrets_are_in_no_log_and_no_metric(count_cases: Callable[[int], None]) -> None:
    """Canaries in every place of a request; the log is read at its default level."""
    keys = {"api_key": (USER, "canary-valid-key"), "admin_key": (ADMIN,)}
    with collect_logs("json", logging.INFO) as logs, serve_hostile("Hello.", **keys) as server:
        canaries = [f"canary-{index:04}-secret" for index in range(200)]
        for index, canary in enumerate(canaries):
            place = index % 8
            headers = {
                "authorization": f"Bearer {canary if place == 0 else USER}",
                "x-api-key": canary if place == 1 else USER,
                "cookie": canary if place == 2 else "a",
                "x-custom": canary if place == 3 else "a",
            }
            fields: dict[str, Any] = {"user": canary} if place == 4 else {}
            fields |= {"metadata": {"a": canary}} if place == 5 else {}
            text = f"data:text/plain,{canary}" if place == 6 else "Hi"
            path = f"{CHAT}?key={canary}" if place == 7 else CHAT
            server.send("POST", path, json=make_chat(text, **fields), headers=headers)
        server.send("POST", CHAT, json=make_chat("Hi"), key="canary-valid-key")
        metrics = server.send("GET", "/metrics", key=ADMIN).text
        logs.wait_for(CHAT, len(canaries))
    assert "canary" not in metrics
    assert not [line for line in logs.lines if "canary" in line]
    count_cases(len(canaries) + 1)


BREAKS = [
    "\n",
    "\r\n",
    "\x1b[31m",
    "\u2028",
    "\u2029",
    "\x85",
    "\0",
    "\x7f",
    '"}\n{"level":"x"',
    "\x9b",
]


def test_hole_82_nothing_breaks_a_log_line(count_cases: Callable[[int], None]) -> None:
    with collect_logs("json") as logs, serve_hostile("Hello there!") as server:
        for text in BREAKS:
            quoted = "".join(f"%{byte:02x}" for byte in text.encode())
            server.send("GET", f"/v1/models/a{quoted}b")
            server.send("POST", CHAT, json=make_chat(model=f"a{text}b"))
            server.send("POST", CHAT, json={**make_chat(user=f"a{text}b"), f"x{text}": 1})
            server.send_raw(
                "GET", f"/a{quoted}b", [("x-request-id", "a b"), ("user-agent", "\x1b[1m")]
            )
        logs.wait_for('"path"', 4 * len(BREAKS))
    assert len(logs.lines) >= 4 * len(BREAKS)
    for line in logs.lines:
        assert isinstance(json.loads(line), dict)
        assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
    count_cases(4 * len(BREAKS))


def test_hole_83_metrics_do_not_grow_with_names_of_clients(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    def count_series() -> int:
        page = server.send("GET", "/metrics", key=ADMIN).text
        return sum(not line.startswith("#") for line in page.splitlines())

    def attack(index: int) -> None:
        server.send("POST", CHAT, key=USER, json=make_chat(model=f"model-{index}"))
        server.send("POST", CHAT, key=USER, json=make_chat(user=f"user-{index}"))
        server.send("GET", f"/path-{index}", key=USER)
        server.send("GET", f"/v1/responses/resp_{index}", key=USER)
        server.send("GET", "/v1/models", headers={"x-api-key": f"key-{index}"})
        server.send("GET", "/v1/models", key=USER, headers={"x-request-id": f"id-{index}"})

    attack(0)
    before = count_series()
    for index in range(1, 60):
        attack(index)
    assert count_series() <= before + 5
    assert before < 1_000
    count_cases(60 * 6)


def test_hole_79_padding_is_there_when_asked_for(server: HostileServer) -> None:
    body = make_chat(stream=True, stream_options={"include_obfuscation": True})
    events = parse_events(server.send("POST", CHAT, key=USER, json=body))
    assert any("obfuscation" in event for event in events)
    assert MODEL
