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
from dragoman.prompt.conversation import (
    arrange_messages,
    flatten_content,
    prepare_messages,
    prepare_tools,
    to_template_message,
)
from dragoman.prompt.encoding import TextEncoder, encode_pieces
from dragoman.prompt.reasoning_options import (
    ReasoningOptions,
    effort_error,
    is_already_off,
    reasoning_variables,
)
from dragoman.prompt.special_tokens import PROMPT_END, MarkedText, SpecialTokenGuard, remove_breaks
from dragoman.prompt.template.budget import DEFAULT_LIMITS, RenderBudget, RenderLimits
from dragoman.prompt.template.capabilities import (
    TemplateCapabilities,
    make_tools_variable,
    probe_capabilities,
)
from dragoman.prompt.template.template import TOO_COSTLY, compile_template
from dragoman.prompt.token_cache import TokenCache
from dragoman.prompt.turn import Turn
from dragoman.replay.splice import (
    PromptPieces,
    TurnSplicer,
    drop_replays,
    find_replays,
    join_pieces,
)
from dragoman.replay.turn_positions import insert_markers
from dragoman.types import Chat, Message, Prompt, Tool, text_content

log = logging.getLogger("dragoman.prompt")
T = TypeVar("T")

QUICK = 0.02  # seconds that a rendering may hold up the event loop
LARGE = 200_000  # characters of a conversation that goes to a thread at once
EACH = 100  # that a message or a call is worth beside its own
CACHE = 32 << 20
SENTINEL = "zqlast"


class RenderedPrompt(Struct, frozen=True):
    """A prompt: its text as a person would read it, and its tokens if there is a tokenizer."""

    text: str
    ids: list[int] | None = None
    special_tokens: int = 0  # special tokens that the template wrote
    last_special_token: str = ""  # the special token it ends with, white space apart
    cached_tokens: int = 0  # tokens that were known from an earlier prompt
    replayed_turns: int = 0  # turns that are as the model wrote them
    skipped: tuple[str, ...] = ()  # why each other one that is remembered is not
    answer_start: int | None = (
        None  # where among the tokens the answer is opened, if that was asked
    )
    packed_ids: bytes = b""  # the tokens as numbers of four bytes


class PromptRenderer:
    """Makes prompts for one model."""

    def __init__(
        self,
        template_source: str | None,
        tokenizer: TextEncoder | None,
        *,
        reasoning: ReasoningOptions | None = None,
        cache_bytes: int = CACHE,
        limits: RenderLimits = DEFAULT_LIMITS,
    ) -> None:
        self.template_source = template_source or None
        self.tokenizer = tokenizer
        self.token_cache = TokenCache(cache_bytes)
        self._knobs = reasoning or ReasoningOptions()
        self._limits = limits
        self._quick = msgspec.structs.replace(limits, seconds=min(QUICK, limits.seconds))
        self._template = compile_template(template_source) if template_source else None
        self.capabilities = (
            probe_capabilities(template_source) if template_source else TemplateCapabilities()
        )
        if not self.capabilities.renders:
            log.warning("the chat template does not render a plain message of a user")
        self._guard = self._make_guard()
        self._recaller: TurnSplicer | None = None
        if self._template is not None and tokenizer is not None:
            self._recaller = TurnSplicer(self._work, tokenizer)

    def _make_guard(self) -> SpecialTokenGuard:
        specials = self.tokenizer.specials if self.tokenizer is not None else ()
        if self._template is None:
            return SpecialTokenGuard(specials)
        facts = self._template.facts
        return SpecialTokenGuard(specials, facts.literals, facts.separators, facts.changes_case)

    async def render(self, chat: Chat, *, opened: bool = False) -> RenderedPrompt:
        """The prompt of a chat. Refuses what cannot be rendered, with the reason."""
        if self._recaller is not None and (opened or find_replays(chat)):
            _check(chat)
            written = await self._run(self._recaller.write, chat)
        else:
            written = PromptPieces([*await self._pieces(chat)])
        pieces = written.pieces
        if self.tokenizer is None:
            text = join_pieces(pieces, ())
            if not text:
                raise _empty()
            return RenderedPrompt(text)
        made = await encode_pieces(pieces, self.tokenizer, self.token_cache, written.answer_start)
        if not made.ids:
            raise _empty()
        return RenderedPrompt(
            text=join_pieces(pieces, self.tokenizer.pieces),
            ids=made.ids.tolist(),
            special_tokens=len(pieces) // 2,
            last_special_token=str(pieces[-2])
            if len(pieces) > 1 and not str(pieces[-1]).strip()
            else "",
            cached_tokens=made.cached,
            replayed_turns=written.replayed_turns,
            skipped=written.skipped,
            answer_start=made.opened,
            packed_ids=made.ids.tobytes(),
        )

    @property
    def can_splice(self) -> bool:
        """Whether earlier turns can be put back as they were."""
        return self._recaller is not None

    async def count_tokens(self, chat: Chat) -> int:
        """How many tokens the prompt of a chat has."""
        rendered = await self.render(chat)
        if rendered.ids is None:
            raise Unsupported("This model's tokens cannot be counted without its tokenizer.")
        return len(rendered.ids)

    async def render_opening(self, chat: Chat) -> str:
        """What the template writes to open the answer; no word of the client's is in it."""
        whole = "".join(await self._pieces(chat))
        if chat.continue_final_message:
            return await self._opened(chat, whole)
        closed = msgspec.structs.replace(chat, add_generation_prompt=False)
        before = "".join(await self._pieces(closed))
        if whole != before and whole.startswith(before):
            return whole[len(before) :]
        # A template that opens every answer, asked or not: what it writes behind any last message
        last = msgspec.structs.replace(chat.messages[-1], content=text_content(SENTINEL))
        other = msgspec.structs.replace(chat, messages=(*chat.messages[:-1], last))
        _, found, rest = "".join(await self._pieces(other)).rpartition(SENTINEL)
        return rest if found and whole.endswith(rest) else ""

    async def _opened(self, chat: Chat, whole: str) -> str:
        """The same for an answer that is to go on: what the template wrote before its words."""
        own, rest = flatten_content(chat.messages[-1].content).strip(), chat.messages[:-1]
        before = ""
        if rest:
            earlier = msgspec.structs.replace(chat, messages=rest, continue_final_message=False)
            before = "".join(await self._pieces(earlier))
        written = whole.removeprefix(before)
        return written.rpartition(own)[0] if own else written

    def check_reasoning_effort(self, chat: Chat) -> None:
        """Refuse an effort that this model cannot be asked for."""
        if self._template is not None:
            reasoning_variables(chat, self._template.facts, self._knobs)
        elif chat.reasoning_effort is not None and not is_already_off(chat, self._knobs):
            raise effort_error(chat)

    @property
    def template_enforces_budget(self) -> bool:
        """Whether the template itself tells the model how long it may think."""
        return self._knobs.budget is not None

    async def encode_markup(self, text: str) -> list[int] | str:
        """A text of our own, in which special tokens are read as such."""
        if self.tokenizer is None:
            return text
        made = await encode_pieces([*self._guard.split(text)], self.tokenizer, self.token_cache)
        return made.ids.tolist()

    async def encode_prompt(self, prompt: Prompt) -> list[int] | str:
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
        chat = drop_replays(chat)
        return (
            [self._verbatim(chat)] if self._template is None else await self._run(self._work, chat)
        )

    async def _run(self, work: Callable[[Chat, RenderLimits], T], chat: Chat) -> T:
        if sum(map(_weight, chat.messages)) <= LARGE:
            try:
                return work(chat, self._quick)
            except TemplateRejected as error:
                if error.code != TOO_COSTLY:
                    raise
        return await asyncio.to_thread(work, chat, self._limits)

    def _verbatim(self, chat: Chat) -> str:
        """Without a template: what was said, as it is."""
        self.check_reasoning_effort(chat)
        for said, name in (
            (chat.template_kwargs, "chat_template_kwargs"),
            (chat.continue_final_message, chat.get_client_field_name("continue_final_message")),
        ):
            if said:
                raise Unsupported(f"This model has no chat template for `{name}`.", param=name)
        turns = prepare_messages(chat.messages, self.capabilities, self._offered(chat))
        return "\n\n".join(turn["content"] for turn in turns if turn["content"])

    def _offered(self, chat: Chat) -> tuple[Tool, ...]:
        """The tools to write down: as text only where the model may call them."""
        wanted = self.capabilities.tools_rendered or chat.tool_choice != "none"
        return chat.tools if wanted else ()

    def _work(self, chat: Chat, limits: RenderLimits) -> list[str]:
        tools = self._offered(chat)
        turns = arrange_messages(chat.messages, self.capabilities, tools)
        given = self._given(chat, turns, tools)
        numbers = {id(said): number for number, said in enumerate(find_replays(chat))}
        signed = [(at, numbers[id(one.replay)]) for at, one in enumerate(turns) if one.replay]

        def split(marked: MarkedText) -> list[str]:
            made = self._variables(chat, given, marked)
            for at, number in signed:
                insert_markers(made["messages"][at], number, self.capabilities.reasoning_fields)
            return self._split(chat, made, marked, limits)

        try:
            marked = MarkedText(self._guard)
            pieces = split(marked)
            middles = self._guard.find_middles(pieces, given)
            if middles:
                marked = MarkedText(self._guard, middles)
                pieces = split(marked)
        except RecursionError:
            raise BadRequest("The request is nested too deeply.", param="messages") from None
        except TemplateRejected as error:  # it may quote the client, with our marks inside
            said = remove_breaks(error.message)
            raise TemplateRejected(said, param=error.param, code=error.code) from None
        # with signs of ours in it, nothing of the client's may become one
        dirty = marked.changed and not signed
        return [remove_breaks(piece) for piece in pieces] if dirty else pieces

    def _given(self, chat: Chat, turns: Sequence[Turn], tools: Sequence[Tool]) -> dict[str, Any]:
        """What the client chose, in the shape that this template takes."""
        assert self._template is not None  # noqa: S101
        facts = self._template.facts
        self._template.check_variables(chat.template_kwargs)
        given = chat.template_kwargs | reasoning_variables(chat, facts, self._knobs)
        if "tool_choice" in facts.variables:
            given["tool_choice"] = chat.tool_choice
        if "response_format" in facts.variables and chat.response_format is not None:
            given.setdefault("response_format", chat.response_format)
        given["tools"] = prepare_tools(tools, self.capabilities)
        given["messages"] = [to_template_message(turn, self.capabilities) for turn in turns]
        return given

    def _variables(self, chat: Chat, given: dict[str, Any], marked: MarkedText) -> dict[str, Any]:
        """Everything the template can read."""
        assert self._template is not None  # noqa: S101
        facts = self._template.facts
        made = {name: marked.mark_tree(value) for name, value in given.items()}
        made |= make_tools_variable(made.pop("tools"), self.capabilities.no_tools, facts)
        if chat.continue_final_message:
            _leave_open(made["messages"][-1])
        made["add_generation_prompt"] = chat.add_generation_prompt
        if "datetime" in facts.variables:
            now = datetime.datetime.now(datetime.UTC)
            made.setdefault("datetime", now.strftime("%Y-%m-%d %H:%M:%S GMT"))
        tokens = {"bos_token": "", "eos_token": ""}
        return made | tokens | (self.tokenizer.variables if self.tokenizer is not None else {})

    def _split(
        self, chat: Chat, variables: dict[str, Any], marked: MarkedText, limits: RenderLimits
    ) -> list[str]:
        assert self._template is not None  # noqa: S101
        text = self._template.render(
            variables, RenderBudget(limits, marked.size, marked.known_sizes)
        )
        if chat.continue_final_message:
            text, found, _ = text.rpartition(PROMPT_END)
            if not found:
                raise Unsupported(
                    "This model's chat template cannot leave the last message open.",
                    param=chat.get_client_field_name("continue_final_message"),
                )
            text = text.replace(PROMPT_END, "")
        return self._guard.split(text)


def _weight(message: Message) -> int:
    """About how much work a message is, in characters."""
    calls = sum(EACH + len(call.arguments) for call in message.tool_calls)
    return EACH + len(flatten_content(message.content)) + calls


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
        content[-1]["text"] += PROMPT_END
    else:
        message["content"] = (content or "") + PROMPT_END


def _check_ids(ids: list[int], size: int | None) -> None:
    if ids and (min(ids) < 0 or (size is not None and max(ids) >= size)):
        most = "" if size is None else f" and {size - 1}"
        between = f"between 0{most}" if most else "0 or more"
        raise BadRequest(f"Every token id of a prompt must be {between}.", param="prompt")


def _empty() -> BadRequest:
    return BadRequest("Messages cannot be empty.", param="messages")
