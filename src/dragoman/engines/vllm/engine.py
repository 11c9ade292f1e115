"""The engine: one model in vLLM, which runs in processes of its own.

A job becomes one request to vLLM, or one for each choice on the fast path (`core_reader`). Steps
are put, not yielded: the outputs of an engine step are read in one go, for all choices that moved,
and nobody is woken for them (`push_steps`). `generate` is the same for callers in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from dragoman.engines.grammar import allow_ends, check_grammar, check_tokens_allowed
from dragoman.engines.limits import (
    check_generates,
    check_grammar_sampling,
    check_logprobs,
    check_media,
    check_prompt_length,
    check_token_ids,
    make_context_overflow,
)
from dragoman.engines.step_queue import StepQueue
from dragoman.engines.token_mask import TokenMasker
from dragoman.engines.vllm import SAMPLING_FIELDS
from dragoman.engines.vllm.adapters import AdapterSet
from dragoman.engines.vllm.core_reader import CoreReader
from dragoman.engines.vllm.failures import convert_failure
from dragoman.engines.vllm.loading import LoadedLlm, start_llm
from dragoman.engines.vllm.multi_modal import MISPLACED, MultiModalPrompts, open_prompts
from dragoman.engines.vllm.native import Native
from dragoman.engines.vllm.outputs import ChoiceReader, PutStep, RequestReader
from dragoman.engines.vllm.pooling import Pooling
from dragoman.engines.vllm.sampling import MAX_TEMPERATURE, VllmRequest, build_request
from dragoman.engines.vllm.settings import VllmSettings, parse_settings
from dragoman.errors import BadRequest, DragomanError, Unsupported
from dragoman.tokenizers.from_json import make_vocabulary, read_directory
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.types import Adapter, Capabilities, Job, MediaItem, Sampling, Step
from dragoman.types.media_ids import PromptCount, count_text_ids
from dragoman.types.text_pair import TextPair

log = logging.getLogger("dragoman.vllm")

MAX_CHOICES = 128
STOP_SECONDS = 3.0  # for vLLM's processes to end by themselves


async def create(**settings: object) -> VllmEngine:
    """Load a model; `settings` are the fields of `VllmSettings`."""
    parsed = parse_settings(settings)
    vocabulary = await asyncio.to_thread(_read_vocabulary, Path(parsed.path))
    loaded = await start_llm(parsed)
    engine = VllmEngine(parsed, loaded, vocabulary, await open_prompts(loaded))
    await engine.prepare()
    return engine


def _read_vocabulary(path: Path) -> Vocabulary:
    return make_vocabulary(read_directory(path))


class VllmEngine:
    """One loaded model."""

    steps_together = True  # all jobs of an engine step put their steps at once

    def __init__(
        self,
        settings: VllmSettings,
        loaded: LoadedLlm,
        vocabulary: Vocabulary,
        media: MultiModalPrompts | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self._media = media
        self._settings = settings
        self._llm, config = loaded.llm, loaded.config
        self._statistics = loaded.statistics
        self._masker = TokenMasker(vocabulary.pieces, vocabulary.eos_ids, vocabulary.control)
        self._reader: CoreReader | None = None
        self._is_closed = False
        self._running_jobs = 0
        model = config.model_config
        self._vocabulary_size = int(model.get_vocab_size())
        make_request = None
        if config.lora_config is not None:
            from vllm.lora.request import LoRARequest

            make_request = LoRARequest
        self._adapters = AdapterSet(settings.lora, make_request)
        self._pooling = Pooling(self._llm, config)
        generates = not self._pooling.is_active
        self.capabilities = Capabilities(
            context=int(model.max_model_len),
            trained_context=_find_trained_context(model),
            slots=int(config.scheduler_config.max_num_seqs),
            shares_compute=config.device_config.device_type == "cpu",
            token_prompts=True,
            vocabulary_size=self._vocabulary_size,
            sampling=SAMPLING_FIELDS,
            sampling_defaults=True,
            logprobs=int(model.max_logprobs),
            prompt_logprobs=generates,
            grammars=generates and _has_guidance(config),
            generates=generates,
            embeddings=self._pooling.size,
            embedding_context=None if generates else int(model.max_model_len),
            scores=self._pooling.scores,
            lora=self._adapters.names,
            tokenize=True,
            cache_scopes=True,
            can_sleep=bool(getattr(model, "enable_sleep_mode", False)),
            modalities=("text", *(() if media is None else media.modalities)),
        )

    async def prepare(self) -> None:
        """Choose how outputs are read; a test request warms the engine up."""
        if self._settings.reads_core and not self._pooling.is_active:
            self._reader = await CoreReader.attach(self._llm, self._statistics, self._make_test)
        log.info("outputs are read %s", "directly" if self._reader else "through AsyncLLM")

    def _make_test(self) -> tuple[Job, Native, Native]:
        sampling = Sampling(temperature=0.0, max_tokens=1)
        job = Job(id="test", prompt=[0], sampling=sampling, cache_prompt=False)
        return job, self._make_prompt(job, None), self._make_params(job, self._build(job))

    @property
    def reads_core(self) -> bool:
        """Whether the fast path is used."""
        return self._reader is not None

    async def admit(self, job: Job) -> None:
        ids = job.prompt
        if isinstance(ids, str):
            ids = await self.tokenize(ids, True)
        await self._check_job(job, ids)
        if job.grammar is not None:
            check_grammar_sampling(job.sampling)
            await check_grammar(job.grammar, self._masker, job.cache_scope)

    async def _check_job(self, job: Job, ids: list[int]) -> None:
        if not ids:
            raise BadRequest("The prompt is empty.", param="prompt")
        check_generates(self.capabilities)
        if job.media:
            check_media(job, ids)
        text = [token for token in ids if token >= 0] if job.media else ids
        check_token_ids(text, self._vocabulary_size, "prompt")
        count = await self.count_prompt(ids, job.media)
        if not count.is_exact:
            raise BadRequest(MISPLACED, param="messages")
        check_prompt_length(count.tokens, self.capabilities)
        if not 1 <= job.n <= MAX_CHOICES:
            raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
        check_logprobs(job.logprobs, self.capabilities.logprobs)
        check_logprobs(job.prompt_logprobs, self.capabilities.logprobs)
        sampling = job.sampling
        check_token_ids(sampling.logit_bias or (), self._vocabulary_size, "logit_bias")
        check_token_ids(sampling.stop_token_ids or (), self._vocabulary_size, "stop_token_ids")
        if (sampling.temperature or 0.0) > MAX_TEMPERATURE:
            raise Unsupported(
                f"This model's engine takes a `temperature` of at most {MAX_TEMPERATURE:g}.",
                param="temperature",
            )
        self._adapters.check(job)

    async def count_prompt(self, prompt: list[int], media: Sequence[MediaItem]) -> PromptCount:
        """Return how many tokens a prompt has, those of media included."""
        if not media:
            return PromptCount(len(prompt))
        if self._media is None:
            raise Unsupported("This model's engine reads text only.", param="messages")
        check_prompt_length(count_text_ids(prompt), self.capabilities)  # or vLLM rejects it
        return (await self._media.render(prompt, media)).count

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        queue = StepQueue()

        def put(step: Step) -> None:
            queue.put([step])

        async def run() -> None:
            try:
                await self.push_steps(job, put)
                queue.end()
            except DragomanError as error:
                queue.end(error)

        task = asyncio.create_task(run())
        try:
            while steps := await queue.take():
                for step in steps:
                    yield step
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def push_steps(self, job: Job, put: PutStep) -> None:
        """Run a job, and call `put` with its steps. Cancelling cancels the job."""
        if isinstance(job.prompt, str):
            raise BadRequest("This model's engine takes token ids.", param="prompt")
        request = self._build(job)
        choices = (
            [range(request.copies)] if request.copies > 1 else [[choice] for choice in range(job.n)]
        )
        readers = [ChoiceReader(job, put, group, request.drops_token) for group in choices]
        self._running_jobs += 1
        try:
            prompt = await self._render_prompt(job, request)
            params = self._make_params(job, request)
            reports_logprobs = job.logprobs is not None or job.prompt_logprobs is not None
            options = {"lora_request": self._adapters.find(job), "priority": request.priority}
            if self._reader is not None and not reports_logprobs:
                await self._reader.run(readers, prompt, params, **options)
            else:
                reader = RequestReader(job, readers, len(prompt["prompt_token_ids"]))
                await self._run_through_llm(reader, prompt, params, options)
            if job.grammar is not None:
                await asyncio.to_thread(self._replay_answers, job, readers)
        except Exception as error:
            raise convert_failure(error) from error
        finally:
            self._running_jobs -= 1

    async def _run_through_llm(
        self, reader: RequestReader, prompt: Native, params: Native, options: dict[str, Native]
    ) -> None:
        outputs = self._llm.generate(prompt, params, request_id=reader.request_id, **options)
        async with aclosing(outputs):
            async for output in outputs:
                reader.read(output)

    def _build(self, job: Job) -> VllmRequest:
        return build_request(job, self.vocabulary.eos_ids)

    def _make_params(self, job: Job, request: VllmRequest) -> Native:
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        fields = dict(request.params)
        if job.grammar is not None:
            grammar = allow_ends(job.grammar, self.vocabulary.eos_ids, job.cache_scope)
            fields["structured_outputs"] = StructuredOutputsParams(grammar=grammar)
        params = SamplingParams(
            **fields, output_kind=RequestOutputKind.DELTA, detokenize=False, skip_clone=True
        )
        if request.temperature is not None:
            params.temperature = request.temperature
        return params

    async def _render_prompt(self, job: Job, request: VllmRequest) -> Native:
        if not job.media or self._media is None or isinstance(job.prompt, str):
            return self._make_prompt(job, request)
        rendered = await self._media.render(job.prompt, job.media, request.cache_salt or "")
        return rendered.prompt

    def _make_prompt(self, job: Job, request: VllmRequest | None) -> Native:
        salt = None if request is None else request.cache_salt
        try:
            from vllm.inputs.engine import tokens_input
        except ImportError:  # before 0.30
            prompt = {"prompt_token_ids": job.prompt}
            return prompt if salt is None else prompt | {"cache_salt": salt}
        return tokens_input(job.prompt, cache_salt=salt)

    def _replay_answers(self, job: Job, readers: Sequence[ChoiceReader]) -> None:
        """Check finished answers: where a grammar allows nothing, vLLM just ends the answer."""
        for reader in readers:
            stop_ids = frozenset(self.vocabulary.eos_ids) | set(job.sampling.stop_token_ids or ())
            state = self._masker.start_grammar(job.grammar or "", stop_ids, job.cache_scope)
            ids = list(reader.ids or ())
            if reader.stop_id is not None:
                ids.append(reader.stop_id)
            check_tokens_allowed(state, ids, frozenset(stop_ids))

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        job = Job(id="embed", prompt=[], lora=tuple(adapters))
        self._adapters.check(job)
        ids = [
            await self.tokenize(content, True) if isinstance(content, str) else content
            for content in inputs
        ]
        for content in ids:
            self._check_input(content, "input")
        try:
            return await self._pooling.embed(ids, self._adapters.find(job))
        except Exception as error:
            raise convert_failure(error) from error

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        for pair in pairs:
            self._check_input(pair.ids, "documents")
        try:
            return await self._pooling.score(pairs)
        except Exception as error:
            raise convert_failure(error) from error

    def _check_input(self, ids: Sequence[int], param: str) -> None:
        if not ids:
            raise BadRequest("The input is empty.", param=param)
        check_token_ids(ids, self._vocabulary_size, param)
        if len(ids) > (self.capabilities.context or 0):
            raise make_context_overflow(len(ids), self.capabilities.context or 0, param=param)

    async def tokenize(self, text: str, special: bool) -> list[int]:
        tokenizer = self._llm.get_tokenizer()
        return await asyncio.to_thread(
            lambda: list(
                tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not special)
            )
        )

    async def load_adapter(self, name: str, path: str) -> None:
        try:
            await self._adapters.load(name, path, self._llm.add_lora)
        except Exception as error:
            raise convert_failure(error) from error

    async def unload_adapter(self, name: str) -> None:
        try:
            await self._adapters.unload(name, self._llm.remove_lora)
        except Exception as error:
            raise convert_failure(error) from error

    async def sleep(self) -> None:
        """Move the weights to the memory of the machine, and drop the KV cache."""
        await self._llm.sleep(level=1)

    async def wake(self) -> None:
        await self._llm.wake_up()

    async def probe(self) -> float:
        """Return once the engine core has answered between two steps: how long a step takes."""
        try:
            await self._llm.is_paused()
        except Exception as error:
            raise convert_failure(error) from error
        return 0.0 if self._reader is None else self._reader.step_seconds

    def read_statistics(self) -> dict[str, float]:
        """Return the numbers of the last engine step; none runs while there is no job."""
        numbers = self._statistics.read()
        if numbers and not self._running_jobs:
            numbers |= {"running_requests": 0.0, "waiting_requests": 0.0}
        return numbers

    @property
    def has_died(self) -> bool:
        """Whether vLLM's processes have ended, after which nothing can run here."""
        return bool(self._llm.errored) and not self._is_closed

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._llm.shutdown), STOP_SECONDS)


def _find_trained_context(model: Native) -> int | None:
    value = getattr(model.hf_text_config, "max_position_embeddings", None)
    return value if isinstance(value, int) else None


def _has_guidance(config: Native) -> bool:
    """Whether grammars are enforced by `llguidance`, which all of ours are written for."""
    return str(config.structured_outputs_config.backend) == "guidance"
