"""The official `ollama` client manages models of a server with the default model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import ollama
import pytest

from tests.support.lora import make_adapter
from tests.support.real_model import serve

pytestmark = pytest.mark.real_model

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0.0, "num_predict": 8}


@pytest.fixture(scope="module")
def installed(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model in a models directory that the tests may change."""
    path = tmp_path_factory.mktemp("models") / MODEL / default_model.name
    path.parent.mkdir()
    os.symlink(default_model, path)
    return path


@pytest.fixture(scope="module")
def client(installed: Path) -> Iterator[ollama.Client]:
    with (
        serve(installed, context=512, slots=1) as server,
        closing(ollama.Client(host=server.url)) as client,
    ):
        yield client


def list_names(client: ollama.Client) -> set[str | None]:
    return {model.model for model in client.list().models}


def ask(client: ollama.Client, model: str) -> str:
    answer = client.chat(model, messages=QUESTION, options=GREEDY, stream=False)
    return answer.message.content or ""


def test_list_show_and_ps(client: ollama.Client) -> None:
    [model] = [model for model in client.list().models if model.model == f"{MODEL}:latest"]
    assert model.size == 98_362_432
    assert model.digest is not None
    assert model.details is not None
    assert model.details.quantization_level == "Q4_1"
    assert (model.details.family, model.details.parameter_size) == ("llama", "135M")
    shown = client.show(MODEL)
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.modelinfo["general.parameter_count"] == 134515008
    assert shown.modelinfo["tokenizer.ggml.tokens"] == []
    assert shown.template is not None
    assert "<|im_start|>" in shown.template
    assert shown.capabilities is not None
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.license == "apache-2.0"
    ask(client, MODEL)
    [running] = client.ps().models
    assert (running.model, running.context_length) == (f"{MODEL}:latest", 512)
    assert running.size is not None
    assert running.size > 98_362_432
    assert running.expires_at is not None
    assert running.expires_at > datetime.now(UTC)


def test_pull_of_an_installed_model_checks_it(client: ollama.Client) -> None:
    assert client.pull(MODEL).status == "success"
    lines = list(client.pull(f"{MODEL}:latest", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    totals = [(line.total, line.completed) for line in lines if line.digest]
    assert totals[-1] == (98_362_432, 98_362_432)


def test_copied_model_is_the_same_model(client: ollama.Client) -> None:
    client.copy(MODEL, "copy:v1")
    assert f"{MODEL}:latest" in list_names(client)
    assert "copy:v1" in list_names(client)
    digests = {model.model: model.digest for model in client.list().models}
    assert digests["copy:v1"] == digests[f"{MODEL}:latest"]
    assert ask(client, "copy:v1") == ask(client, MODEL)
    assert len(client.ps().models) == 1  # both names are one model in memory
    client.delete("copy:v1")
    assert "copy:v1" not in list_names(client)
    with pytest.raises(ollama.ResponseError, match="model 'copy:v1' not found"):
        client.delete("copy:v1")


def test_created_model_answers_as_its_recipe_says(client: ollama.Client) -> None:
    answer = client.create(
        "pirate",
        from_=MODEL,
        system="You are a pirate called Blackbeard. Say your name.",
        parameters={"num_predict": 3, "temperature": 0.0, "stop": ["\n"]},
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Arr!"}],
        license="MIT",
    )
    assert answer.status == "success"
    shown = client.show("pirate")
    assert (shown.license, "num_predict" in (shown.parameters or "")) == ("MIT", True)
    plain = client.chat(MODEL, messages=QUESTION, options=GREEDY)
    pirate = client.chat("pirate", messages=QUESTION)
    assert pirate.eval_count == 3
    assert pirate.prompt_eval_count is not None
    assert plain.prompt_eval_count is not None
    assert pirate.prompt_eval_count > plain.prompt_eval_count
    lines = client.create("pirate:two", from_="pirate", system="Be brief.", stream=True)
    assert [line.status for line in lines][-1] == "success"
    assert client.show("pirate:two").parameters == shown.parameters
    client.delete("pirate")
    client.delete("pirate:two")
    assert list_names(client) == {f"{MODEL}:latest"}


def test_models_are_created_from_blobs(
    client: ollama.Client, installed: Path, tmp_path: Path
) -> None:
    digest = client.create_blob(installed)
    assert client.create_blob(installed) == digest
    client.create("uploaded", files={"model.gguf": digest})
    assert ask(client, "uploaded") == ask(client, MODEL)
    adapter = client.create_blob(make_adapter(tmp_path / "adapter.gguf", seed=1))
    client.create("adapted", from_=MODEL, adapters={"adapter.gguf": adapter})
    assert ask(client, "adapted") != ask(client, MODEL)
    for name in ("uploaded", "adapted"):
        client.delete(name)
    assert os.listdir(installed.parent.parent / "blobs") == []
    assert list_names(client) == {f"{MODEL}:latest"}


def test_errors_are_those_that_the_client_knows(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nobody' not found") as failed:
        client.show("nobody")
    assert failed.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="invalid model name") as failed:
        client.create("../escape", from_=MODEL)
    assert failed.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="push") as failed:
        client.push(MODEL)
    assert failed.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="cannot be downloaded"):
        list(client.pull("nobody", stream=True))
