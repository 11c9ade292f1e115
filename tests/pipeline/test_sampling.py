"""Sampling fields of a request against its model: what is refused, resolved, or has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from dragoman.engines.limits import check_grammar_sampling, check_token_ids
from dragoman.testing import ScriptedEngine
from dragoman.types import Job, Sampling
from tests.support.serving import RunningServer, make_chat, serve_scripted


def make_engine(*without: str, tokens: bool = True) -> ScriptedEngine:
    """Make an engine that takes all fields but some."""
    engine = ScriptedEngine("Hello.", tokens=tokens)
    fields = frozenset(Sampling.__struct_fields__) - set(without)
    engine.capabilities = replace(engine.capabilities, sampling=fields)
    return engine


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return make_engine()


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[RunningServer]:
    with serve_scripted(engine) as running:
        yield running


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(**fields), timeout=30)


REPLACED = "`mirostat` replaces all samplers but the temperature."
UNLISTED = "`samplers` does not list its sampler."


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({"top_k": 5, "temperature": 0.5}, []),
        ({"mirostat": 2, "temperature": 0.5, "top_k": 0, "top_p": 1}, []),
        ({"mirostat": 0, "top_k": 5}, []),
        ({"mirostat_mode": 2, "top_k": 5}, [f"`top_k` has no effect: {REPLACED}"]),
        ({"mirostat": 1, "rep_pen": 1.1}, [f"`rep_pen` has no effect: {REPLACED}"]),
        ({"mirostat": 1, "samplers": ["top_k"]}, [f"`samplers` has no effect: {REPLACED}"]),
        ({"samplers": ["top_k"], "top_k": 5}, []),
        ({"samplers": ["top_k"], "temp": 0.5}, [f"`temp` has no effect: {UNLISTED}"]),
        (
            {"samplers": [], "adaptive_target": 0.1},
            [f"`adaptive_target` has no effect: {UNLISTED}"],
        ),
        ({"samplers": "k", "adaptive_target": -1, "dry_multiplier": 0}, []),
        ({"dry_base": 2}, ["`dry_base` has no effect: `dry_multiplier` is not set."]),
        ({"dry_base": 2, "dry_multiplier": 0}, []),
        (
            {"rep_pen": 1.2, "rep_pen_range": 0},
            ["`rep_pen` has no effect: `repeat_last_n` is 0."],
        ),
        ({"rep_pen": 1.0, "rep_pen_range": 0}, []),
        ({"presence_penalty": 1, "repeat_last_n": -1}, []),
        (
            {"dry_multiplier": 1, "dry_range": 0},
            ["`dry_multiplier` has no effect: `dry_penalty_last_n` is 0."],
        ),
        ({"xtc_threshold": 0.1}, ["`xtc_threshold` has no effect: `xtc_probability` is not set."]),
    ],
)
def test_fields_without_effect_draw_a_warning(
    server: RunningServer, fields: dict[str, Any], warnings: list[str]
) -> None:
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    text = response.headers.get("x-dragoman-warning", "")
    assert text.count("has no effect") == len(warnings)
    assert all(warning in text for warning in warnings)


@pytest.mark.parametrize(
    ("fields", "biases"),
    [
        ({"logit_bias": {"ab": 2}}, {97: 2.0, 98: 2.0}),
        ({"logit_bias": [["7", 2], [7, 1]]}, {55: 2.0, 7: 1.0}),
        ({"logit_bias": [["a", 2], [97, 1]]}, {97: 1.0}),
        ({"logit_bias": {"<|im_end|>": -1}}, dict.fromkeys(b"<|im_end|>", -1.0)),
        ({"banned_tokens": [5]}, {5: -100.0}),
    ],
)
def test_biases_of_texts_become_biases_of_tokens(
    server: RunningServer, engine: ScriptedEngine, fields: dict[str, Any], biases: dict[int, float]
) -> None:
    assert post(server, **fields).status_code == 200
    assert engine.jobs[-1].sampling.logit_bias == biases


@pytest.mark.parametrize(
    ("engine", "fields", "param"),
    [
        (make_engine(tokens=False), {"logit_bias": {"a": 1}}, "logit_bias"),
        (make_engine("logit_bias"), {"logit_bias": {"a": 1}}, "logit_bias"),
        (make_engine("logit_bias"), {"custom_token_bans": "5"}, "custom_token_bans"),
        (make_engine("repetition_penalty"), {"rep_pen": 1.1}, "rep_pen"),
        (make_engine("dynatemp_range"), {"min_temp": 0.1, "max_temp": 1}, "max_temp"),
        (make_engine("mirostat"), {"mirostat_mode": 2}, "mirostat_mode"),
        (make_engine("samplers"), {"samplers": "kt"}, "samplers"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_the_clients_name(
    engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    with serve_scripted(engine) as server:
        response = post(server, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert f"`{param}`" in error["message"]


class PickyEngine(ScriptedEngine):
    """Rejects jobs by the names of their fields, which need not be the client's."""

    async def admit(self, job: Job) -> None:
        check_token_ids(job.sampling.logit_bias or (), 100, "logit_bias")
        check_grammar_sampling(job.sampling)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"banned_tokens": [100]}, "banned_tokens"),
        ({"custom_token_bans": "100"}, "custom_token_bans"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"min_new_tokens": 2}, "min_new_tokens"),
        ({"ban_eos_token": True}, "ban_eos_token"),
    ],
)
def test_what_an_engine_rejects_has_the_clients_name(fields: dict[str, Any], param: str) -> None:
    with serve_scripted(PickyEngine("Hello.", tokens=True)) as server:
        response = post(server, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    if param in ("min_new_tokens", "ban_eos_token"):
        assert f"`{param}` cannot" in error["message"]
