"""A setting comes from a flag, else from the environment, else from dragoman.yaml, else default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman import config
from dragoman.config.file import list_keys
from dragoman.options import OptionField
from tests.support.command_line import run_command

FILE = """
server: {port: 1000, host: "::1", models_dir: my/models}
keys:
  api: [sesame1, {key: sesame2}]
  admin: boss
  file: keys.txt
store: {url: "postgresql://me:hunter2@db/x", ttl: 7d, size: 2GB}
limits: {memory: 12GiB, keep_alive: forever, drain: 1m30s}
engine: {context: 16k, lora: {poet: poet.gguf, bard: /abs/bard.gguf}}
mcp: {servers: {wiki: "https://me:hunter2@wiki.example/mcp"}, rounds: 3}
logging: {level: DEBUG}
models:
  writer: {path: writer.gguf, context: 8k}
presets:
  system: {override: Be brief., force: true}
  sampling: {temperature: 0.3}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "DRAGOMAN_STORE", "DRAGOMAN_MODELS_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_values_of_the_file(place: Path) -> None:
    (place / "dragoman.yaml").write_text(FILE)
    settings = config.load({"config": "dragoman.yaml"})
    assert (settings.port, settings.host) == (1000, "::1")
    assert settings.models_dir == "my/models"
    assert (settings.api_key, settings.admin_key) == (("sesame1", "sesame2"), ("boss",))
    assert settings.api_key_file == "keys.txt"
    assert (settings.store_ttl, settings.store_size) == (7 * 86400, 2 * 10**9)
    assert (settings.memory, settings.keep_alive, settings.drain) == (12 << 30, -1, 90)
    assert settings.context == 16384
    assert settings.lora == ("poet=poet.gguf", "bard=/abs/bard.gguf")
    assert settings.mcp == ("wiki=https://me:hunter2@wiki.example/mcp",)
    assert (settings.mcp_rounds, settings.log_level) == (3, "debug")
    assert settings.models == {"writer": {"path": "writer.gguf", "context": "8k"}}


def test_relative_paths_start_at_the_file(place: Path) -> None:
    (place / "etc").mkdir()
    (place / "etc" / "d.yaml").write_text(FILE)
    settings = config.load({}, {"DRAGOMAN_CONFIG": str(place / "etc" / "d.yaml")})
    assert settings.models_dir == str(place / "etc" / "my" / "models")
    assert settings.api_key_file == str(place / "etc" / "keys.txt")
    assert settings.lora == (f"poet={place}/etc/poet.gguf", "bard=/abs/bard.gguf")


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("sqlite:///state.db", "sqlite:///{tmp}/state.db"),
        ("sqlite:///sub/state.db", "sqlite:///{tmp}/sub/state.db"),
        ("sqlite:////abs/state.db", "sqlite:////abs/state.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_relative_path_of_the_store_starts_at_the_file(
    url: str, resolved: str, place: Path
) -> None:
    (place / "d.yaml").write_text(f"store: {{url: '{url}'}}")
    settings = config.load({"config": str(place / "d.yaml")})
    assert settings.store == resolved.format(tmp=place)


def test_flags_win_over_the_environment_over_the_file_over_the_default(place: Path) -> None:
    (place / "dragoman.yaml").write_text("server: {port: 1}\nlimits: {queue: 1, ping: 1}")
    environment = {"DRAGOMAN_PORT": "2", "DRAGOMAN_QUEUE": "2"}
    configuration = config.load_configuration({"port": "3"}, environment, search=True)
    settings, origins = configuration.settings, configuration.origins
    names = ("port", "queue", "ping", "stall")
    assert [getattr(settings, name) for name in names] == [3, 2, 1, 60]
    assert [(origins[name].kind, origins[name].name) for name in names] == [
        ("flag", "--port"),
        ("environment", "DRAGOMAN_QUEUE"),
        ("file", "dragoman.yaml:2"),
        ("default", ""),
    ]


def test_file_is_searched_in_order(place: Path) -> None:
    user = place / "home" / ".config" / "dragoman" / "dragoman.yaml"
    user.parent.mkdir(parents=True)

    def get_port(flags: dict[str, object], environment: dict[str, str]) -> int:
        return config.load_configuration(flags, environment, search=True).settings.port

    assert get_port({}, {}) == config.Settings().port
    for number, (path, flags, environment) in enumerate(
        [
            (user, {}, {}),
            (place / "dragoman.yaml", {}, {}),
            (place / "b.yaml", {}, {"DRAGOMAN_CONFIG": "b.yaml"}),
            (place / "c.yaml", {"config": "c.yaml"}, {"DRAGOMAN_CONFIG": "b.yaml"}),
        ],
        start=1,
    ):
        path.write_text(f"server: {{port: {number}}}")
        assert get_port(dict(flags), dict(environment)) == number
    assert config.load({}).port == config.Settings().port  # an embedded app does not search


@pytest.mark.parametrize("content", ["", "# nothing", "server:", "server: {port: }", "models:"])
def test_empty_values_set_nothing(content: str, place: Path) -> None:
    (place / "dragoman.yaml").write_text(content)
    assert config.load({"config": "dragoman.yaml"}).port == config.Settings().port


@pytest.mark.parametrize("field", config.list_settings().values(), ids=lambda field: field.name)
def test_every_setting_has_a_key_and_a_group(field: OptionField) -> None:
    assert field.setting.help
    assert field.setting.group in config.GROUPS
    section, key = config.name_key(field)
    assert not field.setting.is_in_file or list_keys()[section][key] == field


def test_default_of_every_setting_is_in_its_range() -> None:
    for field in config.list_settings().values():
        value = field.default
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert getattr(config.load({field.name: value}), field.name) == value, field.name


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hun@ter2@db/x", "postgresql://me:********@db/x"),
        ("postgresql://db/x?user=me&password=hunter2", "?user=me&password=********"),
        ("postgresql://db/x?password=hunter2&sslmode=require", "=********&sslmode=require"),
    ],
)
def test_config_hides_passwords_of_urls(
    url: str, shown: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_command(capsys, "config", "--store", url, "--mcp", f"x={url}&token=hunter2")
    assert "ter2" not in result.out
    assert shown in result.out


def test_config_prints_values_and_origins_without_secrets(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "dragoman.yaml").write_text(FILE)
    monkeypatch.setenv("DRAGOMAN_QUEUE", "7")
    text = run_command(capsys, "config", "--ping", "2m")
    report = run_command(capsys, "config", "--ping", "2m", "--json")
    assert (text.code, report.code) == (0, 0)
    for secret in ("sesame", "boss", "hunter2"):
        assert secret not in text.out + report.out
    rows = {line.split()[0]: line.split()[1:] for line in text.out.splitlines() if line[:1] == " "}
    assert rows["port"] == ["1000", "dragoman.yaml:2"]
    assert rows["queue"] == ["7", "DRAGOMAN_QUEUE"]
    assert rows["ping"] == ["2m", "--ping"]
    assert rows["stall"] == ["1m", "default"]
    assert rows["store"] == ["postgresql://me:********@db/x", "dragoman.yaml:7"]
    assert rows["admin_key"][0] == "********"
    assert rows["upstream_key"] == ["-", "default"]
    assert rows["models"] == ["writer", "dragoman.yaml:12"]
    assert rows["sampling"] == ["temperature=0.3", "dragoman.yaml:16"]
    values = json.loads(report.out)
    assert values["system"]["value"]["override"] == "Be brief."
    assert values["memory"] == {"value": 12 << 30, "from": "file", "at": "dragoman.yaml:8"}
    assert values["api_key"]["value"] == ["********"] * 2
    assert set(values) == set(config.list_settings())


def test_units_and_aliases_work_in_every_source(place: Path) -> None:
    (place / "dragoman.yaml").write_text("limits: {memory: 4GB}")
    assert config.load({"config": "dragoman.yaml"}).memory == 4 * 10**9
    assert config.load({}, {"DRAGOMAN_MEMORY": "4GB"}).memory == 4 * 10**9
    assert config.load({"memory": "4GB"}, {}).memory == 4 * 10**9
    assert config.load({"memory": 4 * 10**9}, {}).memory == 4 * 10**9


def test_directory_of_the_file_that_cannot_be_read(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / ("x" * 300)))
    result = run_command(capsys, "list")
    assert result.code != 0
    assert result.err.startswith("dragoman: ")
    assert result.err.endswith("dragoman.yaml: File name too long\n")
