"""Options of the server reach the models that they fit; for the served model, others are errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman import config
from dragoman.runtime import StartupError, build_models, open_catalog
from tests.support.command_line import run_command
from tests.support.model_files import write_model_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with a model of each kind, and an adapter of each kind."""
    write_model_file(tmp_path / "models" / "file.gguf")
    folder = tmp_path / "models" / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "m.safetensors").write_bytes(b"")
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").write_text('{"r": 4}')
    write_model_file(tmp_path / "lora.gguf", general_type="adapter")
    return tmp_path


def load_settings(root: Path, **values: object) -> config.Settings:
    return config.load({"models_dir": str(root / "models"), **values})


def test_each_kind_gets_the_options_for_it(root: Path) -> None:
    adapters = (f"a={root / 'peft'}", f"b={root / 'lora.gguf'}")
    settings = load_settings(root, lora=adapters, engine_arg=("dtype=float32", "seed=1"))
    catalog = open_catalog(settings)
    options = {source.id: source.options for source in catalog.list_sources()}
    assert set(options["folder"].lora) == {"a"}
    assert set(options["file"].lora) == {"b"}
    assert options["folder"].engine_arg == {"dtype": "float32", "seed": 1}
    assert options["file"].engine_arg == {}


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_an_engine_of_the_server_is_for_the_models_it_runs(root: Path, engine: str) -> None:
    catalog = open_catalog(load_settings(root, engine=engine))
    chosen = {source.id: source.options.engine for source in catalog.list_sources()}
    runs = {"vllm": "folder", "llamacpp": "file"}[engine]
    assert {name for name, value in chosen.items() if value == engine} == {runs}


@pytest.mark.parametrize(
    ("model", "values", "problem"),
    [
        ("file", {"engine": "vllm"}, "The engine vllm runs directories of safetensors"),
        ("folder", {"engine": "llamacpp"}, "The engine llamacpp runs GGUF files"),
        ("file", {"lora": ("a={root}/peft",)}, "there is no file"),
        ("folder", {"lora": ("a={root}/lora.gguf",)}, "adapter_config.json"),
    ],
)
def test_options_that_do_not_fit_the_served_model_are_errors(
    root: Path, model: str, values: dict[str, object], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dragoman.models.loaders.loader.find_interpreter", lambda _: object(), raising=True
    )
    lora = values.get("lora")
    if isinstance(lora, tuple):
        values = {"lora": tuple(str(pair).format(root=root) for pair in lora)}
    with pytest.raises(StartupError) as error:
        build_models(load_settings(root, **values), model)
    assert problem in str(error.value)


def test_adapters_are_shown_with_their_models(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory with an adapter of its own name is a model of that name."""
    (root / "models" / "models.yaml").write_text(
        f"writer: {{path: folder, lora: {{poet: {root / 'peft'}, critic: {root / 'peft'}}}}}\n"
        f"poet: {{path: folder, lora: {{poet: {root / 'peft'}}}, default_lora: poet}}\n"
        f"file: {{path: file.gguf, lora: {{b: {root / 'lora.gguf'}}}}}\n"
    )
    where = ("--models-dir", str(root / "models"))
    for name, adapters in (
        ("writer", "poet, critic"),
        ("poet", "poet (default)"),
        ("file", "b"),
    ):
        shown = run_command(capsys, "show", name, *where)
        assert any(
            line.split(maxsplit=1) == ["adapters", adapters] for line in shown.out.split("\n")
        )
        described = json.loads(run_command(capsys, "show", name, "--json", *where).out)
        assert "lora" in described["capabilities"]
        assert ", ".join(described["lora"]) == adapters.removesuffix(" (default)")
    listed = json.loads(run_command(capsys, "list", "--json", *where).out)
    assert {entry["name"] for entry in listed} == {"writer", "poet", "file"}
