"""From a request and a model to the grammar of the answer.

What a request demands is either a guarantee or a help. A shape, a forced call, a strict tool, a
single call: those are kept to, or the request is refused by name. Calls that a model makes of its
own accord are held to their schemas too wherever that is possible, but nobody is refused an answer
for it: where it is not possible, a warning says so.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, Unsupported
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.models.model import Model
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.types import Chat, Constraint, Request, Sampling

UNCONSTRAINED = CompiledGrammar(None)
NOT_ENFORCED = "Calls of tools are not held to their schemas"
# what a request that only wants help can do without
OPTIONAL_FAILURES = ("constraint_too_complex", "schema_too_complex", "unsupported_parameter")


class Requirement(Struct, frozen=True):
    """What an answer must be, and by which field it is known to the client."""

    spec: GrammarSpec
    param: str = ""  # empty: only a help

    @property
    def is_mandatory(self) -> bool:
        return bool(self.param)


async def constrain(
    prompt: Chat | None,
    request: Request,
    model: Model,
    answer_start: AnswerStart,
    compiler: CompilerPool,
    *,
    without_reasoning: bool = False,
) -> CompiledGrammar:
    """The grammar of an answer; `prompt` is None for one that is no chat.

    A `silent` answer has no thoughts in it.
    """
    demand = build_requirement(prompt, request.constraint, model, answer_start)
    if demand is None:
        return UNCONSTRAINED
    if without_reasoning:
        demand = replace(demand, spec=replace(demand.spec, without_reasoning=True))
    hindrance = _find_obstacle(prompt, request.sampling, model)
    if hindrance is not None:
        if demand.is_mandatory:
            raise _make_rejection(demand.param, *hindrance)
        return CompiledGrammar(None, (f"{NOT_ENFORCED}: {hindrance[0]}",))
    try:
        return await compiler.compile(demand.spec)
    except BadRequest as error:
        if demand.is_mandatory or error.code not in OPTIONAL_FAILURES:
            raise
        return CompiledGrammar(None, (f"{NOT_ENFORCED}: {error.message}",))


@contextmanager
def attribute_grammar_errors(request: Request) -> Generator[None, None, None]:
    """An engine knows only the grammar; a client knows what it asked for."""
    try:
        yield
    except BadRequest as error:
        if error.param == "grammar":
            error.param = "tools" if request.constraint is None else request.constraint.param
        raise


def build_requirement(
    chat: Chat | None, shape: Constraint | None, model: Model, begins: AnswerStart
) -> Requirement | None:
    """What is demanded of an answer, if anything is."""
    if chat is None:
        return None if shape is None else Requirement(GrammarSpec(constraint=shape), shape.param)
    speech = model.output_format.for_chat(chat)
    tools = chat.callable_tools if shape is None or shape.allows_tool_calls else ()
    if tools and speech.tools is None:
        if chat.tool_choice == "required":
            raise Unsupported("This model has no known way to call tools.", param="tool_choice")
        tools = ()
    if shape is None and not tools:
        return None
    order = GrammarSpec(
        constraint=shape,
        tools=tuple(replace(tool, description=None) for tool in tools),
        tool_choice="required" if chat.tool_choice == "required" and tools else "auto",
        parallel_calls=chat.parallel_tool_calls,
        tool_format=speech.tools if tools else None,
        reasoning_format=speech.reasoning,
        starts_in_reasoning=begins.in_reasoning,
        header_start=begins.opening,
        special_tokens=get_marker_tokens(model, speech),
    )
    return Requirement(order, _find_mandatory_param(chat, order))


def _find_mandatory_param(chat: Chat, order: GrammarSpec) -> str:
    """The field that makes it a demand."""
    if order.tool_choice == "required":
        return "tool_choice"
    if order.constraint is not None:
        return order.constraint.param
    for tool in order.tools:
        if tool.input is not None:
            return tool.input.param
        if tool.strict:
            return tool.param
    return "" if chat.parallel_tool_calls else chat.get_client_field_name("parallel_tool_calls")


def get_marker_tokens(model: Model, speech: OutputFormat) -> dict[str, int]:
    """Control tokens of a model that are marks of its formats, by what they look like."""
    if model.tokenizer is None:
        return {}
    shown = model.get_token_visibility(speech).shown
    return {text: token for text, token in model.tokenizer.specials.items() if token in shown}


def _find_obstacle(
    chat: Chat | None, sampling: Sampling, model: Model
) -> tuple[str, str | None] | None:
    """Why no grammar can be kept to, and the field that is in the way."""
    if not model.capabilities.grammars:
        return "This model's engine cannot keep to a grammar.", None
    for name in ("min_tokens", "ignore_eos"):
        if getattr(sampling, name):
            return f"`{name}` does not go with a grammar.", name
    if chat is not None and chat.continue_final_message:
        return "an answer that goes on with a message has no grammar.", "continue_final_message"
    return None


def _make_rejection(param: str, why: str, other: str | None) -> Unsupported:
    if other is None:
        return Unsupported(f"`{param}` cannot be enforced: {why}", param=param)
    return Unsupported(f"`{param}` and `{other}` cannot be had together: {why}", param=other)
