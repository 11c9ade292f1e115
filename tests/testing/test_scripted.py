"""The scripted engine: its replies, how they are cut, its pace, and its failures."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from dragoman.errors import (
    BadRequest,
    ContextOverflow,
    EngineDown,
    EngineFailed,
    Overloaded,
    Unsupported,
)
from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine, every_cut
from dragoman.testing.replies import cut_text, find_last_message
from dragoman.testing.scripted import create
from dragoman.types import Adapter, Job, Sampling, Step

TEXT = 'Grüße, <tool_call>{"name": "look", "arguments": {}}</tool_call> 👋🏽\n\n  done. '


def make_job(prompt: list[int] | str = "hi", *, n: int = 1, **fields: Any) -> Job:
    sampling = {
        name: fields.pop(name) for name in tuple(fields) if name in Sampling.__struct_fields__
    }
    return Job(id="j", prompt=prompt, n=n, sampling=Sampling(**sampling), **fields)


async def collect(engine: ScriptedEngine, job: Job) -> list[Step]:
    async with aclosing(engine.generate(job)) as stream:
        return [step async for step in stream]


def play(engine: ScriptedEngine, job: Job | None = None) -> list[Step]:
    return asyncio.run(collect(engine, job or make_job()))


def get_text(steps: list[Step], choice: int = 0) -> str:
    return "".join(step.text or "" for step in steps if step.choice == choice)


def get_ids(steps: list[Step], choice: int = 0) -> list[int]:
    return [id_ for step in steps if step.choice == choice for id_ in step.ids]


@pytest.mark.parametrize("chunks", ["words", "characters", 1, 3, 1000])
@pytest.mark.parametrize("text", ["", "a", TEXT, "   ", "日本語 テキスト"])
def test_a_reply_is_complete_however_it_is_cut(text: str, chunks: Any) -> None:
    steps = play(ScriptedEngine(Reply(text, chunks=chunks)))
    assert get_text(steps) == text
    assert [step.finish for step in steps if step.finish] == ["stop"]
    assert steps[-1].finish == "stop"
    assert sum(step.tokens for step in steps) == len(steps) - 1


def test_words_are_cut_like_tokens() -> None:
    assert cut_text("Hello there, internationalisation!", "words") == [
        "Hello", " there", ",", " internat", "ionalisa", "tion", "!",
    ]  # fmt: skip


def test_pieces_can_be_written_out() -> None:
    engine = ScriptedEngine(Reply(pieces=("<tool", "_call>", "x")))
    assert [step.text for step in play(engine)] == ["<tool", "_call>", "x", None]


@pytest.mark.parametrize("fields", [{"chunks": "bytes"}, {"chunks": 0}, {"pieces": (b"x",)}])
def test_a_cut_that_text_cannot_have_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"chunks|pieces"):
        play(ScriptedEngine(Reply("x", **fields)))


def test_a_reader_cannot_change_the_next_answer() -> None:
    engine = ScriptedEngine(Reply("abc", chunks=3), tokens=True)
    play(engine)[0].ids.clear()
    assert get_ids(play(engine)) == [*b"abc"]


@pytest.mark.parametrize("chunks", ["words", "characters", "bytes", 2])
def test_token_ids_spell_the_text(chunks: Any) -> None:
    engine = ScriptedEngine(Reply(TEXT, chunks=chunks), tokens=True)
    assert engine.tokenizer is not None
    steps = play(engine)
    assert engine.tokenizer.decode(get_ids(steps)) == TEXT
    assert all(step.tokens == len(step.ids) for step in steps)
    assert steps[-1].stop_id == engine.tokenizer.eos_id


def test_pieces_of_bytes_can_cut_a_character() -> None:
    engine = ScriptedEngine(Reply(pieces=("a", b"\xf0\x9f", b"\x91\x8b")), tokens=True)
    assert [step.ids for step in play(engine)] == [[97], [0xF0, 0x9F], [0x91, 0x8B], []]


def test_a_stop_token_in_the_reply_ends_it() -> None:
    engine = ScriptedEngine("yes<|im_end|>no", tokens=True)
    steps = play(engine)
    assert bytes(get_ids(steps)) == b"yes"
    assert (steps[-1].finish, steps[-1].stop_id) == ("stop", 258)
    continued = play(engine, make_job(ignore_eos=True, max_tokens=6))
    assert get_ids(continued) == [*b"yes", 258, *b"no"]
    assert continued[-1].finish == "length"


def test_stop_token_ids_end_it_after_min_tokens() -> None:
    engine = ScriptedEngine(Reply("abcabc", chunks=6), tokens=True)
    first = play(engine, make_job(stop_token_ids=(ord("b"),)))
    assert (get_ids(first), first[-1].stop_id) == ([*b"a"], ord("b"))
    later = play(engine, make_job(stop_token_ids=(ord("b"),), min_tokens=3))
    assert get_ids(later) == [*b"abca"]


MAX_TOKENS = [(1, "a", "length"), (3, "abc", "length"), (4, "abcd", "length"), (5, "abcd", "stop")]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize(("limit", "text", "finish"), MAX_TOKENS)
def test_max_tokens(tokens: bool, limit: int, text: str, finish: str) -> None:
    engine = ScriptedEngine(Reply("abcd", chunks=1), tokens=tokens)
    steps = play(engine, make_job(max_tokens=limit))
    assert (get_text(steps) or bytes(get_ids(steps)).decode()) == text
    assert steps[-1].finish == finish
    assert sum(step.tokens for step in steps) == len(text)


def test_max_tokens_cuts_a_step_of_many_ids() -> None:
    steps = play(ScriptedEngine(Reply("abcdef", chunks=4), tokens=True), make_job(max_tokens=5))
    assert [step.ids for step in steps] == [[*b"abcd"], [*b"e"]]
    assert steps[-1].finish == "length"


def test_ignore_eos_and_min_tokens_repeat_the_reply() -> None:
    engine = ScriptedEngine(Reply("ab", chunks=1))
    assert get_text(play(engine, make_job(ignore_eos=True, max_tokens=5))) == "ababa"
    assert get_text(play(engine, make_job(min_tokens=3))) == "abab"


def test_the_context_ends_an_answer() -> None:
    engine = ScriptedEngine(Reply("x" * 50, chunks=1), context=10)
    steps = play(engine, make_job("one two three"))
    assert (len(steps), steps[-1].finish) == (7, "length")


def test_choices_variants_and_seeds() -> None:
    engine = ScriptedEngine(Reply("zero", variants=("one", "two")))
    assert [get_text(play(engine, make_job(n=4)), choice) for choice in range(4)] == [
        "zero", "one", "two", "zero",
    ]  # fmt: skip
    assert get_text(play(engine, make_job(seed=2))) == "two"
    assert get_text(play(engine, make_job(seed=2, n=2)), 1) == "zero"
    assert get_text(play(engine, make_job(seed=2, temperature=0.0))) == "zero"


def test_choices_take_turns_and_the_prompt_is_counted_once() -> None:
    engine = ScriptedEngine(Reply("abc", variants=("d",), chunks=1), cached=2)
    steps = play(engine, make_job("one two three", n=2))
    assert [step.choice for step in steps] == [0, 1, 0, 1, 0, 0]
    assert [step.prompt_tokens for step in steps] == [3, None, None, None, None, None]
    assert steps[0].cached_tokens == 2
    assert play(engine, make_job("one two three", cache_prompt=False))[0].cached_tokens == 0


def test_logprobs_belong_to_their_tokens() -> None:
    for tokens in (False, True):
        engine = ScriptedEngine(Reply("Hello there.", chunks="words"), tokens=tokens)
        steps = play(engine, make_job(logprobs=3))
        for step in steps:
            assert len(step.logprobs) == step.tokens
            for index, logprob in enumerate(step.logprobs):
                assert logprob.id == step.ids[index] if tokens else logprob.text == step.text
                assert logprob.top[0].logprob == logprob.logprob
                values = [other.logprob or 0.0 for other in logprob.top]
                assert values == sorted(values, reverse=True)
                assert max(values) <= 0
                assert len(set(logprob.top)) == 3
        assert steps == play(engine, make_job(logprobs=3))
        assert not any(step.logprobs for step in play(engine))


def test_prompt_logprobs_have_no_number_for_the_first_token() -> None:
    first = play(ScriptedEngine("x", tokens=True), make_job([104, 105], prompt_logprobs=1))[0]
    assert [(entry.id, entry.logprob is None) for entry in first.prompt_logprobs] == [
        (104, True), (105, False),
    ]  # fmt: skip


AGENT = {"weather": "<call>look()</call>", "22 degrees": "It is 22 degrees."}
CHATML = "<|im_start|>{}\n{}<|im_end|>\n"
LLAMA = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
GEMMA = "<start_of_turn>{}\n{}<end_of_turn>\n"


@pytest.mark.parametrize(
    ("turn", "opening"),
    [
        (CHATML, "<|im_start|>assistant\n"),
        (CHATML, "<|im_start|>assistant\n<think>\n"),
        (LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        (GEMMA, "<start_of_turn>model\n"),
    ],
)
@pytest.mark.parametrize("tokens", [False, True])
def test_the_last_message_selects_the_replies_of_an_agent_loop(
    turn: str, opening: str, tokens: bool
) -> None:
    engine = ScriptedEngine(AGENT, tokens=tokens)
    prompt = turn.format("user", "How is the weather?")

    def get_answer() -> str:
        steps = play(engine, make_job(prompt + opening))
        return get_text(steps) or bytes(get_ids(steps)).decode()

    assert get_answer() == "<call>look()</call>"
    prompt += turn.format("assistant", "<call>look()</call>") + turn.format("tool", "22 degrees")
    assert get_answer() == "It is 22 degrees."


def test_a_prompt_without_markers_is_searched_as_a_whole() -> None:
    assert find_last_message("What is the weather?") == "What is the weather?"
    assert find_last_message("<|im_start|>assistant\n") == ""
    assert (
        get_text(play(ScriptedEngine(AGENT), make_job("user: the weather?")))
        == "<call>look()</call>"
    )


def test_conditions_are_substrings_or_expressions_and_the_first_match_wins() -> None:
    replies = [Reply("a", when="a.c"), Reply("b", when="a.c$", regex=True), Reply("c")]
    for prompt, text in [("xa.cx", "a"), ("xabc", "b"), ("abcd", "c")]:
        assert get_text(play(ScriptedEngine(replies), make_job(prompt))) == text


def test_a_reply_that_is_used_up_is_followed_by_the_next() -> None:
    replies = [Reply("first", when="hi", max_uses=1), Reply("again", when="hi")]
    engine = ScriptedEngine(replies)
    assert [get_text(play(engine)) for _ in range(3)] == ["first", "again", "again"]
    texts = ScriptedEngine(["one", "two", "three"])
    assert [get_text(play(texts)) for _ in range(4)] == ["one", "two", "three", "three"]


def test_a_prompt_that_no_reply_matches_is_a_failure() -> None:
    with pytest.raises(EngineFailed, match="No reply of the script matches"):
        play(ScriptedEngine({"other": "x"}))


REJECTED = [
    (ScriptedEngine("x", context=3), make_job("a b c"), ContextOverflow),
    (ScriptedEngine("x", context=3, tokens=True), make_job([1, 2, 3]), ContextOverflow),
    (ScriptedEngine("x", lora=("known",)), make_job(lora=(Adapter("other"),)), BadRequest),
    (ScriptedEngine("x"), make_job([1, 2, 3]), Unsupported),
]


@pytest.mark.parametrize(("engine", "job", "error"), REJECTED)
def test_admit_rejects(engine: ScriptedEngine, job: Job, error: type[Exception]) -> None:
    with pytest.raises(error):
        asyncio.run(engine.admit(job))


def test_admit_accepts_the_rest() -> None:
    engine = ScriptedEngine("x", context=4, lora=("known",))
    job = make_job("a b c", lora=(Adapter("known"),))

    async def run() -> str:
        await engine.admit(job)
        return "".join([step.text or "" async for step in engine.generate(job)])

    assert asyncio.run(run()) == "x"


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply("abcdef", chunks=1, raise_at=2), EngineFailed),
        (Reply("abcdef", chunks=1, raise_at=2, error="Overloaded"), Overloaded),
        (Reply("abcdef", chunks=1, raise_at=2, error="ValueError"), ValueError),
        (Reply("abcdef", chunks=1, raise_at=2, error=KeyError("x")), KeyError),
        (Reply("abcdef", chunks=1, raise_at=2, error="NoSuchError"), EngineFailed),
    ],
)
def test_steps_before_a_fault_are_yielded(reply: Reply, error: type[BaseException]) -> None:
    async def main() -> None:
        engine = ScriptedEngine(reply)
        with pytest.raises(error):
            await collect(engine, make_job())
        assert engine.steps == 2
        assert (engine.failed, engine.cancelled, engine.active) == (1, 0, 0)

    asyncio.run(main())


def test_only_cancelling_ends_a_hang() -> None:
    async def main() -> None:
        engine = ScriptedEngine(Reply("abc", chunks=1, hang_at=1))
        task = asyncio.create_task(collect(engine, make_job()))
        await engine.wait_until(lambda engine: engine.steps == 1)
        with pytest.raises(TimeoutError):
            await engine.wait_until(lambda engine: engine.steps == 2, timeout=0.02)
        task.cancel()
        await engine.wait_until(lambda engine: engine.active == 0)
        assert engine.cancelled == 1
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_an_exit_ends_the_process() -> None:
    program = (
        "import asyncio\n"
        "from dragoman.testing import Reply, ScriptedEngine\n"
        "from dragoman.types import Job\n"
        "async def main():\n"
        "    engine = ScriptedEngine(Reply('abc', chunks=1, exit_at=2))\n"
        "    async for step in engine.generate(Job(id='j', prompt='x')):\n"
        "        print(step.text, flush=True)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (70, "a\nb\n")


def test_a_script_can_break_the_contract_of_engines() -> None:
    def play_reply(**fields: Any) -> list[Step]:
        return play(ScriptedEngine(Reply("ab", chunks=1, **fields)), make_job(logprobs=1))

    assert [step.finish for step in play_reply(no_finish=True)] == [None, None, None]
    assert math.isnan(play_reply(garbage="nan_logprob")[0].logprobs[0].logprob or 0.0)
    assert play_reply(garbage="after_finish")[-1] == Step(0, "and more", tokens=1)
    assert play_reply(garbage="bad_choice")[0].choice == 1
    corrupted = play(ScriptedEngine(Reply("ab", garbage="bad_token"), tokens=True))
    assert corrupted[0].ids == [1_000_000]


def test_a_cancelled_job_is_counted() -> None:
    async def main() -> None:
        engine = ScriptedEngine("one two three")
        stream = engine.generate(make_job())
        await anext(stream)
        assert (engine.active, engine.started) == (1, 1)
        await stream.aclose()
        assert (engine.active, engine.cancelled, engine.finished) == (0, 1, 0)
        await collect(engine, make_job())
        assert (engine.active, engine.cancelled, engine.finished) == (0, 1, 1)
        assert [job.prompt for job in engine.jobs] == ["hi", "hi"]

    asyncio.run(main())


def test_without_a_pace_steps_wait_for_ticks() -> None:
    async def main() -> None:
        engine = ScriptedEngine(Reply("abcd", chunks=1), pace=None)
        tasks = [asyncio.create_task(collect(engine, make_job())) for _ in range(2)]
        await engine.wait_until(lambda engine: engine.active == 2)
        engine.tick()
        await engine.wait_until(lambda engine: engine.steps == 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine.steps == 2
        engine.tick(4)
        assert [get_text(steps) for steps in await asyncio.gather(*tasks)] == ["abcd", "abcd"]

    asyncio.run(main())


def test_many_paced_streams_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers = 0
        call_at = loop.call_at

        def count_call(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_at(*args, **kwargs)

        monkeypatch.setattr(loop, "call_at", count_call)
        engine = ScriptedEngine(Reply("abcd", chunks=1), pace=0.002)
        answers = await asyncio.gather(*(collect(engine, make_job()) for _ in range(300)))
        assert {get_text(steps) for steps in answers} == {"abcd"}
        assert engine.peak == 300
        assert timers <= 10  # about one for each of five ticks, not one for each stream

    asyncio.run(main())


def test_a_reply_can_have_a_pace_of_its_own() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await collect(ScriptedEngine(Reply("abcd", chunks=1, pace=0.01), pace=0), make_job())
        assert loop.time() - started >= 0.045

    asyncio.run(main())


def test_unpaced_streams_run_concurrently() -> None:
    async def main() -> None:
        engine = ScriptedEngine(Reply("a" * 100, chunks=1))
        first, second = [asyncio.create_task(collect(engine, make_job())) for _ in range(2)]
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
        assert engine.steps > 180  # they alternate
        await asyncio.gather(first, second)

    asyncio.run(main())


def test_embeddings_depend_on_the_input_only() -> None:
    engine = ScriptedEngine("x", embeddings=5)
    text, ids, again = asyncio.run(engine.embed(["a", [1, 2], "a"]))
    assert text == again != ids
    assert [len(text), len(ids)] == [5, 5]
    assert math.isclose(math.hypot(*text), 1.0)
    assert asyncio.run(engine.embed(["a"], [Adapter("l")])) != [text]


def test_text_is_tokenized_by_bytes_or_by_words() -> None:
    assert asyncio.run(ScriptedEngine("x", tokens=True).tokenize("é<|im_end|>", True)) == [
        195,
        169,
        258,
    ]
    assert len(asyncio.run(ScriptedEngine("x").tokenize("one two, three", False))) == 4


def test_a_closed_engine_accepts_nothing() -> None:
    async def main() -> None:
        engine = ScriptedEngine("x")
        await engine.aclose()
        await engine.aclose()
        with pytest.raises(EngineDown):
            await engine.admit(make_job())
        with pytest.raises(EngineDown):
            await collect(engine, make_job())

    asyncio.run(main())


def test_it_can_be_created_from_plain_data() -> None:
    settings = {
        "script": [{"text": "a b", "when": "x", "chunks": 1, "variants": ["c"]}, "else"],
        "tokens": True,
        "lora": ["l"],
        "markup": ["<think>"],
    }
    engine = create(**msgspec.msgpack.decode(msgspec.msgpack.encode(settings)))
    assert engine.capabilities.lora == ("l",)
    assert bytes(get_ids(play(engine, make_job("xx")))) == b"a b"
    assert bytes(get_ids(play(engine, make_job("y")))) == b"else"
    assert (
        get_text(play(create({"y": {"text": "mapped"}, "z": "plain"}), make_job("y"))) == "mapped"
    )
    assert get_text(play(create("text"))) == "text"


@pytest.mark.parametrize("settings", [{"speed": 1}, {"context": "long"}])
def test_unknown_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises((TypeError, msgspec.ValidationError)):
        create("x", **settings)
    with pytest.raises((TypeError, msgspec.ValidationError)):
        create([{"text": "x", "raise_after": 1}])


def test_byte_tokenizer() -> None:
    tokenizer = ByteTokenizer(("<s>", "</s>"), markup=("<think>",), add_bos=True)
    ids = tokenizer.encode_with_specials("<s>é<think></s>")
    assert ids == [256, 195, 169, 258, 257]
    assert tokenizer.decode([*ids, 999]) == "<s>é<think></s>"
    assert tokenizer.encode_now("<s>") == [*b"<s>"] == asyncio.run(tokenizer.encode("<s>"))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (256, 257, 259)
    assert (set(tokenizer.eos_ids), set(tokenizer.control)) == ({257}, {256, 257})
    assert tokenizer.variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.add_bos
    assert tokenizer.encode_now(TEXT) == [*TEXT.encode()]
    plain = ByteTokenizer(())
    assert (plain.bos_id, plain.eos_id, plain.variables, plain.split_specials("a")) == (
        None,
        None,
        {},
        ["a"],
    )


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", TEXT])
def test_every_cut(text: str) -> None:
    cuts = list(every_cut(text, random_cuts=7))
    assert {"".join(pieces) for pieces in cuts} == {text}
    assert all(piece for pieces in cuts for piece in pieces) or not text
    assert all([text[:cut], text[cut:]] in cuts for cut in range(1, len(text)))
    assert list(text) in cuts or not text
    assert cuts == list(every_cut(text, random_cuts=7))
    if len(text) > 3:
        assert len(cuts) == 1 + (len(text) - 1) + 1 + 7
        assert cuts != list(every_cut(text, random_cuts=7, seed=1))
