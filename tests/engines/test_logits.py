"""The engine around logits, with a model whose weights are random."""

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
from numpy.typing import NDArray

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
    InvalidGrammar,
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


def make_engine(model: Any = None, **settings: Any) -> LogitsEngine:
    return LogitsEngine(model or TinyModel(), TOKENIZER, **settings)


def make_job(prompt: list[int] | str | None = None, **fields: Any) -> Job:
    sampling = {
        name: fields.pop(name) for name in tuple(fields) if name in Sampling.__struct_fields__
    }
    resolved = Sampling(**{"max_tokens": 12} | sampling).with_defaults(DEFAULT_SAMPLING)
    return Job(id="j", prompt=PROMPT if prompt is None else prompt, sampling=resolved, **fields)


async def collect(engine: LogitsEngine, job: Job) -> list[Step]:
    await engine.admit(job)
    async with aclosing(engine.generate(job)) as stream:
        return [step async for step in stream]


def run_jobs(engine: LogitsEngine, *jobs: Job) -> list[list[Step]]:
    async def main() -> list[list[Step]]:
        try:
            return await asyncio.gather(*(collect(engine, job) for job in jobs))
        finally:
            await engine.aclose()

    return asyncio.run(main())


def run_job(job: Job, model: Any = None) -> list[Step]:
    return run_jobs(make_engine(model), job)[0]


def get_error(engine: LogitsEngine, work: Awaitable[Any]) -> DragomanError:
    async def main() -> DragomanError:
        try:
            with pytest.raises(DragomanError) as caught:
                await work
            return caught.value
        finally:
            await engine.aclose()

    return asyncio.run(main())


def get_ids(steps: Sequence[Step], choice: int = 0) -> list[int]:
    return [token for step in steps if step.choice == choice for token in step.ids]


def get_text(steps: Sequence[Step], choice: int = 0) -> str:
    return bytes(get_ids(steps, choice)).decode()


def get_finish(steps: Sequence[Step], choice: int = 0) -> str | None:
    return next(step.finish for step in steps if step.choice == choice and step.finish)


def get_logprobs(steps: Sequence[Step]) -> list[Logprob]:
    return [logprob for step in steps for logprob in step.logprobs]


# the contract


@pytest.mark.parametrize("settings", [{"context": 400}, {"slots": 1}])
def test_it_keeps_the_contract_of_engines(settings: dict[str, Any]) -> None:
    results = asyncio.run(check_engine(make_engine(**settings)))
    skipped = {result.name for result in results if result.outcome == "skipped"}
    unsupported = {"rejects_unknown_adapters", "embeds", "scores", "delivers_what_it_yields"}
    unsupported |= {"runs_plain_jobs"}
    assert skipped == unsupported | (set() if "context" in settings else {"rejects_long_prompts"})


def test_choices_and_jobs_share_forward_passes() -> None:
    model = TinyModel()
    run_jobs(make_engine(model, slots=6), make_job(n=4), make_job(n=4))
    assert max(model.batches) == 6


def test_a_choice_of_a_seeded_job_has_a_seed_of_its_own() -> None:
    three = run_job(make_job(seed=5, n=3))
    alone = [get_ids(run_job(make_job(seed=5 + number))) for number in range(3)]
    assert [get_ids(three, choice) for choice in range(3)] == alone
    assert len({tuple(ids) for ids in alone}) == 3
    assert get_ids(run_job(make_job())) != get_ids(
        run_job(make_job())
    )  # without a seed, each differs


def test_special_tokens_of_a_text_prompt_are_recognized() -> None:
    text = "<|im_start|>user\nhé<|im_end|>\n"
    engine = LogitsEngine(TinyModel(), ByteTokenizer(add_bos=True))
    ids = [256, *TOKENIZER.encode_with_specials(text)]
    [as_text] = run_jobs(engine, make_job(text, temperature=0.0))
    assert get_ids(as_text) == get_ids(run_job(make_job(ids, temperature=0.0)))
    assert as_text[0].prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("context", "fields", "count"), [(20, {}, 4), (20, {"max_tokens": 3}, 3), (None, {}, 12)]
)
def test_the_context_limits_an_answer(
    context: int | None, fields: dict[str, Any], count: int
) -> None:
    job = make_job(temperature=0.0, ignore_eos=True, **fields)
    [steps] = run_jobs(make_engine(context=context), job)
    assert (len(get_ids(steps)), get_finish(steps)) == (count, "length")


def test_an_answer_may_have_no_tokens() -> None:
    [step] = run_job(make_job(max_tokens=0))
    assert (step.tokens, step.finish, step.prompt_tokens) == (0, "length", len(PROMPT))


@pytest.mark.parametrize(
    ("fields", "error_class", "param"),
    [
        ({"prompt": []}, BadRequest, "prompt"),
        ({"prompt": [SIZE]}, BadRequest, "prompt"),
        ({"prompt": [1] * 64}, ContextOverflow, "messages"),
        ({"logit_bias": {-1: 1.0}}, BadRequest, "logit_bias"),
        ({"stop_token_ids": (SIZE,)}, BadRequest, "stop_token_ids"),
        ({"logprobs": 21}, Unsupported, "top_logprobs"),
        ({"prompt_logprobs": 21}, Unsupported, "top_logprobs"),
        ({"lora": (Adapter("a"),)}, Unsupported, "lora"),
        ({"grammar": HEADER + "start: nosuch"}, InvalidGrammar, "grammar"),
        ({"grammar": HEADER + 'start: "a"', "min_tokens": 3}, Unsupported, "min_tokens"),
        ({"grammar": HEADER + 'start: "a"', "ignore_eos": True}, Unsupported, "ignore_eos"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(
    fields: dict[str, Any], error_class: type[DragomanError], param: str
) -> None:
    engine = make_engine(context=64)
    error = get_error(engine, engine.admit(make_job(**fields)))
    assert (type(error), error.param) == (error_class, param)


def test_without_the_library_grammars_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    engine = make_engine()
    assert not engine.capabilities.grammars
    error = get_error(engine, engine.admit(make_job(grammar=HEADER + 'start: "a"')))
    assert (type(error), error.param) == (Unsupported, "grammar")


# sampling


class FixedLogits:
    """Returns the same logits for every input."""

    def __init__(self, *likely: tuple[int, float]) -> None:
        self.logits = np.full(SIZE, -30.0)
        for token, logit in likely:
            self.logits[token] = logit

    def begin(self, prompt: Sequence[int]) -> tuple[None, Floats]:
        return None, self.logits

    def step(self, states: Sequence[None], tokens: Sequence[int]) -> list[Floats]:
        return [self.logits] * len(states)


FOUR_LETTERS = FixedLogits(
    (97, np.log(0.5)), (98, np.log(0.3)), (99, np.log(0.15)), (100, np.log(0.05))
)


@pytest.mark.parametrize(
    ("fields", "letters"),
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
        ({"typical_p": 0.2}, "b"),  # the entropy is 1.14, and the surprise of b is 1.20
        ({"typical_p": 0.75}, "ab"),
        ({"top_k": 3, "min_p": 0.5}, "ab"),
        ({"top_n_sigma": 0.001}, "a"),
        ({"top_n_sigma": -1.0}, "abcd"),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, "bcd"),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, "cd"),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2, "temperature": 0.0}, "b"),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.6}, "abcd"),
        ({"xtc_probability": 0.0, "xtc_threshold": 0.1}, "abcd"),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, "abcd"),
        ({"temperature": 0.0, "dynatemp_range": 1.0, "top_k": 4}, "abcd"),
        ({"temperature": 0.0, "dynatemp_range": 1.0, "dynatemp_exponent": 99.0, "top_k": 4}, "a"),
        ({"logit_bias": {97: -100.0, 100: 100.0}}, "d"),
        ({"logit_bias": {97: -100.0}, "temperature": 0.0}, "b"),
        ({"logit_bias": dict.fromkeys(range(SIZE), -100.0), "temperature": 0.0}, "a"),
    ],
    ids=str,
)
def test_each_field_selects_the_right_tokens(fields: dict[str, Any], letters: str) -> None:
    text = get_text(run_job(make_job(seed=1, max_tokens=300, **fields), FOUR_LETTERS))
    assert set(text) == set(letters)


@pytest.mark.parametrize("spread", [0.1, 6.0])
def test_the_most_likely_of_a_large_vocabulary_are_selected(spread: float) -> None:
    scores = np.random.default_rng(1).normal(0, spread, 5000)
    probabilities = np.exp(log_softmax(scores))
    order = np.argsort(-scores)
    count = int(np.searchsorted(np.cumsum(probabilities[order]), 0.8)) + 1
    assert (count > SORTED_FIRST) == (spread < 1)
    assert select_top_p(scores, 0.8).tolist() == order[:count].tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_as_frequent_as_they_are_likely(temperature: float) -> None:
    text = get_text(
        run_job(make_job(seed=3, max_tokens=3000, temperature=temperature, top_k=4), FOUR_LETTERS)
    )
    weights = np.array([0.5, 0.3, 0.15, 0.05]) ** (1 / temperature)
    counts = Counter(text)
    assert [counts[letter] / 3000 for letter in "abcd"] == pytest.approx(
        list(weights / weights.sum()), abs=0.03
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "aaaaaa"),
        ({"presence_penalty": 0.6}, "abaaaa"),  # once each, then the order is as before
        ({"frequency_penalty": 0.6}, "ababac"),
        ({"repetition_penalty": 3.0}, "abcaaa"),
        ({"repetition_penalty": 3.0, "repeat_last_n": 1}, "ababab"),
        ({"repetition_penalty": 3.0, "repeat_last_n": 0}, "aaaaaa"),
        ({"repetition_penalty": 3.0, "repeat_last_n": -1, "prompt": [97] + [0] * 99}, "bcaaaa"),
        ({"repetition_penalty": 3.0, "repeat_last_n": 64, "prompt": [97] + [0] * 99}, "abcaaa"),
    ],
    ids=str,
)
def test_penalties_respect_their_window(fields: dict[str, Any], text: str) -> None:
    fields = {"prompt": [0]} | fields
    assert (
        get_text(run_job(make_job(temperature=0.0, max_tokens=6, **fields), FOUR_LETTERS)) == text
    )


PREFERS_END = FixedLogits((END, 3.0), (97, 2.0), (98, 1.0))


@pytest.mark.parametrize(
    ("fields", "text", "finish", "stop_id"),
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
def test_stop_tokens_end_an_answer(
    fields: dict[str, Any], text: str, finish: str, stop_id: int | None
) -> None:
    steps = run_job(make_job(temperature=0.0, max_tokens=5, **fields), PREFERS_END)
    assert (get_text(steps), get_finish(steps), steps[-1].stop_id) == (text, finish, stop_id)
    assert sum(step.tokens for step in steps) == len(text) + (stop_id is not None)


def test_fields_that_are_not_honoured() -> None:
    """These belong to samplers of llama.cpp; the pipeline rejects them by name."""
    families = ("mirostat", "adaptive", "dry_", "samplers", "min_keep")
    missing = frozenset(Sampling.__struct_fields__) - SAMPLING_FIELDS
    assert [name for name in missing if not name.startswith(families)] == []


# logprobs


def test_logprobs_are_those_of_the_model_alone() -> None:
    sampling: dict[str, Any] = {
        "temperature": 1.7,
        "top_k": 40,
        "logit_bias": {120: 5.0},
        "repetition_penalty": 1.3,
    }
    steps = run_job(make_job(seed=2, logprobs=3, ignore_eos=True, **sampling))
    model = TinyModel()
    state, logits = model.begin(PROMPT)
    for token, logprob in zip(get_ids(steps), get_logprobs(steps), strict=True):
        expected = log_softmax(logits[:SIZE])
        best = np.argsort(-expected)[:3]
        assert logprob.id == token
        assert logprob.logprob == pytest.approx(expected[token])
        assert [other.id for other in logprob.top] == best.tolist()
        assert [other.logprob for other in logprob.top] == pytest.approx(expected[best].tolist())
        logits = model.step([state], [token])[0]


def test_a_grammar_changes_no_logprob() -> None:
    rule = HEADER + "start: /[xyz]{8}/"
    steps = run_job(make_job(seed=2, logprobs=1, grammar=rule))
    tokens = get_ids(steps)
    model = TinyModel()
    state, logits = model.begin(PROMPT)
    for token, logprob in zip(tokens, get_logprobs(steps), strict=True):
        assert logprob.logprob == pytest.approx(log_softmax(logits[:SIZE])[token])
        logits = model.step([state], [token])[0]
    assert any(logprob.top[0].id not in b"xyz" for logprob in get_logprobs(steps))


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_a_prompt_is_reported_token_by_token(max_tokens: int) -> None:
    job = make_job(seed=2, max_tokens=max_tokens, n=2, prompt_logprobs=2, ignore_eos=True)
    steps = run_job(job)
    logprobs = [logprob for step in steps for logprob in step.prompt_logprobs]
    assert [logprob.id for logprob in logprobs] == PROMPT
    assert logprobs[0] == Logprob(PROMPT[0], None)
    model = TinyModel()
    for position, logprob in enumerate(logprobs[1:], start=1):
        expected = log_softmax(model.begin(PROMPT[:position])[1][:SIZE])
        assert logprob.logprob == pytest.approx(expected[PROMPT[position]])
        assert [other.id for other in logprob.top] == np.argsort(-expected)[:2].tolist()
    plain = run_job(make_job(seed=2, max_tokens=max_tokens, n=2, ignore_eos=True))
    for choice in range(2):
        assert get_ids(steps, choice) == get_ids(plain, choice)
    assert [step.prompt_tokens for step in steps if step.prompt_tokens is not None] == [len(PROMPT)]


# grammars


def check_json(text: str) -> None:
    jsonschema.validate(json.loads(text), SCHEMA)


def check_pattern(text: str) -> None:
    assert re.fullmatch("[a-f]{2,5}-(é|日本)[0-9]+", text)


def check_choice(text: str) -> None:
    assert text in ("yes", "yesterday", "no")


@pytest.mark.parametrize(
    ("start", "check"),
    [
        (f"%json {json.dumps(SCHEMA)}", check_json),
        ("/[a-f]{2,5}-(é|日本)[0-9]+/", check_pattern),
        ('"yes" | "yesterday" | "no"', check_choice),
    ],
)
def test_random_weights_give_valid_answers(start: str, check: Callable[[str], None]) -> None:
    job = make_job(
        seed=9, n=12, temperature=1.5, max_tokens=400, grammar=HEADER + "start: " + start
    )
    steps = run_job(job)
    texts = [get_text(steps, choice) for choice in range(12) if get_finish(steps, choice) == "stop"]
    assert len(texts) > 8
    assert len(set(texts)) > 1
    for text in texts:
        check(text)


def test_an_answer_ends_where_its_grammar_does() -> None:
    rule = HEADER + 'start: "abc"'
    complete = run_job(make_job(grammar=rule, max_tokens=3))
    assert (get_text(complete), get_finish(complete), complete[-1].stop_id) == ("abc", "stop", None)
    cut = run_job(make_job(grammar=rule, max_tokens=2))
    assert (get_text(cut), get_finish(cut)) == ("ab", "length")
    empty = run_job(make_job(grammar=HEADER + 'start: ""'))
    assert (get_text(empty), get_finish(empty)) == ("", "stop")


def test_a_stop_token_ends_an_answer_only_where_it_is_complete() -> None:
    rule = HEADER + "start: /[ab]{4,}/"
    steps = run_job(make_job(grammar=rule, max_tokens=99, stop_token_ids=(98,)), FOUR_LETTERS)
    assert get_finish(steps) == "stop"
    assert steps[-1].stop_id == 98
    assert re.fullmatch("a{4,}", get_text(steps))


def test_a_bias_against_the_only_allowed_token_has_no_effect() -> None:
    assert (
        get_text(run_job(make_job(grammar=HEADER + 'start: "a"', logit_bias={97: -100.0}))) == "a"
    )


def test_a_grammar_that_allows_nothing_fails_its_own_job_only() -> None:
    rule = HEADER + "start: /[a-z]{3}/ X\nX: /[0-9]/ & /[a-z]/"
    engine = make_engine()

    async def main() -> list[Any]:
        jobs = [make_job(seed=1), make_job(seed=1, grammar=rule, n=2), make_job(seed=2)]
        tasks = (collect(engine, job) for job in jobs)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.aclose()
        return results

    before, error, after = asyncio.run(main())
    assert isinstance(error, BadRequest)
    assert (error.param, error.code) == ("grammar", "invalid_grammar")
    assert "no token is allowed" in error.message
    assert get_ids(before) == get_ids(run_job(make_job(seed=1)))
    assert get_ids(after) == get_ids(run_job(make_job(seed=2)))


def test_a_mask_affects_no_other_job() -> None:
    grammars = [HEADER + "start: /[0-9]{30}/", HEADER + f"start: %json {json.dumps(SCHEMA)}"]
    fields: dict[str, Any] = {"seed": 4, "n": 2, "logprobs": 1}
    free_fields = {"max_tokens": 200, "ignore_eos": True, **fields}  # until the others have started
    jobs = [
        make_job(grammar=grammars[0], max_tokens=30, **fields),
        make_job(list(b"free"), **free_fields),
        make_job(grammar=grammars[1], max_tokens=30, **fields),
        make_job(list(b"as a bird"), **free_fields),
    ]
    model = TinyModel()
    masker = TokenMasker(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
    for grammar in grammars:
        masker.start_grammar(grammar)  # so that compiling does not delay them
    runs = run_jobs(make_engine(model, masker=masker), *jobs)
    assert max(model.batches) == 8
    for job, run in zip(jobs, runs, strict=True):
        alone = run_job(job)
        for choice in range(2):
            assert get_ids(run, choice) == get_ids(alone, choice)
            assert get_finish(run, choice) == get_finish(alone, choice)
    assert get_text(runs[0]).isdigit()
    assert not set(get_ids(runs[1])) <= set(b"0123456789")


class DelayedState(GrammarState):
    """Computes a mask only after the forward pass has started."""

    def __init__(self, inner: GrammarState, model: HandshakeModel) -> None:
        self.inner, self.model = inner, model
        self.pending: Future[bytes] | None = None

    def start_mask(self) -> Future[bytes]:
        if self.pending is None:
            self.pending = self.model.threads.submit(self.compute_late)
        return self.pending

    def get_mask(self) -> bytes:
        return self.start_mask().result()

    def compute_late(self) -> bytes:
        assert self.model.started.wait(10), "no forward pass started before the mask was needed"
        self.model.started.clear()
        mask = self.inner.get_mask()
        self.model.masked.set()
        return mask

    def apply_mask(self, logits: Floats | NDArray[np.float32]) -> None:
        self.start_mask().result()
        self.inner.apply_mask(logits)

    def advance(self, *tokens: int) -> None:
        self.pending = None
        self.inner.advance(*tokens)

    @property
    def must_end(self) -> bool:
        return self.inner.must_end


class HandshakeModel(TinyModel):
    """Ends a forward pass only after a mask was computed during it."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.masked = threading.Event(), threading.Event()
        self.threads = ThreadPoolExecutor(1)
        self.passes = 0

    def begin(self, prompt: Sequence[int]) -> tuple[Floats, Floats]:
        self._synchronize()
        return super().begin(prompt)

    def step(self, states: Sequence[Floats], tokens: Sequence[int]) -> Floats:
        self._synchronize()
        return super().step(states, tokens)

    def _synchronize(self) -> None:
        self.started.set()
        assert self.masked.wait(10), "no mask was computed during the forward pass"
        self.masked.clear()
        self.passes += 1


class DelayedMasker(TokenMasker):
    def __init__(self, model: HandshakeModel) -> None:
        super().__init__(TOKENIZER.pieces, TOKENIZER.eos_ids, TOKENIZER.control)
        self.model = model

    def start_grammar(
        self, grammar: str, stop_ids: Collection[int] = (), scope: str = ""
    ) -> GrammarState:
        return DelayedState(super().start_grammar(grammar, stop_ids, scope), self.model)


def test_masks_are_computed_during_the_forward_pass() -> None:
    model = HandshakeModel()
    engine = make_engine(model, masker=DelayedMasker(model))
    job = make_job(seed=1, grammar=HEADER + "start: /[0-9]{6}/")

    async def main() -> list[Step]:
        async with aclosing(engine.generate(job)) as stream:
            return [step async for step in stream]

    with model.threads:
        steps = asyncio.run(main())
    asyncio.run(engine.aclose())
    assert model.passes == 6
    assert get_ids(steps) == get_ids(run_job(job))


# failures


class FailingModel(TinyModel):
    """A correct model, except for one pass."""

    def __init__(self, corrupt: Callable[[Floats], Any], failing_pass: int = 3) -> None:
        super().__init__()
        self.corrupt, self.failing_pass = corrupt, failing_pass

    def step(self, states: Sequence[Floats], tokens: Sequence[int]) -> Any:
        rows = super().step(states, tokens)
        return self.corrupt(rows) if len(self.batches) == self.failing_pass else rows


def raise_error(rows: Floats) -> Any:
    raise ZeroDivisionError("/a/secret/path")


@pytest.mark.parametrize(
    "corrupt",
    [
        raise_error,
        lambda rows: rows[:, :100],
        lambda rows: rows[:0],
        lambda rows: rows[0],
        lambda rows: rows * np.nan,
        lambda rows: rows - np.inf,
        lambda rows: None,
    ],
    ids=["raises", "narrow", "none", "flat", "nan", "nothing", "no array"],
)
def test_a_failing_model_fails_the_job(corrupt: Callable[[Floats], Any]) -> None:
    engine = make_engine(FailingModel(corrupt))

    async def read(into: list[Step]) -> None:
        async with aclosing(engine.generate(make_job(seed=1, ignore_eos=True))) as stream:
            async for step in stream:
                into.append(step)  # noqa: PERF401

    async def main() -> tuple[list[Step], DragomanError, list[Step]]:
        before: list[Step] = []
        with pytest.raises(EngineFailed) as failed:
            await read(before)
        after = await collect(engine, make_job(seed=1, ignore_eos=True))
        await engine.aclose()
        return before, failed.value, after

    before, error, after = asyncio.run(main())
    whole = get_ids(run_job(make_job(seed=1, ignore_eos=True)))
    assert (get_ids(before), get_ids(after)) == (whole[:3], whole)
    assert "secret" not in error.message


def test_a_dragoman_error_of_a_model_is_reported_unchanged() -> None:
    def reject(rows: Floats) -> Any:
        raise BadRequest("Not this.", param="prompt")

    engine = make_engine(FailingModel(reject))
    error = get_error(engine, collect(engine, make_job(ignore_eos=True)))
    assert (type(error), error.message) == (BadRequest, "Not this.")


def test_closing_a_job_frees_its_slots_at_once() -> None:
    model = TinyModel()
    engine = make_engine(model, slots=2)

    async def main() -> list[Step]:
        endless = make_job(n=5, max_tokens=10**9, ignore_eos=True)
        async with aclosing(engine.generate(endless)) as stream:
            await anext(stream)
        steps = await collect(engine, make_job(seed=1))
        await engine.aclose()
        return steps

    assert get_ids(asyncio.run(main())) == get_ids(run_job(make_job(seed=1)))


def test_closing_the_engine_ends_running_jobs() -> None:
    engine = make_engine(slots=1)

    async def main() -> None:
        stream = engine.generate(make_job(n=2, max_tokens=10**9, ignore_eos=True))
        await anext(stream)
        await engine.aclose()
        with pytest.raises(EngineDown):
            async for _ in stream:
                pass
        with pytest.raises(EngineDown):
            await collect(engine, make_job())

    asyncio.run(main())
