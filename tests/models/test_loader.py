"""Which engine a model gets, and what is printed where it is missing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from dragoman.engines.vllm.installation import RECORD, find_interpreter, get_python
from dragoman.errors import ModelBroken
from dragoman.models.catalog import ModelSource
from dragoman.models.loaders.loader import LoadSettings, choose_engine, load
from dragoman.models.loaders.safetensors import make_settings
from dragoman.models.mapping import ModelOptions
from dragoman.testing import ScriptedEngine
from tests.support.model_files import write_model_file


def make_source(kind: str, engine: str | None, **options: object) -> ModelSource:
    return ModelSource(
        id="m",
        kind="gguf" if kind == "gguf" else "safetensors",
        options=ModelOptions(engine=engine, **options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("kind", "engine", "chosen"),
    [
        ("gguf", None, "llamacpp"),
        ("gguf", "auto", "llamacpp"),
        ("gguf", "llamacpp", "llamacpp"),
        ("safetensors", None, "vllm"),
        ("safetensors", "auto", "vllm"),
        ("safetensors", "vllm", "vllm"),
        ("gguf", "my.package:create", "my.package:create"),
        ("safetensors", "engine:make", "engine:make"),
    ],
)
def test_the_kind_of_a_model_chooses_the_engine(kind: str, engine: str | None, chosen: str) -> None:
    assert choose_engine(make_source(kind, engine)) == chosen


@pytest.mark.parametrize(
    ("kind", "engine", "problem"),
    [
        ("gguf", "vllm", "The engine vllm runs directories of safetensors"),
        ("safetensors", "llamacpp", "The engine llamacpp runs GGUF files"),
        ("gguf", "tgi", "Unknown engine 'tgi'. Engines: auto, llamacpp, vllm."),
        ("gguf", "no module:create", "Unknown engine"),
        ("gguf", "module:", "Unknown engine"),
    ],
)
def test_an_engine_that_does_not_fit_is_an_error(kind: str, engine: str, problem: str) -> None:
    with pytest.raises(ModelBroken) as error:
        choose_engine(make_source(kind, engine))
    assert problem in error.value.message


def test_safetensors_without_vllm_name_the_command(tmp_path: Path) -> None:
    source = make_source("safetensors", None)
    with pytest.raises(ModelBroken) as error:
        asyncio.run(load(source, LoadSettings(engines=tmp_path)))
    assert error.value.message.endswith("Install vLLM with: dragoman engine install vllm")


def test_only_a_complete_installation_is_used(tmp_path: Path) -> None:
    python = get_python(tmp_path / "vllm")
    python.parent.mkdir(parents=True)
    python.touch()
    assert find_interpreter(tmp_path) is None
    record = tmp_path / "vllm" / RECORD
    record.write_text('{"version": "1.0", "device": "cpu"}')
    interpreter = find_interpreter(tmp_path)
    assert interpreter is not None
    assert interpreter.python == str(python)
    record.write_text("{")
    assert find_interpreter(tmp_path) is None


def test_the_child_of_another_python_gets_our_package_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    get_python(tmp_path / "vllm").symlink_to(sys.executable)
    (tmp_path / "vllm" / RECORD).write_text('{"version": "1.0", "device": "cpu"}')
    interpreter = find_interpreter(tmp_path)
    assert interpreter is not None
    command = interpreter.make_command("some.module", 7)
    assert command[:3] == [str(get_python(tmp_path / "vllm")), "-I", "-c"]
    assert "site-packages" not in command[-1]


def test_options_of_llama_cpp_are_reported_for_vllm(caplog: pytest.LogCaptureFixture) -> None:
    source = make_source(
        "safetensors", None, context=512, threads=2, cache_type_k="q8_0", engine_arg={"dtype": "x"}
    )
    settings = make_settings(source)
    assert settings["context"] == 512
    assert settings["threads"] == 2
    assert settings["engine_arg"] == {"dtype": "x"}
    assert "vLLM has no option `cache_type_k`" in caplog.text
    assert "context" not in caplog.text


def create_scripted(path: str, answer: str) -> ScriptedEngine:
    """Make the engine of the test below, in a child process."""
    return ScriptedEngine(f"{answer} from {Path(path).name}")


def test_an_import_string_makes_the_engine(tmp_path: Path) -> None:
    file = write_model_file(tmp_path / "m.gguf")
    options = ModelOptions(
        engine="tests.models.test_loader:create_scripted", engine_arg={"answer": "Hello"}
    )
    source = ModelSource(id="m", path=file, options=options)

    async def run() -> str:
        from dragoman.types import Job

        model = await load(source)
        try:
            steps = [step async for step in model.engine.generate(Job(id="j", prompt="Hi"))]
        finally:
            await model.engine.aclose()  # type: ignore[attr-defined]
        return "".join(step.text or "" for step in steps)

    assert asyncio.run(run()) == "Hello from m.gguf"
