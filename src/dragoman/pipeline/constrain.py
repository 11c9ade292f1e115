"""Builds the grammar of an answer from a request and a model.

What a request demands is mandatory or optional. A constraint, a forced call, a strict tool or
a single call is mandatory: it is enforced, or the request is rejected by name. Calls that the model
makes of its own accord follow their schemas wherever that is possible, but this is optional: where
it is not possible, the request is answered with a warning.
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
NOT_ENFORCED = "The schemas of the tools are not enforced"
# Errors that only cost an optional grammar.
OPTIONAL_FAILURES = ("constraint_too_complex", "schema_too_complex", "unsupported_parameter")


class Requirement(Struct, frozen=True):
    """What an answer must be, and the client's field that makes it mandatory."""

    spec: GrammarSpec
    param: str = ""  # empty: optional

    @property
    def is_mandatory(self) -> bool:
        return bool(self.param)


async def constrain(
    chat: Chat | None,
    request: Request,
    model: Model,
    start: AnswerStart,
    compiler: CompilerPool,
    *,
    without_reasoning: bool = False,
) -> CompiledGrammar:
    """Compile the grammar of an answer; `chat` is None for a plain prompt."""
    requirement = build_requirement(chat, request.constraint, model, start)
    if requirement is None:
        return UNCONSTRAINED
    if without_reasoning:
        spec = replace(requirement.spec, forbids_reasoning=True)
        requirement = replace(requirement, spec=spec)
    obstacle = _find_obstacle(chat, request.sampling, model)
    if obstacle is not None:
        if requirement.is_mandatory:
            raise _make_rejection(requirement.param, *obstacle)
        return CompiledGrammar(None, (f"{NOT_ENFORCED}: {obstacle[0]}",))
    try:
        return await compiler.compile(requirement.spec)
    except BadRequest as error:
        if requirement.is_mandatory or error.code not in OPTIONAL_FAILURES:
            raise
        return CompiledGrammar(None, (f"{NOT_ENFORCED}: {error.message}",))


@contextmanager
def attribute_grammar_errors(request: Request) -> Generator[None, None, None]:
    """Name the client's field in an engine's error about the grammar."""
    try:
        yield
    except BadRequest as error:
        if error.param == "grammar":
            error.param = "tools" if request.constraint is None else request.constraint.param
        raise


def build_requirement(
    chat: Chat | None, constraint: Constraint | None, model: Model, start: AnswerStart
) -> Requirement | None:
    """Return what the answer must be; None if anything is allowed."""
    if chat is None:
        if constraint is None:
            return None
        return Requirement(GrammarSpec(constraint=constraint), constraint.param)
    output_format = model.output_format.for_chat(chat)
    tools = chat.callable_tools if constraint is None or constraint.allows_tool_calls else ()
    if tools and output_format.tools is None:
        if chat.tool_choice == "required":
            raise Unsupported("This model does not support tool calls.", param="tool_choice")
        tools = ()
    if constraint is None and not tools:
        return None
    spec = GrammarSpec(
        constraint=constraint,
        tools=tuple(replace(tool, description=None) for tool in tools),
        tool_choice="required" if chat.tool_choice == "required" and tools else "auto",
        parallel_calls=chat.parallel_tool_calls,
        tool_format=output_format.tools if tools else None,
        reasoning_format=output_format.reasoning,
        starts_in_reasoning=start.in_reasoning,
        header_start=start.opening,
        special_tokens=get_marker_tokens(model, output_format),
    )
    return Requirement(spec, _find_mandatory_param(chat, spec))


def _find_mandatory_param(chat: Chat, spec: GrammarSpec) -> str:
    """Return the field that makes the grammar mandatory; empty if it is optional."""
    if spec.tool_choice == "required":
        return "tool_choice"
    if spec.constraint is not None:
        return spec.constraint.param
    for tool in spec.tools:
        if tool.input is not None:
            return tool.input.param
        if tool.strict:
            return tool.param
    return "" if chat.parallel_tool_calls else chat.get_client_field_name("parallel_tool_calls")


def get_marker_tokens(model: Model, output_format: OutputFormat) -> dict[str, int]:
    """Return the special tokens that are markers of the formats, by their text."""
    if model.tokenizer is None:
        return {}
    shown = model.get_token_visibility(output_format).shown
    return {text: token for text, token in model.tokenizer.specials.items() if token in shown}


def _find_obstacle(
    chat: Chat | None, sampling: Sampling, model: Model
) -> tuple[str, str | None] | None:
    """Return why no grammar can be enforced, and the field that prevents it."""
    if not model.capabilities.grammars:
        return "This model's engine does not support grammars.", None
    for name in ("min_tokens", "ignore_eos"):
        if getattr(sampling, name):
            return f"`{name}` does not work with a grammar.", name
    if chat is not None and chat.continue_final_message:
        return "a continued message cannot have a grammar.", "continue_final_message"
    return None


def _make_rejection(param: str, reason: str, other: str | None) -> Unsupported:
    if other is None:
        return Unsupported(f"`{param}` cannot be enforced: {reason}", param=param)
    return Unsupported(f"`{param}` cannot be combined with `{other}`: {reason}", param=other)
