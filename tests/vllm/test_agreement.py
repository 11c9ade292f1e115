"""vLLM and llama.cpp agree on the same weights, as 32-bit floats."""

from __future__ import annotations

import asyncio

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling
from tests.support.serving import RunningServer
from tests.support.vllm_model import MODELS, NAME, get_model

TOKENS = 8
PROMPTS = (
    "What is the capital of France?",
    "Count from one to five.",
    "What color is the sky?",
    "Name three animals.",
    "Who wrote Hamlet?",
    "What is 2 + 2?",
    "Say hello in Spanish.",
    "What do bees make?",
    "How many days are in a week?",
    "Write a haiku about the sea.",
)


def make_job(number: int, ids: list[int]) -> Job:
    sampling = Sampling(temperature=0.0, max_tokens=TOKENS).with_defaults(DEFAULT_SAMPLING)
    return Job(id=f"agree-{number}", prompt=ids, sampling=sampling)


async def generate(engine: SubprocessEngine, jobs: list[Job]) -> list[list[int]]:
    answers = []
    for job in jobs:
        steps = [step async for step in engine.generate(job)]
        answers.append([token for step in steps for token in step.ids])
    return answers


def test_greedy_answers_begin_alike(server: RunningServer) -> None:
    model = get_model(server)
    assert isinstance(model.engine, SubprocessEngine)
    assert model.tokenizer is not None
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    engine = model.engine

    async def encode() -> list[list[int]]:
        return [await engine.tokenize(template.format(text), True) for text in PROMPTS]

    jobs = [make_job(number, ids) for number, ids in enumerate(server.run_coroutine(encode(), 60))]
    theirs = server.run_coroutine(generate(engine, jobs), 300)

    async def run_llama() -> list[list[int]]:
        settings = {"path": str(MODELS / f"{NAME}-f32.gguf"), "context": 512, "slots": 1}
        settings |= {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
        llama = SubprocessEngine("dragoman.engines.llamacpp:create", settings, name="llama")
        await llama.start()
        try:
            return await generate(llama, jobs)
        finally:
            await llama.aclose()

    ours = asyncio.run(run_llama())
    assert all(ours)
    assert theirs == ours
