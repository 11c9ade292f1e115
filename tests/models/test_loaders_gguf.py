"""A model file becomes a model whose parts fit together, or an error with the cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.llamacpp import gguf
from dragoman.errors import EngineDown, ModelBroken
from dragoman.models import output_format
from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.loaders import gguf as loader
from dragoman.models.mapping import ModelOptions
from dragoman.models.output_format import OutputFormat, detect_output_format
from dragoman.models.recommended_sampling import FALLBACK
from dragoman.models.registry import ModelRegistry
from dragoman.presets import Preset
from dragoman.tokenizers.tokenizer import PROBES, EngineTokenizer, Tokenizer, tokenizer_from_gguf
from dragoman.types import Capabilities, Job, Sampling, Step
from tests.support.model_files import write_model_file
from tests.support.paths import TEMPLATES
from tests.support.tokenizer_oracle import train_byte_level_vocabulary, write_tiny_model


class Engine:
    """An engine with a given tokenizer, that notes how it was started and closed."""

    def __init__(self, tokenizer: Any = None, error: Exception | None = None) -> None:
        self.capabilities = Capabilities(context=64, tokenize=tokenizer is not None, lora=("poet",))
        self.tokenizer = tokenizer
        self.error = error
        self.started = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.closed = 0

    async def start(self) -> None:
        self.started.set()
        await self.may_start.wait()
        if self.error is not None:
            raise self.error

    async def tokenize(self, text: str, special: bool) -> list[int]:
        ids: list[int] = self.tokenizer.encode_now(text)
        return ids

    async def admit(self, job: Job) -> None: ...

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="x", finish="stop")

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = train_byte_level_vocabulary(PROBES, "qwen2")
    return write_tiny_model(tmp_path_factory.mktemp("m") / "tiny.gguf", vocabulary)


@pytest.fixture
def file_tokenizer(file: Path) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(gguf.read_header(file).metadata)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def open_source(file: Path, **options: Any) -> ModelSource:
    return ModelCatalog().open_path(file, ModelOptions(**options))


def install_engine(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Engine:
    monkeypatch.setattr(loader, "make_engine", lambda *_: engine)
    return engine


def test_load_builds_every_part_of_a_model(
    file: Path, file_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = install_engine(monkeypatch, Engine(file_tokenizer))
    model = asyncio.run(loader.load(open_source(file)))
    assert engine.started.is_set()
    assert model.engine is engine
    assert isinstance(model.tokenizer, Tokenizer)
    assert model.capabilities.context == 64
    assert (model.info.architecture, model.info.context, model.info.lora) == (
        "llama",
        64,
        ("poet",),
    )
    assert model.info.size == file.stat().st_size
    assert model.info.created == int(file.stat().st_mtime)
    assert "completion" in model.info.capabilities
    assert "chat" not in model.info.capabilities
    assert model.template_source is None
    assert model.defaults == FALLBACK
    assert model.preset == Preset()
    assert model.renderer.tokenizer is model.tokenizer
    assert engine.closed == 0


def test_tokenizer_that_differs_from_the_engine_is_not_used(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Letters:
        def encode_now(self, text: str) -> list[int]:
            return [ord(letter) for letter in text]

    install_engine(monkeypatch, Engine(Letters()))
    model = asyncio.run(loader.load(open_source(file)))
    assert isinstance(model.tokenizer, EngineTokenizer)
    assert asyncio.run(model.tokenizer.encode("ab")) == [97, 98]


def test_engine_that_fails_to_start_is_closed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = install_engine(monkeypatch, Engine(error=EngineDown("It does not start.")))
    with pytest.raises(EngineDown):
        asyncio.run(loader.load(open_source(file)))
    assert engine.closed == 1


def test_cancelled_load_closes_its_engine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        engine = install_engine(monkeypatch, Engine())
        engine.may_start.clear()
        task = asyncio.create_task(loader.load(open_source(file)))
        await engine.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.closed == 1

    asyncio.run(scenario())


def test_operators_template_replaces_the_models_own(
    file: Path, tmp_path: Path, file_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}", encoding="utf-8-sig")
    install_engine(monkeypatch, Engine(file_tokenizer))
    model = asyncio.run(loader.load(open_source(file, chat_template=str(template))))
    assert model.template_source == "{{ messages[0].content }}"
    assert "chat" in model.info.capabilities


THINKER = TEMPLATES / "thinker.jinja"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, OutputFormat("hermes_json", "think")),
        ({"format": "glm45", "reasoning_format": "none"}, OutputFormat("glm45", None)),
        ({"format": "none", "reasoning_format": "mistral"}, OutputFormat(None, "mistral")),
    ],
)
def test_formats_are_detected_and_logged_unless_the_operator_sets_them(
    options: dict[str, str],
    expected: OutputFormat,
    file: Path,
    file_tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install_engine(monkeypatch, Engine(file_tokenizer))
    caplog.set_level("INFO", "dragoman.models")
    model = asyncio.run(loader.load(open_source(file, chat_template=str(THINKER), **options)))
    assert model.output_format == expected
    assert ("tools" in model.info.capabilities) == (expected.tools is not None)
    assert ("thinking" in model.info.capabilities) == (expected.reasoning is not None)
    verified = "(verified by round trip)"
    assert f"tool calls: hermes_json {verified}; reasoning: think {verified}" in caplog.text


@pytest.mark.parametrize(
    ("renders_tools", "override", "expected", "warned"),
    [
        (False, None, "hermes_json", False),
        (False, "hermes", "hermes", False),
        (False, "qwen3_coder", "qwen3_coder", True),
        (False, "none", None, True),
        (True, None, "hermes_json", False),
        (True, "qwen3_coder", "qwen3_coder", False),
    ],
)
def test_generic_tool_prompt_implies_the_generic_format(
    renders_tools: bool,
    override: str | None,
    expected: str | None,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = THINKER if renders_tools else THINKER.with_name("chatml.jinja")
    template = file.read_text(encoding="utf-8")
    caplog.set_level("INFO", "dragoman.models")
    findings = detect_output_format(template, None, (override, None), "m")
    assert findings.output_format.tools == expected
    note = "verified by round trip" if renders_tools else "generic prompt: "
    assert f"m: tool calls: hermes_json ({note}" in caplog.text
    assert ("tools are declared as hermes_json" in caplog.text) == warned


@pytest.mark.parametrize(
    ("file", "expected"), [("chatml.jinja", "hermes_json"), ("thinker.jinja", None)]
)
def test_failed_detection_falls_back_to_the_generic_format(
    file: str,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(output_format, "detect", fail)
    source = THINKER.with_name(file).read_text(encoding="utf-8")
    assert detect_output_format(source, None, (None, None), "m").output_format.tools == expected
    assert "detecting the output format failed" in caplog.text


def test_failed_round_trip_is_logged_with_both_sides(
    file: Path,
    file_tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install_engine(monkeypatch, Engine(file_tokenizer))
    agent = THINKER.with_name("agent.jinja")
    asyncio.run(loader.load(open_source(file, chat_template=str(agent))))
    [line, *_] = [line for line in caplog.messages if "round trip failed" in line]
    assert "<tool_call>" in line
    assert "was rendered as" in line
    assert "parsed as" in line


def test_unknown_format_breaks_the_model_and_lists_the_choices(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ({"format": "warp"}, {"reasoning_format": "warp"}):
        engine = install_engine(monkeypatch, Engine())
        with pytest.raises(ModelBroken, match=r"'warp'.*harmony"):
            asyncio.run(loader.load(open_source(file, **options)))
        assert not engine.started.is_set()  # nothing is loaded for it


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"{% if %}"])
def test_invalid_template_breaks_the_model(
    content: bytes | None, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "t.jinja").write_bytes(content)
    engine = install_engine(monkeypatch, Engine())
    with pytest.raises(ModelBroken, match="template") as caught:
        asyncio.run(loader.load(open_source(file, chat_template=str(tmp_path / "t.jinja"))))
    assert str(tmp_path) not in caught.value.message
    assert engine.closed == 1


def test_sampling_defaults_come_from_the_author(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = train_byte_level_vocabulary(PROBES[:3], "qwen2")
    file = write_tiny_model(tmp_path / "m.gguf", vocabulary)
    config = {"temperature": 0.6, "top_k": 20, "top_p": "high", "min_p": None, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    install_engine(monkeypatch, Engine())
    model = asyncio.run(loader.load(open_source(file, sampling={"temperature": 0.0})))
    assert model.defaults == Sampling(temperature=0.6, top_k=20)
    assert model.preset.sampling.sampling == Sampling(temperature=0.0)


def test_invalid_preset_breaks_the_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = install_engine(monkeypatch, Engine())
    with pytest.raises(ModelBroken, match="Did you mean `temperature`"):
        asyncio.run(loader.load(open_source(file, sampling={"temprature": 0.0})))
    assert engine.closed == 1


def test_files_without_a_usable_model_are_broken(tmp_path: Path) -> None:
    cases = {
        "adapter": write_model_file(tmp_path / "adapter.gguf", general_type="adapter"),
        "part": write_model_file(tmp_path / "m-00001-of-00002.gguf"),
        "damaged part": write_model_file(tmp_path / "n-00001-of-00002.gguf"),
    }
    write_model_file(tmp_path / "n-00002-of-00002.gguf", b"GGUF")
    for name, path in cases.items():
        with pytest.raises(ModelBroken):
            loader.read_model_header(path)
        assert name


def test_vocabulary_with_a_duplicate_token_never_reaches_the_engine(tmp_path: Path) -> None:
    vocabulary = train_byte_level_vocabulary(PROBES[:3], "qwen2")
    vocabulary["tokens"][1] = vocabulary["tokens"][0]
    with pytest.raises(ModelBroken, match="same text"):
        loader.read_model_header(write_tiny_model(tmp_path / "m.gguf", vocabulary))


def test_engine_gets_the_options_of_the_model(file: Path) -> None:
    options = {"context": 128, "slots": 2, "threads": 0, "gpu_layers": -1, "lora": {"p": "x"}}
    engine = loader.make_engine(open_source(file, **options))
    assert engine.name == "tiny"
    assert engine._load.settings == {"path": str(file), **options}


def test_default_model_loads_and_generates(default_model: Path) -> None:
    async def scenario() -> None:
        catalog = ModelCatalog(
            default_model.parent, base=ModelOptions(context=256, slots=1, threads=2)
        )
        models = ModelRegistry(catalog, loader.load)
        try:
            with await models.acquire("smollm2:135m") as model:
                assert isinstance(model.tokenizer, Tokenizer)  # checked against the engine
                assert model.info.quantization == "Q4_1"
                assert model.capabilities.context == 256
                prompt = await model.tokenizer.encode("The capital of France is")
                job = Job(id="j", prompt=prompt, sampling=Sampling(temperature=0.0, max_tokens=2))
                ids: list[int] = []
                async with aclosing(model.engine.generate(job)) as steps:
                    async for step in steps:
                        ids += step.ids
                assert model.tokenizer.decode(ids).startswith(" Paris")
            engine: Any = model.engine
            assert engine.pid is not None
            await models.unload("smollm2")
            assert engine.pid is None
        finally:
            await models.aclose()

    asyncio.run(scenario())
