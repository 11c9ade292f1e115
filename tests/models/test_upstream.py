"""Finding out what runs at an address, and whether its tokenizer is ours."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.remote.settings import RemoteSettings
from dragoman.errors import DragomanError, ModelBroken, ModelNotFound, Unavailable
from dragoman.models.mapping import ModelOptions
from dragoman.models.upstream.discover import discover
from dragoman.models.upstream.identify import identify
from dragoman.models.upstream.identify import list_models as list_served
from dragoman.models.upstream.limitations import list_limitations
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import ServerInfo, shorten_name
from dragoman.models.upstream.tokenizer_files import find_tokenizer, open_place
from dragoman.models.upstream.versions import list_ignored_fields, parse_version
from dragoman.types import Capabilities
from tests.support.forbidden_port import watch_port
from tests.support.upstream_routes import INVALID, make_lm_studio_routes, make_ollama_routes
from tests.support.upstream_servers import (
    TEMPLATE,
    Answer,
    list_models,
    run_table,
    run_worker,
    write_tokenizer,
)

PROPS = {
    "default_generation_settings": {"n_ctx": 2048},
    "total_slots": 3,
    "model_path": "/srv/models/qwen.gguf",
    "chat_template": TEMPLATE,
    "build_info": "b7312-1a2b3c",
    "modalities": {"vision": True, "audio": False},
    "model_ftype": "Q4_K_M",
}
META = {"n_vocab": 259, "n_ctx_train": 8192, "n_params": 134_515_008}
# what a server answers -> what is known about it
SERVERS: dict[str, tuple[dict[str, Answer], dict[str, Any]]] = {
    "llama-server": (
        {
            "/v1/models": list_models("qwen", owner="llamacpp", meta=META),
            "/props": (200, PROPS),
            "/lora-adapters": (200, [{"id": 0, "path": "/srv/poet.gguf", "scale": 1.0}]),
        },
        {
            "kind": "llama-server",
            "version": "b7312-1a2b3c",
            "protocol": "llama-server",
            "apis": ("tokens", "text", "chat"),
            "context": 2048,
            "trained_context": 8192,
            "slots": 3,
            "vocabulary_size": 259,
            "template": TEMPLATE,
            "tokenizer_places": ("/srv/models/qwen.gguf",),
            "adapters": {"poet": 0},
            "modalities": ("text", "image"),
            "parameters": "135M",
            "quantization": "Q4_K_M",
        },
    ),
    "llama-server behind a proxy that renames it": (
        {"/v1/models": list_models("qwen", owner="proxy"), "/props": (200, PROPS)},
        {"kind": "llama-server", "context": 2048},
    ),
    "llama-server before ids": (
        {
            "/v1/models": list_models("qwen", owner="llamacpp"),
            "/props": (200, PROPS | {"build_info": "b4000-1a2b3c"}),
        },
        {"protocol": None, "apis": ("text", "chat")},
    ),
    "vLLM with the token API": (
        {
            "/v1/models": list_models("qwen", owner="vllm", root="Qwen/Qwen3", max_model_len=4096),
            "/version": (200, {"version": "0.32.0"}),
            "/inference/v1/generate": INVALID,
            "/tokenize": (200, {"tokens": [1], "max_model_len": 4096}),
            "/tokenizer_info": (200, {"chat_template": TEMPLATE}),
        },
        {
            "kind": "vllm",
            "version": "0.32.0",
            "protocol": "vllm-generate",
            "context": 4096,
            "template": TEMPLATE,
            "tokenizer_places": ("Qwen/Qwen3", "qwen"),
            "tokenize_path": "/tokenize",
        },
    ),
    "vLLM that refuses the token API": (
        {
            "/v1/models": list_models("qwen", owner="vllm", max_model_len=4096),
            "/version": (200, {"version": "0.32.0"}),
            "/inference/v1/generate": (403, {"error": "disabled"}),
        },
        {"protocol": "vllm-completions", "tokenize_path": "", "apis": ("tokens", "text", "chat")},
    ),
    "vLLM before ids": (
        {
            "/v1/models": list_models("qwen", owner="vllm", max_model_len=4096),
            "/version": (200, {"version": "0.9.1"}),
        },
        {"protocol": None, "apis": ("text", "chat")},
    ),
    "SGLang": (
        {
            "/v1/models": list_models("qwen", owner="sglang", max_model_len=4096),
            "/model_info": (200, {"tokenizer_path": "/srv/qwen", "model_path": "/srv/qwen"}),
            "/server_info": (
                200,
                {
                    "version": "0.5.23",
                    "max_running_requests": 16,
                    "grammar_backend": "llguidance",
                    "lora_paths": [{"lora_name": "poet", "lora_path": "/srv/poet"}],
                },
            ),
            "/tokenize": (200, {"tokens": [1]}),
        },
        {
            "kind": "sglang",
            "version": "0.5.23",
            "protocol": "sglang",
            "context": 4096,
            "slots": 16,
            "tokenizer_places": ("/srv/qwen",),
            "adapters": {"poet": 0},
            "grammar_backend": "llguidance",
            "deterministic_seeds": False,
        },
    ),
    "SGLang with the old names": (
        {
            "/v1/models": list_models("qwen"),
            "/get_model_info": (200, {"tokenizer_path": "Qwen/Qwen3"}),
            "/get_server_info": (
                200,
                {"version": "0.4.9", "enable_deterministic_inference": True},
            ),
        },
        {"kind": "sglang", "version": "0.4.9", "tokenizer_places": ("Qwen/Qwen3",)},
    ),
    "Ollama": (
        make_ollama_routes("qwen3:4b"),
        {
            "kind": "openai",
            "name": "Ollama",
            "version": "0.24.1",
            "apis": ("chat",),
            "context": 4096,
            "trained_context": 40960,
            "parameters": "4.0B",
        },
    ),
    "Ollama with a model that is not loaded": (
        {
            "/v1/models": list_models("qwen3:4b", owner="library"),
            "/api/version": (200, {"version": "0.24.1"}),
            "/api/ps": (200, {"models": []}),
            "/api/show": (200, {"parameters": 'stop "<|im_end|>"\nnum_ctx    8192\n'}),
            "/v1/chat/completions": INVALID,
        },
        {"name": "Ollama", "context": 8192, "trained_context": None},
    ),
    "LM Studio": (
        make_lm_studio_routes("qwen"),
        {
            "kind": "openai",
            "name": "LM Studio",
            "apis": ("text", "chat"),
            "context": 4096,
            "trained_context": 32768,
        },
    ),
    "text only": (
        {"/v1/models": list_models("base"), "/v1/completions": INVALID},
        {"kind": "openai", "name": "OpenAI-compatible server", "apis": ("text",)},
    ),
    "chat only": (
        {
            "/v1/models": list_models("gpt", context_window=9000),
            "/v1/completions": (200, {"error": "Unexpected endpoint or method. (POST /v1/c)"}),
            "/v1/chat/completions": INVALID,
        },
        {"kind": "openai", "apis": ("chat",), "context": 9000},
    ),
}


EMBEDDING = {"model_info": {}, "capabilities": ["embedding"]}
LISTINGS: dict[str, tuple[dict[str, Answer], tuple[str, ...]]] = {
    "LM Studio": (
        {
            "/v1/models": list_models("text-embedding-nomic", "qwen", "new"),
            "/api/v0/models": (
                200,
                {
                    "data": [
                        {"id": "text-embedding-nomic", "type": "embeddings"},
                        {"id": "qwen", "type": "vlm"},
                    ]
                },
            ),
        },
        ("qwen", "new"),
    ),
    "Ollama with embedding models alone": (
        {
            "/v1/models": list_models("nomic-embed-text", "all-minilm", owner="library"),
            "/api/version": (200, {"version": "0.24.1"}),
            "/api/show": (200, EMBEDDING),
        },
        ("nomic-embed-text", "all-minilm"),  # so that there is an error about them
    ),
    "Ollama before it listed capabilities": (
        {
            "/v1/models": list_models("a", "b", owner="library"),
            "/api/version": (200, {"version": "0.5.1"}),
            "/api/show": (200, {"model_info": {}}),
        },
        ("a", "b"),
    ),
    "another server": ({"/v1/models": list_models("a", "b")}, ("a", "b")),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_serves_the_models_that_generate(name: str) -> None:
    routes, expected = LISTINGS[name]
    with run_table(routes) as server:
        assert list_served(ProbeClient(RemoteSettings(url=server.url))) == expected


def test_says_that_ollama_shortens_prompts() -> None:
    with run_table(SERVERS["Ollama"][0]) as server:
        found = discover(make_options(server.url))
    assert "OLLAMA_CONTEXT_LENGTH" in list_limitations(found, Capabilities())[-1]


def find_info(url: str, model: str = "", **settings: Any) -> ServerInfo:
    return identify(ProbeClient(RemoteSettings(url=url, **settings)), model)


@pytest.mark.parametrize("name", SERVERS)
def test_identifies_servers(name: str) -> None:
    routes, expected = SERVERS[name]
    with run_table(routes) as server:
        info = find_info(server.url)
    assert {field: getattr(info, field) for field in expected} == expected


def test_adapters_and_other_models_are_told_apart() -> None:
    rows = [
        {"id": "base", "owned_by": "vllm"},
        {"id": "poet", "owned_by": "vllm", "parent": "base"},
        {"id": "other", "owned_by": "vllm"},
    ]
    with run_table({"/v1/models": (200, {"data": rows})}) as server:
        info = find_info(server.url)
        assert (info.model, info.other_models, info.adapters) == ("base", ("other",), {"poet": 0})
        assert find_info(server.url, "other").model == "other"
        with pytest.raises(ModelNotFound, match=r"Did you mean `other`.*It has: base, poet, other"):
            find_info(server.url, "othr")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_urls_may_end_as_clients_write_them(suffix: str) -> None:
    with run_table(SERVERS["text only"][0]) as server:
        assert find_info(server.url + suffix).apis == ("text",)


@pytest.mark.parametrize(
    ("routes", "error", "message"),
    [
        ({"/v1/models": (401, {})}, ModelBroken, "--upstream-key-file"),
        ({"/v1/models": (503, {"error": "loading"})}, Unavailable, "not ready"),
        ({"/v1/models": (200, {"data": []})}, Unavailable, "no model yet"),
        ({"/v1/models": (404, {})}, ModelBroken, "no model server at this address"),
        ({"/v1/models": (200, ["text"])}, ModelBroken, "no model server at this address"),
        ({"/v1/models": list_models("a")}, ModelBroken, "neither /v1/completions nor"),
        (
            {"/v1/models": list_models("a", owner="llamacpp"), "/props": (503, {})},
            Unavailable,
            "is loading its model",
        ),
    ],
)
def test_says_why_a_server_cannot_be_used(
    routes: dict[str, Answer], error: type[DragomanError], message: str
) -> None:
    with run_table(routes) as server, pytest.raises(error, match=message):
        find_info(server.url)


def test_a_server_without_a_list_serves_the_model_that_is_named() -> None:
    chat = {"/v1/chat/completions": (400, {"error": "no messages"})}
    with run_table(chat) as server:
        info = find_info(server.url, "org/model")
        assert (info.model, info.apis) == ("org/model", ("chat",))
        with pytest.raises(ModelBroken, match="no model server at this address"):
            find_info(server.url)
    with run_table({}) as server, pytest.raises(ModelBroken, match="neither /v1/completions nor"):
        find_info(server.url, "org/model")


def test_a_list_may_be_sent_alone() -> None:
    listed = [{"id": "a", "context_length": 4096}, {"id": "b"}, "text", {"id": 5}]
    chat = {"/v1/chat/completions": (400, {"error": "no messages"})}
    with run_table(chat | {"/v1/models": (200, listed)}) as server:
        info = find_info(server.url)
        assert (info.model, info.other_models, info.context) == ("a", ("b",), 4096)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_of_a_server_are_not_followed(status: int) -> None:
    """The other server gets neither the request nor the key, and its address is in no error."""
    routes: dict[str, Answer] = {"/v1/models": (status, {})}
    with watch_port() as (port, connections), run_table(routes) as server:
        server.location = f"http://127.0.0.1:{port}/v1/models"
        with pytest.raises(ModelBroken, match="redirects to another address") as error:
            discover(make_options(server.url), "secret")
        assert str(port) not in error.value.message
        assert connections == []


def test_says_that_nothing_runs_there() -> None:
    with run_table({}) as server:
        url = server.url
    with pytest.raises(Unavailable, match="cannot be reached"):
        find_info(url)


@pytest.mark.parametrize("url", ["http://", "ftp://host", "http://h:99999", "http://a:b@host"])
def test_rejects_other_addresses(url: str) -> None:
    with pytest.raises(ModelBroken, match="`upstream`"):
        find_info(url)


def test_keys_come_from_a_file_or_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    with run_table(SERVERS["text only"][0], api_key="secret") as server:
        assert find_info(server.url, api_key_file=str(file)).apis == ("text",)
        assert find_info(server.url, api_key="secret").apis == ("text",)
        with pytest.raises(ModelBroken, match="API key") as error:
            find_info(server.url, api_key="other")
    assert "other" not in error.value.message
    file.unlink()
    with pytest.raises(ModelBroken, match="--upstream-key-file"):
        find_info(server.url, api_key_file=str(file))
    with pytest.raises(ModelBroken, match="DRAGOMAN_UPSTREAM_KEY"):
        find_info(server.url, api_key="schlüssel")


def test_a_wrong_scheme_is_no_reason_to_wait() -> None:
    plain = run_table(SERVERS["text only"][0])
    with plain as server, pytest.raises(ModelBroken, match=r"not speak TLS; .* begin with http://"):
        find_info(server.url.replace("http:", "https:"))
    alert = b"\x15\x03\x01\x00\x02\x02\x46"  # of a server with TLS
    with run_once(alert) as url, pytest.raises(ModelBroken, match="does not speak HTTP"):
        find_info(url)
    with run_once(b"") as url, pytest.raises(Unavailable, match="closes connections"):
        find_info(url)


@contextmanager
def run_once(answer: bytes) -> Iterator[str]:
    """Run a server that sends these bytes to its first connection, whatever it gets."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.10.2rc1", (0, 10, 2)),
        ("v1.2", (1, 2)),
        ("b7312-1a2b3c", (7312,)),
        ("b0-unknown", ()),
        ("", ()),
        ("main", ()),
    ],
)
def test_reads_versions(version: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(version) == numbers


@pytest.mark.parametrize(
    ("kind", "version", "ignored"),
    [
        ("vllm", "0.32.0", ()),
        ("vllm", "", ()),
        ("vllm", "0.10.2", ("grammars",)),
        ("vllm", "0.8.0", ("token_ids", "grammars", "cache_scopes")),
        ("sglang", "0.4.9", ("seed", "cache_scopes")),
        ("llama-server", "b7312-1a2b3c", ()),
        ("llama-server", "b4000-1a2b3c", ("token_ids",)),
        ("openai", "0.1", ()),
    ],
)
def test_knows_what_versions_ignore(kind: Any, version: str, ignored: tuple[str, ...]) -> None:
    info = ServerInfo(kind=kind, name=kind, model="m", version=version)
    assert list_ignored_fields(info) == ignored


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("qwen3:4b", "qwen3:4b"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
        ("/srv/models/Qwen3-Q4.gguf", "Qwen3-Q4"),
        ("C:\\models\\Qwen3.gguf", "Qwen3"),
        ("./qwen", "qwen"),
    ],
)
def test_names_of_models_are_no_paths(name: str, short: str) -> None:
    assert shorten_name(name) == short


# The tokenizer


def make_options(url: str, **options: Any) -> ModelOptions:
    return ModelOptions(upstream=url, **options)


@pytest.mark.parametrize("kind", ["llama-server", "vllm", "sglang"])
def test_compares_ids_with_the_server(kind: str, tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model")
    with run_worker(kind) as worker:
        found = discover(make_options(worker.url, tokenizer=str(directory)))
        assert (found.api, found.template) == ("tokens", TEMPLATE)
        assert len(found.probe_ids) > 40
        worker.token_offset = 1
        with pytest.raises(ModelBroken) as error:
            discover(make_options(worker.url, tokenizer=str(directory)))
    message = error.value.message
    assert "texts have other tokens, such as 'Hello world': [72, 101" in message
    assert "--tokenizer" in message
    assert str(tmp_path) not in message


def test_special_tokens_are_compared_too(tmp_path: Path) -> None:
    specials = ("<|im_start|>", "<|endoftext|>", "<|im_end|>")  # two are swapped
    directory = write_tokenizer(tmp_path / "model", specials=specials)
    with run_worker("vllm") as worker, pytest.raises(ModelBroken, match=r"im_start"):
        discover(make_options(worker.url, tokenizer=str(directory)))


def test_a_larger_vocabulary_is_another_tokenizer(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model", specials=("<a>", "<b>", "<c>", "<d>"))
    with (
        run_worker("llama-server") as worker,
        pytest.raises(ModelBroken, match="has 260 tokens and the server's has 259"),
    ):
        discover(make_options(worker.url, tokenizer=str(directory)))


def test_takes_the_tokenizer_that_the_server_names(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path / "model")
    with run_worker("vllm", model=str(directory)) as worker:
        found = discover(make_options(worker.url))
    assert (found.api, found.template_place) == ("tokens", "model")


@pytest.mark.parametrize(
    ("apis", "template", "chosen"),
    [
        (("tokens", "text", "chat"), True, "text"),
        (("tokens", "text", "chat"), False, "chat"),
        (("text", "chat"), True, "text"),
        (("text", "chat"), False, "chat"),
        (("text",), False, "text"),
        (("chat",), True, "chat"),
    ],
)
def test_chooses_the_best_api_without_a_tokenizer(
    apis: tuple[str, ...], template: bool, chosen: str, tmp_path: Path
) -> None:
    routes: dict[str, Answer] = {"/v1/models": list_models("m")}
    if "tokens" in apis:
        props = PROPS | {"chat_template": TEMPLATE if template else ""}
        routes |= {"/v1/models": list_models("m", owner="llamacpp"), "/props": (200, props)}
    routes |= {"/v1/completions": INVALID} if "text" in apis else {}
    routes |= {"/v1/chat/completions": INVALID} if "chat" in apis else {}
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE)
    own = {"chat_template": str(file)} if template and "tokens" not in apis else {}
    with run_table(routes) as server:
        found = discover(make_options(server.url, **own))
    assert found.api == chosen
    limitations = list_limitations(found, Capabilities())
    assert limitations[0].startswith(f"It is used through its {chosen} API: ")
    if "tokens" in apis:
        assert "--tokenizer" in limitations[0]


def test_the_operator_may_choose_the_api(tmp_path: Path) -> None:
    with run_table(SERVERS["LM Studio"][0]) as server:
        assert discover(make_options(server.url, upstream_api="text")).api == "text"
        with pytest.raises(ModelBroken, match="has no tokens API; it has: text, chat"):
            discover(make_options(server.url, upstream_api="tokens"))
    with run_worker("vllm") as worker, pytest.raises(ModelBroken, match="needs a tokenizer"):
        discover(make_options(worker.url, upstream_api="tokens"))


def test_finds_tokenizers_in_all_places(tmp_path: Path, default_model: Path) -> None:
    directory = write_tokenizer(tmp_path / "model")
    info = ServerInfo(kind="vllm", name="vLLM", model="m", tokenizer_places=("/nowhere", "a/b"))
    assert open_place(str(directory)).name == "model"
    assert open_place(str(directory / "tokenizer.json")).path == directory
    assert open_place(str(default_model)).name == default_model.name
    assert open_place(str(default_model.parent)).path == default_model
    fetched = find_tokenizer(info, None, lambda name: directory if name == "a/b" else tmp_path)
    assert fetched is not None
    assert fetched.name == "a/b"
    (tmp_path / "empty").mkdir()
    for place, message in (
        (str(tmp_path / "empty"), "neither a tokenizer.json nor one GGUF file"),
        ("/no/such/place", "--tokenizer must be"),
        ("nothing", "--tokenizer must be"),
    ):
        with pytest.raises(ModelBroken, match=message):
            open_place(place)
