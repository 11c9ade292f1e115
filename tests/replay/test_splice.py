"""Stored tokens replace the client's version of a turn, in every template that allows it."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dragoman.errors import TemplateRejected
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.renderer import PromptRenderer, RenderedPrompt
from dragoman.prompt.special_tokens import POSITION
from dragoman.prompt.turn_markers import drop_replays
from dragoman.replay.splice import TurnSplicer
from dragoman.testing import ByteTokenizer
from dragoman.tokenizers.vocabulary import find_stop_ids
from dragoman.types import (
    Chat,
    Message,
    ReplayedTurn,
    ToolCall,
    make_text_content,
)
from tests.support.paths import TESTS
from tests.support.replay_client import (
    CALL,
    QUESTION,
    STYLES,
    WEATHER,
    edit,
    read_template,
    user,
)

pytestmark = pytest.mark.slow

REAL = TESTS.parent.parent / "shared" / "exam" / "templates"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# what a template does to a text, and whether its turns can be replaced
TEMPLATES: dict[str, tuple[str, bool]] = {
    "m.content": (CHATML, True),
    "m.content | trim": (CHATML, True),
    "m.content | upper": (CHATML, False),  # the probe fails
    "m.content | tojson": (CHATML, True),
    "m.content | tojson(ensure_ascii=true)": (CHATML, True),
    "m.content[:200]": (CHATML, True),
    "m.content[:3]": (CHATML, False),  # the marker is lost
    "m.content.encode_it()": (CHATML, False),
    "m.content ~ (messages[0].content if m.role == 'user')": (CHATML, True),
    "messages[-2].content if loop.last and loop.length > 2 else m.content": (CHATML, False),
}


@pytest.mark.parametrize("content", TEMPLATES)
def test_a_turn_without_clear_boundaries_stays_as_the_client_sent_it(content: str) -> None:
    template, replaceable = TEMPLATES[content]
    renderer = PromptRenderer(template.replace("CONTENT", content), ByteTokenizer())
    first = render(renderer, Chat(messages=(QUESTION,)))
    if first is None or first.answer_start is None:
        assert not replaceable
        return
    ids = tuple(b"Hm. It is.")
    replay = ReplayedTurn(tuple((first.ids or [])[first.answer_start :]), ids)
    turn = Message(role="assistant", content=make_text_content("It is."), replay=replay)
    chat = Chat(messages=(QUESTION, turn, user("So?")))
    prompt = render(renderer, chat)
    plain = render(renderer, Chat(messages=(QUESTION, edit(turn, replay=None), user("So?"))))
    assert prompt is not None
    assert plain is not None
    assert prompt.replayed_turns == replaceable
    if replaceable:
        assert (prompt.ids or [])[: len(first.ids or ()) + len(ids)] == [*(first.ids or ()), *ids]
    else:
        assert prompt.ids == plain.ids
        assert prompt.skipped


SPLICERS: weakref.WeakKeyDictionary[PromptRenderer, TurnSplicer] = weakref.WeakKeyDictionary()


def splicer_for(renderer: PromptRenderer) -> TurnSplicer | None:
    """Return the splicer of a renderer, or None if nothing can be spliced."""
    if not renderer.can_splice:
        return None
    if renderer not in SPLICERS:
        SPLICERS[renderer] = TurnSplicer(renderer)
    return SPLICERS[renderer]


def render(renderer: PromptRenderer, chat: Chat) -> RenderedPrompt | None:
    try:
        return asyncio.run(renderer.render(chat, splicer_for(renderer)))
    except TemplateRejected:
        return None


# Templates of real models

SPECIALS = re.compile(
    r"<\|[^\s<>|{}'\"]+\|>|<｜[^\s<>{}'\"]+｜>|\[/?[A-Z_]{3,}\]|</?[a-z_:]{2,}>|<\|[a-z_]+>"
    r"|<[a-z_]+\|>|\]~[a-z]+\]|\[e~\[|<SPECIAL_\d+>"
)


def make_renderer(template: str) -> PromptRenderer:
    """Make a renderer with everything that looks like a special token in the template as one."""
    turns = (QUESTION, Message(role="assistant", content=make_text_content("Yes.")), user("So?"))
    chats = [Chat(messages=turns[:count], tools=(WEATHER,)) for count in (1, 3)]
    plain = PromptRenderer(template, None)
    texts = [rendered.text for chat in chats if (rendered := render(plain, chat))]
    specials = sorted({*SPECIALS.findall("".join([template, *texts]))} - {"<s>", "</s>"})
    tokenizer = ByteTokenizer(("<s>", "</s>"), markup=specials)
    tokenizer.eos_ids = find_stop_ids([tokenizer.eos_id], tokenizer.specials)
    return PromptRenderer(template, tokenizer)


CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "a text": (Message(role="assistant", content=make_text_content("It is.")), user("And now?")),
    "a call": (
        Message(
            role="assistant",
            tool_calls=(ToolCall(id="call00001", name="weather", arguments=CALL),),
        ),
        Message(role="tool", tool_call_id="call00001", content=make_text_content("It rains.")),
    ),
    "no arguments": (
        Message(
            role="assistant",
            tool_calls=(ToolCall(id="call00001", name="weather", arguments="{}"),),
        ),
        Message(role="tool", tool_call_id="call00001", content=make_text_content("It rains.")),
    ),
    "reasoning, text and a call": (
        Message(
            role="assistant",
            reasoning="I must look.",
            content=make_text_content("Wait."),
            tool_calls=(ToolCall(id="call00001", name="weather", arguments=CALL),),
        ),
        Message(role="tool", tool_call_id="call00001", content=make_text_content("It rains.")),
    ),
}


def find_outcome(renderer: PromptRenderer, turn: Message, after: Message) -> str:
    """Replay other text in place of a turn, and check that nothing else changes."""
    first = render(renderer, Chat(messages=(QUESTION,), tools=(WEATHER,)))
    assert first is not None
    assert first.ids is not None
    plain = render(renderer, Chat(messages=(QUESTION, turn, after), tools=(WEATHER,)))
    if first.answer_start is None or plain is None:
        return "no opening"
    ids = list(b"Not what the template writes.")
    replay = ReplayedTurn(tuple(first.ids[first.answer_start :]), tuple(ids))
    messages = (QUESTION, edit(turn, replay=replay), after)
    prompt = render(renderer, Chat(messages=messages, tools=(WEATHER,)))
    assert prompt is not None
    if not prompt.replayed_turns:
        assert prompt.ids == plain.ids
        assert prompt.skipped
        return "not replayed"
    assert prompt.text.count(flatten_content(after.content)) == plain.text.count(
        flatten_content(after.content)
    )
    assert "It is." not in prompt.text
    if (prompt.ids or [])[: len(first.ids) + len(ids)] == [*first.ids, *ids]:
        return "continues"
    # a prompt that the template renders differently later cannot be continued
    assert (plain.ids or [])[: first.answer_start + 1] != first.ids[: first.answer_start + 1]
    return "rendered differently"


def real_templates() -> list[Path]:
    return sorted(REAL.glob("*/*.jinja"))


@pytest.mark.skipif(not real_templates(), reason="the real templates are not here")
def test_turns_are_replayed_in_real_templates() -> None:
    """In all that write special tokens around turns and render a prompt the same way later."""
    results: dict[str, Counter[str]] = {name: Counter() for name in CONVERSATIONS}
    for path in real_templates():
        renderer = make_renderer(path.read_text())
        for name, (turn, after) in CONVERSATIONS.items():
            results[name][find_outcome(renderer, turn, after)] += 1
    for name, outcomes in results.items():
        print(f"{name}: {dict(outcomes)}")
        assert outcomes["not replayed"] == 0
        assert outcomes["continues"] >= 65
        assert outcomes["no opening"] <= 10


@pytest.mark.skipif(not real_templates(), reason="the real templates are not here")
def test_a_long_conversation_continues_in_real_templates() -> None:
    """Calls and texts by turns; no step may lose the messages of others."""
    call = CONVERSATIONS["a call"]
    steps: list[tuple[Message, ...]] = [
        call,
        (Message(role="assistant", content=make_text_content("It is.")), user("Now?")),
        (
            Message(
                role="assistant", content=make_text_content("See."), tool_calls=call[0].tool_calls
            ),
            call[1],
        ),
        (Message(role="assistant", content=make_text_content("Yes.")), user("So?")),
    ]
    results: Counter[str] = Counter()
    for path in real_templates():
        renderer = make_renderer(path.read_text())
        messages: list[Message] = [QUESTION]
        continued = 0
        for turn, after in steps:
            first = render(renderer, Chat(messages=tuple(messages), tools=(WEATHER,)))
            if first is None or first.ids is None or first.answer_start is None:
                break
            ids = tuple(f"What {len(messages)} was.".encode())
            replay = ReplayedTurn(tuple(first.ids[first.answer_start :]), ids)
            messages += [edit(turn, replay=replay), after]
            chat = Chat(messages=tuple(messages), tools=(WEATHER,))
            prompt = render(renderer, chat)
            if prompt is None:
                assert render(renderer, drop_replays(chat)) is None
                break
            for message in messages:
                if message.role != "assistant":
                    assert flatten_content(message.content) in prompt.text
            continued += (prompt.ids or [])[: len(first.ids) + len(ids)] == [*first.ids, *ids]
        results["all of it" if continued == len(steps) else f"{continued} steps"] += 1
    print(dict(results))
    assert results["all of it"] >= 64


class RandomConversation:
    """Makes random turns in which every text has a unique word."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._words = 0

    def make_word(self) -> str:
        self._words += 1
        return f"w{self._words}q"

    def happens(self, probability: float) -> bool:
        return self._chance.random() < probability

    def make_turn(self) -> Message:
        calls = self._chance.choice([0, 0, 1, 1, 2])
        return Message(
            role="assistant",
            content=make_text_content(self.make_word() if not calls or self.happens(0.5) else None),
            reasoning=self.make_word() if self.happens(0.4) else None,
            tool_calls=tuple(self._call() for _ in range(calls)),
        )

    def _call(self) -> ToolCall:
        forms = ["{}", '{"days": 3}', f'{{"city": "{self.make_word()}"}}', CALL]
        id_ = f"call{self._chance.randint(10000, 99999)}"
        return ToolCall(id=id_, name="weather", arguments=self._chance.choice(forms))

    def make_following(self, turn: Message) -> list[Message]:
        results = [
            Message(role="tool", content=make_text_content(self.make_word()), tool_call_id=call.id)
            for call in turn.tool_calls
        ]
        if results and self.happens(0.6):
            return results
        return [*results, user(self.make_word())]


def words_of(message: Message) -> list[str]:
    texts = [flatten_content(message.content), message.reasoning or ""]
    texts += [call.arguments for call in message.tool_calls]
    return re.findall(r"w\d+q", " ".join(texts))


def replay_randomly(
    renderer: PromptRenderer, random: RandomConversation, **fields: Any
) -> tuple[int, int]:
    """Check a conversation; return how many turns have a replay and how many are replayed."""
    messages, words = [user(random.make_word())], {}
    for _ in range(3):
        turn = random.make_turn()
        first = render(renderer, Chat(messages=tuple(messages), **fields))
        if first is not None and first.answer_start is not None and random.happens(0.8):
            words[len(messages)] = word = random.make_word()
            opening = tuple((first.ids or [])[first.answer_start :])
            turn = edit(turn, replay=ReplayedTurn(opening, tuple(word.encode())))
        messages += [turn, *random.make_following(turn)]
    chat = Chat(messages=tuple(messages), **fields)
    prompt, plain = render(renderer, chat), render(renderer, drop_replays(chat))
    if prompt is None or plain is None:
        assert prompt is plain
        return 0, 0
    replayed = [index for index, word in words.items() if prompt.text.count(word) == 1]
    assert len(replayed) == prompt.replayed_turns == len(words) - len(prompt.skipped)
    positions = [prompt.text.index(words[index]) for index in replayed]
    assert positions == sorted(positions)
    for index, message in enumerate(messages):
        for word in words_of(message):
            assert prompt.text.count(word) == (0 if index in replayed else plain.text.count(word))
    assert POSITION not in prompt.text
    return len(words), len(replayed)


@pytest.mark.parametrize("name", STYLES)
def test_no_text_of_other_turns_is_ever_lost(name: str) -> None:
    style, random = STYLES[name], RandomConversation(1)
    renderer = PromptRenderer(read_template(style.template), style.make_tokenizer())
    for reasoning_on in (False, True):
        kwargs = {"enable_thinking": True} if reasoning_on else {}
        for tools in ((WEATHER,), ()):
            fields = {"tools": tools, "template_kwargs": kwargs}
            counts = [replay_randomly(renderer, random, **fields) for _ in range(20)]
            stored, replayed = map(sum, zip(*counts, strict=True))
            assert replayed >= 0.9 * stored


@pytest.mark.skipif(not real_templates(), reason="the real templates are not here")
def test_no_text_of_other_turns_is_ever_lost_in_real_templates() -> None:
    random, stored, replayed = RandomConversation(2), 0, 0
    for path in real_templates():
        renderer = make_renderer(path.read_text())
        for _ in range(3):
            counts = replay_randomly(renderer, random, tools=(WEATHER,))
            stored, replayed = stored + counts[0], replayed + counts[1]
    print(f"{replayed} of {stored} turns")
    assert replayed >= 0.95 * stored > 300
