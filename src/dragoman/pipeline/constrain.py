"""Builds the grammar of an answer from the request and its model.

Some constraints are guarantees: a response format, a required call, a strict tool, at most one
call. They are enforced, or the request is rejected with the field that asks for them. All other
tool calls are constrained to their schemas wherever that is possible. Where it is not, the request
is still answered, with a warning.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, ConstraintTooComplex, SchemaTooComplex, Unsupported
from dragoman.grammar.compiler.compiler_pool import CompilerPool
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.models.model import Model
from dragoman.models.output_format import AnswerStart, OutputFormat
from dragoman.pipeline.reading.call_limiter import CallLimits
from dragoman.telemetry.record import get_record
from dragoman.types import Chat, Constraint, Request, Sampling

UNCONSTRAINED = CompiledGrammar(None)
NOT_ENFORCED = "Tool calls are not constrained to their schemas"
# After these errors, an answer without guarantees is left unconstrained.
TOLERATED_ERRORS = (ConstraintTooComplex, SchemaTooComplex, Unsupported)


class Requirement(Struct, frozen=True):
    """What an answer must look like, and the request field that guarantees it."""

    spec: GrammarSpec
    param: str = ""  # empty: not a guarantee

    @property
    def is_mandatory(self) -> bool:
        return bool(self.param)


async def constrain(
    chat: Chat | None,
    request: Request,
    model: Model,
    answer_start: AnswerStart,
    compiler: CompilerPool,
    *,
    without_reasoning: bool = False,
) -> CompiledGrammar:
    """Compile the grammar of an answer; `chat` is None if the request is not a chat."""
    requirement = build_requirement(chat, request.constraint, model, answer_start)
    warnings: tuple[str, ...] = ()
    if request.banned_strings:
        requirement, warnings = ban_strings(requirement, chat, request, model)
    if requirement is None:
        return UNCONSTRAINED
    if request.constraint is not None and requirement.spec.tool_choice == "required":
        warnings += (f"`{request.constraint.param}` has no effect: a call is required.",)
    spec = replace(requirement.spec, without_reasoning=without_reasoning)
    conflict = _find_conflict(chat, request.sampling, model)
    if conflict is not None:
        if not requirement.is_mandatory:
            return CompiledGrammar(None, (f"{NOT_ENFORCED}: {conflict[0]}",))
        if model.info.upstream is None or conflict[1] is not None or is_strict(requirement.spec):
            raise _make_conflict_error(requirement.param, *conflict)
        return CompiledGrammar(None, (f"`{requirement.param}` is not enforced: {conflict[0]}",))
    try:
        with get_record().measure("constrain"):
            compiled = await compiler.compile(spec)
            return replace(compiled, warnings=(*warnings, *compiled.warnings))
    except BadRequest as error:
        if requirement.is_mandatory or not isinstance(error, TOLERATED_ERRORS):
            raise
        return CompiledGrammar(None, (f"{NOT_ENFORCED}: {error.message}",))


def is_strict(spec: GrammarSpec) -> bool:
    """Whether an answer that breaks the rules is worse for the client than none.

    A model on another server without grammars answers all other requests, with a warning.
    """
    constraint = spec.constraint
    has_strict_tools = any(tool.strict or tool.input is not None for tool in spec.tools)
    if constraint is None:
        return has_strict_tools or bool(spec.banned_strings)
    return has_strict_tools or constraint.kind != "json" or bool(constraint.strict)


def ban_strings(
    requirement: Requirement | None, chat: Chat | None, request: Request, model: Model
) -> tuple[Requirement, tuple[str, ...]]:
    """Replace the requirement with one for text without the banned strings, with warnings.

    What an answer must look like cannot be enforced besides, so that is rejected.
    """
    param = request.client_field_names.get("banned_strings", "banned_strings")
    warnings: tuple[str, ...] = ()
    if requirement is not None:
        if requirement.is_mandatory:
            raise Unsupported(
                f"`{param}` cannot be combined with `{requirement.param}`.", param=param
            )
        warnings = (f"{NOT_ENFORCED}: `{param}` is enforced instead.",)
    output_format = model.output_format if chat is None else model.output_format.for_chat(chat)
    spec = GrammarSpec(
        banned_strings=request.banned_strings,
        reasoning_format=None if chat is None else output_format.reasoning,
        special_tokens={} if chat is None else get_marker_tokens(model, output_format),
    )
    return Requirement(spec, param), warnings


class EngineRefusals:
    """Names the client's field in an engine's errors, which only know the fields of the job."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, BadRequest):
            return
        names = self._request.client_field_names
        if error.param == "grammar":
            error.param = _get_grammar_param(self._request)
        elif error.param in names:
            name = names[error.param]
            error.message = error.message.replace(f"`{error.param}`", f"`{name}`")
            error.param = name


def _get_grammar_param(request: Request) -> str:
    if request.constraint is not None:
        return request.constraint.param
    return "banned_strings" if request.banned_strings else "tools"


def build_requirement(
    chat: Chat | None, constraint: Constraint | None, model: Model, answer_start: AnswerStart
) -> Requirement | None:
    """Build what the compiler needs to know; None if everything is allowed."""
    if chat is None:
        if constraint is None:
            return None
        return Requirement(GrammarSpec(constraint=constraint), constraint.param)
    tools = chat.callable_tools if constraint is None or constraint.allows_tool_calls else ()
    if constraint is None and not tools:
        return None
    output_format = model.output_format.for_chat(chat)
    if tools and output_format.tools is None:
        if chat.tool_choice == "required":
            raise Unsupported("This model does not support tool calls.", param="tool_choice")
        tools = ()
    if constraint is None and not tools:
        return None
    must_call = chat.tool_choice == "required" and bool(tools)
    spec = GrammarSpec(
        constraint=None if must_call else constraint,  # there is no content besides the calls
        tools=tuple(replace(tool, description=None) for tool in tools),
        tool_choice="required" if must_call else "auto",
        max_calls=get_call_limits(chat, model, constraint).total,
        tool_format=output_format.tools if tools else None,
        reasoning_format=output_format.reasoning,
        starts_in_reasoning=answer_start.in_reasoning,
        header_start=answer_start.opening,
        special_tokens=get_marker_tokens(model, output_format),
    )
    return Requirement(spec, _find_mandatory_param(chat, spec))


def get_call_limits(chat: Chat, model: Model, constraint: Constraint | None) -> CallLimits:
    """Return how many calls an answer may make.

    One that consists of calls makes none twice. In free text the model itself ends its calls.
    """
    limit = model.preset.max_tool_calls
    if chat.tool_choice == "required" or constraint is not None:
        return CallLimits(limit if chat.parallel_tool_calls else 1, same=1)
    return CallLimits(None if chat.parallel_tool_calls else 1, same=limit)


def _find_mandatory_param(chat: Chat, spec: GrammarSpec) -> str:
    """Return the request field that asks for a guarantee; empty if none does."""
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
    """Return the special tokens of a model that are markers of its formats, by their text."""
    if model.tokenizer is None:
        return {}
    shown = model.get_token_visibility(output_format).shown
    return {text: token for text, token in model.tokenizer.specials.items() if token in shown}


def _find_conflict(
    chat: Chat | None, sampling: Sampling, model: Model
) -> tuple[str, str | None] | None:
    """Return why no grammar can be enforced, and the request field that conflicts, if any."""
    if not model.capabilities.grammars:
        return "This model's engine does not support grammars.", None
    for name in ("min_tokens", "ignore_eos"):
        if getattr(sampling, name):
            return f"`{name}` cannot be combined with a grammar.", name
    if chat is not None and chat.continue_final_message:
        name = chat.get_client_field_name("continue_final_message")
        return "the continuation of a message cannot be constrained.", name
    return None


def _make_conflict_error(param: str, reason: str, other: str | None) -> Unsupported:
    if other is None:
        return Unsupported(f"`{param}` cannot be enforced: {reason}", param=param)
    return Unsupported(f"`{param}` cannot be combined with `{other}`: {reason}", param=other)
