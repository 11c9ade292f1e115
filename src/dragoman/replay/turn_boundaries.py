"""Finds how the turns of a template start and end, by rendering probe conversations.

An answer starts with the text that the prompt contains only when an answer is requested. It ends
with a stop token if the template writes one there. If not, probe conversations with unusual words
show which special token ends a turn. A last probe checks that a turn of a given shape can be cut
out of its prompt with everything around it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.errors import DragomanError, TemplateRejected
from dragoman.prompt.conversation import flatten_content
from dragoman.prompt.opening import find_opening
from dragoman.prompt.pieces import Piece, RenderPieces
from dragoman.prompt.special_tokens import remove_breaks
from dragoman.prompt.template.budget import RenderLimits
from dragoman.prompt.template.capabilities import PROBE_LIMITS
from dragoman.prompt.tokens.text_encoder import TextEncoder
from dragoman.replay.turn_positions import TurnEndings, TurnOpening, locate_turns
from dragoman.types import Chat, Message, ReplayedTurn, Tool, ToolCall, make_text_content
from dragoman.types.common_prefix import count_common_prefix

MAX_OPENINGS = 64  # openings to remember
MAX_KEY = 2000  # characters of an opening's key; openings with longer keys are not remembered

PROBED_WORDS = ("zqanswer", "zqreasoning", "zqvalue")  # words of the turn under test
QUESTION = Message(role="user", content=make_text_content("zqfirst"))
CALL = ToolCall(id="zqcall001", name="zqtool", arguments='{"zqkey": "zqvalue"}')
EARLIER_CALL = ToolCall(id="zqcall009", name="zqtool", arguments='{"zqkey": "zqearlier"}')
EARLIER_TURN = Message(role="assistant", tool_calls=(EARLIER_CALL,))
EARLIER_RESULT = Message(
    role="tool", content=make_text_content("zqfound"), name="zqtool", tool_call_id="zqcall009"
)
RESULT = Message(
    role="tool", content=make_text_content("zqresult"), name="zqtool", tool_call_id="zqcall001"
)
LAST_MESSAGE = Message(role="user", content=make_text_content("zqlast"))
SCHEMA = {"type": "object", "properties": {"zqkey": {"type": "string"}}}
TOOL = Tool(name="zqtool", description="zqabout", parameters=SCHEMA)


class TurnShape(Struct, frozen=True):
    """What a turn contains, and whether it follows a tool result."""

    has_text: bool = False
    has_reasoning: bool = False
    calls: int = 0  # 2 means two or more
    follows_result: bool = False

    def make_messages_before(self) -> tuple[Message, ...]:
        return (QUESTION, EARLIER_TURN, EARLIER_RESULT) if self.follows_result else (QUESTION,)

    def make_turn(self) -> Message:
        return Message(
            role="assistant",
            content=make_text_content("zqanswer") if self.has_text or not self.calls else (),
            reasoning="zqreasoning" if self.has_reasoning else None,
            tool_calls=tuple(replace(CALL, id=f"zqcall00{index}") for index in range(self.calls)),
        )

    def make_messages_after(self) -> tuple[Message, ...]:
        return (
            *[replace(RESULT, tool_call_id=f"zqcall00{index}") for index in range(self.calls)],
            LAST_MESSAGE,
        )

    def make_conversation(self) -> Chat:
        return self.make_chat(
            *self.make_messages_before(), self.make_turn(), *self.make_messages_after()
        )

    def make_chat(self, *messages: Message) -> Chat:
        tools = (TOOL,) if self.calls or self.follows_result else ()
        return Chat(messages=messages, tools=tools)


def get_turn_shape(messages: Sequence[Message], index: int) -> TurnShape:
    turn, earlier = messages[index], messages[index - 1 : index]
    after_result = any(message.role in ("tool", "function") for message in earlier)
    calls = min(2, len(turn.tool_calls))
    return TurnShape(bool(turn.content), bool(turn.reasoning), calls, after_result)


ANSWER_CONVERSATION = TurnShape(has_text=True).make_conversation()
CALL_CONVERSATION = TurnShape(calls=1).make_conversation()


class LearnedBoundaries(Struct):
    """What was learned about one template and vocabulary.

    It refers to no renderer, so a cache of these keeps no model in memory.
    """

    special_texts: dict[int, str]  # by token id
    stop_texts: frozenset[str]  # special tokens at which the model stops
    openings: dict[str, list[str]] = field(default_factory=dict)
    replaceable: dict[TurnShape, bool] = field(default_factory=dict)
    endings: TurnEndings = TurnEndings()


def make_boundaries(tokenizer: TextEncoder) -> LearnedBoundaries:
    """Return the `LearnedBoundaries` of a vocabulary, of which nothing is learned yet."""
    specials, stops = tokenizer.specials, tokenizer.eos_ids
    return LearnedBoundaries(
        {token: text for text, token in specials.items()},
        frozenset(text for text, token in specials.items() if token in stops),
    )


class TurnBoundaries:
    """Finds the boundaries of one template's turns, and adds them to `learned`."""

    def __init__(self, render: RenderPieces, learned: LearnedBoundaries) -> None:
        self._render = render
        self._learned = learned

    @property
    def endings(self) -> TurnEndings:
        return self._learned.endings

    # The start of an answer

    def find_answer_start(
        self, chat: Chat, pieces: Sequence[Piece], limits: RenderLimits
    ) -> int | None:
        """Return the piece that starts the answer to a chat, a special token, if there is one."""
        if chat.continue_final_message or not chat.add_generation_prompt:
            return None
        key, openings = _make_opening_key(chat), self._learned.openings
        known = None if key is None else openings.get(key)
        if known is not None and list(pieces[-len(known) :]) == known:
            return len(pieces) - len(known)
        try:
            opening = find_opening(chat, lambda chat: "".join(self._render(chat, limits)))
            start = _find_first_special(pieces, opening)
        except TemplateRejected:
            start = None
        if start is not None and key is not None:
            if len(openings) >= MAX_OPENINGS:
                openings.clear()
            openings[key] = [str(piece) for piece in pieces[start:]]
        return start

    # The end of a turn

    def can_replace(self, shape: TurnShape) -> bool:
        """Whether a turn of this shape can be replaced with everything else unchanged."""
        replaceable = self._learned.replaceable
        if shape not in replaceable:
            if not replaceable:
                self._learn_endings()
            replaceable[shape] = self._test_replacing(shape)
        return replaceable[shape]

    def _learn_endings(self) -> None:
        before, after = set(self._learned.stop_texts), set[str]()
        before |= {self._find_answer_ending()} - {""}
        ending, in_turn = self._find_call_ending(before)
        (after if in_turn else before).update({ending} - {""})
        self._learned.endings = TurnEndings(frozenset(before), frozenset(after))

    def _find_answer_ending(self) -> str:
        following = self._find_specials(ANSWER_CONVERSATION, "zqanswer", "zqlast")
        if not following or not self._learned.stop_texts.isdisjoint(following):
            return ""
        closing = self._find_closing(ANSWER_CONVERSATION, "zqanswer")
        closing = closing[: count_common_prefix(following, closing)]
        return closing[-1] if closing else following[0]

    def _find_call_ending(self, known: set[str]) -> tuple[str, bool]:
        """Return the special token that ends a turn of calls, and whether it belongs to it."""
        following = self._find_specials(CALL_CONVERSATION, "zqvalue", "zqresult")
        if not following or not known.isdisjoint(following):
            return "", False
        closing = self._find_closing(CALL_CONVERSATION, "zqvalue")
        closing = closing[: count_common_prefix(following, closing)]
        if len(closing) < len(following):
            return following[len(closing)], False
        return closing[-1], True

    def _find_closing(self, chat: Chat, word: str) -> list[str]:
        """Return the special tokens that close the second turn when nothing follows it."""
        turns = replace(chat, messages=chat.messages[:2], add_generation_prompt=False)
        closing = self._find_specials(turns, word, None)
        opening = self._find_opening(replace(chat, messages=chat.messages[:1]))[1::2]
        end = len(closing) - len(opening)
        return closing[:end] if opening and closing[end:] == opening else closing

    def _find_opening(self, chat: Chat) -> list[str]:
        """Return the pieces that start the answer to a chat, with the text before them first."""
        try:
            pieces = self._render(chat, PROBE_LIMITS)
            start = self.find_answer_start(chat, pieces, PROBE_LIMITS)
        except DragomanError:
            return []
        return [] if start is None else pieces[start - 1 :]

    def _find_specials(self, chat: Chat, word: str, until: str | None) -> list[str]:
        """Return the special tokens between two words, or after the first if there is no second."""
        try:
            pieces = self._render(chat, PROBE_LIMITS)
        except DragomanError:
            return []
        texts = range(0, len(pieces), 2)
        start = next((index for index in texts if word in pieces[index]), len(pieces))
        if until is None:
            return pieces[start + 1 :: 2]
        end = next((index for index in texts if index > start and until in pieces[index]), start)
        return pieces[start + 1 : end : 2]

    def _test_replacing(self, shape: TurnShape) -> bool:
        """Cut out such a turn and compare everything around it."""
        before, turn, after = (
            shape.make_messages_before(),
            shape.make_turn(),
            shape.make_messages_after(),
        )
        opening = self._find_opening(shape.make_chat(*before))
        if not opening:
            return False
        marked = shape.make_chat(*before, replace(turn, replay=ReplayedTurn((), ())), *after)
        try:
            plain = self._render(shape.make_conversation(), PROBE_LIMITS)
            pieces = self._render(marked, PROBE_LIMITS)
        except DragomanError:
            return False
        start_of_turn = TurnOpening(opening[1], opening[2] if len(opening) > 3 else "")
        spans, missing = locate_turns(pieces, [start_of_turn], self.endings)
        if missing:
            return False
        start, end = spans[0].start, spans[0].end
        head, tail = [*map(remove_breaks, pieces[:start])], [*map(remove_breaks, pieces[end:])]
        rest = "".join([*head, *tail])
        others = [flatten_content(message.content) for message in (*before, *after)]
        others += ["zqearlier"] if shape.follows_result else []
        return (
            plain[:start] == head
            and plain[len(plain) - len(tail) :] == tail
            and not any(word in rest for word in PROBED_WORDS)
            and all(rest.count(text) >= others.count(text) for text in others if text)
            and head[-1].rstrip()[-7:] == opening[0].rstrip()[-7:]
        )


def _make_opening_key(chat: Chat) -> str | None:
    """Return a key for everything that the opening of an answer may depend on."""
    kwargs, last = chat.template_kwargs, chat.messages[-1].role
    options = (
        last,
        bool(chat.tools),
        chat.tool_choice,
        chat.reasoning_effort,
        chat.thinking_budget,
    )
    key = f"{options}{sorted(kwargs.items()) if kwargs else ''}"
    return key if len(key) <= MAX_KEY else None


def _find_first_special(pieces: Sequence[Piece], opening: str) -> int | None:
    """Return the first special token of the opening.

    If the opening starts with text, this is the special token right before it, apart from white
    space.
    """
    length, first = 0, None
    for index in range(len(pieces) - 1, 0, -1):
        piece = pieces[index]
        if not isinstance(piece, str):
            break
        length += len(piece)
        if index % 2 and length <= len(opening):
            first = index
        elif index % 2:
            head = opening if first is None else opening.partition(str(pieces[first]))[0]
            between = "".join(map(str, pieces[index + 1 :])).removesuffix(opening)
            return first if between.strip() or (first is not None and not head) else index
    return first
