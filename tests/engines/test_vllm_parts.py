"""The parts of the vLLM engine that need no vLLM: arguments, settings, errors, outputs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman.engines import EngineDied
from dragoman.engines.vllm.adapters import AdapterSet, find_max_rank, read_rank
from dragoman.engines.vllm.core_reader import CoreReader, find_missing
from dragoman.engines.vllm.failures import convert_failure
from dragoman.engines.vllm.multi_modal import MultiModalPrompts
from dragoman.engines.vllm.outputs import ChoiceReader, RequestReader
from dragoman.engines.vllm.sampling import build_request
from dragoman.engines.vllm.settings import VllmSettings, build_arguments, list_variables
from dragoman.engines.vllm.statistics import SchedulerStatistics
from dragoman.errors import (
    AdapterNotFound,
    BadRequest,
    DragomanError,
    EngineFailed,
    ModelBroken,
    Overloaded,
    Unavailable,
    Unsupported,
)
from dragoman.types import Adapter, Job, Sampling, Step
from dragoman.types.media_ids import PromptCount, make_media_ids
from tests.support.media_files import make_image, make_sound
from tests.support.vision_items import make_item

EOS = (2, 7)
KNOWN = {"model", "max_model_len", "max_num_seqs", "dtype", "scheduling_policy", "runner"}
KNOWN |= {"disable_log_stats", "structured_outputs_config", "kv_cache_memory_bytes"}
KNOWN |= {"gpu_memory_utilization", "enable_lora", "max_loras", "max_lora_rank"}
KNOWN |= {"tensor_parallel_size", "enable_chunked_prefill"}


def make_job(n: int = 1, logprobs: int | None = None, **sampling: Any) -> Job:
    return Job(id="j", prompt=[1, 2, 3], n=n, logprobs=logprobs, sampling=Sampling(**sampling))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": None, "n": 1}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_k": 1, "temperature": 0.8}, {"temperature": 0.0}),
        ({"top_p": 0.0, "temperature": 0.8}, {"top_p": 1.0, "top_k": 1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"max_tokens": 5, "min_tokens": 9}, {"max_tokens": 5, "min_tokens": 5}),
        ({"max_tokens": 0}, {"max_tokens": 1, "min_tokens": 0}),
        ({}, {"stop_token_ids": [2, 7], "ignore_eos": False}),
        ({"stop_token_ids": (9, 2)}, {"stop_token_ids": [2, 7, 9]}),
        ({"ignore_eos": True, "stop_token_ids": (9,)}, {"stop_token_ids": [9], "ignore_eos": True}),
        ({"seed": -1}, {"seed": (1 << 62) - 1}),
        ({"seed": 11}, {"seed": 11}),
        ({"logit_bias": {5: -200.0, 6: 3.0}}, {"logit_bias": {5: -100.0, 6: 3.0}}),
        ({"repetition_penalty": 1.1, "min_p": 0.1}, {"repetition_penalty": 1.1, "min_p": 0.1}),
        ({"presence_penalty": -2.0}, {"presence_penalty": -2.0, "frequency_penalty": 0.0}),
    ],
)
def test_sampling_becomes_arguments(sampling: dict[str, Any], expected: dict[str, Any]) -> None:
    params = build_request(make_job(**sampling), EOS).params
    assert {name: params[name] for name in expected} == expected


def test_what_vllm_rejects_or_changes_is_expressed_in_another_way() -> None:
    greedy = build_request(make_job(n=3, temperature=0.0), EOS)
    assert (greedy.params["n"], greedy.copies) == (1, 3)
    assert build_request(make_job(n=3), EOS).params["n"] == 3
    tiny = build_request(make_job(temperature=0.002), EOS)
    assert (tiny.params["temperature"], tiny.temperature) == (0.01, 0.002)
    assert build_request(make_job(max_tokens=0), EOS).drops_token


def test_cache_and_priority_of_a_job() -> None:
    job = Job(id="j", prompt=[1], cache_scope="alice", cache_prompt=False, priority="batch")
    request = build_request(job, EOS)
    assert (request.cache_salt, request.priority) == ("alice", 2)
    assert request.params["skip_reading_prefix_cache"] is True
    request = build_request(Job(id="j", prompt=[1]), EOS)
    assert (request.cache_salt, request.priority) == (None, 0)
    assert "skip_reading_prefix_cache" not in request.params


def build(settings: VllmSettings, *, on_cpu: bool = False) -> dict[str, Any]:
    return build_arguments(settings, KNOWN, on_cpu=on_cpu, available=8 << 30)


def test_settings_become_arguments() -> None:
    arguments = build(VllmSettings(path="/m", context=512, slots=3))
    assert (arguments["model"], arguments["max_model_len"]) == ("/m", 512)
    assert arguments["max_num_seqs"] == 3
    assert arguments["structured_outputs_config"] == {"backend": "guidance"}
    assert "kv_cache_memory_bytes" not in arguments
    assert build(VllmSettings(path="/m"))["max_model_len"] == -1
    assert build(VllmSettings(path="/m"), on_cpu=True)["kv_cache_memory_bytes"] == 2 << 30
    assert build(VllmSettings(path="/m"), on_cpu=True)["enable_chunked_prefill"] is False
    assert "enable_chunked_prefill" not in build(VllmSettings(path="/m"))
    assert build(VllmSettings(path="/m", embeddings=True))["runner"] == "pooling"


def test_arguments_of_vllm_pass_through() -> None:
    given = {"tensor-parallel-size": 2, "gpu_memory_utilization": 0.5, "max_num_seqs": 7}
    arguments = build(VllmSettings(path="/m", slots=3, engine_arg=given), on_cpu=True)
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["max_num_seqs"] == 7
    assert "kv_cache_memory_bytes" not in arguments


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tensor_paralel_size", "no argument `tensor_paralel_size`. Did you mean `tensor_parallel"),
        ("zzz", "no argument `zzz`."),
        ("model", "`model`: name the model on the command line"),
        ("lora_modules", "use --lora"),
    ],
)
def test_unknown_arguments_are_errors(name: str, problem: str) -> None:
    with pytest.raises(ModelBroken) as error:
        build(VllmSettings(path="/m", engine_arg={name: 1}))
    assert problem in error.value.message


def test_variables_keep_vllm_off_the_network_and_limit_its_threads() -> None:
    variables = list_variables(VllmSettings(path="/m", threads=2))
    assert variables["HF_HUB_OFFLINE"] == variables["VLLM_NO_USAGE_STATS"] == "1"
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in list_variables(VllmSettings(path="/m"))


def make_exception(*names: str, **attributes: object) -> Exception:
    """Make an exception of a class with these names, the last one its own."""
    kind: type[Exception] = Exception
    for name in names:
        kind = type(name, (kind,), {})
    error = kind("/a/path: details")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (make_exception("GracefulHTTPError", "QueueOverflowError"), Overloaded, 429),
        (make_exception("GracefulHTTPError", "MaxQueuedTokensError"), Overloaded, 429),
        (make_exception("RetryableRequestError"), Unavailable, 503),
        (make_exception("VLLMClientError", "LoRAAdapterNotFoundError"), AdapterNotFound, 400),
        (make_exception("VLLMClientError", "VLLMValidationError"), BadRequest, 400),
        (ValueError("a value"), BadRequest, 400),
        (RuntimeError("broken"), EngineFailed, 500),
        (RuntimeError("CUDA out of memory"), Unavailable, 503),
        (Unsupported("ours"), Unsupported, 400),
    ],
)
def test_exceptions_become_errors(error: Exception, kind: type, status: int) -> None:
    converted = convert_failure(error)
    assert isinstance(converted, DragomanError)
    assert isinstance(converted, kind)
    assert converted.status == status
    assert "/a/path" not in converted.message


def test_a_rejected_parameter_is_named_as_clients_know_it() -> None:
    error = make_exception("VLLMClientError", "VLLMValidationError", parameter="structured_outputs")
    converted = convert_failure(error)
    assert isinstance(converted, BadRequest)
    assert converted.param == "grammar"
    dead = make_exception("EngineDeadError")
    generate = make_exception("EngineGenerateError")
    generate.__cause__ = dead
    assert isinstance(convert_failure(dead), EngineDied)
    assert isinstance(convert_failure(generate), EngineDied)


def read_outputs(job: Job, *outputs: Any, copies: int = 1, drops: bool = False) -> list[Step]:
    steps: list[Step] = []
    groups = [range(copies)] if copies > 1 else [[choice] for choice in range(job.n)]
    choices = [ChoiceReader(job, steps.append, group, drops) for group in groups]
    reader = RequestReader(job, choices, len(job.prompt))
    for output in outputs:
        reader.read(output)
    return steps


def make_output(
    *choices: tuple[int, list[int], str | None], logprobs: Any = None, **fields: Any
) -> SimpleNamespace:
    outputs = [
        SimpleNamespace(index=index, token_ids=ids, finish_reason=reason, logprobs=logprobs)
        for index, ids, reason in choices
    ]
    return SimpleNamespace(
        outputs=outputs, **({"prompt_logprobs": None, "num_cached_tokens": 2} | fields)
    )


def test_a_stop_token_is_not_part_of_the_answer() -> None:
    steps = read_outputs(make_job(), make_output((0, [5], None)), make_output((0, [6, 2], "stop")))
    assert [(step.ids, step.tokens, step.finish, step.stop_id) for step in steps] == [
        ([5], 1, None, None),
        ([6], 1, "stop", 2),
    ]
    assert [(step.prompt_tokens, step.cached_tokens) for step in steps] == [(3, 2), (None, None)]


def test_choices_of_a_greedy_job_have_the_same_answer() -> None:
    job = make_job(n=3, temperature=0.0)
    steps = read_outputs(job, make_output((0, [5, 6], "length")), copies=3)
    assert [(step.choice, step.ids, step.finish) for step in steps] == [
        (choice, [5, 6], "length") for choice in range(3)
    ]
    assert [step.prompt_tokens for step in steps] == [3, None, None]


def test_no_tokens_are_reported_where_none_are_wanted() -> None:
    steps = read_outputs(make_job(max_tokens=0), make_output((0, [5], "length")), drops=True)
    assert [(step.ids, step.tokens, step.finish) for step in steps] == [([], 0, "length")]


@pytest.mark.parametrize(("reason", "status"), [("abort", 503), ("error", 500)])
def test_an_answer_that_vllm_breaks_off_is_an_error(reason: str, status: int) -> None:
    with pytest.raises(DragomanError) as error:
        read_outputs(make_job(), make_output((0, [], reason)))
    assert error.value.status == status


def test_logprobs_are_ranked_and_cut() -> None:
    entry = {
        9: SimpleNamespace(logprob=-3.0, rank=8),
        4: SimpleNamespace(logprob=-0.1, rank=1),
        5: SimpleNamespace(logprob=float("-inf"), rank=2),
    }
    job = Job(id="j", prompt=[1, 4], logprobs=2, prompt_logprobs=1)
    output = make_output((0, [9], "length"), logprobs=[entry], prompt_logprobs=[None, entry])
    [step] = read_outputs(job, output)
    [logprob] = step.logprobs
    assert (logprob.id, logprob.logprob) == (9, -3.0)
    assert [(top.id, top.logprob) for top in logprob.top] == [(4, -0.1), (5, -9999.0)]
    assert [(entry.id, entry.logprob) for entry in step.prompt_logprobs] == [(1, None), (4, -0.1)]
    assert len(step.prompt_logprobs[1].top) == 1


def write_adapter(folder: Path, rank: object) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return str(folder)


def test_ranks_of_adapters(tmp_path: Path) -> None:
    paths = {"a": write_adapter(tmp_path / "a", 4), "b": write_adapter(tmp_path / "b", 20)}
    assert read_rank(paths["b"]) == 20
    assert find_max_rank(paths) == 32
    for rank in (0, None, "x", 4096):
        with pytest.raises(ModelBroken, match="rank"):
            read_rank(write_adapter(tmp_path / f"broken-{rank}", rank))
    with pytest.raises(ModelBroken, match=r"adapter_config\.json"):
        read_rank(str(tmp_path))


def test_adapters_that_vllm_cannot_apply_are_rejected(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a", 4)
    adapters = AdapterSet({"a": path, "b": path}, lambda **fields: SimpleNamespace(**fields))
    good = Job(id="j", prompt=[1], lora=(Adapter("a"),))
    adapters.check(good)
    assert getattr(adapters.find(good), "lora_name", None) == "a"
    for lora in ((Adapter("a"), Adapter("b")), (Adapter("a", 0.5),), (Adapter("c"),)):
        with pytest.raises(BadRequest) as error:
            adapters.check(Job(id="j", prompt=[1], lora=lora))
        assert error.value.param == "lora"


def test_adapters_are_loaded_and_unloaded_while_the_engine_runs(tmp_path: Path) -> None:
    calls: list[object] = []

    async def record(value: object) -> bool:
        calls.append(getattr(value, "lora_name", value))
        return True

    async def run() -> None:
        adapters = AdapterSet({}, lambda **fields: SimpleNamespace(**fields))
        await adapters.load("a", write_adapter(tmp_path / "a", 4), record)
        assert list(adapters.names) == ["a"]
        await adapters.unload("a", record)
        assert not list(adapters.names)
        with pytest.raises(BadRequest):
            await adapters.unload("a", record)
        with pytest.raises(Unsupported, match="enable_lora"):
            await AdapterSet({}, None).load("a", str(tmp_path / "a"), record)

    asyncio.run(run())
    assert calls == ["a", 1]


def test_statistics_of_several_engines_are_added() -> None:
    statistics = SchedulerStatistics()
    assert statistics.read() == {}
    for engine, running in enumerate((2, 3)):
        cache = SimpleNamespace(queries=10, hits=4)
        stats = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=1, kv_cache_usage=0.5)
        stats.prefix_cache_stats = cache
        statistics.record(stats, engine)
    assert statistics.read() == {
        "running_requests": 5.0,
        "waiting_requests": 2.0,
        "kv_cache_usage_ratio": 0.5,
        "prefix_cache_queries": 20.0,
        "prefix_cache_hits": 8.0,
    }


@pytest.mark.parametrize("missing", ["output_handler", "engine_core", "input_processor"])
def test_the_fast_path_is_not_taken_where_vllm_lacks_a_part(
    missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    def process_inputs(supported_tasks: Any, lora_request: Any, priority: int) -> None: ...

    def do_nothing() -> None: ...

    core = dict.fromkeys(
        ("get_output_async", "add_request_async", "abort_requests_async"), do_nothing
    )
    output = dict.fromkeys(
        ("process_outputs", "propagate_error", "update_scheduler_stats"), do_nothing
    )
    parts = {
        "output_handler": None,
        "engine_core": SimpleNamespace(**core),
        "output_processor": SimpleNamespace(**output),
        "input_processor": SimpleNamespace(
            process_inputs=process_inputs, assign_request_id=do_nothing
        ),
    }
    assert find_missing(SimpleNamespace(**parts)) is None
    del parts[missing]
    llm = SimpleNamespace(**parts)
    assert (find_missing(llm) or "").startswith(missing)
    assert asyncio.run(CoreReader.attach(llm, SchedulerStatistics(), None)) is None
    assert "reading outputs through AsyncLLM" in caplog.text


# Pictures and sound

PAD, START, END, FEATURE = 100, 101, 102, 103
PICTURE, SOUND = make_item(make_image(size=(8, 8))), make_item(make_sound(seconds=0.02))
PICTURE_RUN, SOUND_RUN = make_media_ids(PICTURE.digest), make_media_ids(SOUND.digest)


class FakeRenderer:
    """Replaces every `PAD` by three features, as a processor of vLLM does."""

    def __init__(self, limits: dict[str, int], rate: int | None) -> None:
        self.requests: list[Any] = []
        parser = SimpleNamespace(audio_resampler=SimpleNamespace(target_sr=rate))
        info = SimpleNamespace(allowed_mm_limits=limits, data_parser=parser)
        self._processor = SimpleNamespace(info=info)

    def get_mm_processor(self) -> Any:
        return self._processor

    async def render_cmpl_async(self, requests: list[Any], *, skip_mm_cache: bool) -> list[Any]:
        assert skip_mm_cache
        self.requests += requests
        ids: list[int] = []
        found = []
        for token in requests[0]["prompt_token_ids"]:
            if token == PAD:
                place = SimpleNamespace(offset=len(ids), length=3, get_num_embeds=lambda: 3)
                found.append(place)
            ids += [FEATURE] * 3 if token == PAD else [token]
        items = sum(map(len, requests[0]["multi_modal_data"].values()))
        hashes = requests[0]["multi_modal_uuids"]
        places = {"image": found[:items]}
        return [{"prompt_token_ids": ids, "mm_placeholders": places, "mm_hashes": hashes}]


def make_prompts(
    placeholder: list[int],
    limits: dict[str, int] | None = None,
    cache: int = 100,
    rate: int | None = 16000,
) -> tuple[MultiModalPrompts, FakeRenderer]:
    limits = {"image": 2, "audio": 1, "video": 1} if limits is None else limits
    renderer = FakeRenderer(limits, rate)
    tokenizer = SimpleNamespace(encode=lambda _, add_special_tokens: placeholder)
    llm = SimpleNamespace(
        renderer=renderer,
        get_tokenizer=lambda: tokenizer,
        input_processor=SimpleNamespace(mm_encoder_cache_size=cache),
    )
    model = SimpleNamespace(get_placeholder_str=lambda kind, number: f"{kind} {number}")
    return MultiModalPrompts(llm, model), renderer


@pytest.mark.parametrize("placeholder", [[PAD], [START, PAD], [PAD, END], [START, PAD, END]])
def test_items_are_counted_with_what_is_around_them(placeholder: list[int]) -> None:
    prompts, renderer = make_prompts(placeholder)
    prompt = [1, *PICTURE_RUN, 2, 3, *PICTURE_RUN, *SOUND_RUN, 4]
    rendered = asyncio.run(prompts.render(prompt, [PICTURE, SOUND], "owner"))
    tokens = 3 + len(placeholder) - 1
    assert rendered.count == PromptCount(4 + 3 * tokens, True, (tokens,) * 3)
    assert rendered.prompt["cache_salt"] == "owner"
    assert rendered.prompt["mm_hashes"]["image"] == [f"owner-{PICTURE.digest}"] * 2
    [request] = renderer.requests
    assert request["prompt_token_ids"] == [
        *[1, *placeholder, 2, 3],
        *[*placeholder, *placeholder, 4],
    ]
    assert [picture.size for picture in request["multi_modal_data"]["image"]] == [(8, 8)] * 2
    [(samples, rate)] = request["multi_modal_data"]["audio"]
    assert (len(samples), rate, str(samples.dtype)) == (320, 16000, "float32")
    assert 0 < abs(samples).max() <= 1


def test_a_placeholder_in_a_text_does_not_become_the_picture() -> None:
    prompts, _ = make_prompts([PAD])
    rendered = asyncio.run(prompts.render([PAD, 1, *PICTURE_RUN, 2], [PICTURE]))
    assert not rendered.count.is_exact


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([1, *PICTURE_RUN], {}, "must not end with a picture"),
        ([*PICTURE_RUN * 3, 1], {}, "at most 2 items of the kind `image`"),
        ([*PICTURE_RUN, 1], {"cache": 2}, "takes 3 tokens; .* reads at most 2"),
        ([*make_media_ids("ab" * 32), 1], {}, "media that it does not have"),
    ],
)
def test_prompts_that_vllm_cannot_read_are_rejected(
    prompt: list[int], options: dict[str, Any], message: str
) -> None:
    prompts, _ = make_prompts([PAD], **options)
    with pytest.raises(BadRequest, match=message):
        asyncio.run(prompts.render(prompt, [PICTURE]))


def test_a_model_reads_what_its_limits_allow() -> None:
    assert make_prompts([PAD])[0].modalities == ("image", "audio")
    assert make_prompts([PAD], {"image": 0, "video": 5})[0].modalities == ()
    broken, renderer = make_prompts([PAD])
    renderer.render_cmpl_async = None  # type: ignore[method-assign,assignment]
    with pytest.raises(ModelBroken, match="language_model_only"):
        asyncio.run(broken.try_items())


@pytest.mark.parametrize(
    ("rate", "count"), [(None, 960), (48000, 960), (16000, 320), (96000, 1920)]
)
def test_sounds_have_the_rate_that_the_model_wants(rate: int | None, count: int) -> None:
    prompts, renderer = make_prompts([PAD], rate=rate)
    item = make_item(make_sound(seconds=0.02, rate=48000))
    asyncio.run(prompts.render([*make_media_ids(item.digest), 1], [item]))
    [(samples, sent_rate)] = renderer.requests[0]["multi_modal_data"]["audio"]
    assert (len(samples), sent_rate) == (count, rate or 48000)
    # the tone is the same: 0.1 radians for each sample of the original
    expected = np.sin(np.arange(count) * 0.1 * 960 / count) * 0.5
    middle = slice(count // 4, -count // 4)
    assert samples[middle] == pytest.approx(expected[middle], abs=0.02)
