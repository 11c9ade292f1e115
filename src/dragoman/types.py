"""The nouns that go in: what a client asked, what an engine must do, what an engine says.

A dialect decodes into a `Request`. The pipeline turns that into a `Job`, which holds everything
an engine needs and nothing it does not. An engine answers with `Step`s. `Job` and `Step` are plain
Structs, so they cross a process boundary unchanged. This module imports nothing of ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct

Json: TypeAlias = Any
Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]
StepFinish: TypeAlias = Literal["stop", "length"]


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to pick tokens. `None` means "not said": layers of these are laid over each other."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 is off
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None  # -1 is the whole context
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: tuple[int, ...] | None = None

    def with_defaults(self, defaults: Sampling) -> Sampling:
        """This layer on top of another: a field that is said here wins, an explicit 0 included."""
        said = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(defaults, **said)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


DEFAULT_SAMPLING = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    typical_p=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    repeat_last_n=64,
    min_tokens=0,
    ignore_eos=False,
    stop_token_ids=(),
)


class ReplayedTurn(Struct, frozen=True):
    """What a model wrote in an earlier turn, token by token, to be put back as it was."""

    opening: tuple[int, ...]  # what its template wrote to open the turn
    ids: tuple[int, ...]  # without the token that ended it


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call the model made in an earlier turn, as the client tells it back."""

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


def text_content(text: str | None) -> Content:
    """Content that is text alone; empty text is no content."""
    return (TextPart(text),) if text else ()


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a chat."""

    role: Role
    content: Content = ()
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    replay: ReplayedTurn | None = None  # of the assistant's turns, where it is remembered


class Constraint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the content of an answer must look like."""

    kind: Literal["json", "grammar", "regex", "choice"]
    value: Json = None  # a schema, None for any object; a grammar or a pattern; a list of texts
    strict: bool | None = None  # True: what cannot be enforced is refused, not warned of
    param: str = ""  # what the client called it, to be refused by
    language: Literal["gbnf", "lark"] | None = None  # of a grammar, where the client says so
    allows_tool_calls: bool = False  # of the content alone: an answer may call tools instead


class Tool(Struct, frozen=True, kw_only=True):
    """A function the model may call; `parameters` is a JSON schema.

    One that takes free text has a schema with one text in it, called `input`.
    """

    name: str
    description: str | None = None
    parameters: Json = None
    strict: bool | None = None
    param: str = "tools"  # what the client calls the place of its parameters
    takes_free_text: bool = False  # takes free text
    input: Constraint | None = None  # what that text must look like


class Adapter(Struct, frozen=True):
    """A LoRA adapter by name and how strongly it is laid over the weights."""

    name: str
    scale: float = 1.0


class Chat(Struct, frozen=True, kw_only=True, tag="chat"):
    """A conversation that the model's own template turns into a prompt."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    allowed_tools: tuple[str, ...] | None = None  # the tools that may be called, where not all may
    parallel_tool_calls: bool = True  # more than one call in an answer
    forces_named_tool: bool = (
        False  # the one tool to call was named, which some dialects end in another way
    )
    response_format: Json = None  # what the content must look like, for templates that say so
    template_kwargs: dict[str, Json] = {}
    reasoning_effort: str | None = None
    thinking_budget: int | None = None  # most tokens of reasoning
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    client_field_names: dict[str, str] = {}  # fields that the client knows by another name
    optional_fields: tuple[
        str, ...
    ] = ()  # fields that a model may be unable to honour, with a warning

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.tool_choice == "none":
            return ()
        if self.allowed_tools is None:
            return self.tools
        some = set(self.allowed_tools)
        return tuple(tool for tool in self.tools if tool.name in some)

    def get_client_field_name(self, field: str) -> str:
        """What the client called a field, to be refused by."""
        return self.client_field_names.get(field, field)


class Prompt(Struct, frozen=True, kw_only=True, tag="prompt"):
    """Text or token ids that go to the model as they are."""

    content: str | list[int]
    add_special_tokens: bool = True


class Request(Struct, frozen=True, kw_only=True):
    """What a client asked, whatever the dialect.

    `prompts` has one entry, except for a completion over a list of prompts; choices are then
    numbered prompt by prompt.
    """

    model: str
    prompts: tuple[Chat | Prompt, ...]
    sampling: Sampling = Sampling()
    n: int = 1
    best_of: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # how many alternatives beside each token; None is no logprobs
    echo: bool = False
    constraint: Constraint | None = None
    lora: tuple[Adapter, ...] | None = None
    cache_prompt: bool | None = None  # None lets a seeded request go without, to be repeatable
    include_reasoning: bool = True  # thoughts that are not told are counted all the same
    encrypt_reasoning: bool = False  # thoughts are told in a form that only this server reads
    stream: bool = False
    include_usage: bool = False
    prefill_only: bool = False  # nothing is answered: the prompt is there for a later request
    obfuscate: bool = False  # pad the frames of a stream so that their sizes tell nothing
    store: bool = False  # the client wants it to be kept
    owner: str = ""  # whose it is; what is kept of it is for nobody else
    response_id: str | None = None  # what the answer is called, where it can be deleted by that
    warnings: tuple[str, ...] = ()  # what was said and is not kept to, a sentence each


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine must do. Choices are numbered 0 … n-1; choice i of a seeded job uses seed + i.

    Stop strings are not here: they are cut from the text by the pipeline, alike for every engine.
    """

    id: str
    prompt: list[int] | str
    sampling: Sampling = DEFAULT_SAMPLING
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # report the prompt's own tokens first, with alternatives
    grammar: str | None = None  # for `llguidance`, beginning with its header
    lora: tuple[Adapter, ...] = ()
    cache_prompt: bool = True


class Logprob(Struct, frozen=True, array_like=True):
    """How likely one token was. `text` only from engines that have no token ids."""

    id: int
    logprob: float | None  # None for the very first token of a prompt
    top: tuple[Logprob, ...] = ()
    text: str | None = None


class Step(Struct, frozen=True, array_like=True):
    """What one choice gained. The step that carries `finish` is the last of its choice.

    An engine gives token ids, or text, or both; text wins where both are there. `tokens` is how
    many tokens the step stands for, which need not be `len(ids)` for an engine without ids.
    """

    choice: int = 0
    text: str | None = None
    ids: list[int] = []
    tokens: int = 0
    logprobs: list[Logprob] = []
    finish: StepFinish | None = None
    stop_id: int | None = None  # the stop token that ended it, when one did
    prompt_tokens: int | None = None  # said once, on any step
    cached_tokens: int | None = None
    prompt_logprobs: list[Logprob] = []
    spans: list[tuple[int, int]] = []  # of steps that were merged: characters and tokens of each


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do. What is not here is refused by name before the engine is asked."""

    context: int | None = None  # tokens of prompt and answer together
    slots: int | None = None  # choices that run at once; None is "as many as come"
    token_prompts: bool = False  # takes token ids
    sampling: frozenset[str] = frozenset()  # names of the `Sampling` fields it honours
    logprobs: int = -1  # most alternatives it can report, -1 is "no logprobs at all"
    prompt_logprobs: bool = False
    grammars: bool = False
    embeddings: int = 0  # vector length, 0 is "cannot embed"
    lora: tuple[str, ...] = ()
    tokenize: bool = False
    modalities: tuple[str, ...] = ("text",)


@runtime_checkable
class Engine(Protocol):
    """Prompt in, tokens out. Knows nothing of HTTP, chat, tools or JSON.

    An engine may also have `capabilities` (a `Capabilities`), `embed(inputs, adapters)`,
    `tokenize(text, special)` and `aclose()`; see `engines` for how the missing ones are filled in.
    """

    async def admit(self, job: Job) -> None:
        """Raise a `DragomanError` if the job can never run here (too long, no such adapter)."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """Yield steps until every choice has finished. Closing it cancels the job at once."""
        ...


class Embedder(Protocol):
    async def embed(self, inputs: Sequence[list[int] | str]) -> list[list[float]]:
        """One vector for each input, in order."""
        ...


class TextTokenizer(Protocol):
    async def tokenize(self, text: str, special: bool) -> list[int]:
        """Token ids of the text alone: no BOS is added. `special` lets control tokens match."""
        ...
