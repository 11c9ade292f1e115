"""The mapping file gives names and options to models; a mistake in it is an error."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from dragoman.models.catalog import ModelCatalog
from dragoman.models.mapping import MappingError, ModelOptions, parse_entries, read_mapping
from dragoman.presets import parse_preset
from dragoman.types import Sampling
from tests.support.model_files import find_file, make_catalog, write_model_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_mapping_names_files(root: Path, tmp_path: Path) -> None:
    outside = write_model_file(tmp_path / "elsewhere" / "big.gguf")
    write_model_file(root / "in.gguf")
    yaml = f"""
    models:
      Fast: in.gguf
      far: ../elsewhere/big.gguf
      full: {outside}
      tuned:
        path: in.gguf
        context: 512
        lora: {{poet: ../elsewhere/poet.gguf}}
        chat_template: t.jinja
        format: hermes_json
        reasoning_format: think
        keep_alive: 30
        defaults: {{temperature: 0.3, top_k: 7}}
        pin: true
    """
    models = make_catalog(root, yaml, ModelOptions(slots=2, context=4096))
    assert find_file(models, "fast") == "in.gguf"
    assert find_file(models, "FAR:latest") == "big.gguf"
    far, full, tuned = models.find("far"), models.find("full"), models.find("tuned")
    assert far is not None
    assert full is not None
    assert tuned is not None
    assert far.key == full.key  # two names of one file with the same settings are one model
    assert (far.id, far.aliases) == ("far", ("full",))
    assert tuned.options == ModelOptions(
        context=512,
        slots=2,
        lora={"poet": str(tmp_path / "elsewhere" / "poet.gguf")},
        chat_template=str(root / "t.jinja"),
        format="hermes_json",
        reasoning_format="think",
        keep_alive=30,
        sampling={"temperature": 0.3, "top_k": 7},
        pin=True,
    )
    assert far.options == ModelOptions(slots=2, context=4096)
    assert [source.id for source in models.list_sources()] == ["Fast", "far", "tuned"]
    assert find_file(models, "in") == "in.gguf"  # the file keeps its own name too


def test_mapping_wins_over_scanned_files(root: Path, tmp_path: Path) -> None:
    write_model_file(root / "name.gguf")
    write_model_file(tmp_path / "other.gguf")
    assert find_file(make_catalog(root, "name: ../other.gguf"), "name") == "other.gguf"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("3", "expected a path"),
        ("[a, b]", "expected a path"),
        ("null", "expected a path"),
        ("''", "path is missing"),
        ("'  '", "path is missing"),
        ("{context: 3}", "path is missing"),
        ("{path: 3}", "path is missing"),
        ("{path: m.gguf, contxt: 3}", "there is no option `contxt`. Did you mean `context`?"),
        ("{paht: m.gguf}", "there is no option `paht`. Did you mean `path`?"),
        ("{path: m.gguf, temprature: 1}", "there is no option `temprature`"),
        ("{path: m.gguf, slots: 0}", "`slots`: must be at least 1, got 0"),
        ("{path: m.gguf, context: -1}", "`context`: must be 0 or more, got -1"),
        ("{path: m.gguf, keep_alive: soon}", "`keep_alive`: expected a duration such as 30s"),
        ("{path: m.gguf, pin: maybe}", "`pin`: expected true or false, got 'maybe'"),
        ("{path: m.gguf, lora: poet.gguf}", "lora"),
        ("{path: m.gguf, path: m.gguf}", "`path` is already set in line 2"),
        ("{path: m.gguf, context: many}", "context"),
        ("{path: m.gguf, defaults: {temperature: hot}}", "temperature"),
        ("{path: m.gguf, sampling: {temprature: 1}}", "Did you mean `temperature`?"),
        ("{path: m.gguf, sampling: {top_p: 7}}", "`top_p` must be at most 1"),
        ("{path: m.gguf, system: 3}", "system"),
        ("{path: m.gguf, sampling_preset: none.yml}", "none.yml: No such file"),
        ("{path: m.gguf, lora: {x: ''}}", "path is missing"),
        ("{path: m.gguf, format: nonsense}", "'nonsense'"),
        ("{path: m.gguf, reasoning_format: nonsense}", "'nonsense'"),
        ('"a\\0b"', "path is missing"),
    ],
)
def test_invalid_entry_is_an_error_with_its_line(value: str, reason: str, root: Path) -> None:
    write_model_file(root / "m.gguf")
    with pytest.raises(MappingError) as caught:
        make_catalog(root, f"good: m.gguf\nbad: {value}\n")
    message = str(caught.value)
    assert message.startswith(f"{root / 'models.yaml'}:2: ")
    assert reason in message
    assert "\n" not in message


def test_presets_of_a_model_win_over_those_of_the_server(root: Path) -> None:
    write_model_file(root / "m.gguf")
    (root / "preset.yml").write_text("top_k: {override: 0, force: true}\nstop: {override: [x]}")
    yaml = """
    m:
      path: m.gguf
      system: {override: Be kind., force: true}
      template_vars: {a: 1}
      sampling: {temperature: 0.1}
      sampling_preset: preset.yml
      force: [temperature]
    other: {path: m.gguf, force: [min_p]}
    """
    server = ModelOptions(
        system="Be brief.",
        template_vars={"a": 0, "b": 2},
        sampling={"temperature": 0.9, "min_p": 0.3, "top_k": 50},
    )
    models = make_catalog(root, yaml, server)
    source, other = models.find("m"), models.find("other")
    assert source is not None
    assert other is not None
    preset = parse_preset(source.options)
    assert (preset.system, preset.system_rule, preset.stop) == ("Be kind.", "force", ("x",))
    assert preset.variables == {"a": 1, "b": 2}
    assert preset.sampling.sampling == Sampling(min_p=0.3)
    assert preset.forced_sampling.sampling == Sampling(temperature=0.1, top_k=0)
    preset = parse_preset(other.options)
    assert (preset.system, preset.stop) == ("Be brief.", None)
    assert preset.forced_sampling.sampling == Sampling(min_p=0.3)


def test_units_of_options(root: Path) -> None:
    write_model_file(root / "m.gguf")
    options = "{path: m.gguf, context: 16k, keep_alive: 1h30m}"
    source = make_catalog(root, f"m: {options}").find("m")
    assert source is not None
    assert (source.options.context, source.options.keep_alive) == (16384, 5400)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\x00", "invalid YAML"),
        (b"a: m.gguf\nb: [", ":2: invalid YAML"),
        (b"a: {pth: m.gguf}", ":1: model `a`: there is no option `pth`. Did you mean `path`?"),
        (b"a: {context: 4k}", ":1: model `a`: `path`: the path is missing or not text"),
        (b"- list", "expected a mapping"),
        (b"text", "expected a mapping"),
        (b"!!python/object/apply:os.system [true]", "invalid YAML"),
        (b"a: m.gguf\na: m.gguf", ":2: `a` is already set in line 1"),
        (b"models: {a: m.gguf}\nb: m.gguf", ":2: `b` is beside `models:`"),
        (b"7: m.gguf", ":1: the name 7 is not text"),
        (b"[" * 5000, "invalid YAML"),
    ],
)
def test_invalid_mapping_file_is_an_error(content: bytes, reason: str, root: Path) -> None:
    write_model_file(root / "m.gguf")
    (root / "models.yaml").write_bytes(content)
    with pytest.raises(MappingError) as caught:
        make_catalog(root)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"models:\n", b"models: {}"])
def test_empty_mapping_file_maps_nothing(content: bytes, root: Path) -> None:
    write_model_file(root / "m.gguf")
    (root / "models.yaml").write_bytes(content)
    assert [source.id for source in make_catalog(root).list_sources()] == ["m"]


def test_mistake_in_a_running_server_leaves_the_models_as_they_were(
    root: Path, caplog: Any
) -> None:
    write_model_file(root / "m.gguf")
    catalog = make_catalog(root, "good: m.gguf")
    with caplog.at_level(logging.WARNING):
        for text in ("good: m.gguf\nbad: {pth: m.gguf}", "a: ["):
            (root / "models.yaml").write_text(text)
            caplog.clear()
            catalog.refresh()
            catalog.refresh()
            assert find_file(catalog, "good") == "m.gguf"
            assert caplog.text.count("The models stay as they were") == 1
    (root / "models.yaml").write_text("better: m.gguf")
    catalog.refresh()
    assert (find_file(catalog, "good"), find_file(catalog, "better")) == (None, "m.gguf")


def test_configuration_file_wins_over_the_mapping_file(root: Path, caplog: Any) -> None:
    for name in ("a", "b", "c"):
        write_model_file(root / f"{name}.gguf")
    (root / "models.yaml").write_text("first: a.gguf\nsecond: b.gguf")
    configured = parse_entries({"second": "c.gguf"}, root, lambda *keys: "dragoman.yaml")
    catalog = ModelCatalog(root, root / "models.yaml", None, configured)
    catalog.refresh()
    assert (find_file(catalog, "first"), find_file(catalog, "second")) == ("a.gguf", "c.gguf")
    assert "`second` is also in the configuration file, which wins" in caplog.text


def test_unreadable_mapping_file_is_an_error(root: Path) -> None:
    (root / "models.yaml").mkdir()
    with pytest.raises(MappingError, match="Is a directory"):
        read_mapping(root / "models.yaml")


def test_missing_mapped_file_is_broken(root: Path) -> None:
    source = make_catalog(root, "gone: gone.gguf").find("gone")
    assert source is not None
    assert source.broken == "The file cannot be opened: No such file or directory."
