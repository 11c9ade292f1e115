"""The fields of a Responses request, with their ranges."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.protocols.responses.decode.items import Items, RawTools
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared import openai, response_format
from dragoman.types import Json

ShortText: TypeAlias = Annotated[str, Meta(max_length=64)]
Text: TypeAlias = Annotated[str, Meta(max_length=512)]


class ConversationReference(Struct):
    id: Annotated[str, Meta(min_length=1, max_length=512)]


class ResponseReasoningOptions(Struct):
    """How the model reasons, and whether a summary of it is sent."""

    effort: ShortText | None = None
    summary: ShortText | None = None
    generate_summary: ShortText | None = None
    context: ShortText | None = None
    mode: ShortText | None = None

    @property
    def requested_summary(self) -> str | None:
        """The kind of summary, by its current field name or the old one."""
        return self.generate_summary if self.summary is None else self.summary


class ResponseTextFormat(Struct):
    """`text`, `json_object` or `json_schema`."""

    type: str
    name: str | None = None
    schema: response_format.Schema | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseTextOptions(Struct):
    format: ResponseTextFormat | None = None
    verbosity: ShortText | None = None


class PromptCacheOptions(Struct):
    """Prompts are always cached. `prewarm` processes the prompt ahead of the actual request."""

    prewarm: bool | None = None


class ResponseRequest(response_format.ConstraintFields, kw_only=True):
    """A conversation to answer, and what to do with the answer."""

    input: str | Items | None = None
    instructions: str | None = None
    previous_response_id: Text | None = None
    conversation: Text | ConversationReference | None = None
    tools: RawTools | None = None
    tool_choice: str | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: openai.Count | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    reasoning: ResponseReasoningOptions | None = None
    text: ResponseTextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[str], Meta(max_length=64)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: openai.Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    thinking_budget: openai.Count | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    enable_thinking: bool | None = None
    prompt: Json = None
    context_management: Json = None
    prompt_cache_options: PromptCacheOptions | None = None
    moderation: Json = None
    # Accepted and without effect here, as documented for clients that always send them.
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: ShortText | None = None
    service_tier: ShortText | None = None
    client_metadata: Json = None
    access_programs: Json = None
    image: Json = None


class InputTokensRequest(ResponseRequest, kw_only=True):
    """A request whose prompt tokens are counted."""

    personality: Json = None


class WebSocketRequest(ResponseRequest, kw_only=True):
    """A request that arrives as a WebSocket message."""

    type: str
    generate: bool | None = None  # false: only process the prompt
    stream_id: Text | None = None  # is sent back with every event


class WebSocketStreamId(Struct):
    """The stream id of a message that may be invalid otherwise."""

    stream_id: Text | None = None


class DecodedRequest(Struct, frozen=True):
    """A request, with the items of its input as they are stored and shown."""

    fields: ResponseRequest
    items: list[Item]

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that the request continues."""
        conversation = self.fields.conversation
        return conversation.id if isinstance(conversation, ConversationReference) else conversation

    @property
    def is_stored(self) -> bool:
        return self.fields.store is not False

    @property
    def wants_answer(self) -> bool:
        """Whether to generate an answer; otherwise only the prompt is processed."""
        options = self.fields.prompt_cache_options
        if options is not None and options.prewarm:
            return False
        return not isinstance(self.fields, WebSocketRequest) or self.fields.generate is not False

    @property
    def include(self) -> frozenset[str]:
        return frozenset(self.fields.include or ())

    @property
    def wants_summary(self) -> bool:
        """Whether to send a summary of the reasoning."""
        return bool(self.fields.reasoning and self.fields.reasoning.requested_summary)
