"""From a conversation to token ids, by the model's own template.

    messages ── conversation ──> what this template takes
             ── marks ─────────> the same, with nothing in it that reads as a special token
             ── template ──────> text
             ── marks ─────────> plain text and special tokens in turn
             ── recalled ──────> the same, with earlier turns as the model wrote them
             ── segments ──────> token ids; plain text that was seen before is not cut again

All of it but the cutting happens on the event loop when it is quick, and in a thread when it is
not: a rendering that does not end within `QUICK` is given up and started again off the loop, where
it has its whole budget.

A model without a template gets the messages' contents as they are. A template without a place for
tools gets them as text, in the form of `generic`. A model without a tokenizer
gets text; then special tokens are unknown here, and the engine reads the text as it likes.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, TemplateRejected, Unsupported
from dragoman.prompt.conversation import arrange, as_dict, prepare, prepare_tools
from dragoman.prompt.encoding import Cutter, encode
from dragoman.prompt.reasoning_options import Knobs, needless, no_effort, thinking_variables
from dragoman.prompt.special_tokens import CUT, Guard, Marked, clean
from dragoman.prompt.template.budget import LIMITS, Budget, Limits
from dragoman.prompt.template.capabilities import Abilities, abilities, tools_variable
from dragoman.prompt.template.template import TOO_COSTLY, compile_template
from dragoman.prompt.token_cache import Segments
from dragoman.replay.splice import Recaller, Written, joined, remembered, without
from dragoman.replay.turn_positions import plant
from dragoman.types import Chat, Message, Prompt, Tool

log = logging.getLogger("dragoman.prompt")
T = TypeVar("T")

QUICK = 0.02  # seconds that a rendering may hold up the event loop
LARGE = 200_000  # characters of a conversation that goes to a thread at once
EACH = 100  # that a message or a call is worth beside its own
CACHE = 32 << 20
SENTINEL = "zqlast"


class Rendered(Struct, frozen=True):
    """A prompt: its text as a person would read it, and its tokens if there is a tokenizer."""

    text: str
    ids: list[int] | None = None
    special: int = 0  # special tokens that the template wrote
    ending: str = ""  # the special token it ends with, white space apart
    cached_tokens: int = 0  # tokens that were known from an earlier prompt
    recalled: int = 0  # turns that are as the model wrote them
    lost: tuple[str, ...] = ()  # why each other one that is remembered is not
    opened: int | None = None  # where among the tokens the answer is opened, if that was asked
    packed: bytes = b""  # the tokens as numbers of four bytes


class Prompter:
    """Makes prompts for one model."""

    def __init__(
        self,
        template_source: str | None,
        tokenizer: Cutter | None,
        *,
        knobs: Knobs | None = None,
        cache: int = CACHE,
        limits: Limits = LIMITS,
    ) -> None:
        self.template_source = template_source or None
        self.tokenizer = tokenizer
        self.segments = Segments(cache)
        self._knobs = knobs or Knobs()
        self._limits = limits
        self._quick = msgspec.structs.replace(limits, seconds=min(QUICK, limits.seconds))
        self._template = compile_template(template_source) if template_source else None
        self.abilities = abilities(template_source) if template_source else Abilities()
        if not self.abilities.renders:
            log.warning("the chat template does not render a plain message of a user")
        self._guard = self._make_guard()
        self._recaller: Recaller | None = None
        if self._template is not None and tokenizer is not None:
            self._recaller = Recaller(self._work, tokenizer)

    def _make_guard(self) -> Guard:
        specials = self.tokenizer.specials if self.tokenizer is not None else ()
        if self._template is None:
            return Guard(specials)
        facts = self._template.facts
        return Guard(specials, facts.literals, facts.cuts, facts.folds)

    async def render(self, chat: Chat, *, opened: bool = False) -> Rendered:
        """The prompt of a chat. Refuses what cannot be rendered, with the reason."""
        if self._recaller is not None and (opened or remembered(chat)):
            _check(chat)
            written = await self._run(self._recaller.write, chat)
        else:
            written = Written([*await self._pieces(chat)])
        pieces = written.pieces
        if self.tokenizer is None:
            text = joined(pieces, ())
            if not text:
                raise _empty()
            return Rendered(text)
        made = await encode(pieces, self.tokenizer, self.segments, written.opened)
        if not made.ids:
            raise _empty()
        return Rendered(
            text=joined(pieces, self.tokenizer.pieces),
            ids=made.ids.tolist(),
            special=len(pieces) // 2,
            ending=str(pieces[-2]) if len(pieces) > 1 and not str(pieces[-1]).strip() else "",
            cached_tokens=made.cached,
            recalled=written.recalled,
            lost=written.lost,
            opened=made.opened,
            packed=made.ids.tobytes(),
        )

    @property
    def recalls(self) -> bool:
        """Whether earlier turns can be put back as they were."""
        return self._recaller is not None

    async def count(self, chat: Chat) -> int:
        """How many tokens the prompt of a chat has."""
        rendered = await self.render(chat)
        if rendered.ids is None:
            raise Unsupported("This model's tokens cannot be counted without its tokenizer.")
        return len(rendered.ids)

    async def opening(self, chat: Chat) -> str:
        """What the template writes to open the answer; no word of the client's is in it."""
        whole = "".join(await self._pieces(chat))
        if chat.continue_final_message:
            return await self._opened(chat, whole)
        closed = msgspec.structs.replace(chat, add_generation_prompt=False)
        before = "".join(await self._pieces(closed))
        if whole != before and whole.startswith(before):
            return whole[len(before) :]
        # A template that opens every answer, asked or not: what it writes behind any last message
        last = msgspec.structs.replace(chat.messages[-1], content=SENTINEL)
        other = msgspec.structs.replace(chat, messages=(*chat.messages[:-1], last))
        _, found, rest = "".join(await self._pieces(other)).rpartition(SENTINEL)
        return rest if found and whole.endswith(rest) else ""

    async def _opened(self, chat: Chat, whole: str) -> str:
        """The same for an answer that is to go on: what the template wrote before its words."""
        own, rest = (chat.messages[-1].content or "").strip(), chat.messages[:-1]
        before = ""
        if rest:
            earlier = msgspec.structs.replace(chat, messages=rest, continue_final_message=False)
            before = "".join(await self._pieces(earlier))
        written = whole.removeprefix(before)
        return written.rpartition(own)[0] if own else written

    def check_effort(self, chat: Chat) -> None:
        """Refuse an effort that this model cannot be asked for."""
        if self._template is not None:
            thinking_variables(chat, self._template.facts, self._knobs)
        elif chat.reasoning_effort is not None and not needless(chat, self._knobs):
            raise no_effort(chat)

    @property
    def keeps_budget(self) -> bool:
        """Whether the template itself tells the model how long it may think."""
        return self._knobs.budget is not None

    async def marked(self, text: str) -> list[int] | str:
        """A text of our own, in which special tokens are read as such."""
        if self.tokenizer is None:
            return text
        made = await encode([*self._guard.split(text)], self.tokenizer, self.segments)
        return made.ids.tolist()

    async def encode(self, prompt: Prompt) -> list[int] | str:
        """A prompt that is not a chat: plain text, or token ids as they are."""
        content, tokenizer = prompt.content, self.tokenizer
        if isinstance(content, list):
            _check_ids(content, None if tokenizer is None else len(tokenizer.pieces))
            return list(content)
        if tokenizer is None:
            return content
        ids = await tokenizer.encode(content)
        if prompt.add_special_tokens and tokenizer.add_bos and tokenizer.bos_id is not None:
            return [tokenizer.bos_id, *ids]
        return ids

    # Text

    async def _pieces(self, chat: Chat) -> list[str]:
        """Plain text and special tokens in turn, plain text first and last."""
        _check(chat)
        chat = without(chat)
        return (
            [self._verbatim(chat)] if self._template is None else await self._run(self._work, chat)
        )

    async def _run(self, work: Callable[[Chat, Limits], T], chat: Chat) -> T:
        if sum(map(_weight, chat.messages)) <= LARGE:
            try:
                return work(chat, self._quick)
            except TemplateRejected as error:
                if error.code != TOO_COSTLY:
                    raise
        return await asyncio.to_thread(work, chat, self._limits)

    def _verbatim(self, chat: Chat) -> str:
        """Without a template: what was said, as it is."""
        self.check_effort(chat)
        for said, name in (
            (chat.template_kwargs, "chat_template_kwargs"),
            (chat.continue_final_message, chat.get_client_field_name("continue_final_message")),
        ):
            if said:
                raise Unsupported(f"This model has no chat template for `{name}`.", param=name)
        turns = prepare(chat.messages, self.abilities, self._offered(chat))
        return "\n\n".join(turn["content"] for turn in turns if turn["content"])

    def _offered(self, chat: Chat) -> tuple[Tool, ...]:
        """The tools to write down: as text only where the model may call them."""
        wanted = self.abilities.tools_rendered or chat.tool_choice != "none"
        return chat.tools if wanted else ()

    def _work(self, chat: Chat, limits: Limits) -> list[str]:
        tools = self._offered(chat)
        turns = arrange(chat.messages, self.abilities, tools)
        given = self._given(chat, turns, tools)
        numbers = {id(said): number for number, said in enumerate(remembered(chat))}
        signed = [(at, numbers[id(one.replay)]) for at, one in enumerate(turns) if one.replay]

        def split(marked: Marked) -> list[str]:
            made = self._variables(chat, given, marked)
            for at, number in signed:
                plant(made["messages"][at], number, self.abilities.thoughts)
            return self._split(chat, made, marked, limits)

        try:
            marked = Marked(self._guard)
            pieces = split(marked)
            middles = self._guard.middles(pieces, given)
            if middles:
                marked = Marked(self._guard, middles)
                pieces = split(marked)
        except RecursionError:
            raise BadRequest("The request is nested too deeply.", param="messages") from None
        except TemplateRejected as error:  # it may quote the client, with our marks inside
            said = clean(error.message)
            raise TemplateRejected(said, param=error.param, code=error.code) from None
        # with signs of ours in it, nothing of the client's may become one
        dirty = marked.changed and not signed
        return [clean(piece) for piece in pieces] if dirty else pieces

    def _given(self, chat: Chat, turns: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
        """What the client chose, in the shape that this template takes."""
        assert self._template is not None  # noqa: S101
        facts = self._template.facts
        self._template.check(chat.template_kwargs)
        given = chat.template_kwargs | thinking_variables(chat, facts, self._knobs)
        if "tool_choice" in facts.reads:
            given["tool_choice"] = chat.tool_choice
        if "response_format" in facts.reads and chat.response_format is not None:
            given.setdefault("response_format", chat.response_format)
        given["tools"] = prepare_tools(tools, self.abilities)
        given["messages"] = [as_dict(turn, self.abilities) for turn in turns]
        return given

    def _variables(self, chat: Chat, given: dict[str, Any], marked: Marked) -> dict[str, Any]:
        """Everything the template can read."""
        assert self._template is not None  # noqa: S101
        facts = self._template.facts
        made = {name: marked.tree(value) for name, value in given.items()}
        made |= tools_variable(made.pop("tools"), self.abilities.no_tools, facts)
        if chat.continue_final_message:
            _leave_open(made["messages"][-1])
        made["add_generation_prompt"] = chat.add_generation_prompt
        if "datetime" in facts.reads:
            now = datetime.datetime.now(datetime.UTC)
            made.setdefault("datetime", now.strftime("%Y-%m-%d %H:%M:%S GMT"))
        tokens = {"bos_token": "", "eos_token": ""}
        return made | tokens | (self.tokenizer.variables if self.tokenizer is not None else {})

    def _split(
        self, chat: Chat, variables: dict[str, Any], marked: Marked, limits: Limits
    ) -> list[str]:
        assert self._template is not None  # noqa: S101
        text = self._template.render(variables, Budget(limits, marked.size, marked.known))
        if chat.continue_final_message:
            text, found, _ = text.rpartition(CUT)
            if not found:
                raise Unsupported(
                    "This model's chat template cannot leave the last message open.",
                    param=chat.get_client_field_name("continue_final_message"),
                )
            text = text.replace(CUT, "")
        return self._guard.split(text)


def _weight(message: Message) -> int:
    """About how much work a message is, in characters."""
    calls = sum(EACH + len(call.arguments) for call in message.tool_calls)
    return EACH + len(message.content or "") + calls


def _check(chat: Chat) -> None:
    if not chat.messages:
        raise _empty()
    if not chat.continue_final_message:
        return
    last, where = chat.messages[-1], "continue_final_message"
    if chat.add_generation_prompt:
        raise BadRequest(
            "`continue_final_message` and `add_generation_prompt` exclude each other.", param=where
        )
    if last.role != "assistant" or last.tool_calls:
        raise BadRequest(
            "`continue_final_message` needs a last message of text from the assistant.", param=where
        )


def _leave_open(message: dict[str, Any]) -> None:
    """Put a sign where the prompt is to end."""
    content = message.get("content")
    if isinstance(content, list):
        content[-1]["text"] += CUT
    else:
        message["content"] = (content or "") + CUT


def _check_ids(ids: list[int], size: int | None) -> None:
    if ids and (min(ids) < 0 or (size is not None and max(ids) >= size)):
        most = "" if size is None else f" and {size - 1}"
        between = f"between 0{most}" if most else "0 or more"
        raise BadRequest(f"Every token id of a prompt must be {between}.", param="prompt")


def _empty() -> BadRequest:
    return BadRequest("Messages cannot be empty.", param="messages")
