"""Sampling fields: canonical names, aliases, ranges, and fields that no engine has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols import completions
from dragoman.protocols.chat import decode as chat
from dragoman.protocols.shared.samplers import ALIASES, OFF_VALUES, SAMPLERS, SamplerFields
from dragoman.types import BannedString, Request, Sampling
from tests.protocols.test_decode import SAMPLING
from tests.support.paths import ROOT


def decode(**fields: Any) -> Request:
    """Decode fields as a chat and as a completion, which must agree."""
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": messages} | fields).encode()
    request = chat.decode_request(body, strict=True)
    body = json.dumps({"model": "m", "max_tokens": 9, "prompt": "hi"} | fields).encode()
    other = completions.decode_request(body, strict=True)
    assert request.sampling == other.sampling
    assert request.banned_strings == other.banned_strings
    return request


def decode_sampling(**fields: Any) -> Sampling:
    return decode(**fields).sampling


def get_error(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    return caught.value


VALUES: list[tuple[str, Any, Any]] = [
    ("top_n_sigma", 1.5, 1.5),
    ("xtc_probability", 0.5, 0.5),
    ("xtc_threshold", 0.2, 0.2),
    ("dynatemp_range", 0.5, 0.5),
    ("dynatemp_exponent", 2.0, 2.0),
    ("mirostat", 2, 2),
    ("mirostat_tau", 4.0, 4.0),
    ("mirostat_eta", 0.2, 0.2),
    ("adaptive_target", 0.4, 0.4),
    ("adaptive_decay", 0.5, 0.5),
    ("min_keep", 3, 3),
    ("dry_multiplier", 0.8, 0.8),
    ("dry_base", 1.5, 1.5),
    ("dry_allowed_length", 3, 3),
    ("dry_penalty_last_n", -1, -1),
    ("dry_sequence_breakers", ["\n", "x"], ("\n", "x")),
    ("dry_sequence_breakers", '["\\n", "x"]', ("\n", "x")),
    ("dry_sequence_breakers", '"\\n", "x"', ("\n", "x")),
    ("samplers", ["top_k", "temperature"], ("top_k", "temperature")),
    ("samplers", ["typ_p", "Temp", "m"], ("typical_p", "temperature", "min_p")),
    ("samplers", "kt", ("top_k", "temperature")),
    ("samplers", [], ()),
]


@pytest.mark.parametrize(("field", "value", "expected"), VALUES)
def test_a_field_is_decoded(field: str, value: Any, expected: Any) -> None:
    assert decode_sampling(**{field: value}) == Sampling(max_tokens=9, **{field: expected})


def test_the_tables_cover_every_sampling_field() -> None:
    covered = {name for _, _, name, _ in SAMPLING} | {field for field, _, _ in VALUES}
    assert covered == set(Sampling.__struct_fields__)


GOOD_VALUES: dict[str, Any] = dict.fromkeys(("mirostat", "repeat_last_n", "seed", "min_tokens"), 1)
GOOD_VALUES |= {"ignore_eos": True, "dry_penalty_last_n": 1}
OTHER_VALUES: dict[str, Any] = dict.fromkeys(GOOD_VALUES, 2) | {"ignore_eos": False}
PAIRS = [(alias, ours) for ours, aliases in ALIASES.items() for alias in aliases]


@pytest.mark.parametrize(("alias", "ours"), PAIRS)
def test_an_alias_means_the_same(alias: str, ours: str) -> None:
    value, other = GOOD_VALUES.get(ours, 0.5), OTHER_VALUES.get(ours, 0.75)
    request = decode(**{alias: value})
    assert request.sampling == Sampling(max_tokens=9, **{ours: value})
    assert request.client_field_names == {ours: alias}
    assert decode_sampling(**{alias: value, ours: value}) == request.sampling
    error = get_error(**{alias: value, ours: other})
    assert (error.status, error.param) == (400, alias)
    assert f"`{alias}`" in error.message
    assert f"`{ours}`" in error.message


def test_every_alias_has_the_range_of_its_field() -> None:
    annotations = SamplerFields.__annotations__
    assert [pair for pair in PAIRS if annotations[pair[0]] != annotations[pair[1]]] == []


RANGES: list[tuple[str, Any]] = [
    ("top_n_sigma", -2),
    ("nsigma", "high"),
    ("xtc_probability", 1.1),
    ("xtc_threshold", -0.1),
    ("dynatemp_range", 3),
    ("dynatemp_exponent", -1),
    ("mirostat", 3),
    ("mirostat_mode", -1),
    ("mirostat_tau", -1),
    ("mirostat_eta", 2),
    ("adaptive_target", 1.5),
    ("adaptive_decay", 1),
    ("rep_pen", 0),
    ("rep_pen_range", -2),
    ("repeat_last_n", -2),
    ("dry_multiplier", -1),
    ("dry_base", 0.5),
    ("dry_allowed_length", -1),
    ("dry_range", -2),
    ("dry_sequence_breakers", []),
    ("dry_sequence_breakers", "[1]"),
    ("dry_sequence_breakers", ["x"] * 33),
    ("dry_sequence_breakers", json.dumps(["x"] * 33)),
    ("typical", 2),
    ("temp", -1),
    ("min_new_tokens", -1),
    ("min_keep", -1),
    ("banned_tokens", [-1]),
    ("custom_token_bans", "1,x"),
    ("banned_strings", [""]),
    ("bad_words", "word"),
    ("logit_bias", {"5": True}),
    ("logit_bias", {"": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", [[5, -101]]),
    ("logit_bias", [[5]]),
    ("samplers", ["top_k", "top_k"]),
    ("samplers", "kk"),
    ("samplers", "q"),
]


@pytest.mark.parametrize(("field", "value"), RANGES)
def test_a_value_out_of_range_is_rejected_under_the_clients_name(field: str, value: Any) -> None:
    error = get_error(**{field: value})
    assert error.status == 400
    assert (error.param or "").startswith(field)
    assert f"`{field}" in error.message


@pytest.mark.parametrize(
    ("name", "hint"),
    [("topk", "Did you mean `top_k`?"), ("tempurature", "`temperature`?"), ("zzz", "Known: pen")],
)
def test_an_unknown_sampler_gets_a_suggestion(name: str, hint: str) -> None:
    error = get_error(samplers=[name])
    assert f"no sampler `{name}`" in error.message
    assert hint in error.message


ON_VALUES: dict[str, Any] = {"negative_prompt": "ugly", "use_beam_search": True}
ON_VALUES |= {"token_healing": True, "allowed_tokens": [1], "allowed_token_ids": [1]}
ON_VALUES |= {"num_beams": 4, "no_repeat_ngram_size": 3}


@pytest.mark.parametrize("field", OFF_VALUES)
def test_a_sampler_that_no_engine_has_must_be_off(field: str) -> None:
    assert decode_sampling(**{field: OFF_VALUES[field]}) == Sampling(max_tokens=9)
    with pytest.raises(Unsupported) as caught:
        decode(**{field: ON_VALUES.get(field, 0.5)})
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"min_temp": 0.5, "max_temp": 1.5}, (1.0, 0.5)),
        ({"dynatemp_low": 0.0, "dynatemp_high": 2.0, "dynamic_temperature": True}, (1.0, 1.0)),
        ({"dynatemp_low": 0.5, "max_temp": 0.5, "temperature": 0.25}, (0.25, None)),
        ({"min_temp": 0.5, "max_temp": 1.5, "dynamic_temperature": False}, (None, None)),
    ],
)
def test_bounds_of_the_temperature(fields: dict[str, Any], expected: tuple[Any, Any]) -> None:
    sampling = decode_sampling(**fields)
    assert (sampling.temperature, sampling.dynatemp_range) == expected


@pytest.mark.parametrize(
    ("fields", "is_warned"),
    [
        ({"dynamic_temperature": True}, True),
        ({"dynamic_temperature": False}, False),
        ({"dynamic_temperature": True, "dynatemp_range": 0.5}, False),
        ({"dynamic_temperature": True, "min_temp": 0.5, "max_temp": 1}, False),
    ],
)
def test_a_switch_without_temperatures_draws_a_warning(
    fields: dict[str, Any], is_warned: bool
) -> None:
    assert ["`dynamic_temperature`" in text for text in decode(**fields).warnings] == (
        [True] if is_warned else []
    )


def test_bounds_replace_the_temperature_with_a_warning() -> None:
    [warning] = decode(temperature=0.2, min_temp=0.5, max_temp=1.5).warnings
    assert warning.startswith("`temperature` has no effect")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_temp": 0.5}, "min_temp"),
        ({"dynatemp_high": 0.5}, "dynatemp_high"),
        ({"min_temp": 1.5, "max_temp": 0.5}, "min_temp"),
        ({"min_temp": 0.5, "dynatemp_low": 0.4, "max_temp": 1}, "dynatemp_low"),
        ({"min_temp": 0.5, "max_temp": 1.5, "dynatemp_range": 0.1}, "max_temp"),
    ],
)
def test_bounds_that_do_not_fit(fields: dict[str, Any], param: str) -> None:
    assert get_error(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "ids", "texts"),
    [
        ({"logit_bias": {"5": 2, "7": False}}, {5: 2.0, 7: -100.0}, ()),
        ({"logit_bias": [[5, 2], [7, False]]}, {5: 2.0, 7: -100.0}, ()),
        ({"logit_bias": {" cat": -3, "5": 1}}, {5: 1.0}, ((" cat", -3.0),)),
        ({"logit_bias": [["5", 1], ["dog", False]]}, {}, (("5", 1.0), ("dog", -100.0))),
        ({"banned_tokens": [5, 6]}, {5: -100.0, 6: -100.0}, ()),
        ({"custom_token_bans": "5, 6"}, {5: -100.0, 6: -100.0}, ()),
        ({"custom_token_bans": ""}, None, ()),
        ({"logit_bias": {"5": 1}, "banned_tokens": [6]}, {5: 1.0, 6: -100.0}, ()),
    ],
)
def test_biases_and_bans(
    fields: dict[str, Any], ids: dict[int, float], texts: tuple[tuple[str, float], ...]
) -> None:
    request = decode(**fields)
    assert (request.sampling.logit_bias, request.text_biases) == (ids, texts)


def test_banned_strings_ignore_case_and_bad_words_do_not() -> None:
    request = decode(banned_strings=["Tapestry"], bad_words=["Paris"])
    assert request.banned_strings == (BannedString("Tapestry", True), BannedString("Paris"))


def test_the_documentation_lists_every_field() -> None:
    page = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    names = {*Sampling.__struct_fields__, *SamplerFields.__struct_fields__, *SAMPLERS}
    assert sorted(name for name in names if f"`{name}`" not in page) == []
