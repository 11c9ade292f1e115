"""How the turns of a template begin and end, found by trying.

What opens an answer is what a chat's prompt has that it has not when no answer is asked for. What
ends one is a token that the model stops at, if the template writes one there; else it is read off
made-up conversations, in which odd words show where a turn is over. Then it is tried out whether
such a turn can be cut from its prompt with everything around it left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import DragomanError, TemplateRejected
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.special_tokens import remove_breaks
from dragoman.prompt.template.budget import RenderLimits
from dragoman.prompt.template.capabilities import PROBE_LIMITS
from dragoman.replay.turn_positions import TurnEndings, TurnOpening, locate_turns
from dragoman.types import Chat, Message, ReplayedTurn, Tool, ToolCall, text_content

Piece: TypeAlias = str | tuple[int, ...]  # text or a special token, or tokens as they are
Write: TypeAlias = Callable[[Chat, RenderLimits], list[str]]

OPENINGS = 64  # ways to open an answer that are kept
LONG = 2000  # characters of what the client sets in a template, to know an opening by

OWN = ("zqanswer", "zqthought", "zqvalue")  # words of the turn that is tried
ASKED = Message(role="user", content=text_content("zqfirst"))
CALL = ToolCall(id="zqcall001", name="zqtool", arguments='{"zqkey": "zqvalue"}')
EARLIER_CALL = ToolCall(id="zqcall009", name="zqtool", arguments='{"zqkey": "zqearlier"}')
EARLIER = Message(role="assistant", tool_calls=(EARLIER_CALL,))
FOUND = Message(role="tool", content=text_content("zqfound"), name="zqtool", tool_call_id="zqcall009")
RESULT = Message(role="tool", content=text_content("zqresult"), name="zqtool", tool_call_id="zqcall001")
LAST = Message(role="user", content=text_content("zqlast"))
SCHEMA = {"type": "object", "properties": {"zqkey": {"type": "string"}}}
OFFERED = Tool(name="zqtool", description="zqabout", parameters=SCHEMA)


class Marks(Protocol):
    """What is needed of a tokenizer."""

    specials: dict[str, int]
    eos_ids: frozenset[int]


class TurnShape(Struct, frozen=True):
    """What there is in a turn, and what it follows on."""

    text: bool = False
    thoughts: bool = False
    calls: int = 0  # none, one, or more
    result: bool = False  # it follows on a result

    def before(self) -> tuple[Message, ...]:
        """A made-up conversation that such a turn follows on."""
        return (ASKED, EARLIER, FOUND) if self.result else (ASKED,)

    def turn(self) -> Message:
        return Message(
            role="assistant",
            content=text_content("zqanswer") if self.text or not self.calls else (),
            reasoning="zqthought" if self.thoughts else None,
            tool_calls=tuple(replace(CALL, id=f"zqcall00{at}") for at in range(self.calls)),
        )

    def after(self) -> tuple[Message, ...]:
        """How it goes on."""
        return (*[replace(RESULT, tool_call_id=f"zqcall00{at}") for at in range(self.calls)], LAST)

    def story(self) -> Chat:
        return self.chat(*self.before(), self.turn(), *self.after())

    def chat(self, *messages: Message) -> Chat:
        tools = (OFFERED,) if self.calls or self.result else ()
        return Chat(messages=messages, tools=tools)


def shape_of(messages: Sequence[Message], at: int) -> TurnShape:
    turn, earlier = messages[at], messages[at - 1 : at]
    result = any(message.role in ("tool", "function") for message in earlier)
    return TurnShape(bool(turn.content), bool(turn.reasoning), min(2, len(turn.tool_calls)), result)


ANSWER_STORY, CALL_STORY = TurnShape(text=True).story(), TurnShape(calls=1).story()


class TurnBoundaries:
    """What is known of one template."""

    def __init__(self, write: Write, marks: Marks) -> None:
        self._write = write
        self._stops = {text for text, token in marks.specials.items() if token in marks.eos_ids}
        self._openings: dict[str, list[str]] = {}
        self._proofs: dict[TurnShape, bool] = {}
        self.ends = TurnEndings()

    # What opens an answer

    def opened(self, chat: Chat, pieces: Sequence[Piece], limits: RenderLimits) -> int | None:
        """The piece that opens the answer to a chat, a special token, if that can be told."""
        if chat.continue_final_message or not chat.add_generation_prompt:
            return None
        key = _key(chat)
        known = None if key is None else self._openings.get(key)
        if known is not None and list(pieces[-len(known) :]) == known:
            return len(pieces) - len(known)
        try:
            found = _first_mark(pieces, self._opening(chat, limits))
        except TemplateRejected:
            found = None
        if found is not None and key is not None:
            if len(self._openings) >= OPENINGS:
                self._openings.clear()
            self._openings[key] = [str(piece) for piece in pieces[found:]]
        return found

    def _opening(self, chat: Chat, limits: RenderLimits) -> str:
        whole = "".join(self._write(chat, limits))
        before = "".join(self._write(replace(chat, add_generation_prompt=False), limits))
        if whole != before and whole.startswith(before):
            return whole[len(before) :]
        # one that opens every answer, asked or not, or none: what it writes behind a last message
        last = replace(chat.messages[-1], content=text_content("zqlast"))
        other = "".join(self._write(replace(chat, messages=(*chat.messages[:-1], last)), limits))
        _, found, rest = other.rpartition("zqlast")
        return rest if found and whole.endswith(rest) else ""

    # What ends one

    def placeable(self, shape: TurnShape) -> bool:
        """Whether a turn of this shape can be replaced, with nothing else harmed."""
        if shape not in self._proofs:
            if not self._proofs:
                self._learn()
            self._proofs[shape] = self._proved(shape)
        return self._proofs[shape]

    def _learn(self) -> None:
        before, after = set(self._stops), set[str]()
        before |= {self._end_of_answers()} - {""}
        end, closes = self._end_of_calls(before)
        (after if closes else before).update({end} - {""})
        self.ends = TurnEndings(frozenset(before), frozenset(after))

    def _end_of_answers(self) -> str:
        later = self._marks(ANSWER_STORY, "zqanswer", "zqlast")
        if not later or not self._stops.isdisjoint(later):
            return ""
        closed = _shared(later, self._closed(ANSWER_STORY, "zqanswer"))
        return closed[-1] if closed else later[0]

    def _end_of_calls(self, known: set[str]) -> tuple[str, bool]:
        """The special token that ends a turn of calls, and whether it belongs to the turn."""
        later = self._marks(CALL_STORY, "zqvalue", "zqresult")
        if not later or not known.isdisjoint(later):
            return "", False
        closed = _shared(later, self._closed(CALL_STORY, "zqvalue"))
        if len(closed) < len(later):
            return later[len(closed)], False
        return closed[-1], True

    def _closed(self, chat: Chat, word: str) -> list[str]:
        """The special tokens that close the second turn when nothing follows it."""
        turns = replace(chat, messages=chat.messages[:2], add_generation_prompt=False)
        found = self._marks(turns, word, None)
        opening = self._question(replace(chat, messages=chat.messages[:1]))[1::2]
        ends = len(found) - len(opening)
        return found[:ends] if opening and found[ends:] == opening else found

    def _question(self, chat: Chat) -> list[str]:
        """What opens the answer to a chat: plain text and special tokens in turn."""
        try:
            pieces = self._write(chat, PROBE_LIMITS)
            at = self.opened(chat, pieces, PROBE_LIMITS)
        except DragomanError:
            return []
        return [] if at is None else pieces[at - 1 :]

    def _marks(self, chat: Chat, word: str, until: str | None) -> list[str]:
        """The special tokens between two words, or after one."""
        try:
            pieces = self._write(chat, PROBE_LIMITS)
        except DragomanError:
            return []
        texts = range(0, len(pieces), 2)
        start = next((at for at in texts if word in pieces[at]), len(pieces))
        if until is None:
            return pieces[start + 1 :: 2]
        end = next((at for at in texts if at > start and until in pieces[at]), start)
        return pieces[start + 1 : end : 2]

    def _proved(self, shape: TurnShape) -> bool:
        """Whether such a turn can be cut out, with everything around it left as it was."""
        before, turn, after = shape.before(), shape.turn(), shape.after()
        opening = self._question(shape.chat(*before))
        if not opening:
            return False
        signed = shape.chat(*before, replace(turn, replay=ReplayedTurn((), ())), *after)
        try:
            plain, pieces = (
                self._write(shape.story(), PROBE_LIMITS),
                self._write(signed, PROBE_LIMITS),
            )
        except DragomanError:
            return False
        opener = TurnOpening(opening[1], opening[2] if len(opening) > 3 else "")
        found, failed = locate_turns(pieces, [opener], self.ends)
        if failed:
            return False
        start, end = found[0].start, found[0].end
        head, tail = [*map(remove_breaks, pieces[:start])], [*map(remove_breaks, pieces[end:])]
        left, others = "".join([*head, *tail]), [flatten_content(one.content) for one in (*before, *after)]
        others += ["zqearlier"] if shape.result else []
        return (
            plain[:start] == head
            and plain[len(plain) - len(tail) :] == tail
            and not any(word in left for word in OWN)
            and all(left.count(text) >= others.count(text) for text in others if text)
            and head[-1].rstrip()[-7:] == opening[0].rstrip()[-7:]
        )


def _shared(one: Sequence[str], two: Sequence[str]) -> list[str]:
    """What both begin with."""
    count = 0
    for first, second in zip(one, two, strict=False):
        if first != second:
            break
        count += 1
    return list(one[:count])


def _key(chat: Chat) -> str | None:
    """What an opening may depend on."""
    given, last = chat.template_kwargs, chat.messages[-1].role
    said = (last, bool(chat.tools), chat.tool_choice, chat.reasoning_effort, chat.thinking_budget)
    key = f"{said}{sorted(given.items()) if given else ''}"
    return key if len(key) <= LONG else None


def _first_mark(pieces: Sequence[Piece], opening: str) -> int | None:
    """The first special token of the opening, or the one right before it, if it begins with text.

    What is between that one and the opening may be white space.
    """
    length, found = 0, None
    for at in range(len(pieces) - 1, 0, -1):
        piece = pieces[at]
        if not isinstance(piece, str):
            break
        length += len(piece)
        if at % 2 and length <= len(opening):
            found = at
        elif at % 2:
            head = opening if found is None else opening.partition(str(pieces[found]))[0]
            between = "".join(map(str, pieces[at + 1 :])).removesuffix(opening)
            return found if between.strip() or (found is not None and not head) else at
    return found
