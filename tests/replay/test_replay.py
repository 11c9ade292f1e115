"""What a model said goes back to it as it said it, token by token."""

from __future__ import annotations

import asyncio
import json
import re
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest

from dragoman.errors import TemplateRejected
from dragoman.events import Completion
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.models.registry import ModelRegistry
from dragoman.pipeline import pipeline
from dragoman.pipeline.admission import Admission
from dragoman.pipeline.services import Services
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.special_tokens import POSITION
from dragoman.prompt.turn_markers import drop_replays
from dragoman.replay import ReplayScope, ReplayService
from dragoman.replay.cache import ReplayCache
from dragoman.replay.digest import ReplayEntry, canonical_json, digest_answer
from dragoman.replay.prefix_index import PrefixIndex, pack_ids
from dragoman.replay.splice import TurnSplicer
from dragoman.store.rows import StoredTurn as Row
from dragoman.testing import ByteTokenizer, Reply, ScriptedEngine
from dragoman.tokenizers.vocabulary import find_stop_ids
from dragoman.types import (
    Adapter,
    Chat,
    Job,
    Message,
    ReplayedTurn,
    Request,
    Sampling,
    Tool,
    ToolCall,
    text_content,
)
from tests.support.paths import TESTS
from tests.support.serving import make_chat as asking
from tests.support.serving import serve_scripted

HERE = TESTS
OWN = HERE / "templates"
REAL = HERE.parent.parent / "shared" / "exam" / "templates"
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
BRACKETS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

WEATHER = Tool(
    name="weather",
    description="Tells the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
)
QUESTION = Message(role="user", content=text_content("Is it sunny in Paris?"))


def user(text: str) -> Message:
    return Message(role="user", content=text_content(text))


# A client and a scripted model


class Manner:
    """A template, its tokens, and how the model writes a thought, a call and a text."""

    def __init__(
        self, template: str, marks: Sequence[str], stops: Sequence[str], opened: str, said: str
    ) -> None:
        self.template = template
        self.marks = marks
        self.stops = stops
        self.opened = opened  # what the prompt has of an answer when it opens a thought
        self.said = said  # a thought and a call

    def tokenizer(self) -> ByteTokenizer:
        made = ByteTokenizer(markup=self.marks)
        made.eos_ids = frozenset(made.specials[stop] for stop in self.stops)
        return made


CALL = '{"city": "Paris", "days": 2}'
THOUGHT = "Let me see."
IM = ("<|im_end|>",)
CALLING = f'<tool_call>\n{{"name": "weather", "arguments": {CALL}}}\n</tool_call>'
THINKING = f"<think>\n{THOUGHT}\n</think>\n\n"
MANNERS = {
    "tags as text": Manner("thinker", (), IM, "<think>\n", THINKING + CALLING),
    "tags as tokens": Manner("thinker", TAGS, IM, "<think>\n", THINKING + CALLING),
    "brackets": Manner(
        "brackets",
        BRACKETS,
        IM,
        "[THINK]",
        f"[THINK]{THOUGHT}[/THINK][TOOL_CALLS]weather[ARGS]{CALL}",
    ),
    "channels": Manner(
        "channels",
        HARMONY,
        ("<|call|>", "<|return|>"),
        "<|channel|>analysis<|message|>",
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant to=functions.weather"
        f"<|channel|>commentary json<|message|>{CALL}<|call|>",
    ),
}


class Talk:
    """A client that keeps a conversation, and tells it back in its own way."""

    def __init__(
        self, engine: ScriptedEngine, template: str, memory: ReplayService | None, **fields: Any
    ) -> None:
        self.models = ModelRegistry.from_engine(engine, "scripted", chat_template=template)
        self.services = Services(
            models=self.models, compiler=CompilerPool(), admission=Admission(), replay=memory
        )
        self.engine = engine
        self.fields = {"tools": (WEATHER,)} | fields
        self.messages: list[Message] = []
        self.plan: pipeline.Plan | None = None
        self.sampling = Sampling()
        self.request: dict[str, Any] = {}

    async def say(self, *messages: Message) -> Message:
        self.messages += messages
        answer = (await self.answers())[0]
        self.messages.append(answer)
        return answer

    async def answers(self) -> list[Message]:
        asked = Chat(messages=tuple(self.messages), **self.fields)
        request = Request(
            store=True, model="scripted", prompts=(asked,), sampling=self.sampling, **self.request
        )
        self.plan = plan = await pipeline.prepare(request, self.services)
        whole = Completion()
        try:
            await pipeline.generate(plan, whole.add)
        finally:
            plan.close()
        return [
            Message(
                role="assistant",
                content=text_content(choice.text or None),
                tool_calls=tuple(
                    ToolCall(id=call.id, name=call.name, arguments=rewritten(call.arguments))
                    for call in choice.calls
                ),
            )
            for choice in whole.build_choices()
        ]

    @property
    def job(self) -> Job:
        return self.engine.jobs[-1]

    @property
    def prompt(self) -> list[int]:
        assert isinstance(self.job.prompt, list)
        return self.job.prompt

    @property
    def reuse(self) -> Any:
        assert self.plan is not None
        return self.plan.reuse

    def result(self, text: str = "sunny") -> Message:
        [call] = self.messages[-1].tool_calls
        return Message(role="tool", content=text_content(text), tool_call_id=call.id)


def rewritten(arguments: str) -> str:
    """The same JSON as another program writes it."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(dict(reversed(value.items())), indent=1)


def scripted(manner: Manner, *texts: str, **settings: Any) -> ScriptedEngine:
    engine = ScriptedEngine(
        [Reply(text, max_uses=1, chunks="bytes") for text in texts], tokens=True, **settings
    )
    engine.tokenizer = manner.tokenizer()
    return engine


def source(name: str) -> str:
    return (OWN / f"{name}.jinja").read_text()


def said_by(manner: Manner, text: str) -> list[int]:
    """The tokens of an answer, without the one that ended it."""
    ids = manner.tokenizer().encode_with_specials(text)
    return ids[:-1] if ids and ids[-1] in manner.tokenizer().eos_ids else ids


EXAMPLE = (  # a turn that the model never said
    user("Hello!"),
    Message(role="assistant", content=text_content("Hi."), reasoning="Greet."),
)


@pytest.mark.parametrize("thinks", [False, True], ids=["", "opened"])
@pytest.mark.parametrize("name", MANNERS)
def test_a_conversation_without_its_thoughts_goes_on_from_what_was_said(
    name: str, thinks: bool
) -> None:
    """Five turns of calls told back without thoughts, and with other JSON for what they said."""
    manner = MANNERS[name]
    text = manner.said.removeprefix(manner.opened) if thinks else manner.said
    fields = {"template_kwargs": {"enable_thinking": True}} if thinks else {}

    async def talk() -> None:
        made = Talk(
            scripted(manner, *[text] * 5), source(manner.template), ReplayService(), **fields
        )
        made.messages += EXAMPLE
        before: list[int] = []
        for turn in range(5):
            asked = user(f"And day {turn}?") if turn % 2 == 0 else made.result()
            more = [made.result()] if turn and turn % 2 == 0 else []
            answer = await made.say(*more, asked)
            assert [call.name for call in answer.tool_calls] == ["weather"]
            assert answer.tool_calls[0].arguments != CALL
            assert made.prompt[: len(before)] == before
            assert made.reuse.replayed_turns == turn
            assert made.reuse.skipped == ("unknown",)
            assert made.reuse.reused_tokens == len(before)
            assert str(made.reuse).endswith("diverged=no")
            before = [*made.prompt, *said_by(manner, text)]

    asyncio.run(talk())


# What is not what the model said


def edited(message: Message, **fields: Any) -> Message:
    return msgspec.structs.replace(message, **fields)


def called(message: Message, **fields: Any) -> Message:
    [call] = message.tool_calls
    return edited(message, tool_calls=(msgspec.structs.replace(call, **fields),))


TAGGED = MANNERS["tags as tokens"]
# what a client makes of the turn, and whether that is still what the model said
TELLINGS: dict[str, tuple[Callable[[Message], Message], bool]] = {
    "as it was": (lambda turn: turn, True),
    "white space": (lambda turn: edited(turn, content=text_content("  \n")), True),
    "an empty text": (lambda turn: edited(turn, content=text_content("")), True),
    "the thought": (lambda turn: edited(turn, reasoning=f"{THOUGHT}\n"), True),
    "another thought": (lambda turn: edited(turn, reasoning="Hm."), False),
    "a text": (lambda turn: edited(turn, content=text_content("Well.")), False),
    "another name": (lambda turn: called(turn, name="now"), False),
    "other arguments": (lambda turn: called(turn, arguments='{"city": "Rome"}'), False),
    "other numbers": (lambda turn: called(turn, arguments='{"city": "Paris", "days": 3}'), False),
    "the same number": (
        lambda turn: called(turn, arguments='{"days":2.0,"city":"Par\\u0069s"}'),
        True,
    ),
    "no JSON": (lambda turn: called(turn, arguments="{"), False),
    "another id": (lambda turn: called(turn, id="call_1"), True),
    "two calls": (lambda turn: edited(turn, tool_calls=turn.tool_calls * 2), False),
    "no call": (lambda turn: edited(turn, tool_calls=(), content=text_content("Yes.")), False),
}


@pytest.mark.parametrize("name", TELLINGS)
def test_a_turn_is_put_back_if_the_client_tells_what_it_was_told(name: str) -> None:
    telling, same = TELLINGS[name]

    async def talk() -> None:
        engine = scripted(TAGGED, TAGGED.said, "Yes.")
        made = Talk(engine, source("thinker"), ReplayService())
        turn = telling(await made.say(QUESTION))
        before = [*made.prompt, *said_by(TAGGED, TAGGED.said)]
        made.messages[-1] = turn
        after = user("So?")
        if turn.tool_calls:
            after = Message(
                role="tool", content=text_content("sunny"), tool_call_id=turn.tool_calls[0].id
            )
        await made.say(after)
        assert made.reuse.replayed_turns == same
        assert (made.prompt[: len(before)] == before) == same
        plain = Talk(scripted(TAGGED, "Yes."), source("thinker"), None)
        plain.messages = made.messages[:-1]
        await plain.answers()
        assert (made.prompt == plain.prompt) != same
        assert made.services.replay is not None
        stats = made.services.replay.stats
        assert (stats.replayed_turns, sum(stats.skipped.values())) == ((1, 0) if same else (0, 1))

    asyncio.run(talk())


EARLIER = (user("My PIN is 4711."), Message(role="assistant", content=text_content("Noted.")))


@pytest.mark.parametrize("change", ["owner", "last", "first", "before", "model", "adapter"])
def test_a_text_belongs_to_one_owner_one_model_and_all_it_follows_on(change: str) -> None:
    async def talk() -> None:
        memory = ReplayService()
        made = Talk(scripted(TAGGED, f"{THINKING}Yes."), source("thinker"), memory)
        made.request["owner"] = "one"
        made.messages += EARLIER
        answer = await made.say(QUESTION)

        async def recalled(*messages: Message, voice: ReplayScope) -> Message:
            chat = Chat(messages=(*messages, answer, user("So?")), tools=(WEATHER,))
            found = await memory.find_turns(chat, voice)
            return found.chat.messages[-2]

        with await made.models.acquire("scripted") as model:
            voice = ReplayScope(model, "one")
            same = await recalled(*EARLIER, QUESTION, voice=voice)
            assert same.replay is not None
            before = {
                "last": (*EARLIER, user("Is it?")),
                "first": (user("My PIN is 1147."), EARLIER[1], QUESTION),
                "before": (QUESTION,),
            }
            other = {
                "owner": ReplayScope(model, "two"),
                "model": ReplayScope(msgspec.structs.replace(model, id="another"), "one"),
                "adapter": ReplayScope(model, "one", (Adapter("spicy"),)),
            }
            messages = before.get(change, (*EARLIER, QUESTION))
            found = await recalled(*messages, voice=other.get(change, voice))
            assert found.replay is None

    asyncio.run(talk())


def test_a_turn_of_calls_is_known_by_their_ids_whatever_it_follows_on() -> None:
    """An agent that shortens old results keeps the thoughts of its calls."""

    async def talk() -> None:
        made = Talk(scripted(TAGGED, TAGGED.said, "Yes."), source("thinker"), ReplayService())
        await made.say(user("A long story. Is it sunny?"))
        made.messages[0] = user("[shortened]")
        await made.say(made.result())
        assert made.reuse.replayed_turns == 1
        assert THOUGHT in made.engine.tokenizer.decode(made.prompt)  # type: ignore[union-attr]

    asyncio.run(talk())


def test_each_choice_is_remembered() -> None:
    async def talk() -> None:
        texts = [f"{THINKING.replace('see', word)}{word}" for word in ("one", "two")]
        reply = Reply(texts[0], variants=(texts[1],), chunks="bytes")
        engine = ScriptedEngine([reply], tokens=True)
        engine.tokenizer = TAGGED.tokenizer()
        made = Talk(engine, source("thinker"), ReplayService())
        made.messages, made.request["n"] = [QUESTION], 2
        answers = await made.answers()
        assert len(answers) == 2
        asked = list(made.prompt)
        made.request["n"] = 1
        for answer in answers:
            made.messages = [QUESTION, answer, user("So?")]
            await made.answers()
            [text] = [text for text in texts if text.endswith(flatten_content(answer.content))]
            before = [*asked, *said_by(TAGGED, text)]
            assert made.prompt[: len(before)] == before

    asyncio.run(talk())


# name, what the model says, fields, tokens of the answer that are put back
ENDS: list[tuple[str, str, dict[str, Any], Sampling, int | None]] = [
    ("cut by the limit", f"{THINKING}Yes, I think", {}, Sampling(max_tokens=20), 20),
    ("cut by a stop", f"{THINKING}Yes, I think", {"stop": (" I",)}, Sampling(), None),
    ("nothing", "", {}, Sampling(), None),
]


@pytest.mark.parametrize(("name", "text", "fields", "sampling", "kept"), ENDS)
def test_how_an_answer_ended_says_whether_it_is_kept(
    name: str, text: str, fields: dict[str, Any], sampling: Sampling, kept: int | None
) -> None:
    async def talk() -> None:
        made = Talk(scripted(TAGGED, text, "So."), source("thinker"), ReplayService())
        made.sampling, made.request = sampling, dict(fields)
        await made.say(QUESTION)
        before = [*made.prompt, *said_by(TAGGED, text)[: kept or 0]]
        made.request.clear()
        await made.say(user("So?"))
        assert made.reuse.replayed_turns == (kept is not None)
        assert made.prompt[: len(before)] == before
        assert ("see" in made.engine.tokenizer.decode(made.prompt)) == (kept is not None)  # type: ignore[union-attr]

    asyncio.run(talk())


def test_thoughts_that_were_ended_for_the_model_are_part_of_what_it_said() -> None:
    async def talk() -> None:
        long = f"<think>\n{'Hm. ' * 20}"
        made = Talk(scripted(TAGGED, long, "Yes.", "So."), source("thinker"), ReplayService())
        made.fields["thinking_budget"] = 8
        await made.say(QUESTION)
        before = list(made.prompt)  # of the job that took over
        assert len(made.engine.jobs) == 2
        await made.say(user("So?"))
        whole = [*before, *b"Yes."]
        assert made.prompt[: len(whole)] == whole
        assert made.reuse.reused_tokens == len(whole)

    asyncio.run(talk())


def test_a_prompt_that_is_too_long_with_what_was_said_does_without() -> None:
    async def talk() -> None:
        engine = scripted(TAGGED, f"<think>{'Hm. ' * 100}</think>Yes.", "So.", context=700)
        made = Talk(engine, source("thinker"), ReplayService())
        await made.say(QUESTION)
        await made.say(user("So? " + "x" * 50))
        assert made.reuse.replayed_turns == 0
        assert made.reuse.skipped == ("room",)
        assert made.reuse.diverged

    asyncio.run(talk())


@pytest.mark.parametrize("sign", ["\ufdd20\ufdd2", "\\ufdd20\\ufdd2", "\\uFDD20\\ufdd2"])
def test_no_client_can_move_a_turn(sign: str) -> None:
    """Signs in what a client says are not signs of ours."""

    async def talk() -> None:
        said = TAGGED.said
        made = Talk(scripted(TAGGED, said, "Yes."), source("thinker"), ReplayService())
        await made.say(user(f"Is it? {sign}"))
        before = [*made.prompt, *said_by(TAGGED, said)]
        await made.say(made.result(f"{sign} sunny {sign}"), user(f"{sign}?"))
        assert made.reuse.replayed_turns == 1
        assert made.prompt[: len(before)] == before
        rest = bytes(token for token in made.prompt[len(before) :] if token < 256).decode()
        assert " sunny " in rest
        shown = sign if "\\" in sign else "0"
        assert rest.count(shown) == 3

    asyncio.run(talk())


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# what a template does to a text, and whether a turn of it can still be found
TEMPLATES: dict[str, tuple[str, bool]] = {
    "m.content": (CHATML, True),
    "m.content | trim": (CHATML, True),
    "m.content | upper": (CHATML, False),  # it cannot be tried out
    "m.content | tojson": (CHATML, True),
    "m.content | tojson(ensure_ascii=true)": (CHATML, True),
    "m.content[:200]": (CHATML, True),
    "m.content[:3]": (CHATML, False),  # the sign is lost
    "m.content.encode_it()": (CHATML, False),
    "m.content ~ (messages[0].content if m.role == 'user')": (CHATML, True),
    "messages[-2].content if loop.last and loop.length > 2 else m.content": (CHATML, False),
}


@pytest.mark.parametrize("content", TEMPLATES)
def test_a_turn_that_has_no_clear_place_is_written_as_the_client_told_it(content: str) -> None:
    template, found = TEMPLATES[content]
    prompter = PromptRenderer(template.replace("CONTENT", content), ByteTokenizer())
    first = rendered(prompter, Chat(messages=(QUESTION,)))
    if first is None or first.answer_start is None:
        assert not found
        return
    ids = tuple(b"Hm. It is.")
    said = ReplayedTurn(tuple((first.ids or [])[first.answer_start :]), ids)
    turn = Message(role="assistant", content=text_content("It is."), replay=said)
    asked = Chat(messages=(QUESTION, turn, user("So?")))
    made = rendered(prompter, asked)
    plain = rendered(prompter, Chat(messages=(QUESTION, edited(turn, said=None), user("So?"))))
    assert made is not None
    assert plain is not None
    assert made.replayed_turns == found
    if found:
        assert (made.ids or [])[: len(first.ids or ()) + len(ids)] == [*(first.ids or ()), *ids]
    else:
        assert made.ids == plain.ids
        assert made.skipped


SPLICERS: weakref.WeakKeyDictionary[PromptRenderer, TurnSplicer] = weakref.WeakKeyDictionary()


def splicer_for(renderer: PromptRenderer) -> TurnSplicer | None:
    """One splicer for each renderer, as the server has it; none where nothing can be spliced."""
    if not renderer.can_splice:
        return None
    if renderer not in SPLICERS:
        SPLICERS[renderer] = TurnSplicer(renderer)
    return SPLICERS[renderer]


def rendered(prompter: PromptRenderer, asked: Chat) -> RenderedPrompt | None:
    try:
        return asyncio.run(prompter.render(asked, splicer_for(prompter)))
    except TemplateRejected:
        return None


# Templates of real models

MARKS = re.compile(
    r"<\|[^\s<>|{}'\"]+\|>|<｜[^\s<>{}'\"]+｜>|\[/?[A-Z_]{3,}\]|</?[a-z_:]{2,}>|<\|[a-z_]+>"
    r"|<[a-z_]+\|>|\]~[a-z]+\]|\[e~\[|<SPECIAL_\d+>"
)


def real_prompter(template: str) -> PromptRenderer:
    """With every mark that the template writes as a token."""
    turns = (QUESTION, Message(role="assistant", content=text_content("Yes.")), user("So?"))
    asked = [Chat(messages=turns[:count], tools=(WEATHER,)) for count in (1, 3)]
    shown = [made.text for one in asked if (made := rendered(PromptRenderer(template, None), one))]
    marks = sorted({*MARKS.findall("".join([template, *shown]))} - {"<s>", "</s>"})
    tokenizer = ByteTokenizer(("<s>", "</s>"), markup=marks)
    tokenizer.eos_ids = find_stop_ids([tokenizer.eos_id], tokenizer.specials)
    return PromptRenderer(template, tokenizer)


CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "a text": (Message(role="assistant", content=text_content("It is.")), user("And now?")),
    "a call": (
        Message(
            role="assistant",
            tool_calls=(ToolCall(id="call00001", name="weather", arguments=CALL),),
        ),
        Message(role="tool", tool_call_id="call00001", content=text_content("It rains.")),
    ),
    "no arguments": (
        Message(
            role="assistant",
            tool_calls=(ToolCall(id="call00001", name="weather", arguments="{}"),),
        ),
        Message(role="tool", tool_call_id="call00001", content=text_content("It rains.")),
    ),
    "a thought, too": (
        Message(
            role="assistant",
            reasoning="I must look.",
            content=text_content("Wait."),
            tool_calls=(ToolCall(id="call00001", name="weather", arguments=CALL),),
        ),
        Message(role="tool", tool_call_id="call00001", content=text_content("It rains.")),
    ),
}


def outcome(prompter: PromptRenderer, turn: Message, after: Message) -> str:
    """What comes of a turn with other words; an assertion if it harms anything."""
    first = rendered(prompter, Chat(messages=(QUESTION,), tools=(WEATHER,)))
    assert first is not None
    assert first.ids is not None
    plain = rendered(prompter, Chat(messages=(QUESTION, turn, after), tools=(WEATHER,)))
    if first.answer_start is None or plain is None:
        return "no opening"
    ids = list(b"Not what the template writes.")
    said = ReplayedTurn(tuple(first.ids[first.answer_start :]), tuple(ids))
    messages = (QUESTION, edited(turn, said=said), after)
    made = rendered(prompter, Chat(messages=messages, tools=(WEATHER,)))
    assert made is not None
    if not made.replayed_turns:
        assert made.ids == plain.ids
        assert made.skipped
        return "as it was told"
    assert made.text.count(flatten_content(after.content)) == plain.text.count(
        flatten_content(after.content)
    )
    assert "It is." not in made.text
    if (made.ids or [])[: len(first.ids) + len(ids)] == [*first.ids, *ids]:
        return "goes on"
    # nothing can go on from a prompt that the template writes in another way later
    assert (plain.ids or [])[: first.answer_start + 1] != first.ids[: first.answer_start + 1]
    return "written otherwise"


def real_templates() -> list[Path]:
    return sorted(REAL.glob("*/*.jinja"))


@pytest.mark.skipif(not real_templates(), reason="the real templates are not here")
def test_turns_are_put_back_in_real_templates() -> None:
    """All that write special tokens around turns, and write a prompt the same way later."""
    found: dict[str, Counter[str]] = {name: Counter() for name in CONVERSATIONS}
    for path in real_templates():
        prompter = real_prompter(path.read_text())
        for name, (turn, after) in CONVERSATIONS.items():
            found[name][outcome(prompter, turn, after)] += 1
    for name, outcomes in found.items():
        print(f"{name}: {dict(outcomes)}")
        assert outcomes["as it was told"] == 0
        assert outcomes["goes on"] >= 65
        assert outcomes["no opening"] <= 10


@pytest.mark.skipif(not real_templates(), reason="the real templates are not here")
def test_a_long_conversation_goes_on_in_real_templates() -> None:
    """Calls and texts in turn, told back each time; no step may lose what others said."""
    call = CONVERSATIONS["a call"]
    steps: list[tuple[Message, ...]] = [
        call,
        (Message(role="assistant", content=text_content("It is.")), user("Now?")),
        (
            Message(role="assistant", content=text_content("See."), tool_calls=call[0].tool_calls),
            call[1],
        ),
        (Message(role="assistant", content=text_content("Yes.")), user("So?")),
    ]
    found: Counter[str] = Counter()
    for path in real_templates():
        prompter = real_prompter(path.read_text())
        messages: list[Message] = [QUESTION]
        went = 0
        for turn, after in steps:
            first = rendered(prompter, Chat(messages=tuple(messages), tools=(WEATHER,)))
            if first is None or first.ids is None or first.answer_start is None:
                break
            ids = tuple(f"What {len(messages)} was.".encode())
            said = ReplayedTurn(tuple(first.ids[first.answer_start :]), ids)
            messages += [edited(turn, said=said), after]
            asked = Chat(messages=tuple(messages), tools=(WEATHER,))
            made = rendered(prompter, asked)
            if made is None:
                assert rendered(prompter, drop_replays(asked)) is None
                break
            for message in messages:
                if message.role != "assistant":
                    assert flatten_content(message.content) in made.text
            went += (made.ids or [])[: len(first.ids) + len(ids)] == [*first.ids, *ids]
        found["all of it" if went == len(steps) else f"{went} steps"] += 1
    print(dict(found))
    assert found["all of it"] >= 64


class Stories:
    """Random conversations in which every text has a word of its own."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._words = 0

    def word(self) -> str:
        self._words += 1
        return f"w{self._words}q"

    def often(self, share: float) -> bool:
        return self._chance.random() < share

    def turn(self) -> Message:
        calls = self._chance.choice([0, 0, 1, 1, 2])
        return Message(
            role="assistant",
            content=text_content(self.word() if not calls or self.often(0.5) else None),
            reasoning=self.word() if self.often(0.4) else None,
            tool_calls=tuple(self._call() for _ in range(calls)),
        )

    def _call(self) -> ToolCall:
        forms = ["{}", '{"days": 3}', f'{{"city": "{self.word()}"}}', CALL]
        id_ = f"call{self._chance.randint(10000, 99999)}"
        return ToolCall(id=id_, name="weather", arguments=self._chance.choice(forms))

    def after(self, turn: Message) -> list[Message]:
        made = [
            Message(role="tool", content=text_content(self.word()), tool_call_id=call.id)
            for call in turn.tool_calls
        ]
        return made if made and self.often(0.6) else [*made, user(self.word())]


def words_of(message: Message) -> list[str]:
    texts = [flatten_content(message.content), message.reasoning or ""]
    texts += [call.arguments for call in message.tool_calls]
    return re.findall(r"w\d+q", " ".join(texts))


def tell(prompter: PromptRenderer, stories: Stories, **fields: Any) -> tuple[int, int]:
    """A conversation, some turns of which are remembered: how many, and how many are put back."""
    messages, said = [user(stories.word())], {}
    for _ in range(3):
        turn = stories.turn()
        first = rendered(prompter, Chat(messages=tuple(messages), **fields))
        if first is not None and first.answer_start is not None and stories.often(0.8):
            said[len(messages)] = word = stories.word()
            opening = tuple((first.ids or [])[first.answer_start :])
            turn = edited(turn, said=ReplayedTurn(opening, tuple(word.encode())))
        messages += [turn, *stories.after(turn)]
    asked = Chat(messages=tuple(messages), **fields)
    made, plain = rendered(prompter, asked), rendered(prompter, drop_replays(asked))
    if made is None or plain is None:
        assert made is plain
        return 0, 0
    back = [at for at, word in said.items() if made.text.count(word) == 1]
    assert len(back) == made.replayed_turns == len(said) - len(made.skipped)
    places = [made.text.index(said[at]) for at in back]
    assert places == sorted(places)
    for at, message in enumerate(messages):
        for word in words_of(message):
            assert made.text.count(word) == (0 if at in back else plain.text.count(word))
    assert POSITION not in made.text
    return len(said), len(back)


@pytest.mark.parametrize("name", MANNERS)
def test_nothing_that_others_said_is_ever_lost(name: str) -> None:
    manner, stories = MANNERS[name], Stories(1)
    prompter = PromptRenderer(source(manner.template), manner.tokenizer())
    for thinks in (False, True):
        kwargs = {"enable_thinking": True} if thinks else {}
        for tools in ((WEATHER,), ()):
            told = [tell(prompter, stories, tools=tools, template_kwargs=kwargs) for _ in range(20)]
            assert sum(back for _, back in told) >= 0.9 * sum(said for said, _ in told)


@pytest.mark.skipif(not real_templates(), reason="the real templates are not here")
def test_nothing_that_others_said_is_ever_lost_in_real_templates() -> None:
    stories, said, back = Stories(2), 0, 0
    for path in real_templates():
        prompter = real_prompter(path.read_text())
        for _ in range(3):
            one, two = tell(prompter, stories, tools=(WEATHER,))
            said, back = said + one, back + two
    print(f"{back} of {said} turns")
    assert back >= 0.95 * said > 300


# Keeping


class Kept:
    """A store that a test can look into."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.fails = fails
        self.asked = 0

    async def save_turns(self, owner: str, rows: Sequence[Row]) -> None:
        if self.fails:
            raise OSError("the disk is full")
        self.rows |= {(owner, row.key): row for row in rows}

    async def load_turns(self, owner: str, keys: Sequence[str]) -> list[Row]:
        self.asked += 1
        if self.fails:
            raise OSError("the disk is gone")
        return [self.rows[owner, key] for key in keys if (owner, key) in self.rows]


def test_what_was_said_is_kept_in_a_store_and_found_again() -> None:
    async def talk() -> None:
        kept = Kept()
        first = Talk(scripted(TAGGED, TAGGED.said), source("thinker"), ReplayService(store=kept))
        first.request["owner"] = "one"
        await first.say(QUESTION)
        before = [*first.prompt, *said_by(TAGGED, TAGGED.said)]
        assert first.services.replay is not None
        await first.services.replay.aclose()
        assert {owner for owner, _ in kept.rows} == {"one"}
        for owner in ("one", "two"):
            engine = scripted(TAGGED, "Yes.", "Yes.")
            again = Talk(engine, source("thinker"), ReplayService(store=kept))
            again.request["owner"] = owner
            again.messages = list(first.messages)
            await again.say(first.result())
            assert again.reuse.replayed_turns == (owner == "one")
            assert (again.prompt[: len(before)] == before) == (owner == "one")
        asked = kept.asked
        await again.answers()
        assert kept.asked == asked + 1

    asyncio.run(talk())


def test_a_store_that_fails_costs_nothing_but_what_it_would_have_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def talk() -> None:
        memory = ReplayService(store=Kept(fails=True))
        made = Talk(scripted(TAGGED, TAGGED.said, "Yes."), source("thinker"), memory)
        await made.say(QUESTION)
        await made.say(made.result())
        assert made.reuse.replayed_turns == 1
        await memory.aclose()

    asyncio.run(talk())
    assert "cannot store turns" in caplog.text


def test_a_shelf_keeps_the_newest_within_its_bytes() -> None:
    shelf = ReplayCache(10_000)
    for at in range(100):
        shelf.put("one", {f"key{at}": ReplayEntry(b"", b"", b"", bytes(600))})
        assert shelf.get("one", "key0") is not None  # what is used stays
        assert shelf.size <= 10_000
    assert shelf.get("one", "key99") is not None
    assert shelf.get("one", "key50") is None
    assert shelf.get("two", "key99") is None


def test_a_trail_says_where_a_prompt_leaves_what_was_there_before() -> None:
    trail = PrefixIndex(max_sequences=3)

    def known(*ids: int, owner: str = "one") -> tuple[int, bool]:
        return trail.match(owner, pack_ids(ids))

    assert known(1, 2, 3) == (0, False)
    trail.add("one", pack_ids([1, 2, 3, 4, 5]))
    trail.add("one", pack_ids([1, 2, 9]))
    assert known(1, 2, 3, 4, 5, 6) == (5, False)
    assert known(1, 2, 3, 8, 8, 8) == (3, True)
    assert known(1, 2, 3) == (3, False)
    assert known(1, 2, 9, 1) == (3, False)
    assert known(7, 1) == (0, False)
    assert known(1, 2, 3, owner="two") == (0, False)
    trail.add("one", pack_ids([1, 2, 3, 4, 5, 6, 7]))  # takes the place of the first
    trail.add("two", pack_ids([1]))
    assert known(1, 2, 9, 1) == (3, False)
    trail.add("two", pack_ids([2]))
    assert known(1, 2, 9, 1) == (2, True)
    long = list(range(1000))
    trail.add("one", pack_ids(long))
    for at in (1, 2, 255, 256, 500, 999):
        assert known(*long[:at], -1, *long[at:]) == (at, True)


def test_one_value_has_one_way_to_be_written() -> None:
    same = [
        '{"a": 1, "b": [1.5, "x"]}',
        '{"b":[1.5,"\\u0078"],"a":1.0}',
        ' {"a":1e0,"b":[15e-1,"x"]}',
    ]
    assert len({canonical_json(text) for text in same}) == 1
    assert canonical_json("") == canonical_json("{}") == canonical_json(" {} ")
    other = ['{"a": 1}', '{"a": "1"}', '{"a": true}', '{"a": [1]}', '{"a": null}', "{", '{"a": 2}']
    assert len({canonical_json(text) for text in other}) == len(other)
    deep = "[" * 100_000
    assert canonical_json(deep) == deep.encode()
    half = "\ud800"
    assert digest_answer(half, [(half, half)]) != digest_answer(half, [(half, half * 2)])


# On the line


def post(url: str, body: dict[str, Any], key: str = "") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def tool_fields() -> list[dict[str, Any]]:
    function = {"name": WEATHER.name, "parameters": WEATHER.parameters}
    return [{"type": "function", "function": function}]


def header(response: httpx.Response) -> dict[str, str]:
    parts = response.headers["x-dragoman-prompt"].split(", ")
    return dict(part.split("=") for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_and_metrics_tell_how_much_was_there_before(stream: bool) -> None:
    engine = scripted(TAGGED, TAGGED.said, "Yes.", "No.")
    with serve_scripted(engine, chat_template=OWN / "thinker.jinja") as server:
        body = asking("Is it sunny?", tools=tool_fields(), stream=False)
        first = post(server.url, body)
        assert header(first)["known"] == "0"
        said = first.json()["choices"][0]["message"]
        call = {k: v for k, v in said.items() if k in ("role", "content", "tool_calls")}
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "sunny"}
        body |= {"messages": [*body["messages"], call, result], "stream": stream}
        second = header(post(server.url, body))
        job = engine.jobs[-1]
        assert second["tokens"] == str(len(job.prompt))
        assert second["recalled"] == "1"
        assert second["diverged"] == "no"
        known = len(engine.jobs[0].prompt) + len(said_by(TAGGED, TAGGED.said))
        assert second["known"] == str(known)
        body["messages"][0] = {"role": "user", "content": "Is it rainy?"}
        third = header(post(server.url, body))
        assert int(third["diverged"]) == int(third["known"]) < known
        page = httpx.get(f"{server.url}/metrics").text
        assert "dragoman_recalled_turns_total 2.0" in page
        known += int(third["known"])
        assert f"dragoman_chat_prompt_known_tokens_total {known}.0" in page
        raw = httpx.post(
            f"{server.url}/v1/completions", json={"model": "scripted", "prompt": "No?"}
        )
        assert "x-dragoman-prompt" not in raw.headers


def test_a_prompt_that_was_read_ahead_was_there_before() -> None:
    engine = scripted(TAGGED, "Yes.", "Yes.")
    with serve_scripted(engine, chat_template=OWN / "thinker.jinja") as server:
        url = f"{server.url}/v1/responses"
        body: dict[str, Any] = {"model": "scripted", "input": "Is it sunny?", "store": False}
        ahead = httpx.post(url, json=body | {"prompt_cache_options": {"prewarm": True}})
        assert ahead.json()["output"] == []
        assert ahead.json()["usage"]["output_tokens"] == 0
        then = httpx.post(url, json=body)
        assert then.json()["output"][0]["content"][0]["text"] == "Yes."
    found = header(then)
    assert (found["known"], found["diverged"]) == (found["tokens"], "no")
    assert found["tokens"] == str(len(engine.jobs[0].prompt))


def test_it_can_be_turned_off() -> None:
    engine = scripted(TAGGED, TAGGED.said)
    with serve_scripted(engine, chat_template=OWN / "thinker.jinja", recall=False) as server:
        response = post(server.url, asking("Is it sunny?", tools=tool_fields()))
        assert response.status_code == 200
        assert "x-dragoman-prompt" not in response.headers


def test_nobody_is_told_what_another_key_was() -> None:
    engine = scripted(TAGGED, f"{THINKING}Yes.", "Yes.", "Yes.")
    options = {"chat_template": OWN / "thinker.jinja", "api_key": ("one", "two")}
    with serve_scripted(engine, **options) as server:
        body = asking("Is it sunny?")
        assert header(post(server.url, body, "one"))["known"] == "0"
        body["messages"] += [
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "So?"},
        ]
        heard = {key: header(post(server.url, body, key)) for key in ("two", "one")}
        assert (heard["one"]["recalled"], heard["two"]["recalled"]) == ("1", "0")
        assert heard["two"]["known"] == "0"
