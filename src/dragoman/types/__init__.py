"""The data types of a request: what a client asks, what an engine must do, what it yields.

A wire API decodes into a `Request`. The pipeline turns that into a `Job`, which holds everything an
engine needs and nothing else. An engine yields `Step`s. `Job` and `Step` are plain Structs, so they
cross a process boundary unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from dragoman.types.computed_once import ComputedOnce
from dragoman.types.limits import KeyLimits as KeyLimits
from dragoman.types.limits import Priority as Priority
from dragoman.types.media import MediaItem as MediaItem
from dragoman.types.report_options import NO_REPORT as NO_REPORT
from dragoman.types.report_options import ReportOptions as ReportOptions
from dragoman.types.report_options import TraceLevel as TraceLevel
from dragoman.types.sampling import DEFAULT_SAMPLING as DEFAULT_SAMPLING
from dragoman.types.sampling import BannedString as BannedString
from dragoman.types.sampling import Sampling as Sampling

Json: TypeAlias = Any
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]
StepFinish: TypeAlias = Literal["stop", "length"]


class ReplayedTurn(Struct, frozen=True):
    """The tokens that a model wrote in an earlier turn, to be put back unchanged."""

    opening: tuple[int, ...]  # written by the template to open the turn
    ids: tuple[int, ...]  # without the stop token


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that the model made in an earlier turn, as the client sends it back."""

    id: str
    name: str
    arguments: str  # JSON text as the client sent it


class TextPart(Struct, frozen=True, tag="text"):
    text: str


class MediaPart(Struct, frozen=True, kw_only=True):
    """Content that is not text. An engine reads it if its `modalities` list the part's modality."""

    modality: ClassVar[str]
    wire_type: str  # the part's type in the wire API, for example `image_url`
    param: str  # the path of the part in the request, named in errors
    url: str | None = None  # an http, https or data URL
    data: str | None = None  # base64
    media_type: str | None = None
    field: str = ""  # of the part, where its content is; named in errors
    item: MediaItem | None = None  # the decoded content, once the stage `media` has run

    @property
    def content_param(self) -> str:
        """The path of the part's content in the request."""
        return f"{self.param}.{self.field}" if self.field else self.param


class ImagePart(MediaPart, frozen=True, kw_only=True, tag="image"):
    modality = "image"
    file_id: str | None = None
    detail: str | None = None


class AudioPart(MediaPart, frozen=True, kw_only=True, tag="audio"):
    modality = "audio"


class FilePart(MediaPart, frozen=True, kw_only=True, tag="file"):
    """A document, or any other file that is neither image nor audio."""

    modality = "file"
    file_id: str | None = None
    name: str | None = None


ContentPart: TypeAlias = TextPart | ImagePart | AudioPart | FilePart
Content: TypeAlias = tuple[ContentPart, ...]


def make_text_content(text: str | None) -> Content:
    """Content that is text alone; an empty text becomes empty content."""
    return (TextPart(text),) if text else ()


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a chat."""

    role: Role
    content: Content = ()
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    replay: ReplayedTurn | None = None  # the tokens of an assistant turn, if known

    def count_characters(self) -> int:
        """Count the characters of all texts in this message."""
        count = len(self.reasoning or "")
        for part in self.content:
            if isinstance(part, TextPart):
                count += len(part.text)
        for call in self.tool_calls:
            count += len(call.arguments)
        return count


class Constraint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the content of an answer must look like."""

    kind: Literal["json", "grammar", "regex", "choice"]
    value: Json = None  # schema (None: any object), grammar, pattern or list of texts
    strict: bool | None = None  # True: reject what cannot be enforced instead of warning
    param: str = ""  # the client's field, for errors
    language: Literal["gbnf", "lark"] | None = None  # of a grammar, if the client names it
    allows_tool_calls: bool = False  # the answer may call tools instead
    closes_objects: bool = False  # they have only the properties that the schema names


class Tool(Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is a JSON schema.

    A tool that takes free text has a schema with one string property, `input`.
    """

    name: str
    description: str | None = None
    parameters: Json = None
    strict: bool | None = None
    param: str = "tools"  # the client's path of its parameters, for errors
    takes_free_text: bool = False
    input: Constraint | None = None  # on the free text


class Adapter(Struct, frozen=True):
    """A LoRA adapter and its scale."""

    name: str
    scale: float = 1.0


class Chat(Struct, frozen=True, kw_only=True, tag="chat", dict=True):
    """A conversation that the model's own template turns into a prompt."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    allowed_tools: tuple[str, ...] | None = None  # names of callable tools; None is all
    parallel_tool_calls: bool = True  # allows more than one call in an answer
    # tool results that must answer a call: index of the message -> the client's path of its id
    result_params: dict[int, str] = {}
    results_follow_calls: bool = False  # they answer calls of the turn directly before them
    forces_named_tool: bool = False  # some wire APIs then use another finish reason
    response_format: Json = None  # for templates that describe it to the model
    template_kwargs: dict[str, Json] = {}
    reasoning_effort: str | None = None
    thinking_budget: int | None = None  # maximum number of reasoning tokens
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    prefers_reasoning: bool = False  # turns it on, if the model has a switch for it
    requires_reasoning: bool = False  # rejects a model that does not reason
    context: tuple[int, ...] = ()  # token ids to put before the rendered prompt
    template: str | None = None  # in Go's language, to use instead of the model's
    client_field_names: dict[str, str] = {}  # our field -> the client's name for it
    optional_fields: tuple[str, ...] = ()  # dropped with a warning if the model has no support

    @ComputedOnce
    def media(self) -> tuple[tuple[Message, MediaPart], ...]:
        """All parts that are not text, with their messages; several stages look for some."""
        return tuple(
            [
                (message, part)
                for message in self.messages
                for part in message.content
                if not isinstance(part, TextPart)
            ]
        )

    @ComputedOnce
    def characters(self) -> int:
        """The characters of all texts; several stages look whether they are too many."""
        return sum([message.count_characters() for message in self.messages])

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.tool_choice == "none":
            return ()
        if self.allowed_tools is None:
            return self.tools
        allowed = set(self.allowed_tools)
        return tuple(tool for tool in self.tools if tool.name in allowed)

    def get_client_field_name(self, field: str) -> str:
        """Return the client's name for a field, for errors."""
        return self.client_field_names.get(field, field)

    def get_client_variable_name(self, name: str) -> str:
        """Return the client's name for a variable in `template_kwargs`, for warnings."""
        return self.client_field_names.get(
            f"template_kwargs.{name}", f"chat_template_kwargs.{name}"
        )


class Infill(Struct, frozen=True, kw_only=True):
    """What surrounds the text to fill in, besides the prompt, which comes before it."""

    suffix: str
    files: tuple[tuple[str, str], ...] = ()  # names and texts of other files, for context
    may_shorten: bool = False  # shorten all texts so that they fit, instead of an error
    param: str = "suffix"  # the client's field, for errors
    template: str | None = None  # of the request, in Go's language, with places for both texts


class Prompt(Struct, frozen=True, kw_only=True, tag="prompt"):
    """Text or token ids that go to the model unchanged."""

    content: str | list[int]
    add_special_tokens: bool = True
    parse_special: bool = True  # texts of special tokens are read as these
    infill: Infill | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What a client asks, whatever the wire API.

    `prompts` has one entry, except for a completion over a list of prompts; choices are then
    numbered prompt by prompt.
    """

    model: str
    prompts: tuple[Chat | Prompt, ...]
    sampling: Sampling = Sampling()
    api_defaults: Sampling = Sampling()  # of the wire API, where the operator sets none
    n: int = 1
    best_of: int | None = None
    stop: tuple[str, ...] = ()
    banned_strings: tuple[BannedString, ...] = ()
    text_biases: tuple[tuple[str, float], ...] = ()  # `logit_bias` of all tokens of a text
    client_field_names: dict[str, str] = {}  # of sampling: our field -> the client's name for it
    logprobs: int | None = None  # alternatives for each token; None is no logprobs
    echo: bool = False
    truncates: bool = False  # leaves out the oldest messages if the chat is too long
    returns_context: bool = False  # the client wants the tokens of prompt and answer
    returns_token_ids: bool = False  # the client wants the ids of each step
    writes_ids_as_tokens: bool = False  # the tokens of logprobs are written as ids
    constraint: Constraint | None = None
    lora: tuple[Adapter, ...] | None = None
    cache_prompt: bool | None = None  # None: cached unless there is a seed, to be repeatable
    cache_salt: str = ""  # only requests with the same one share cached prompts
    include_reasoning: bool = True  # reasoning counts as usage either way
    pack_reasoning: bool = False  # send reasoning only inside its signature, see `signing`
    stream: bool = False
    include_usage: bool = False
    prefill_only: bool = False  # only fill the prompt cache for a later request
    obfuscate: bool = False  # pad stream events so that their sizes reveal nothing
    store: bool = False  # the client wants the response stored
    owner: str = ""  # a digest of the API key; only the same owner can read what is stored
    priority: Priority = "live"
    keep_alive: float | None = None  # seconds that the idle model stays loaded; -1 is forever
    response_id: str | None = None  # engines get it as the id of the job
    round: int = 0  # of a response that calls remote tools between rounds
    report: ReportOptions = ReportOptions()
    warnings: tuple[str, ...] = ()  # one sentence for each field that has no effect


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine must do. Choices are numbered 0 … n-1; choice i of a seeded job uses seed + i.

    It has no stop strings: the pipeline cuts the text, in the same way for every engine.

    `id` is the id of the response. Where that takes several jobs it is numbered: `-0`, `-1` for the
    prompts of a list, `-r1` for the next round after remote tool calls, `-c1` for the continuation
    of an answer whose reasoning was cut short, `-n1` for the choices from number 1 on.
    """

    id: str
    prompt: list[int] | str
    sampling: Sampling = DEFAULT_SAMPLING
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # report logprobs of the prompt, with alternatives
    grammar: str | None = None  # in the syntax of `llguidance`, with its header
    lora: tuple[Adapter, ...] = ()
    cache_prompt: bool = True
    cache_scope: str = ""  # a cached prefix is reused only by jobs of the same scope
    public_prefix: int = 0  # the first tokens of the prompt, which jobs of any scope may reuse
    media: tuple[MediaItem, ...] = ()  # in the order in which the prompt refers to them
    priority: Priority = "live"
    trace: TraceLevel | None = None  # report what the engine did, in `Step.trace`


class TraceOperation(Struct, frozen=True, array_like=True):
    """Something that an engine did for a job, and how long it took."""

    name: str
    seconds: float
    details: str = ""


class Logprob(Struct, frozen=True, array_like=True):
    """The logprob of one token. Engines without token ids set `text`."""

    id: int
    logprob: float | None  # None for the first token of a prompt
    top: tuple[Logprob, ...] = ()
    text: str | None = None


class Step(Struct, frozen=True, array_like=True):
    """What one choice gained. The step that carries `finish` is the last of its choice.

    An engine sends token ids, or text, or both; then the text is used. `tokens` is how many tokens
    the step covers, which may differ from `len(ids)` for an engine without ids.
    """

    choice: int = 0
    text: str | None = None
    ids: list[int] = []
    tokens: int = 0
    logprobs: list[Logprob] = []
    finish: StepFinish | None = None
    stop_id: int | None = None  # the stop token that ended the choice, if any
    prompt_tokens: int | None = None  # reported once, on any step
    cached_tokens: int | None = None
    prompt_logprobs: list[Logprob] = []
    spans: list[tuple[int, int]] = []  # characters and tokens of each merged step
    trace: tuple[TraceOperation, ...] = ()  # if the job asks for it, on any steps
    drafts: tuple[int, int] | None = None  # with `finish`: tokens drafted and accepted, if any


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do. A request for anything else is rejected before it gets there."""

    context: int | None = None  # context size in tokens
    trained_context: int | None = None  # the context that the model was trained for
    context_shift: bool = False  # an answer continues in a full context without its oldest tokens
    slots: int | None = None  # choices that run at once; None is no limit
    shares_compute: bool = False  # each running choice slows the others down, as on a CPU
    token_prompts: bool = False  # takes token ids
    vocabulary_size: int | None = None  # if set, it accepts every plain job (`engines.plain_jobs`)
    sampling: frozenset[str] = frozenset()  # names of the `Sampling` fields it honours
    sampling_defaults: bool = False  # fields that nobody set have our defaults, not None
    logprobs: int = -1  # maximum number of alternatives; -1 is no logprobs at all
    prompt_logprobs: bool = False
    grammars: bool = False
    generates: bool = True  # False: the model only embeds or scores texts
    embeddings: int = 0  # vector length; 0 is no embeddings
    embedding_context: int | None = None  # tokens of one input to embed; None is the context
    scores: bool = False  # scores pairs of texts, for reranking
    lora: tuple[str, ...] = ()
    tokenize: bool = False
    cache_scopes: bool = False  # reuses cached prefixes within one `Job.cache_scope` only
    public_prefixes: bool = False  # reuses `Job.public_prefix` between scopes
    can_sleep: bool = False  # frees the memory of its device while it is idle
    modalities: tuple[str, ...] = ("text",)
    reads_media_as_text: bool = False  # special tokens that a prompt with media spells are read
    trace: tuple[TraceLevel, ...] = ()  # levels at which it traces itself


@runtime_checkable
class Engine(Protocol):
    """Prompt in, tokens out. Knows nothing of HTTP, chat, tools or JSON.

    An engine may also have `capabilities` (a `Capabilities`), `embed(inputs, adapters)`,
    `score(pairs)` (see `text_pair`), `tokenize(text, special)`, `probe()` and `aclose()`;
    `engines.adapter` fills in the missing ones. One with `should_trace(level)` is asked whether it
    traces itself (`Job.trace`, `Step.trace`). `probe()` returns once the thread that generates has
    answered, and how long one step of it takes, in seconds; see `engines.subprocess.progress`.
    """

    async def admit(self, job: Job) -> None:
        """Raise a `DragomanError` if the job can never run here (too long, no such adapter)."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """Yield steps until every choice has finished. Closing it cancels the job at once."""
        ...


class Embedder(Protocol):
    async def embed(self, inputs: Sequence[list[int] | str]) -> list[list[float]]:
        """Return one vector for each input, in order."""
        ...
