"""Conversations that are passed on to a server which renders and parses them itself.

A chat-only upstream takes the messages and tools of a request as they are, and answers with
content, reasoning and tool calls. `write_chat` writes them as the prompt of a job, and
`RelayReader` reads the deltas of the answer, so that everything between is as for any other engine.
Nothing that the server does can be enforced here: a strict request is rejected, and others get a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import EngineFailed, Unsupported
from dragoman.events import Delta, Finish
from dragoman.models.model import Model
from dragoman.pipeline.detokenize import Detokenizer
from dragoman.pipeline.plan import PreparedPrompt
from dragoman.pipeline.reader import Reader, get_finish
from dragoman.pipeline.render import adapt_chat
from dragoman.types import (
    Chat,
    Constraint,
    Job,
    Json,
    Message,
    Prompt,
    Request,
    Step,
    TextPart,
    Tool,
)

NOT_ENFORCED = "is passed on, but not enforced: this model is served by another server's chat API."


class CallFunction(Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: CallFunction | None = None


class RelayDelta(Struct):
    """What a frame adds. Servers write reasoning under one of two names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None


decode = msgspec.json.Decoder(RelayDelta).decode


def prepare_relay(prompt: Chat | Prompt, model: Model, request: Request) -> PreparedPrompt:
    """Write a chat as the prompt of a job, or reject what cannot be passed on."""
    if not isinstance(prompt, Chat):
        raise Unsupported(
            "This model is served by another server's chat API: it takes conversations, not raw "
            "prompts.",
            param="prompt",
        )
    chat = prompt
    if request.banned_strings:
        raise _make_error("banned_strings", request.client_field_names)
    names = chat.client_field_names
    if chat.continue_final_message or not chat.add_generation_prompt:
        field = "continue_final_message" if chat.continue_final_message else "add_generation_prompt"
        raise _make_error(field, names)
    if chat.thinking_budget is not None and "thinking_budget" not in chat.optional_fields:
        raise _make_error("thinking_budget", names)
    warnings = [*_check_constraint(request.constraint), *_check_tools(chat)]
    if chat.thinking_budget is not None:
        name = chat.get_client_field_name("thinking_budget")
        warnings.append(f"`{name}` has no effect: this model's reasoning cannot be limited.")
    adapted, ignored = adapt_chat(replace(chat, thinking_budget=None, reasoning_effort=None), model)
    chat = replace(adapted, reasoning_effort=chat.reasoning_effort)
    content = msgspec.json.encode(write_chat(chat, request)).decode()
    return PreparedPrompt(content, warnings=(*warnings, *ignored))


def _make_error(field: str, names: Mapping[str, str]) -> Unsupported:
    name = names.get(field, field)
    return Unsupported(f"`{name}` is not supported: this model's server renders chats.", param=name)


def _check_constraint(constraint: Constraint | None) -> Iterator[str]:
    """Reject a constraint that is strict or cannot be passed on; yield a warning for others."""
    if constraint is None:
        return
    if constraint.kind != "json" or constraint.strict:
        raise Unsupported(
            f"`{constraint.param}` cannot be enforced: this model is served by another server's "
            "chat API.",
            param=constraint.param,
        )
    yield f"`{constraint.param}` {NOT_ENFORCED}"


def _check_tools(chat: Chat) -> Iterator[str]:
    """Reject strict tools; yield a warning for a choice that cannot be enforced."""
    for tool in chat.callable_tools:
        if tool.strict or tool.input is not None:
            param = tool.param if tool.input is None else tool.input.param
            raise Unsupported(
                f"`{param}` cannot be enforced: this model is served by another server's chat API.",
                param=param,
            )
    if chat.callable_tools and chat.tool_choice == "required":
        yield f"`tool_choice` {NOT_ENFORCED}"
    if chat.callable_tools and not chat.parallel_tool_calls:
        yield f"`{chat.get_client_field_name('parallel_tool_calls')}` {NOT_ENFORCED}"


def write_chat(chat: Chat, request: Request) -> dict[str, Json]:
    """Return the fields of a request to a chat API, without model and sampling."""
    fields: dict[str, Json] = {"messages": [write_message(message) for message in chat.messages]}
    tools = chat.callable_tools
    if tools:
        fields["tools"] = [write_tool(tool) for tool in tools]
        if chat.tool_choice == "required":
            fields["tool_choice"] = (
                {"type": "function", "function": {"name": tools[0].name}}
                if chat.forces_named_tool and len(tools) == 1
                else "required"
            )
        if not chat.parallel_tool_calls:
            fields["parallel_tool_calls"] = False
    if request.constraint is not None:
        fields["response_format"] = write_response_format(request.constraint)
    if request.stop:
        fields["stop"] = list(request.stop)
    if chat.reasoning_effort is not None:
        fields["reasoning_effort"] = chat.reasoning_effort
    return fields


def write_message(message: Message) -> dict[str, Json]:
    text = "".join(part.text for part in message.content if isinstance(part, TextPart))
    written: dict[str, Json] = {"role": message.role, "content": text}
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        written["content"] = text or None
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return written


def write_tool(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {
        "name": tool.name,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def write_response_format(constraint: Constraint) -> dict[str, Json]:
    if constraint.value is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": constraint.value},
    }


class RelayReader(Reader):
    """Reads a choice whose deltas another server has made."""

    def __init__(self, index: int, job: Job, *, include_reasoning: bool, first: bool) -> None:
        super().__init__(index, job, Detokenizer(None, frozenset(), (), False), "", first=first)
        self._job_id = job.id
        self._include_reasoning = include_reasoning
        self._calls = 0  # so far

    def feed(self, step: Step) -> list[Delta]:
        if self._finished:
            return []
        self._count_tokens(step)
        lines = filter(None, (step.text or "").split("\n"))
        deltas = [delta for line in lines for delta in self._read(line)]
        if step.finish is not None:
            self._finished = True
            finish: Finish = get_finish(step)
            if finish == "stop" and self._calls:
                finish = "tool_calls"
            deltas.append(Delta(self._index, finish=finish, usage=self._make_usage(step)))
        return deltas

    def _read(self, line: str) -> Iterator[Delta]:
        try:
            delta = decode(line)
        except msgspec.DecodeError:
            raise EngineFailed("The upstream server returned an invalid answer.") from None
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning and self._include_reasoning:
            yield Delta(self._index, reasoning, "reasoning")
        text = delta.content or delta.refusal
        if text:
            yield Delta(self._index, text)
        for call in delta.tool_calls or ():
            yield from self._read_call(call)

    def _read_call(self, call: CallDelta) -> Iterator[Delta]:
        """Read a part of a call; some servers send calls without an index, each as a whole."""
        function = call.function or CallFunction()
        number = call.index
        if number is None:
            number = self._calls if function.name else self._calls - 1
        if number == self._calls and function.name:
            self._calls += 1
            self.call_names.append(function.name)
            unique_id = call.id or f"call_{self._job_id[-16:]}_{self._index}_{number}"
            if not call.id:
                self.generated_call_ids.add(unique_id)
            yield Delta(self._index, function.name, "tool_name", number, id=unique_id)
        if not 0 <= number < self._calls:
            raise EngineFailed("The upstream server returned an invalid answer.")
        if function.arguments:
            yield Delta(self._index, function.arguments, "tool_args", number)
