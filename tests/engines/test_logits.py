"""The engine around logits: with real logits, which make no sense, and answers that do."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import jsonschema
import numpy as np
import pytest

from dragoman.engines.logits import LogitsEngine
from dragoman.engines.logits.sampling import (
    SAMPLING_FIELDS,
    SORTED_FIRST,
    log_softmax,
    select_top_p,
)
from dragoman.engines.token_mask import GrammarState, TokenMasker
from dragoman.errors import (
    BadRequest,
    ContextOverflow,
    DragomanError,
    EngineDown,
    EngineFailed,
    Unsupported,
)
from dragoman.testing import ByteTokenizer, check_engine
from dragoman.types import DEFAULT_SAMPLING, Adapter, Job, Logprob, Sampling, Step
from tests.support.tiny_model import Floats, TinyModel

TOKENIZER = ByteTokenizer()
SIZE = TOKENIZER.vocab_size
END = TOKENIZER.specials["<|im_end|>"]
PROMPT = list(b"Once upon a time")
HEADER = "%llguidance {}\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", None]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def engine_of(model: Any = None, **settings: Any) -> LogitsEngine:
    return LogitsEngine(model or TinyModel(), TOKENIZER, **settings)


def job_of(prompt: list[int] | str | None = None, **said: Any) -> Job:
    sampling = {name: said.pop(name) for name in tuple(said) if name in Sampling.__struct_fields__}
    chosen = Sampling(**{"max_tokens": 12} | sampling).with_defaults(DEFAULT_SAMPLING)
    return Job(id="j", prompt=PROMPT if prompt is None else prompt, sampling=chosen, **said)


async def collect(engine: LogitsEngine, job: Job) -> list[Step]:
    await engine.admit(job)
    async with aclosing(engine.generate(job)) as stream:
        return [step async for step in stream]


def together(engine: LogitsEngine, *jobs: Job) -> list[list[Step]]:
    async def main() -> list[list[Step]]:
        try:
            return await asyncio.gather(*(collect(engine, job) for job in jobs))
        finally:
            await engine.aclose()

    return asyncio.run(main())


def answer(job: Job, model: Any = None) -> list[Step]:
    return together(engine_of(model), job)[0]


def refusal(engine: LogitsEngine, work: Awaitable[Any]) -> DragomanError:
    async def main() -> DragomanError:
        try:
            with pytest.raises(DragomanError) as refused:
                await work
            return refused.value
        finally:
            await engine.aclose()

    return asyncio.run(main())


def ids_of(steps: Sequence[Step], choice: int = 0) -> list[int]:
    return [token for step in steps if step.choice == choice for token in step.ids]


def said(steps: Sequence[Step], choice: int = 0) -> str:
    return bytes(ids_of(steps, choice)).decode()


def finish(steps: Sequence[Step], choice: int = 0) -> str | None:
    return next(step.finish for step in steps if step.choice == choice and step.finish)


def marks_of(steps: Sequence[Step]) -> list[Logprob]:
    return [mark for step in steps for mark in step.logprobs]


# the contract


@pytest.mark.parametrize("settings", [{"context": 400}, {"slots": 1}])
def test_it_keeps_to_the_contract_of_engines(settings: dict[str, Any]) -> None:
    results = asyncio.run(check_engine(engine_of(**settings)))
    skipped = {result.name for result in results if result.outcome == "skipped"}
    lacking = {"rejects_unknown_adapters", "embeds"}
    assert skipped == lacking | (set() if "context" in settings else {"rejects_long_prompts"})


def test_choices_and_jobs_share_the_passes() -> None:
    model = TinyModel()
    together(engine_of(model, slots=6), job_of(n=4), job_of(n=4))
    assert max(model.batches) == 6


def test_a_choice_of_a_seeded_job_has_a_seed_of_its_own() -> None:
    three = answer(job_of(seed=5, n=3))
    alone = [ids_of(answer(job_of(seed=5 + number))) for number in range(3)]
    assert [ids_of(three, choice) for choice in range(3)] == alone
    assert len({tuple(ids) for ids in alone}) == 3
    assert ids_of(answer(job_of())) != ids_of(answer(job_of()))  # no seed is any seed


def test_a_text_is_read_with_its_special_tokens() -> None:
    text = "<|im_start|>user\nhé<|im_end|>\n"
    engine = LogitsEngine(TinyModel(), ByteTokenizer(add_bos=True))
    ids = [256, *TOKENIZER.encode_with_specials(text)]
    [as_text] = together(engine, job_of(text, temperature=0.0))
    assert ids_of(as_text) == ids_of(answer(job_of(ids, temperature=0.0)))
    assert as_text[0].prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("context", "said_", "count"), [(20, {}, 4), (20, {"max_tokens": 3}, 3), (None, {}, 12)]
)
def test_the_context_is_a_limit_too(context: int | None, said_: dict[str, Any], count: int) -> None:
    job = job_of(temperature=0.0, ignore_eos=True, **said_)
    [steps] = together(engine_of(context=context), job)
    assert (len(ids_of(steps)), finish(steps)) == (count, "length")


def test_no_tokens_at_all_is_an_answer() -> None:
    [step] = answer(job_of(max_tokens=0))
    assert (step.tokens, step.finish, step.prompt_tokens) == (0, "length", len(PROMPT))


@pytest.mark.parametrize(
    ("asked", "kind", "param"),
    [
        ({"prompt": []}, BadRequest, "prompt"),
        ({"prompt": [SIZE]}, BadRequest, "prompt"),
        ({"prompt": [1] * 64}, ContextOverflow, "messages"),
        ({"logit_bias": {-1: 1.0}}, BadRequest, "logit_bias"),
        ({"stop_token_ids": (SIZE,)}, BadRequest, "stop_token_ids"),
        ({"logprobs": 21}, Unsupported, "logprobs"),
        ({"prompt_logprobs": 21}, Unsupported, "logprobs"),
        ({"lora": (Adapter("a"),)}, Unsupported, "lora"),
        ({"grammar": HEADER + "start: nosuch"}, BadRequest, "grammar"),
        ({"grammar": HEADER + 'start: "a"', "min_tokens": 3}, Unsupported, "min_tokens"),
        ({"grammar": HEADER + 'start: "a"', "ignore_eos": True}, Unsupported, "ignore_eos"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    asked: dict[str, Any], kind: type[DragomanError], param: str
) -> None:
    engine = engine_of(context=64)
    error = refusal(engine, engine.admit(job_of(**asked)))
    assert (type(error), error.param) == (kind, param)


def test_without_the_library_grammars_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    engine = engine_of()
    assert not engine.capabilities.grammars
    error = refusal(engine, engine.admit(job_of(grammar=HEADER + 'start: "a"')))
    assert (type(error), error.param) == (Unsupported, "grammar")


# sampling


class Fixed:
    """Says the same logits whatever it is told."""

    def __init__(self, *likely: tuple[int, float]) -> None:
        self.logits = np.full(SIZE, -30.0)
        for token, logit in likely:
            self.logits[token] = logit

    def begin(self, prompt: Sequence[int]) -> tuple[None, Floats]:
        return None, self.logits

    def step(self, states: Sequence[None], tokens: Sequence[int]) -> list[Floats]:
        return [self.logits] * len(states)


FOUR = Fixed((97, np.log(0.5)), (98, np.log(0.3)), (99, np.log(0.15)), (100, np.log(0.05)))


@pytest.mark.parametrize(
    ("asked", "letters"),
    [
        ({}, "abcd"),
        ({"temperature": 0.0}, "a"),
        ({"temperature": 1e-9}, "a"),
        ({"top_k": 1}, "a"),
        ({"top_k": 2}, "ab"),
        ({"top_k": -1}, "abcd"),
        ({"top_p": 0.0}, "a"),
        ({"top_p": 0.79}, "ab"),
        ({"top_p": 0.81}, "abc"),
        ({"min_p": 0.2}, "abc"),
        ({"min_p": 1.0}, "a"),
        ({"typical_p": 0.2}, "b"),  # entropy is 1.14, and its surprise 1.20
        ({"typical_p": 0.75}, "ab"),
        ({"top_k": 3, "min_p": 0.5}, "ab"),
        ({"logit_bias": {97: -100.0, 100: 100.0}}, "d"),
        ({"logit_bias": {97: -100.0}, "temperature": 0.0}, "b"),
        ({"logit_bias": dict.fromkeys(range(SIZE), -100.0), "temperature": 0.0}, "a"),
    ],
    ids=str,
)
def test_each_field_narrows_the_choice_as_it_says(asked: dict[str, Any], letters: str) -> None:
    text = said(answer(job_of(seed=1, max_tokens=300, **asked), FOUR))
    assert set(text) == set(letters)


@pytest.mark.parametrize("spread", [0.1, 6.0])
def test_the_likeliest_of_a_large_vocabulary_are_found(spread: float) -> None:
    scores = np.random.default_rng(1).normal(0, spread, 5000)
    chances = np.exp(log_softmax(scores))
    order = np.argsort(-scores)
    count = int(np.searchsorted(np.cumsum(chances[order]), 0.8)) + 1
    assert (count > SORTED_FIRST) == (spread < 1)
    assert select_top_p(scores, 0.8).tolist() == order[:count].tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_as_frequent_as_they_are_likely(temperature: float) -> None:
    text = said(answer(job_of(seed=3, max_tokens=3000, temperature=temperature, top_k=4), FOUR))
    weights = np.array([0.5, 0.3, 0.15, 0.05]) ** (1 / temperature)
    found = Counter(text)
    assert [found[letter] / 3000 for letter in "abcd"] == pytest.approx(
        list(weights / weights.sum()), abs=0.03
    )


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, "aaaaaa"),
        ({"presence_penalty": 0.6}, "abaaaa"),  # once each, then the order is the old one
        ({"frequency_penalty": 0.6}, "ababac"),
        ({"repetition_penalty": 3.0}, "abcaaa"),
        ({"repetition_penalty": 3.0, "repeat_last_n": 1}, "ababab"),
        ({"repetition_penalty": 3.0, "repeat_last_n": 0}, "aaaaaa"),
        ({"repetition_penalty": 3.0, "repeat_last_n": -1, "prompt": [97] + [0] * 99}, "bcaaaa"),
        ({"repetition_penalty": 3.0, "repeat_last_n": 64, "prompt": [97] + [0] * 99}, "abcaaa"),
    ],
    ids=str,
)
def test_penalties_look_back_as_far_as_they_say(asked: dict[str, Any], text: str) -> None:
    asked = {"prompt": [0]} | asked
    assert said(answer(job_of(temperature=0.0, max_tokens=6, **asked), FOUR)) == text


SURE = Fixed((END, 3.0), (97, 2.0), (98, 1.0))


@pytest.mark.parametrize(
    ("asked", "text", "why", "stop"),
    [
        ({}, "", "stop", END),
        ({"min_tokens": 3}, "aaa", "stop", END),
        ({"min_tokens": 3, "stop_token_ids": (97,)}, "bbb", "stop", END),
        ({"ignore_eos": True}, "aaaaa", "length", None),
        ({"ignore_eos": True, "stop_token_ids": (97,)}, "", "stop", 97),
        ({"logit_bias": {END: -100.0}, "stop_token_ids": (98,)}, "aaaaa", "length", None),
    ],
    ids=str,
)
def test_what_ends_an_answer(asked: dict[str, Any], text: str, why: str, stop: int | None) -> None:
    steps = answer(job_of(temperature=0.0, max_tokens=5, **asked), SURE)
    assert (said(steps), finish(steps), steps[-1].stop_id) == (text, why, stop)
    assert sum(step.tokens for step in steps) == len(text) + (stop is not None)


def test_every_field_is_honoured() -> None:
    assert frozenset(Sampling.__struct_fields__) == SAMPLING_FIELDS


# logprobs


def test_logprobs_are_those_of_the_model_alone() -> None:
    bent: dict[str, Any] = {
        "temperature": 1.7,
        "top_k": 40,
        "logit_bias": {120: 5.0},
        "repetition_penalty": 1.3,
    }
    steps = answer(job_of(seed=2, logprobs=3, ignore_eos=True, **bent))
    model = TinyModel()
    state, logits = model.begin(PROMPT)
    for token, mark in zip(ids_of(steps), marks_of(steps), strict=True):
        right = log_softmax(logits[:SIZE])
        best = np.argsort(-right)[:3]
        assert mark.id == token
        assert mark.logprob == pytest.approx(right[token])
        assert [other.id for other in mark.top] == best.tolist()
        assert [other.logprob for other in mark.top] == pytest.approx(right[best].tolist())
        logits = model.step([state], [token])[0]


def test_a_grammar_changes_no_logprob() -> None:
    rule = HEADER + "start: /[xyz]{8}/"
    steps = answer(job_of(seed=2, logprobs=1, grammar=rule))
    tokens = ids_of(steps)
    model = TinyModel()
    state, logits = model.begin(PROMPT)
    for token, mark in zip(tokens, marks_of(steps), strict=True):
        assert mark.logprob == pytest.approx(log_softmax(logits[:SIZE])[token])
        logits = model.step([state], [token])[0]
    assert any(mark.top[0].id not in b"xyz" for mark in marks_of(steps))


@pytest.mark.parametrize("most", [0, 4])
def test_a_prompt_is_reported_token_by_token(most: int) -> None:
    job = job_of(seed=2, max_tokens=most, n=2, prompt_logprobs=2, ignore_eos=True)
    steps = answer(job)
    told = [mark for step in steps for mark in step.prompt_logprobs]
    assert [mark.id for mark in told] == PROMPT
    assert told[0] == Logprob(PROMPT[0], None)
    model = TinyModel()
    for at, mark in enumerate(told[1:], start=1):
        right = log_softmax(model.begin(PROMPT[:at])[1][:SIZE])
        assert mark.logprob == pytest.approx(right[PROMPT[at]])
        assert [other.id for other in mark.top] == np.argsort(-right)[:2].tolist()
    plain = answer(job_of(seed=2, max_tokens=most, n=2, ignore_eos=True))
    for choice in range(2):
        assert ids_of(steps, choice) == ids_of(plain, choice)
    assert [step.prompt_tokens for step in steps if step.prompt_tokens is not None] == [len(PROMPT)]


# grammars


def sound_json(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def sound_pattern(text: str) -> None:
    assert re.fullmatch("[a-f]{2,5}-(é|日本)[0-9]+", text)


def sound_choice(text: str) -> None:
    assert text in ("yes", "yesterday", "no")


@pytest.mark.parametrize(
    ("start", "check"),
    [
        (f"%json {json.dumps(SCHEMA)}", sound_json),
        ("/[a-f]{2,5}-(é|日本)[0-9]+/", sound_pattern),
        ('"yes" | "yesterday" | "no"', sound_choice),
    ],
)
def test_weights_that_mean_nothing_give_answers_that_are_valid(
    start: str, check: Callable[[str], None]
) -> None:
    job = job_of(seed=9, n=12, temperature=1.5, max_tokens=400, grammar=HEADER + "start: " + start)
    steps = answer(job)
    texts = [said(steps, choice) for choice in range(12) if finish(steps, choice) == "stop"]
    assert len(texts) > 8
    assert len(set(texts)) > 1
    for text in texts:
        check(text)


def test_an_answer_ends_where_its_grammar_does() -> None:
    rule = HEADER + 'start: "abc"'
    done = answer(job_of(grammar=rule, max_tokens=3))
    assert (said(done), finish(done), done[-1].stop_id) == ("abc", "stop", None)
    cut = answer(job_of(grammar=rule, max_tokens=2))
    assert (said(cut), finish(cut)) == ("ab", "length")
    empty = answer(job_of(grammar=HEADER + 'start: ""'))
    assert (said(empty), finish(empty)) == ("", "stop")


def test_a_stop_token_ends_an_answer_only_where_it_is_complete() -> None:
    rule = HEADER + "start: /[ab]{4,}/"
    steps = answer(job_of(grammar=rule, max_tokens=99, stop_token_ids=(98,)), FOUR)
    assert finish(steps) == "stop"
    assert steps[-1].stop_id == 98
    assert re.fullmatch("a{4,}", said(steps))


def test_a_bias_against_the_grammar_ends_nothing() -> None:
    assert said(answer(job_of(grammar=HEADER + 'start: "a"', logit_bias={97: -100.0}))) == "a"


def test_a_dead_end_is_an_error_of_its_own_job() -> None:
    rule = HEADER + "start: /[a-z]{3}/ X\nX: /[0-9]/ & /[a-z]/"
    engine = engine_of()

    async def main() -> list[Any]:
        jobs = [job_of(seed=1), job_of(seed=1, grammar=rule, n=2), job_of(seed=2)]
        tasks = (collect(engine, job) for job in jobs)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.aclose()
        return found

    before, dead, after = asyncio.run(main())
    assert isinstance(dead, BadRequest)
    assert (dead.param, dead.code) == ("grammar", "invalid_grammar")
    assert "leads nowhere" in dead.message
    assert ids_of(before) == ids_of(answer(job_of(seed=1)))
    assert ids_of(after) == ids_of(answer(job_of(seed=2)))


def test_masks_leak_to_nobody() -> None:
    tight = [HEADER + "start: /[0-9]{30}/", HEADER + f"start: %json {json.dumps(SCHEMA)}"]
    asked: dict[str, Any] = {"seed": 4, "n": 2, "max_tokens": 30, "logprobs": 1}
    jobs = [
        job_of(grammar=tight[0], **asked),
        job_of(list(b"free"), **asked),
        job_of(grammar=tight[1], **asked),
        job_of(list(b"as a bird"), **asked),
    ]
    model = TinyModel()
    runs = together(engine_of(model), *jobs)
    assert max(model.batches) == 8
    for job, run in zip(jobs, runs, strict=True):
        alone = answer(job)
        for choice in range(2):
            assert ids_of(run, choice) == ids_of(alone, choice)
            assert finish(run, choice) == finish(alone, choice)
    assert said(runs[0]).isdigit()
    assert not set(ids_of(runs[1])) <= set(b"0123456789")


class Late(GrammarState):
    """Begins on a mask when the forward pass has begun, and not before."""

    def __init__(self, inner: GrammarState, model: Handshake) -> None:
        self.inner, self.model = inner, model
        self.coming: Future[bytes] | None = None

    def start_mask(self) -> Future[bytes]:
        if self.coming is None:
            self.coming = self.model.threads.submit(self.late)
        return self.coming

    def late(self) -> bytes:
        assert self.model.begun.wait(10), "no forward pass began before the mask was waited for"
        self.model.begun.clear()
        mask = self.inner.get_mask()
        self.model.masked.set()
        return mask

    def apply_mask(self, logits: Floats) -> None:
        self.start_mask().result()
        self.inner.apply_mask(logits)

    def advance(self, *tokens: int) -> None:
        self.coming = None
        self.inner.advance(*tokens)

    @property
    def must_end(self) -> bool:
        return self.inner.must_end


class Handshake(TinyModel):
    """Ends a forward pass when a mask was made meanwhile, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.masked = threading.Event(), threading.Event()
        self.threads = ThreadPoolExecutor(1)
        self.passes = 0

    def begin(self, prompt: Sequence[int]) -> tuple[Floats, Floats]:
        self._meet()
        return super().begin(prompt)

    def step(self, states: Sequence[Floats], tokens: Sequence[int]) -> Floats:
        self._meet()
        return super().step(states, tokens)

    def _meet(self) -> None:
        self.begun.set()
        assert self.masked.wait(10), "no mask was made during the forward pass"
        self.masked.clear()
        self.passes += 1


class LateMasker(TokenMasker):
    def __init__(self, model: Handshake) -> None:
        super().__init__(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
        self.model = model

    def start_grammar(self, grammar: str, stops: Collection[int] = ()) -> GrammarState:
        return Late(super().start_grammar(grammar, stops), self.model)


def test_masks_are_made_while_the_forward_pass_runs() -> None:
    model = Handshake()
    engine = engine_of(model, masker=LateMasker(model))
    job = job_of(seed=1, grammar=HEADER + "start: /[0-9]{6}/")

    async def main() -> list[Step]:
        async with aclosing(engine.generate(job)) as stream:
            return [step async for step in stream]

    with model.threads:
        steps = asyncio.run(main())
    asyncio.run(engine.aclose())
    assert model.passes == 6
    assert ids_of(steps) == ids_of(answer(job))


# what goes wrong


class Faulty(TinyModel):
    """A sound model, until a pass is spoilt."""

    def __init__(self, spoilt: Callable[[Floats], Any], at: int = 3) -> None:
        super().__init__()
        self.spoilt, self.at = spoilt, at

    def step(self, states: Sequence[Floats], tokens: Sequence[int]) -> Any:
        rows = super().step(states, tokens)
        return self.spoilt(rows) if len(self.batches) == self.at else rows


def broken(rows: Floats) -> Any:
    raise ZeroDivisionError("/a/secret/path")


@pytest.mark.parametrize(
    "spoilt",
    [
        broken,
        lambda rows: rows[:, :100],
        lambda rows: rows[:0],
        lambda rows: rows[0],
        lambda rows: rows * np.nan,
        lambda rows: rows - np.inf,
        lambda rows: None,
    ],
    ids=["raises", "narrow", "none", "flat", "nan", "nothing", "no array"],
)
def test_a_model_that_breaks_is_an_engine_that_failed(spoilt: Callable[[Floats], Any]) -> None:
    engine = engine_of(Faulty(spoilt))

    async def read(into: list[Step]) -> None:
        async with aclosing(engine.generate(job_of(seed=1, ignore_eos=True))) as stream:
            async for step in stream:
                into.append(step)  # noqa: PERF401

    async def main() -> tuple[list[Step], DragomanError, list[Step]]:
        got: list[Step] = []
        with pytest.raises(EngineFailed) as failed:
            await read(got)
        after = await collect(engine, job_of(seed=1, ignore_eos=True))
        await engine.aclose()
        return got, failed.value, after

    got, error, after = asyncio.run(main())
    whole = ids_of(answer(job_of(seed=1, ignore_eos=True)))
    assert (ids_of(got), ids_of(after)) == (whole[:3], whole)
    assert "secret" not in error.message


def test_an_error_of_ours_that_a_model_raises_is_told_as_it_is() -> None:
    def refuse(rows: Floats) -> Any:
        raise BadRequest("Not this.", param="prompt")

    engine = engine_of(Faulty(refuse))
    error = refusal(engine, collect(engine, job_of(ignore_eos=True)))
    assert (type(error), error.message) == (BadRequest, "Not this.")


def test_closing_a_job_frees_its_place_at_once() -> None:
    model = TinyModel()
    engine = engine_of(model, slots=2)

    async def main() -> list[Step]:
        endless = job_of(n=5, max_tokens=10**9, ignore_eos=True)
        async with aclosing(engine.generate(endless)) as stream:
            await anext(stream)
        steps = await collect(engine, job_of(seed=1))
        await engine.aclose()
        return steps

    assert ids_of(asyncio.run(main())) == ids_of(answer(job_of(seed=1)))


def test_closing_the_engine_ends_what_is_under_way() -> None:
    engine = engine_of(slots=1)

    async def main() -> None:
        stream = engine.generate(job_of(n=2, max_tokens=10**9, ignore_eos=True))
        await anext(stream)
        await engine.aclose()
        with pytest.raises(EngineDown):
            async for _ in stream:
                pass
        with pytest.raises(EngineDown):
            await collect(engine, job_of())

    asyncio.run(main())
