"""Every setting is declared completely: numbers have a range, and all sources read the same."""

from __future__ import annotations

import pytest

from dragoman import config
from dragoman.cli.main import parse_arguments
from dragoman.options import OptionField

FIELDS = list(config.list_settings().values())
NUMBERS = [field for field in FIELDS if field.kind in (int, float)]
UNBOUNDED = {"yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"}


def get_name(field: OptionField) -> str:
    return field.name


@pytest.mark.parametrize("field", NUMBERS, ids=get_name)
def test_number_out_of_range_is_named(field: OptionField) -> None:
    setting = field.setting
    low = setting.minimum if setting.minimum is not None else setting.above
    assert (low is not None) != (field.name in UNBOUNDED)
    wrong = [] if low is None else [low - 2]
    wrong += [setting.above] if setting.above is not None else []
    wrong += [setting.maximum + 1] if setting.maximum is not None else []
    for value in wrong:
        number = f"{value:g}"
        for flags, environment in (
            ({field.name: number}, {}),
            ({}, {config.name_variable(field): number}),
        ):
            with pytest.raises(config.SettingsError) as caught:
                config.load(flags, environment)
            where = config.name_variable(field) if environment else config.name_flag(field)
            assert str(caught.value).startswith(f"{where}: ")
            problem = str(caught.value).partition(" bytes; write the unit")[0]
            assert problem.endswith(f"got {number}")


@pytest.mark.parametrize("field", NUMBERS, ids=get_name)
@pytest.mark.parametrize("text", ["many", "", "nan", "1e999", "0x10", "1_0 0"])
def test_text_is_not_a_number(field: OptionField, text: str) -> None:
    if field.is_list and not text:
        return
    with pytest.raises(config.SettingsError, match="expected"):
        config.load({field.name: text}, {})


@pytest.mark.parametrize("field", FIELDS, ids=get_name)
def test_flag_and_variable_read_the_same(field: OptionField) -> None:
    if field.setting.is_file_only or field.name == "config":
        return
    text = make_text(field)
    words = [config.name_flag(field)] + ([] if field.kind is bool else [text])
    flags = {field.name: getattr(parse_arguments(["config", *words]), field.name)}
    by_flag = getattr(config.load(flags, {}), field.name)
    by_variable = getattr(config.load({}, {config.name_variable(field): text}), field.name)
    assert by_flag == (by_variable if not isinstance(by_flag, list) else [by_variable])
    assert by_flag != field.default or by_flag in (True, "llamacpp")


def test_variables_of_a_kubernetes_service_are_ignored() -> None:
    environment = {
        "DRAGOMAN_PORT": "tcp://10.0.0.1:8000",
        "DRAGOMAN_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "DRAGOMAN_PORT_8000_TCP_ADDR": "10.0.0.1",
        "DRAGOMAN_SERVICE_HOST": "10.0.0.1",
        "DRAGOMAN_SERVICE_PORT_HTTP": "8000",
    }
    configuration = config.load_configuration({}, environment)
    assert (configuration.settings, configuration.warnings) == (config.Settings(), ())


def test_empty_variable_is_not_set() -> None:
    environment = {config.name_variable(field): "" for field in FIELDS}
    assert config.load({}, environment) == config.Settings()


def make_text(field: OptionField) -> str:
    """Make a valid value of a setting."""
    if field.setting.choices:
        return field.setting.choices[-1]
    if field.setting.schemes:
        return f"{field.setting.schemes[0]}://host"
    if field.takes_pairs:
        return "temperature=1"
    if field.kind is bool:
        return "yes"
    if field.kind in (int, float):
        number = "2MiB" if field.setting.unit == "bytes" else "1"
        return "1,1" if field.is_list else number
    return "text"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("tensor_split", "3,1", (3.0, 1.0)),
        ("memory", "4GB", 4 * 10**9),
        ("keep_alive", "forever", -1),
        ("context", "128k", 131072),
        ("flash_attn", "ON", "on"),
        ("log_level", "Warning", "warning"),
        ("api_key", "a, b", ("a", "b")),
        ("models_dir", "~/models", None),
    ],
)
def test_values_of_variables(name: str, text: str, value: object) -> None:
    settings = config.load({}, {f"DRAGOMAN_{name.upper()}": text})
    if value is None:
        assert "~" not in getattr(settings, name)
    else:
        assert getattr(settings, name) == value
