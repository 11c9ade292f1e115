"""Engines list the sampling fields they honour; a field that is not listed returns 400.

So a field that is added to `Sampling` is rejected by every engine until the engine lists it.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.engines import FACTORIES, get_capabilities
from dragoman.engines.adapter import adapt
from dragoman.engines.logits import LogitsEngine
from dragoman.errors import Unsupported
from dragoman.models.model import Model
from dragoman.pipeline.validate import validate_request
from dragoman.prompt.renderer import PromptRenderer
from dragoman.testing import ByteTokenizer, ScriptedEngine
from dragoman.types import Capabilities, Engine, Job, Prompt, Request, Sampling, Step
from tests.support.tiny_model import TinyModel

ALL_FIELDS = frozenset(Sampling.__struct_fields__)
VALUES: dict[str, Any] = {
    "logit_bias": {1: 2.0},
    "ignore_eos": True,
    "stop_token_ids": (1,),
    "samplers": ("top_k",),
    "dry_sequence_breakers": ("a",),
}
# fields that need another one to have a meaning
MAIN_FIELDS = {
    "xtc_threshold": "xtc_probability",
    "dynatemp_exponent": "dynatemp_range",
    "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
    "adaptive_decay": "adaptive_target",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
}
LLAMA_CPP_SAMPLERS = {"top_n_sigma", "xtc_probability", "adaptive_target", "samplers", "min_keep"}
LLAMA_CPP_SAMPLERS |= {"dynatemp_range", "mirostat", "dry_multiplier", *MAIN_FIELDS}
LOGITS_SAMPLERS = {"top_n_sigma", "xtc_probability", "xtc_threshold"}
LOGITS_SAMPLERS |= {"dynatemp_range", "dynatemp_exponent"}
OFF_VALUES: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "dry_multiplier": 0.0,
    "logit_bias": {},
    "min_tokens": 0,
    "ignore_eos": False,
    "stop_token_ids": (),
}


class UndeclaredEngine:
    """An engine that declares no capabilities."""

    async def generate(self, job: Job) -> AsyncIterator[Step]:
        yield Step(finish="stop")


class RequestEngine:
    async def generate_request(self, obj: object) -> AsyncIterator[dict[str, Any]]:
        yield {"text": "", "meta_info": {"finish_reason": "stop"}}


class FutureSampling(Sampling, frozen=True, kw_only=True):
    """`Sampling` as it may look tomorrow."""

    new_field: float | None = None


def get_fields(engine: Engine) -> frozenset[str]:
    return get_capabilities(engine).sampling


def get_registered_fields(name: str) -> frozenset[str]:
    """Return the list of an engine that needs a model file, without loading one."""
    module = importlib.import_module(FACTORIES[name].partition(":")[0])
    fields: frozenset[str] = module.SAMPLING_FIELDS
    return fields


FIELDS = {
    **{name: get_registered_fields(name) for name in FACTORIES},
    "logits": get_fields(LogitsEngine(TinyModel(), ByteTokenizer())),
    "scripted": get_fields(ScriptedEngine()),
    "scripted with tokens": get_fields(ScriptedEngine(tokens=True)),
    "generate only": get_fields(adapt(UndeclaredEngine())),
    "generate_request only": get_fields(adapt(RequestEngine())),
}


def make_sampling(field: str) -> Sampling:
    """Make sampling in which a field is on."""
    values = {field: VALUES.get(field, 2)}
    if field in MAIN_FIELDS:
        values[MAIN_FIELDS[field]] = 2
    return Sampling(**values)


def validate(
    fields: frozenset[str], sampling: Sampling, names: dict[str, str] | None = None
) -> None:
    model = Model(
        id="model",
        engine=ScriptedEngine(),
        capabilities=Capabilities(sampling=fields),
        renderer=PromptRenderer(None, None),
    )
    request = Request(
        model="model",
        prompts=(Prompt(content="x"),),
        sampling=sampling,
        client_field_names=names or {},
    )
    validate_request(request, model)


@pytest.mark.parametrize("engine", FIELDS)
def test_every_listed_field_exists(engine: str) -> None:
    assert FIELDS[engine] <= ALL_FIELDS


def test_today_every_engine_lists_what_it_honours() -> None:
    assert {name: ALL_FIELDS - fields for name, fields in FIELDS.items()} == {
        "llamacpp": set(),
        "vllm": {"typical_p", "repeat_last_n"} | LLAMA_CPP_SAMPLERS,
        "logits": LLAMA_CPP_SAMPLERS - LOGITS_SAMPLERS,
        "scripted": {"stop_token_ids", "logit_bias"} | LLAMA_CPP_SAMPLERS,
        "scripted with tokens": LLAMA_CPP_SAMPLERS,
        "generate only": LLAMA_CPP_SAMPLERS,
        "generate_request only": {"typical_p", "repeat_last_n", "logit_bias"} | LLAMA_CPP_SAMPLERS,
    }


@pytest.mark.parametrize("field", sorted(ALL_FIELDS))
@pytest.mark.parametrize("engine", FIELDS)
def test_a_field_that_is_not_listed_is_rejected_by_name(engine: str, field: str) -> None:
    sampling = make_sampling(field)
    if field in FIELDS[engine]:
        validate(FIELDS[engine], sampling)
    with pytest.raises(Unsupported) as rejected:
        validate((FIELDS[engine] | set(MAIN_FIELDS.values())) - {field}, sampling)
    assert (rejected.value.status, rejected.value.param) == (400, field)
    assert f"`{field}`" in rejected.value.message


@pytest.mark.parametrize("engine", FIELDS)
def test_a_new_field_is_rejected_by_every_engine(engine: str) -> None:
    with pytest.raises(Unsupported) as rejected:
        validate(FIELDS[engine], FutureSampling(new_field=0.5))
    assert (rejected.value.status, rejected.value.param) == (400, "new_field")


def test_an_engine_that_lists_nothing_honours_nothing() -> None:
    validate(Capabilities().sampling, Sampling())
    for field in ALL_FIELDS:
        with pytest.raises(Unsupported):
            validate(Capabilities().sampling, make_sampling(field))


@pytest.mark.parametrize("field", OFF_VALUES)
def test_every_engine_takes_a_field_that_is_off(field: str) -> None:
    dependent = [name for name, main in MAIN_FIELDS.items() if main == field]
    settings = {name: VALUES.get(name, 2) for name in dependent}
    sampling = Sampling(**{field: OFF_VALUES[field]}, **settings)
    validate(frozenset(), sampling)
    assert all(sampling.is_off(name) for name in (field, *dependent))
    with pytest.raises(Unsupported):
        validate(frozenset(), make_sampling(field))


def test_an_error_names_the_field_as_the_client_does() -> None:
    names = {"repetition_penalty": "rep_pen"}
    with pytest.raises(Unsupported) as rejected:
        validate(frozenset(), Sampling(repetition_penalty=1.2), names)
    assert rejected.value.param == "rep_pen"
    assert "`rep_pen`" in rejected.value.message
