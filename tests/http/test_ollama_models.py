"""The routes of Ollama's API that list, describe and change models."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.errors import Unavailable
from dragoman.models.downloads.pip import DownloadListener
from dragoman.models.management import blobs, service
from dragoman.protocols.ollama.installed_models import list_capabilities
from tests.support.managed_models import serve_managed
from tests.support.model_files import make_gguf, write_model_file
from tests.support.serving import RunningServer
from tests.support.vision_models import write_mlp_projector

ADMIN, USER = "admin-key-000000000000", "user-key-0000000000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with serve_managed(root) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as opened:
        yield opened


def list_tags(client: httpx.Client) -> list[str]:
    return [model["name"] for model in client.get("/api/tags").json()["models"]]


def create(client: httpx.Client, model: str = "poet", **fields: Any) -> httpx.Response:
    body = {"model": model, "stream": False, **({} if "files" in fields else {"from": "writer"})}
    return client.post("/api/create", json=body | fields)


def show(client: httpx.Client, model: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/api/show", json={"model": model, **fields})
    assert answer.status_code == 200, answer.text
    description: dict[str, Any] = answer.json()
    return description


def delete(client: httpx.Client, model: str) -> httpx.Response:
    return client.request("DELETE", "/api/delete", json={"model": model})


def upload(client: httpx.Client, data: bytes, digest: str | None = None) -> httpx.Response:
    digest = digest or f"sha256:{hashlib.sha256(data).hexdigest()}"
    return client.post(f"/api/blobs/{digest}", content=data)


def test_lists_have_the_fields_that_clients_read(client: httpx.Client) -> None:
    [model] = client.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "writer:latest"
    assert model["size"] > 0
    assert len(model["digest"]) == 64
    assert datetime.fromisoformat(model["modified_at"]).tzinfo is not None
    details = model["details"]
    for name in ("parent_model", "format", "family", "parameter_size", "quantization_level"):
        assert isinstance(details[name], str), name
    assert (details["format"], details["family"], details["families"]) == (
        "gguf",
        "llama",
        ["llama"],
    )
    assert client.head("/api/tags").status_code == 200
    assert client.get("/api/ps").json() == {"models": []}


@pytest.mark.parametrize(
    "name",
    [
        *("writer", "writer:latest", "WRITER:Latest", "library/writer", "Library/Writer:latest"),
        *("registry.ollama.ai/library/writer", "registry.ollama.ai/library/writer:latest"),
    ],
)
def test_name_with_and_without_its_tag_is_one_model(client: httpx.Client, name: str) -> None:
    create(client, system="Hello.")
    for path in ("chat", "generate", "show"):
        assert client.post(f"/api/{path}", json={"model": name}).status_code == 200
    assert client.post("/api/copy", json={"source": name, "destination": "copy"}).status_code == 200
    assert set(list_tags(client)) == {"writer:latest", "copy:latest", "poet:latest"}


def test_show_describes_a_model(client: httpx.Client) -> None:
    shown = show(client, "writer")
    assert shown["license"] == "mit"
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["general.parameter_count"] > 0
    assert "completion" in shown["capabilities"]
    assert shown["modalities"] == ["text"]
    assert shown["modelfile"].startswith("# Modelfile")
    for line in shown["parameters"].splitlines():
        name, value = line[:30].strip(), line[31:]
        assert name, line
        json.loads(value)
    assert client.post("/api/show", json={"name": "writer"}).status_code == 200


def test_show_has_what_programs_read_and_loads_nothing(root: Path, server: RunningServer) -> None:
    write_model_file(root / "named.gguf", general_basename="Named")
    with httpx.Client(base_url=server.url) as client:
        client.get("/api/tags")
        assert show(client, "named")["model_info"]["general.basename"] == "Named"
        create(client, system="You are a poet.", parameters={"temperature": 0.25})
        shown = show(client, "poet", system="Another one.", options={"temperature": 1})
        assert shown["system"] == "You are a poet."
        assert "0.25" in shown["parameters"]
        assert client.get("/api/ps").json() == {"models": []}


CAPABILITIES: list[tuple[tuple[str, ...], tuple[str, ...], list[str]]] = [
    (("completion",), ("text",), ["completion"]),
    (("completion", "tools", "thinking"), ("text",), ["completion", "tools", "thinking"]),
    (("completion", "infill"), ("text",), ["completion", "insert"]),
    (("completion",), ("text", "image"), ["completion", "vision"]),
    (("completion",), ("text", "image", "audio"), ["completion", "vision", "audio"]),
    (("embedding",), ("text",), ["embedding"]),
    (("embedding", "rerank"), ("text",), ["embedding"]),  # Ollama has no name for ranking
]


@pytest.mark.parametrize(("ours", "modalities", "theirs"), CAPABILITIES, ids=str)
def test_capabilities_have_the_names_of_ollama(
    ours: tuple[str, ...], modalities: tuple[str, ...], theirs: list[str]
) -> None:
    assert list_capabilities(ours, modalities) == theirs


def test_show_leaves_out_long_lists_unless_they_are_wanted(
    root: Path, server: RunningServer
) -> None:
    """Also tensors, as Ollama does."""
    write_model_file(root / "listed.gguf", tokenizer_ggml_pre=["a"] * 9)
    with httpx.Client(base_url=server.url) as client:
        client.get("/api/tags")
        [short] = [v for v in show(client, "listed")["model_info"].values() if v == []]
        assert short == []
        assert "tensors" not in show(client, "listed")
        shown = show(client, "listed", verbose=True)
        assert ["a"] * 9 in shown["model_info"].values()
        assert shown["tensors"] == [{"name": "t", "type": "F32", "shape": [8]}]


def test_show_writes_texts_that_are_not_unicode(root: Path, server: RunningServer) -> None:
    path = write_model_file(root / "odd.gguf", general_author="AAAA", general_tags=["BBBB"] * 9)
    data = path.read_bytes().replace(b"AAAA", b"A\xff\xfeA").replace(b"BBBB", b"B\xed\xa0B")
    path.write_bytes(data)
    with httpx.Client(base_url=server.url) as client:
        client.get("/api/tags")
        info = show(client, "odd", verbose=True)["model_info"]
    assert info["general.author"].startswith("A\ufffd")
    assert info["general.tags"][8].endswith("B")


def test_show_has_the_metadata_of_a_projector(root: Path, server: RunningServer) -> None:
    write_model_file(root / "eyes" / "eyes.gguf")
    write_mlp_projector(root / "eyes" / "mmproj-eyes.gguf")
    with httpx.Client(base_url=server.url) as client:
        client.get("/api/tags")
        shown = show(client, "eyes")
    assert shown["projector_info"]["clip.projector_type"] == "mlp"
    assert shown["model_info"]["general.architecture"] == "llama"


def test_created_model_has_what_its_recipe_says(client: httpx.Client) -> None:
    answer = create(
        client,
        system="You are a poet.",
        parameters={"temperature": 0.25, "stop": ["END", '"'], "num_predict": 7, "num_keep": 4},
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho \x7f"}],
        license=["first", "second"],
    )
    assert (answer.status_code, answer.json()) == (200, {"status": "success"})
    assert "`num_keep` has no effect." in answer.headers.get_list("x-dragoman-warning")
    shown = show(client, "poet")
    assert shown["system"] == "You are a poet."
    assert shown["messages"][1] == {"role": "assistant", "content": "Ho \x7f"}
    assert shown["license"] == "first\nsecond"
    lines = {line[:30].strip(): line[31:] for line in shown["parameters"].splitlines()}
    assert (lines["temperature"], lines["num_predict"], lines["stop"]) == ("0.25", "7", '"\\""')
    header = {"x-dragoman-debug": "prompt"}
    messages = [{"role": "user", "content": "Go"}]
    body = {"model": "poet", "messages": messages}
    debug = client.post("/v1/chat/completions", json=body, headers=header).text
    assert "[system]You are a poet.[user]Hi[assistant]Ho" in debug
    messages.insert(0, {"role": "system", "content": "Be brief."})
    debug = client.post("/v1/chat/completions", json=body, headers=header).text
    assert "[system]Be brief.[user]Hi" in debug


def test_recipes_build_on_each_other_and_replace_each_other(client: httpx.Client) -> None:
    create(client, "poet", system="A", parameters={"temperature": 0.5, "top_k": 7})
    create(client, "poet:loud", **{"from": "poet"}, parameters={"temperature": 0.9})
    loud = show(client, "poet:loud")
    assert loud["system"] == "A"
    assert "temperature                    0.9" in loud["parameters"]
    assert "top_k                          7" in loud["parameters"]
    create(client, "poet", system="B")
    assert show(client, "poet")["system"] == "B"
    assert show(client, "poet:loud")["system"] == "A"
    assert sorted(list_tags(client)) == ["poet:latest", "poet:loud", "writer:latest"]


def test_changes_survive_a_restart(root: Path) -> None:
    with serve_managed(root) as server, httpx.Client(base_url=server.url) as client:
        create(client, system='Say "hi" to the 世界 \u2028 # not a comment')
        client.post("/api/copy", json={"source": "poet", "destination": "friend"})
        before = client.get("/api/tags").json()
        shown = show(client, "friend")
    with serve_managed(root) as server, httpx.Client(base_url=server.url) as client:
        assert sorted(map(str, client.get("/api/tags").json()["models"])) == sorted(
            map(str, before["models"])
        )
        assert show(client, "friend")["system"] == shown["system"]
        answer = client.post(
            "/api/chat",
            json={
                "model": "friend",
                "stream": False,
                "messages": [{"role": "user", "content": "x"}],
            },
        )
        assert answer.json()["done"] is True


def test_deleted_model_is_gone_and_its_source_stays(client: httpx.Client, root: Path) -> None:
    create(client)
    chat = {"model": "poet", "messages": [{"role": "user", "content": "x"}], "stream": False}
    assert client.post("/api/chat", json=chat).status_code == 200
    assert "poet:latest" in [model["name"] for model in client.get("/api/ps").json()["models"]]
    assert (delete(client, "poet").status_code, delete(client, "poet").status_code) == (200, 404)
    assert client.post("/api/chat", json=chat).status_code == 404
    assert client.get("/api/ps").json() == {"models": []}
    assert (root / "writer.gguf").exists()
    answer = delete(client, "writer")
    assert (answer.status_code, answer.content) == (200, b"")
    assert not (root / "writer.gguf").exists()
    assert client.get("/api/tags").json() == {"models": []}


def test_files_that_other_models_use_are_not_deleted(client: httpx.Client, root: Path) -> None:
    create(client)
    refused = delete(client, "writer")
    assert (refused.status_code, "poet" in refused.json()["error"]) == (400, True)
    assert (root / "writer.gguf").exists()
    assert delete(client, "poet").status_code == 200
    assert delete(client, "writer").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/show", {"model": "nobody"}),
        ("DELETE", "/api/delete", {"model": "nobody"}),
        ("DELETE", "/api/delete", {"model": "writer:other"}),
        ("POST", "/api/copy", {"source": "nobody", "destination": "x"}),
        ("POST", "/api/create", {"model": "x", "from": "nobody"}),
        ("POST", "/api/create", {"model": "x", "from": "../writer"}),
    ],
)
def test_unknown_model_has_the_words_of_ollama(
    client: httpx.Client, method: str, path: str, body: dict[str, str]
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 404
    name = body.get("from") or body.get("source") or body["model"]
    assert answer.json()["error"].startswith(f"model '{name}' not found")


NAMES = (
    "../x", "/etc/passwd", "a/../b", "..", ".", "", " ", "a b", "a\x00b", "x" * 81, "a:b:c", ":tag",
    "a:", "a/b/c/d", "~/x", "a\\b", "%2e%2e/x", "-x", "a:../b", "C:\\x", "é", "a\nb",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_name_cannot_leave_its_place(client: httpx.Client, root: Path, name: str) -> None:
    answers = [
        create(client, name),
        client.post("/api/copy", json={"source": "writer", "destination": name}),
    ]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert isinstance(answer.json()["error"], str)
    assert list_tags(client) == ["writer:latest"]
    assert sorted(os.listdir(root)) == ["writer.gguf"]


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"quantize": "q4_0"}, 400, "quantize"),
        ({"template": "{{ .Wonders }}"}, 400, "`template`: the field `.Wonders`"),
        ({"template": "{% if"}, 400, "template"),
        ({"parameters": {"temperature": "hot"}}, 400, "temperature"),
        ({"parameters": {"wonders": 1}}, 400, "wonders"),
        ({"parameters": {"num_ctx": -5}}, 400, "context"),
        ({"parameters": {"stop": 5}}, 400, "or a list or null, not an integer."),
        ({"parameters": {"stop": [5]}}, 400, "`[0]` must be a string, not an integer."),
        ({"parameters": {"stop": {"a": 1}}}, 400, "stop"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "role"),
        ({"system": "x" * 300_000}, 400, "system"),
        ({"adapters": {"a.gguf": "/etc/passwd"}}, 400, "digest"),
        ({"adapters": {"a.gguf": "sha256:" + "0" * 64}}, 404, "blob"),
        ({"adapters": {"../a.gguf": "sha256:../../writer.gguf"}}, 400, "digest"),
        ({"files": {"a.gguf": "sha256:" + "0" * 64}}, 404, "blob"),
        ({"files": {"/etc/passwd": "/etc/passwd"}}, 400, "digest"),
        ({"renderer": "x"}, 400, "renderer"),
        ({"modelfile": "FROM /etc/passwd"}, 400, "modelfile"),
        ({"path": "/etc/passwd"}, 400, "path"),
        ({"from": ""}, 400, "from"),
    ],
)
def test_recipe_that_cannot_be_followed_is_refused(
    client: httpx.Client, root: Path, fields: dict[str, Any], status: int, word: str
) -> None:
    answer = create(client, **fields)
    assert (answer.status_code, word in answer.json()["error"]) == (status, True), answer.text
    assert str(root) not in answer.text
    assert list_tags(client) == ["writer:latest"]


def test_model_is_created_from_an_uploaded_file(client: httpx.Client, root: Path) -> None:
    data = make_gguf(3, {"general_license": "apache"})
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert client.head(f"/api/blobs/{digest}").status_code == 404
    answer = upload(client, data)
    assert (answer.status_code, answer.content) == (201, b"")
    assert client.head(f"/api/blobs/{digest}").status_code == 200
    assert upload(client, data).status_code == 200
    assert create(client, files={"model.gguf": digest}).status_code == 200
    assert show(client, "poet")["license"] == "apache"
    chat = {"model": "poet", "messages": [{"role": "user", "content": "x"}], "stream": False}
    assert client.post("/api/chat", json=chat).json()["message"]["content"] == "I am poet."
    assert delete(client, "poet").status_code == 200
    assert os.listdir(root / "blobs") == []


@pytest.mark.parametrize(
    ("data", "use", "word"),
    [
        (b"no model", "files", "GGUF"),
        (make_gguf(1, {"general_type": "adapter"}), "files", "not a model"),
        (make_gguf(1, {}), "adapters", "not an adapter"),
        (
            make_gguf(1, {"general_type": "adapter", "general_architecture": "gemma"}),
            "adapters",
            "gemma",
        ),
    ],
)
def test_uploaded_file_of_the_wrong_kind_is_refused(
    client: httpx.Client, data: bytes, use: str, word: str
) -> None:
    upload(client, data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    fields: dict[str, Any] = {use: {"file.gguf": digest}}
    answer = create(client, **fields)
    assert (answer.status_code, word in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize("digest", ["sha256:abc", "sha256:" + "g" * 64, "md5:" + "0" * 64, "x"])
def test_digest_that_is_none_gets_400(client: httpx.Client, digest: str) -> None:
    for answer in (upload(client, b"data", digest), client.head(f"/api/blobs/{digest}")):
        assert answer.status_code == 400


def test_upload_is_checked(client: httpx.Client, root: Path) -> None:
    wrong = "sha256:" + hashlib.sha256(b"other").hexdigest()
    answer = upload(client, b"data", wrong)
    assert (answer.status_code, "digest" in answer.json()["error"]) == (400, True)
    for digest in ("md5:x", "sha256:", "sha256:" + "G" * 64, "sha256:" + "a" * 65, "..%2f..%2fx"):
        assert client.post(f"/api/blobs/{digest}", content=b"x").status_code in (400, 404)
        assert client.head(f"/api/blobs/{digest}").status_code in (400, 404)
    assert os.listdir(root / "blobs") == []


def test_upload_has_a_limit(root: Path) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(10):
            yield b"x" * 1000

    with serve_managed(root, blob_limit=5000) as server:
        url = f"{server.url}/api/blobs/sha256:{'0' * 64}"
        for content in (b"x" * 6000, stream()):
            with httpx.Client() as client:
                answer = client.post(url, content=content)
            assert (answer.status_code, "--blob-limit" in answer.text) == (413, True)
    assert os.listdir(root / "blobs") == []


def test_full_disk_is_an_error_and_leaves_nothing(
    client: httpx.Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "RESERVE", 1 << 62)
    answer = upload(client, b"data")
    assert (answer.status_code, "space" in answer.json()["error"]) == (503, True)
    answer = create(client, template="{{ messages }}")
    assert answer.status_code == 503
    assert os.listdir(root / "blobs") == []
    assert list_tags(client) == ["writer:latest"]


def test_broken_upload_leaves_nothing(server: RunningServer, root: Path) -> None:
    started = threading.Event()

    def stream() -> Iterator[bytes]:
        yield b"x" * 100
        started.set()
        raise ConnectionResetError

    with httpx.Client() as client, pytest.raises(ConnectionResetError):
        client.post(f"{server.url}/api/blobs/sha256:{'0' * 64}", content=stream())
    assert started.is_set()
    with httpx.Client(base_url=server.url) as client:  # the next upload waits for nothing
        assert upload(client, b"data").status_code == 201


def test_changes_at_the_same_time_do_not_disturb_each_other(
    client: httpx.Client, server: RunningServer
) -> None:
    def change(number: int) -> list[int]:
        with httpx.Client(base_url=server.url, timeout=60) as own:
            name = f"model-{number}"
            statuses = [create(own, name, system=str(number)).status_code]
            statuses.append(create(own, "shared", system=str(number)).status_code)
            if number % 2:
                statuses.append(delete(own, name).status_code)
            return statuses

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(change, range(8)))
    assert {status for statuses in results for status in statuses} == {200}
    left = {f"model-{number}:latest" for number in range(0, 8, 2)}
    assert set(list_tags(client)) == left | {"writer:latest", "shared:latest"}
    assert show(client, "model-4")["system"] == "4"


class FakePull:
    """A download whose steps a test decides."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[tuple[str, float]] = [("downloading", 0.5), ("unpacking", 0.0)]
        self.error: Exception | None = None

    def __call__(self, name: str, models: Path, listener: DownloadListener, _: object) -> Path:
        listener.start_file("ab" * 32, 1000)
        for step in self.steps:
            listener.report(*step)
        if self.error is not None:
            raise self.error
        return write_model_file(self.root / "smollm2-135m" / "model.gguf")


@pytest.fixture
def fake_pull(root: Path, monkeypatch: pytest.MonkeyPatch) -> FakePull:
    fake = FakePull(root)
    monkeypatch.setattr(service, "pull", fake)
    return fake


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2:135m", "SmolLM2:latest", "hf.co/a/b:Q8"])
def test_pull_reports_its_progress(client: httpx.Client, fake_pull: FakePull, name: str) -> None:
    answer = client.post("/api/pull", json={"model": name})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["status"] for line in lines] == [
        "pulling manifest",
        "pulling abababababab",
        "pulling abababababab",
        "verifying sha256 digest",
        "pulling abababababab",
        "writing manifest",
        "success",
    ]
    assert [line["completed"] for line in lines if "completed" in line] == [0, 500, 1000]
    assert lines[1]["digest"] == "sha256:" + "ab" * 32
    whole = client.post("/api/pull", json={"model": name, "stream": False})
    assert whole.json() == {"status": "success"}
    assert "smollm2-135m:latest" in list_tags(client) or "model:latest" in list_tags(client)


def test_failed_pull_ends_with_an_error(client: httpx.Client, fake_pull: FakePull) -> None:
    fake_pull.error = Unavailable("There is no space left on the disk.")
    lines = client.post("/api/pull", json={"model": "smollm2"}).text.splitlines()
    assert json.loads(lines[-1]) == {"error": "There is no space left on the disk."}
    whole = client.post("/api/pull", json={"model": "smollm2", "stream": False})
    assert (whole.status_code, whole.json()) == (503, json.loads(lines[-1]))


def test_disconnecting_ends_a_pull(
    server: RunningServer, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def download(name: str, models: Path, listener: DownloadListener, _: object) -> Path:
        listener.start_file("ab" * 32, 1000)
        try:
            while not ended.wait(0.01):  # as a download that waits for the network
                listener.report("downloading", 0.5)
        except Unavailable:
            ended.set()
            raise
        raise AssertionError("ended by the test")

    monkeypatch.setattr(service, "pull", download)
    with (
        httpx.Client(base_url=server.url) as client,
        client.stream("POST", "/api/pull", json={"model": "smollm2"}) as answer,
    ):
        for line in answer.iter_lines():
            if "completed" in line:
                break
    assert ended.wait(60)


@pytest.mark.parametrize("name", ["nobody", "../x", "/etc/passwd", "x" * 600])
def test_what_cannot_be_pulled_is_refused_at_once(client: httpx.Client, name: str) -> None:
    answer = client.post("/api/pull", json={"model": name})
    assert answer.status_code in (400, 404)
    assert isinstance(answer.json()["error"], str)


CHANGES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/api/pull", {"model": "smollm2"}),
    ("POST", "/api/create", {"model": "x", "from": "writer"}),
    ("POST", "/api/copy", {"source": "writer", "destination": "x"}),
    ("DELETE", "/api/delete", {"model": "writer"}),
    ("POST", f"/api/blobs/sha256:{hashlib.sha256(b'{}').hexdigest()}", {}),
    ("GET", f"/api/blobs/sha256:{'0' * 64}", None),
]


def test_only_admin_keys_change_models_and_each_change_is_in_the_audit_log(
    root: Path, tmp_path: Path, fake_pull: FakePull
) -> None:
    audit = tmp_path / "audit.log"
    keys = {"api_key": (USER,), "admin_key": (ADMIN,), "audit_log": str(audit)}
    with serve_managed(root, **keys) as server:
        user = {"authorization": f"Bearer {USER}"}
        admin = {"authorization": f"Bearer {ADMIN}"}
        with httpx.Client(base_url=server.url) as client:
            for method, path, body in CHANGES:
                assert client.request(method, path, json=body).status_code == 401, path
                refused = client.request(method, path, json=body, headers=user)
                assert (refused.status_code, "admin" in refused.text) == (403, True), path
            assert client.get("/api/tags", headers=user).status_code == 200
            client.headers.update(admin)
            assert create(client).status_code == 200
            client.post("/api/copy", json={"source": "poet", "destination": "b"})
            delete(client, "b")
            upload(client, b"data")
            client.post("/api/pull", json={"model": "smollm2", "stream": False})
            client.post("/api/generate", json={"model": "poet", "keep_alive": 0})
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    events = {line["event"]: line for line in lines}
    changes = ("model_pulled", "model_created", "model_copied", "model_deleted", "blob_uploaded")
    for event in (*changes, "unload"):
        assert events[event]["request_id"].startswith("req_"), event
        assert events[event]["key"]
    assert events["model_created"]["model"] == "poet"
    assert events["unload"]["model"] == "poet"


def test_running_models_say_how_long_they_stay(root: Path) -> None:
    with (
        serve_managed(root, keep_alive=300) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        body = {"model": "writer", "prompt": "x", "stream": False}
        client.post("/api/generate", json=body)
        [model] = client.get("/api/ps").json()["models"]
        left = datetime.fromisoformat(model["expires_at"]).timestamp()
        assert model["name"] == "writer:latest"
        assert (model["size_vram"], model["context_length"]) == (0, 2048)
        [listed] = client.get("/api/tags").json()["models"]
        assert (model["digest"], model["details"]) == (listed["digest"], listed["details"])
        client.post("/api/generate", json=body | {"keep_alive": -1})
        [model] = client.get("/api/ps").json()["models"]
        assert datetime.fromisoformat(model["expires_at"]).timestamp() > left + 10**9
        client.post("/api/generate", json={"model": "writer", "keep_alive": 0})
        assert client.get("/api/ps").json() == {"models": []}
        client.post("/api/chat", json={"model": "writer", "messages": []})
        assert len(client.get("/api/ps").json()["models"]) == 1
        chat = {"model": "writer", "messages": [], "keep_alive": 0, "stream": False}
        assert client.post("/api/chat", json=chat).json()["done_reason"] == "unload"
        assert client.get("/api/ps").json() == {"models": []}


def test_models_of_a_program_cannot_be_changed() -> None:
    from tests.support.serving import serve_scripted

    with serve_scripted("Hi.") as server, httpx.Client(base_url=server.url) as client:
        [model] = client.get("/api/tags").json()["models"]
        assert show(client, model["name"])["capabilities"]
        for method, path, body in CHANGES[1:]:
            answer = client.request(method, path, json={**(body or {}), "from": model["name"]})
            assert answer.status_code in (400, 404), path
            assert isinstance(answer.json()["error"], str)
