"""The fields of a request for a response, with their ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from dragoman.protocols.responses.decode.items import Items, RawTools
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared import openai, response_format

Word: TypeAlias = Annotated[str, Meta(max_length=64)]
Text: TypeAlias = Annotated[str, Meta(max_length=512)]


class ConversationReference(Struct):
    id: Annotated[str, Meta(min_length=1, max_length=512)]


class ResponseReasoningOptions(Struct):
    """How to think, and whether a summary of it is told."""

    effort: Word | None = None
    summary: Word | None = None
    generate_summary: Word | None = None
    context: Word | None = None
    mode: Word | None = None

    @property
    def requested_summary(self) -> str | None:
        """Which summary is wanted, by its new name or the old one."""
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
    verbosity: Word | None = None


class PromptCacheOptions(Struct):
    """How the prompt is cached: always. It can be read ahead of the request that needs it."""

    prewarm: bool | None = None


class ResponseRequest(response_format.ConstraintFields, kw_only=True):
    """A conversation to answer, and what is to be done with the answer."""

    input: str | Items | None = None
    instructions: str | None = None
    previous_response_id: Text | None = None
    conversation: Text | ConversationReference | None = None
    tools: RawTools | None = None
    tool_choice: str | dict[str, Any] | None = None
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
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    prompt: Any = None
    context_management: Any = None
    prompt_cache_options: PromptCacheOptions | None = None
    moderation: Any = None
    # Accepted and without effect here, as documented for clients that always send them.
    safety_identifier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Word | None = None
    service_tier: Word | None = None
    client_metadata: Any = None
    access_programs: Any = None
    image: Any = None


class InputTokensRequest(ResponseRequest, kw_only=True):
    """The same to be counted, by a model that need not be named."""

    model: Annotated[str, Meta(max_length=512)] = ""
    personality: Any = None


class WebSocketRequest(ResponseRequest, kw_only=True):
    """The same as a frame of a socket."""

    type: str
    generate: bool | None = None  # false: only read the prompt
    stream_id: Text | None = None  # goes back with every event


class WebSocketStreamId(Struct):
    """What an error goes back with, whatever else is wrong with a frame."""

    stream_id: Text | None = None


class DecodedRequest(Struct, frozen=True):
    """A request, and what it brings of a conversation, as it is kept and shown."""

    fields: ResponseRequest
    items: list[Item]

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that it goes on with."""
        said = self.fields.conversation
        return said.id if isinstance(said, ConversationReference) else said

    @property
    def is_stored(self) -> bool:
        return self.fields.store is not False

    @property
    def wants_answer(self) -> bool:
        """Whether an answer is wanted; if not, the prompt is read for a later request."""
        options = self.fields.prompt_cache_options
        if options is not None and options.prewarm:
            return False
        return not isinstance(self.fields, WebSocketRequest) or self.fields.generate is not False

    @property
    def include(self) -> frozenset[str]:
        return frozenset(self.fields.include or ())

    @property
    def wants_summary(self) -> bool:
        """Whether a summary of thoughts is wanted."""
        return bool(self.fields.reasoning and self.fields.reasoning.requested_summary)
