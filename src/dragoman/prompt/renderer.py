"""Renders a conversation as token ids, with the model's own template.

    messages ── conversation ───> messages that this template accepts
             ── special_tokens ─> the same, but no client text can be read as a special token
             ── template ───────> text
             ── special_tokens ─> pieces, alternately plain text and special tokens
             ── a `Splicer` ────> the same, with earlier turns as the model wrote them
             ── encoding ───────> token ids; plain text seen before comes from the token cache

Everything but the encoding runs on the event loop while it is quick, and in a thread otherwise: a
rendering that takes longer than `QUICK_SECONDS` is abandoned and repeated in a thread, where it has
its whole budget.

A model without a template gets the contents of the messages as they are. A template that cannot
write tools gets them as text (`generic_tools`). A model without a tokenizer gets text; special
tokens are unknown here then, and the engine decides how to read the text.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from msgspec.structs import replace

from dragoman.errors import BadRequest, TemplateRejected, TemplateTooCostly, Unsupported
from dragoman.prompt.conversation import (
    arrange_messages,
    prepare_messages,
    prepare_tools,
    to_template_message,
)
from dragoman.prompt.open_message import append_prompt_end, cut_prompt
from dragoman.prompt.opening import find_opening
from dragoman.prompt.pieces import PromptPieces, Splicer, join_pieces
from dragoman.prompt.pieces import RenderedPrompt as RenderedPrompt
from dragoman.prompt.reasoning_options import (
    ReasoningOptions,
    is_already_off,
    make_effort_error,
    make_reasoning_variables,
    rename_switch,
)
from dragoman.prompt.special_tokens import MarkedText, SpecialTokenGuard, remove_breaks
from dragoman.prompt.stop_strings import find_stop_strings
from dragoman.prompt.template.budget import DEFAULT_LIMITS, RenderBudget, RenderLimits
from dragoman.prompt.template.capabilities import (
    TemplateCapabilities,
    make_tools_variable,
    probe_capabilities,
)
from dragoman.prompt.template.media_markers import (
    MediaWriter,
    check_no_media,
    find_placeholders,
    insert_media,
)
from dragoman.prompt.template.template import ChatTemplate, compile_template
from dragoman.prompt.tokens.chat_checks import (
    check_ids,
    check_messages,
    estimate_cost,
    make_empty_error,
)
from dragoman.prompt.tokens.encoding import encode_pieces
from dragoman.prompt.tokens.limit import (
    DEFAULT_LIMIT,
    PromptLimit,
    measure_longest_token,
)
from dragoman.prompt.tokens.text_encoder import TextEncoder
from dragoman.prompt.tokens.token_cache import TokenCache
from dragoman.prompt.turn import Turn
from dragoman.prompt.turn_markers import drop_replays, find_replays, insert_markers
from dragoman.types import Chat, Json, Prompt, Tool
from dragoman.types.loop_share import unpack_ids
from dragoman.types.worker_threads import run_in_worker

log = logging.getLogger("dragoman.prompt")
T = TypeVar("T")

QUICK_SECONDS = 0.01  # how long a rendering may block the event loop
MAX_INLINE_CHARACTERS = 50_000  # larger conversations are rendered in a thread at once
CACHE_BYTES = 32 << 20


class PromptRenderer:
    """Renders the prompts of one model."""

    def __init__(
        self,
        template_source: str | None,
        tokenizer: TextEncoder | None,
        *,
        reasoning: ReasoningOptions | None = None,
        cache_bytes: int = CACHE_BYTES,
        limits: RenderLimits = DEFAULT_LIMITS,
    ) -> None:
        self.template_source = template_source or None
        self.tokenizer = tokenizer
        self.special_tokens: dict[str, Json] = {}  # variables that replace the tokenizer's
        self.token_cache = TokenCache(cache_bytes)
        self.reads_media_as_text = False  # the engine parses special tokens beside media
        self.reasoning = reasoning or ReasoningOptions()
        self._limits = limits
        self._quick_limits = replace(limits, seconds=min(QUICK_SECONDS, limits.seconds))
        self._template = compile_template(template_source) if template_source else None
        self.capabilities = (
            probe_capabilities(template_source) if template_source else TemplateCapabilities()
        )
        if not self.capabilities.renders:
            log.warning("the chat template does not render a plain user message")
        self._placeholders = find_placeholders(template_source) if template_source else ()
        self._guard = self._make_guard()
        tokens = tokenizer.variables if tokenizer is not None else {}
        self.stop_strings = find_stop_strings(self._template, tokens) if self._template else ()

    def _make_guard(self) -> SpecialTokenGuard:
        specials = self.tokenizer.specials if self.tokenizer is not None else ()
        if self._template is None:
            return SpecialTokenGuard(specials)
        facts = self._template.facts
        return SpecialTokenGuard(
            specials,
            facts.literals,
            facts.separators,
            facts.changes_case,
            [placeholder.text for placeholder in self._placeholders],
        )

    @cached_property
    def longest_token(self) -> int | None:
        """The characters of the longest token; None if they do not bound a text's token count."""
        if self.tokenizer is None or not getattr(self.tokenizer, "keeps_text", False):
            return None
        return measure_longest_token(self.tokenizer.pieces)

    async def render(
        self, chat: Chat, splicer: Splicer | None = None, limit: PromptLimit = DEFAULT_LIMIT
    ) -> RenderedPrompt:
        """Render the prompt of a chat, with replayed turns if there is a splicer.

        Raises a client error that says why a chat cannot be rendered.
        """
        check_messages(chat)
        limit.check_chat(chat)
        if splicer is None:
            prompt = PromptPieces([*await self._run(self._render_plain, chat)])
        else:
            prompt = await self._run(splicer.compose, chat)
        pieces = prompt.pieces
        if self.tokenizer is None:
            check_no_media(chat)
            text = join_pieces(pieces, ())
            if not text:
                raise make_empty_error()
            limit.check_characters(len(text))
            return RenderedPrompt(text)
        break_text = self._guard.break_visibly if self.reads_media_as_text else None
        prompt, media, is_altered = insert_media(prompt, chat, break_text)
        pieces = prompt.pieces
        encoded = await encode_pieces(
            pieces, self.tokenizer, self.token_cache, prompt.answer_start, limit=limit
        )
        if not encoded.ids:
            raise make_empty_error()
        ends_special = len(pieces) > 1 and not str(pieces[-1]).strip()
        return RenderedPrompt(
            text=join_pieces(pieces, self.tokenizer.pieces),
            ids=await unpack_ids(encoded.ids),
            special_tokens=len(pieces) // 2,
            last_special_token=str(pieces[-2]) if ends_special else "",
            cached_tokens=encoded.cached_tokens,
            replayed_turns=prompt.replayed_turns,
            skipped=prompt.skipped,
            answer_start=encoded.answer_start,
            packed_ids=encoded.ids.tobytes(),
            media=media,
            is_altered=is_altered,
        )

    @property
    def can_splice(self) -> bool:
        """Whether a splicer can put earlier turns into these prompts."""
        return self._template is not None and self.tokenizer is not None

    async def render_opening(self, chat: Chat) -> str:
        """Return the text with which the template starts the answer to a chat."""
        check_messages(chat)

        def find(chat: Chat, limits: RenderLimits) -> str:
            return find_opening(chat, lambda chat: "".join(self._render_plain(chat, limits)))

        return await self._run(find, chat)

    def check_reasoning_effort(self, chat: Chat) -> None:
        """Reject a reasoning effort that this model cannot be set to."""
        if self._template is not None:
            make_reasoning_variables(chat, self._template.facts, self.reasoning)
        elif chat.reasoning_effort is not None and not is_already_off(chat, self.reasoning):
            raise make_effort_error(chat)

    def get_reasoning_variables(self, chat: Chat) -> dict[str, Json]:
        """Return the variables that set the reasoning effort and budget of a chat."""
        if self._template is None:
            return {}
        return make_reasoning_variables(chat, self._template.facts, self.reasoning)

    def resolve_variable(self, name: str, value: Json) -> dict[str, Json] | str:
        """Return a variable as this template reads it, or a sentence that says why it cannot.

        Variables that only we may set pass; rendering rejects them.
        """
        if self._template is None:
            return "This model has no chat template."
        facts = self._template.facts
        if name in facts.variables or self._template.is_reserved(name):
            return {name: value}
        renamed = rename_switch(name, value, facts, self.reasoning)
        return self._template.describe_unread(name) if renamed is None else renamed

    @property
    def template_enforces_budget(self) -> bool:
        """Whether the template itself states the maximum number of reasoning tokens."""
        return self.reasoning.budget is not None

    async def encode_markup(self, text: str) -> list[int] | str:
        """Encode a text of our own inside a prompt, in which special tokens are read as such."""
        if self.tokenizer is None:
            return text
        pieces = [*self._guard.split(text)]
        encoded = await encode_pieces(pieces, self.tokenizer, self.token_cache, fix_bos=False)
        return encoded.ids.tolist()

    async def encode_prompt(
        self, prompt: Prompt, limit: PromptLimit = DEFAULT_LIMIT
    ) -> list[int] | str:
        """Encode a prompt that is not a chat: text, or token ids as they are."""
        content, tokenizer = prompt.content, self.tokenizer
        if isinstance(content, list):
            limit.check_tokens(len(content), is_whole=True)
            check_ids(content, None if tokenizer is None else len(tokenizer.pieces))
            return list(content)
        limit.check_characters(len(content))
        if tokenizer is None:
            return content
        pieces = await self._split_prompt(content) if prompt.parse_special else [content]
        add_bos = prompt.add_special_tokens
        encoded = await encode_pieces(
            pieces, tokenizer, self.token_cache, fix_bos=add_bos, limit=limit
        )
        if not encoded.ids and add_bos and tokenizer.add_bos and tokenizer.bos_id is not None:
            return [tokenizer.bos_id]
        return await unpack_ids(encoded.ids)

    async def _split_prompt(self, text: str) -> list[str]:
        if len(text) <= MAX_INLINE_CHARACTERS:
            return self._guard.split(text)
        return await run_in_worker(self._guard.split, text)

    # Text

    async def _run(self, work: Callable[[Chat, RenderLimits], T], chat: Chat) -> T:
        """Work on a chat on the event loop if that is quick, else in a thread."""
        if estimate_cost(chat) <= MAX_INLINE_CHARACTERS:
            try:
                return work(chat, self._quick_limits)
            except TemplateTooCostly:
                pass  # try again in a thread, which has more time
        return await run_in_worker(work, chat, self._limits)

    def _render_plain(self, chat: Chat, limits: RenderLimits) -> list[str]:
        """Render every turn as the client sent it."""
        if self._template is None:
            return [self._join_contents(chat)]
        return self.render_pieces(drop_replays(chat), limits)

    def _join_contents(self, chat: Chat) -> str:
        """Without a template, the prompt is the contents of the messages."""
        self.check_reasoning_effort(chat)
        for value, name in (
            (chat.template_kwargs, "chat_template_kwargs"),
            (chat.continue_final_message, chat.get_client_field_name("continue_final_message")),
        ):
            if value:
                raise Unsupported(f"This model has no chat template for `{name}`.", param=name)
        messages = prepare_messages(chat.messages, self.capabilities, self._choose_tools(chat))
        return "\n\n".join(message["content"] for message in messages if message["content"])

    def _choose_tools(self, chat: Chat) -> tuple[Tool, ...]:
        """Return the tools to render; tools in text form only if the model may call them."""
        wanted = self.capabilities.tools_rendered or chat.tool_choice != "none"
        return chat.tools if wanted else ()

    def render_pieces(self, chat: Chat, limits: RenderLimits) -> list[str]:
        """Render a chat by the template; turns with a replay get a marker (`turn_markers`).

        The pieces are alternately plain text and special tokens, plain text first and last. With
        markers in them, breaks stay in the pieces, too, so that no client's text becomes a marker.
        """
        media = MediaWriter(chat, self._placeholders)
        try:
            pieces = self._render_pieces(chat, limits, media)
        except TemplateTooCostly:
            raise
        except TemplateRejected:
            if not media.has_parts:
                raise
            pieces = None
        if pieces is None:  # the template does not write its placeholders as in the probe
            pieces = self._render_pieces(chat, limits, MediaWriter(chat, ()))
        if pieces is None:
            raise BadRequest(
                "This model's chat template does not write pictures or sound in these messages.",
                param="messages",
            )
        return pieces

    def _render_pieces(
        self, chat: Chat, limits: RenderLimits, media: MediaWriter
    ) -> list[str] | None:
        """Like `render_pieces`, with one convention for media; None if an item is missing."""
        template = self._require_template()
        tools = self._choose_tools(chat)
        turns = arrange_messages(chat.messages, self.capabilities, tools)
        client_values = self._collect_client_values(chat, turns, tools)
        if media.has_media:
            client_values["messages"] = [*map(media.write_parts, client_values["messages"])]
        numbers = {id(replay): number for number, replay in enumerate(find_replays(chat))}
        replayed = [
            (index, numbers[id(turn.replay)]) for index, turn in enumerate(turns) if turn.replay
        ]

        def render(marked: MarkedText) -> list[str] | None:
            variables = self._collect_variables(chat, client_values, marked)
            for index, number in replayed:
                message = variables["messages"][index]
                insert_markers(message, number, self.capabilities.reasoning_fields)
            budget = RenderBudget(limits, marked.size, marked.known_sizes)
            text = cut_prompt(chat, template.render(variables, budget))
            restored = media.restore_markers(text) if media.has_media else text
            return None if restored is None else self._guard.split(restored)

        try:
            marked = MarkedText(self._guard)
            pieces = render(marked)
            middles = self._guard.find_middles(pieces or [], client_values)
            if middles:
                marked = MarkedText(self._guard, middles)
                pieces = render(marked)
        except RecursionError:
            raise BadRequest("The request is nested too deeply.", param="messages") from None
        except TemplateRejected as error:  # it may quote the client, with breaks inside
            message = remove_breaks(error.message)
            raise type(error)(message, param=error.param) from None
        has_breaks = marked.has_changed and not replayed
        if pieces is None:
            return None
        return [remove_breaks(piece) for piece in pieces] if has_breaks else pieces

    def _collect_client_values(
        self, chat: Chat, turns: Sequence[Turn], tools: Sequence[Tool]
    ) -> dict[str, Json]:
        """Return the variables with the client's values, in the form that this template reads."""
        template = self._require_template()
        facts = template.facts
        template.check_variables(chat.template_kwargs)
        values = chat.template_kwargs | make_reasoning_variables(chat, facts, self.reasoning)
        if "tool_choice" in facts.variables:
            values["tool_choice"] = chat.tool_choice
        if "response_format" in facts.variables and chat.response_format is not None:
            values.setdefault("response_format", chat.response_format)
        values["tools"] = prepare_tools(tools, self.capabilities)
        values["messages"] = [to_template_message(turn, self.capabilities) for turn in turns]
        return values

    def _collect_variables(
        self, chat: Chat, client_values: dict[str, Json], marked: MarkedText
    ) -> dict[str, Json]:
        """Return all variables of the template, with the client's texts guarded."""
        facts = self._require_template().facts
        variables = {name: marked.mark_tree(value) for name, value in client_values.items()}
        tools = variables.pop("tools")
        variables |= make_tools_variable(tools, self.capabilities.no_tools, facts)
        if chat.continue_final_message:
            append_prompt_end(variables["messages"][-1])
        variables["add_generation_prompt"] = chat.add_generation_prompt
        if "datetime" in facts.variables:
            now = datetime.datetime.now(datetime.UTC)
            variables.setdefault("datetime", now.strftime("%Y-%m-%d %H:%M:%S GMT"))
        variables |= {"bos_token": "", "eos_token": ""}
        variables |= self.tokenizer.variables if self.tokenizer is not None else {}
        return variables | self.special_tokens

    def _require_template(self) -> ChatTemplate:
        assert self._template is not None  # noqa: S101
        return self._template
