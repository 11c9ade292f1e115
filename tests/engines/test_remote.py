"""The engine over an upstream server, with every protocol that carries token ids."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.errors import BadRequest, DragomanError, ModelBroken, Unsupported
from dragoman.testing import Reply, ScriptedWorker, check_engine
from dragoman.testing.choice_script import make_token_logprob
from dragoman.types import Adapter, Job, Json, Step
from tests.support.certificates import Authority
from tests.support.remote_engines import (
    VARIANTS,
    Variant,
    get_vocabulary,
    in_event_loop,
    make_job,
    make_settings,
    make_upstream,
    make_worker,
    open_remote,
)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@in_event_loop
async def test_the_engine_keeps_the_contract(variant: Variant) -> None:
    script = "The quick brown fox jumps over the lazy dog, again and again."
    async with (
        make_worker(variant, script, lora=("tuned",), cached=3) as worker,
        open_remote(variant, worker, grammars=True) as engine,
    ):
        results = await check_engine(engine)
        assert engine.running_requests == 0
    passed = {result.name for result in results if result.outcome == "passed"}
    assert passed >= {
        "closing_cancels",
        "delivers_what_it_yields",
        "keeps_cache_scopes_apart",
        "numbers_choices_from_zero",
        "repeats_a_seeded_answer",
        "reports_logprobs_on_request",
        "stops_at_a_stop_token",
        "tokenizes",
    }


async def collect(engine: RemoteEngine, job: Job) -> list[Step]:
    await engine.admit(job)
    return [step async for step in engine.generate(job)]


# the sampling fields of a request, where each protocol has them
def get_fields(variant: Variant, worker: ScriptedWorker) -> dict[str, Json]:
    path, body = worker.requests[-1]
    assert path == variant.path
    fields: dict[str, Json] = body.get("sampling_params", body)
    return fields


EXPLICIT_FIELDS = {
    "llama-server": {"temperature", "top_k", "top_p", "min_p", "typical_p", "samplers", "seed"}
    | {"repeat_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n", "n_predict"}
    | {"logit_bias", "ignore_eos", "cache_prompt", "mirostat", "dry_multiplier", "lora"},
    "vllm": {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"}
    | {"frequency_penalty", "max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "n"},
    "sglang": {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "n"}
    | {"presence_penalty", "frequency_penalty", "max_new_tokens", "min_new_tokens"}
    | {"ignore_eos", "stop_token_ids"},
}


@in_event_loop
async def test_every_sampling_field_is_sent(variant: Variant) -> None:
    """A server fills in what is missing from its command line, which is not what clients want."""
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        await collect(engine, make_job())
        fields = get_fields(variant, worker)
        assert fields.keys() >= EXPLICIT_FIELDS[variant.kind]
        assert None not in [fields[name] for name in EXPLICIT_FIELDS[variant.kind]]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"top_k": 0}, {"llama-server": 0, "vllm": 0, "sglang": -1}),
        ({"top_k": 7}, {"llama-server": 7, "vllm": 7, "sglang": 7}),
        ({"top_p": 0.0, "temperature": 1.0}, {"vllm": 1, "sglang": 1}),
    ],
)
@in_event_loop
async def test_top_k_is_sent_as_each_server_spells_it(
    variant: Variant, job: dict[str, Json], expected: dict[str, int]
) -> None:
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        await collect(engine, make_job(**job))
        if variant.kind in expected:
            assert get_fields(variant, worker)["top_k"] == expected[variant.kind]


@in_event_loop
async def test_fields_that_a_protocol_lacks_are_not_listed(variant: Variant) -> None:
    missing = {
        "llama-server": {"min_tokens"},
        "vllm": {"typical_p", "repeat_last_n", "mirostat"},
        "sglang": {"typical_p", "repeat_last_n", "mirostat"},
    }
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        assert not engine.capabilities.sampling & missing[variant.kind]
        assert engine.capabilities.sampling >= {"temperature", "top_p", "seed", "stop_token_ids"}
        assert engine.capabilities.token_prompts


@in_event_loop
async def test_seeds_that_sglang_ignores_are_not_listed() -> None:
    variant = VARIANTS["sglang-cumulative"]
    async with make_worker(variant) as worker:
        upstream = make_upstream(variant, worker, deterministic_seeds=False)
        engine = RemoteEngine(make_settings(worker), upstream, get_vocabulary(worker))
        assert "seed" not in engine.capabilities.sampling


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@in_event_loop
async def test_choices_have_seeds_of_their_own(
    variant: Variant, n: int, temperature: float
) -> None:
    script = Reply("one", variants=("two", "three"))
    async with make_worker(variant, script) as worker, open_remote(variant, worker) as engine:
        job = make_job(n=n, temperature=temperature, seed=0)
        texts = [""] * n
        for step in await collect(engine, job):
            texts[step.choice] += bytes(step.ids).decode()
        assert texts == (["one"] * n if temperature == 0 else ["one", "two", "three"][:n])


@in_event_loop
async def test_logprobs_belong_to_their_tokens(variant: Variant) -> None:
    async with make_worker(variant, "Hello.") as worker, open_remote(variant, worker) as engine:
        steps = await collect(engine, make_job(logprobs=2))
        ids = [token for step in steps for token in step.ids]
        logprobs = [entry for step in steps for entry in step.logprobs][: len(ids)]
        assert [entry.id for entry in logprobs] == ids
        expected = [make_token_logprob(token, place, 2) for place, token in enumerate(ids)]
        assert [entry.top for entry in logprobs] == [entry.top for entry in expected]


@in_event_loop
async def test_the_prompt_and_its_cached_tokens_are_counted_once(variant: Variant) -> None:
    async with make_worker(variant, cached=4) as worker, open_remote(variant, worker) as engine:
        steps = await collect(engine, make_job("a prompt", n=2, temperature=1.0))
        counts = [step.prompt_tokens for step in steps if step.prompt_tokens is not None]
        assert counts == [len("a prompt")]
        assert [step.cached_tokens for step in steps if step.cached_tokens] == [4]


@in_event_loop
async def test_a_limit_of_no_tokens_is_an_empty_answer(variant: Variant) -> None:
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        steps = await collect(engine, make_job(max_tokens=0))
        assert [token for step in steps for token in step.ids] == []
        assert [step.finish for step in steps if step.finish] == ["length"]


@pytest.mark.parametrize(
    ("job", "param"),
    [
        ({"prompt": "text"}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1_000_000]}, "prompt"),
        ({"n": 1000}, "n"),
        ({"logprobs": 1000}, "top_logprobs"),
        ({"prompt_logprobs": 1}, "echo"),
        ({"lora": (Adapter("unknown"),)}, "lora"),
        ({"logit_bias": {1_000_000: 1.0}}, "logit_bias"),
        ({"grammar": "start"}, "grammar"),
    ],
)
@in_event_loop
async def test_what_cannot_run_is_rejected_before_it_is_sent(
    variant: Variant, job: dict[str, Json], param: str
) -> None:
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        changed = make_job(**{name: value for name, value in job.items() if name != "prompt"})
        if "prompt" in job:
            changed = replace(changed, prompt=job["prompt"])
        with pytest.raises(BadRequest) as error:
            await engine.admit(changed)
        assert error.value.param == param
        assert worker.count_requests(variant.path) == 0


@pytest.mark.parametrize("temperature", [0.005, 2.5])
@in_event_loop
async def test_temperatures_that_vllm_changes_are_rejected(temperature: float) -> None:
    variant = VARIANTS["vllm-generate"]
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        with pytest.raises(Unsupported) as error:
            await engine.admit(make_job(temperature=temperature))
        assert error.value.param == "temperature"


@in_event_loop
async def test_scopes_keep_cached_prompts_apart_where_a_server_can(variant: Variant) -> None:
    async with make_worker(variant) as worker, open_remote(variant, worker) as engine:
        salts = []
        for scope, cache in (("a", True), ("a", True), ("a", False), ("a", False)):
            await collect(engine, make_job(cache_scope=scope, cache_prompt=cache))
            body = worker.requests[-1][1]
            salts.append(body.get("cache_salt") or body.get("extra_key"))
        if not engine.capabilities.cache_scopes:
            assert variant.kind == "llama-server"
            assert salts == [None] * 4
            return
        assert salts[:2] == ["a", "a"]
        if variant.protocol == "vllm-generate":
            assert body["sampling_params"]["skip_reading_prefix_cache"]
        else:
            assert len(set(salts)) == 3


@in_event_loop
async def test_a_key_is_sent_and_never_shown(
    variant: Variant, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    file = tmp_path / "key"
    file.write_text("secret-1\n")
    async with make_worker(variant, api_key="secret-1") as worker:
        with pytest.raises(ModelBroken, match="API key"):
            await connect(
                make_settings(worker), make_upstream(variant, worker), get_vocabulary(worker)
            )
        settings = make_settings(worker, api_key="secret-1")
        assert "secret" not in repr(settings)
        async with open_remote(variant, worker, api_key="secret-1") as engine:
            await collect(engine, make_job())
        async with open_remote(variant, worker, api_key_file=str(file)) as engine:
            await collect(engine, make_job())
            worker.api_key = "secret-2"
            file.write_text("secret-2")  # replaced while the server runs
            await collect(engine, make_job())
            worker.api_key = "another"
            with pytest.raises(DragomanError):
                await collect(engine, make_job())
    assert "secret" not in caplog.text


@in_event_loop
async def test_a_certificate_is_verified(tmp_path: Path) -> None:
    variant = VARIANTS["vllm-generate"]
    authority = Authority(tmp_path)
    files = authority.issue("server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    async with make_worker(variant, tls=tls) as worker:
        async with open_remote(variant, worker, ca_file=str(authority.file)) as engine:
            await collect(engine, make_job())
        with pytest.raises(ModelBroken, match="certificate"):
            await connect(
                make_settings(worker), make_upstream(variant, worker), get_vocabulary(worker)
            )


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "127.0.0.1:8000"},
        {"url": "ftp://127.0.0.1"},
        {"url": "http://127.0.0.1:99999"},
        {"url": "http://user:password@127.0.0.1"},
        {"url": "http://127.0.0.1/?model=x"},
        {"url": "http://127.0.0.1/a b"},
        {"url": "http://127.0.0.1/modèles"},
        {"url": "https://127.0.0.1", "ca_file": "/missing.pem"},
        {"url": "http://127.0.0.1", "api_key_file": "/missing"},
        {"url": "http://127.0.0.1", "api_key": "password@\r\nx-other: 1"},
    ],
)
@in_event_loop
async def test_wrong_settings_are_refused_without_secrets(changes: dict[str, str]) -> None:
    variant = VARIANTS["vllm-generate"]
    worker = make_worker(variant)
    settings = make_settings(worker, **changes)
    with pytest.raises(ModelBroken) as error:
        await connect(settings, make_upstream(variant, worker), get_vocabulary(worker))
    assert "password@" not in error.value.message
