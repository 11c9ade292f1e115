"""The model's own chat template: compiled once, rendered in a sandbox, within a budget.

This is the only place that creates a jinja2 environment. A template is limited in three ways:

- **what it can access**: an attribute or a method exists only if a table lists it for that type of
  value, and only macros and the functions of `filters` can be called;
- **what it may cost**: `BudgetCodeGenerator` writes code that charges a `RenderBudget` for every
  iteration of a loop and for every operation whose result can be large;
- **what it can load**: nothing; it cannot use other templates.

A template that cannot be compiled makes the model unusable (`ModelBroken`, when it is loaded). One
that rejects a conversation or fails on it is the request's error (`TemplateRejected`).
"""

from __future__ import annotations

import logging
import re
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache

from jinja2 import Undefined, meta, nodes
from jinja2.environment import Template as Code
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from msgspec import Struct

from dragoman.errors import (
    BadRequest,
    ModelBroken,
    TemplateRejected,
    TemplateTooCostly,
    Unsupported,
)
from dragoman.prompt.template.budget import (
    MAX_PADDING,
    METHODS,
    NUMBER,
    OverBudget,
    RenderBudget,
    Value,
)
from dragoman.prompt.template.filters import (
    FILTERS,
    GLOBALS,
    TESTS,
    RejectedByTemplate,
    RenderContext,
)
from dragoman.prompt.template.go_filters import GO_FILTERS
from dragoman.prompt.template.jinja_codegen import BudgetCodeGenerator

log = logging.getLogger("dragoman.prompt")

MAX_SOURCE = 256 * 1024  # characters of a template
FORBIDDEN_NODES: tuple[type[nodes.Node], ...] = (
    nodes.Extends,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Block,
    nodes.EvalContextModifier,
)
LOOP = (
    "index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed"
)
LOOP_ATTRIBUTES = frozenset(LOOP.split())
DICT_ATTRIBUTES = frozenset(dir(dict))
CALLABLE_FUNCTIONS = frozenset(GLOBALS.values())
SPLITTING = frozenset({"split", "rsplit", "replace", "partition", "rpartition", "removeprefix"})
CASE_METHODS = frozenset({"lower", "upper", "capitalize", "title", "casefold", "swapcase"})

# Variables that the renderer or jinja2 sets; a client cannot
_RESERVED = (
    "messages tools functions add_generation_prompt continue_final_message tokenize chat_template "
    "return_tensors return_dict return_assistant_tokens_mask padding truncation max_length "
    "tokenizer_kwargs conversation tool_choice template_kwargs chat_template_kwargs bos_token "
    "eos_token pad_token unk_token sep_token cls_token mask_token add_special_tokens self loop "
    "caller varargs kwargs"
)
RESERVED_VARIABLES = frozenset(_RESERVED.split())


# The sandbox


class GenerationTag(Extension):
    """`{% generation %}` marks what the model writes, for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class FormatMethod:
    """The `format` method of a text, which only the sandbox can call."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class BoundedFormatter(SandboxedFormatter):
    """`str.format` without wide padding, and without access to attributes."""

    budget: RenderBudget

    def format_field(self, value: Value, format_spec: str) -> Value:
        if any(int(number[:9]) > MAX_PADDING for number in NUMBER.findall(format_spec)):
            raise OverBudget("it asks for padding that is too wide")
        if isinstance(value, (list, tuple, dict)):
            value = self.budget.to_text(value)
        text = super().format_field(value, format_spec)
        self.budget.spend(len(text))
        return text

    def convert_field(self, value: Value, conversion: Value) -> Value:
        if conversion is not None:
            self.budget.measure(value)
        return super().convert_field(value, conversion)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Accesses only attributes that a table lists, and calls only our own functions."""

    code_generator_class = BudgetCodeGenerator
    context_class = RenderContext
    # jinja2 also compiles a template to find its variables; it must not compute these meanwhile
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def getattr(self, obj: Value, attribute: str) -> Value:
        kind = type(obj)
        if kind is dict and attribute not in DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if attribute in METHODS.get(kind, ()):
            return FormatMethod(obj) if attribute == "format" else getattr(obj, attribute)
        if kind is LoopContext and attribute in LOOP_ATTRIBUTES:
            return getattr(obj, attribute)
        if kind is Namespace or isinstance(obj, Undefined):
            return super().getattr(obj, attribute)
        if hasattr(kind, attribute):
            return self.unsafe_undefined(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Value, argument: Value) -> Value:
        try:
            return obj[argument]
        except (AttributeError, TypeError, LookupError):
            if isinstance(argument, str):
                return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(self, context: Context, obj: Value, /, *args: Value, **kwargs: Value) -> Value:
        budget: RenderBudget = context.budget  # type: ignore[attr-defined]
        budget.tick(2 + len(args))
        kwargs.pop("_loop_vars", None)
        kind = type(obj)
        if kind is types.BuiltinMethodType:
            return budget.call_method(obj, args, kwargs)
        if kind is FormatMethod:
            return self._format(budget, obj.text, args, kwargs)
        if kind is not Macro and not _is_callable(obj, kind):
            raise SecurityError("a value that is not a function was called")
        if kind is not Macro:
            budget.spend(512)
            for arg in args:
                budget.charge_scan(arg)
        return obj(*args, **kwargs)

    def _format(
        self, budget: RenderBudget, text: str, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> str:
        formatter = BoundedFormatter(self)
        formatter.budget = budget
        result = formatter.vformat(text, args, kwargs)
        budget.check_length(len(result))
        budget.spend(len(result))
        return type(text)(result)


def _is_callable(obj: Value, kind: type) -> bool:
    if kind is types.FunctionType or kind is type:
        return obj in CALLABLE_FUNCTIONS
    if kind is types.MethodType:
        return type(obj.__self__) is LoopContext
    return kind is LoopContext or isinstance(obj, Undefined)


def make_sandbox() -> TemplateSandbox:
    """Make a template environment; there is no other factory."""
    sandbox = TemplateSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        cache_size=0,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )
    sandbox.filters = FILTERS | GO_FILTERS
    sandbox.tests, sandbox.globals = dict(TESTS), dict(GLOBALS)
    return sandbox


# Templates


class TemplateFacts(Struct, frozen=True, kw_only=True):
    """Facts from the source of a template, found without rendering it."""

    variables: frozenset[str]  # variables that it reads but never sets
    client_variables: tuple[str, ...]  # the ones that a client may set
    assigned: frozenset[str]  # variables that it sets
    words: frozenset[str]  # strings and field names in its code
    literals: frozenset[str]  # every text that it writes by itself
    separators: frozenset[str]  # texts at which it splits other texts
    changes_case: bool  # between upper and lower case


class ChatTemplate:
    """A compiled template; `compile_template` caches them."""

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > MAX_SOURCE:
            raise ModelBroken("The model's chat template is too long.")
        environment = make_sandbox()
        try:
            tree = environment.parse(source)
            if any(isinstance(node, FORBIDDEN_NODES) for node in tree.find_all(nodes.Stmt)):
                raise ModelBroken("The model's chat template needs other templates.")
            self.facts = _read_facts(tree)
            self._code: Code = environment.from_string(source)
        except TemplateSyntaxError as error:
            reason = _clean_message(error.message or "syntax error")
            raise ModelBroken(
                f"The model's chat template is malformed in line {error.lineno}: {reason}"
            ) from None
        except RecursionError:
            raise ModelBroken("The model's chat template is nested too deeply.") from None
        except (ArithmeticError, MemoryError, SyntaxError, TypeError, ValueError) as error:
            log.warning("a chat template cannot be compiled", exc_info=error)
            raise ModelBroken("The model's chat template cannot be compiled.") from None

    def render(
        self,
        variables: Mapping[str, Value],
        budget: RenderBudget | None = None,
        exports: dict[str, object] | None = None,
    ) -> str:
        """Return the prompt as text. Every failure is a `TemplateRejected`.

        The variables that the template sets are added to `exports`.
        """
        context = self._code.new_context(dict(variables))
        assert isinstance(context, RenderContext)  # noqa: S101
        context.budget = budget = budget or RenderBudget()
        try:
            text = self._run(context, budget)
            if exports is not None:
                exports |= context.vars
            return text
        except RejectedByTemplate as error:
            reason = error.message or "it gives no reason."
            raise TemplateRejected(
                f"The model's chat template rejects this conversation: {reason}", param="messages"
            ) from None
        except OverBudget as error:
            raise _make_template_error(f"was stopped: {error}", TemplateTooCostly) from None
        except RecursionError:
            raise _make_template_error(
                "was stopped: it calls itself too deeply", TemplateTooCostly
            ) from None
        except TemplateError as error:
            reason = _clean_message(error.message or "it gives no reason")
            raise _make_template_error(f"failed{self._locate(error)}: {reason}") from None
        except Exception as error:
            log.debug("a chat template failed", exc_info=error)
            raise _make_template_error(
                f"failed on this conversation{self._locate(error)}"
            ) from None

    def _run(self, context: RenderContext, budget: RenderBudget) -> str:
        pieces, length, max_text = [], 0, budget.max_text
        for piece in self._code.root_render_func(context):
            length += len(piece)
            if length > max_text:
                raise OverBudget("it makes a prompt that is too long")
            pieces.append(piece)
        return "".join(pieces)

    def _locate(self, error: BaseException) -> str:
        """Return the line of the template in which an error occurred."""
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                line = self._code.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return f" in line {line}" if line else ""

    def check_variables(self, variables: Mapping[str, Value]) -> None:
        """Reject variables that a client cannot set or that the template never reads."""
        for name in variables:
            where = f"chat_template_kwargs.{name}"
            if self.is_reserved(name):
                raise BadRequest(f"`{name}` cannot be set by a request.", param=where)
            if name not in self.facts.variables:
                raise Unsupported(self.describe_unread(name), param=where)

    @staticmethod
    def is_reserved(name: str) -> bool:
        """Whether only we may set a variable."""
        return name in RESERVED_VARIABLES or name in GLOBALS or name.startswith("_")

    def describe_unread(self, name: str) -> str:
        """Return a sentence about a variable that the template does not read."""
        known = ", ".join(self.facts.client_variables) or "none"
        return f"This model's chat template does not read `{name}`. It reads: {known}."


@lru_cache(maxsize=64)
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def _make_template_error(
    problem: str, error_class: type[TemplateRejected] = TemplateRejected
) -> TemplateRejected:
    return error_class(f"The model's chat template {problem}.", param="messages")


def _clean_message(message: str) -> str:
    """Remove the names of modules and classes from a message of jinja2."""
    return re.sub(r"[\w.]+\.(\w+) object", r"\1 object", message)[:500].rstrip(".")


def _read_facts(tree: nodes.Template) -> TemplateFacts:
    strings = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    fields = {node.attr for node in tree.find_all(nodes.Getattr)}
    names = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    reads = frozenset(meta.find_undeclared_variables(tree))
    used = fields | {node.name for node in tree.find_all(nodes.Filter)}
    return TemplateFacts(
        variables=reads,
        client_variables=tuple(sorted(reads - RESERVED_VARIABLES - names)),
        assigned=frozenset(names),
        words=frozenset(strings | fields),
        literals=frozenset(strings | {node.data for node in tree.find_all(nodes.TemplateData)}),
        separators=frozenset(_find_separators(tree, strings)),
        changes_case=not CASE_METHODS.isdisjoint(used),
    )


def _find_separators(tree: nodes.Template, strings: set[str]) -> Iterator[str]:
    """Yield the texts at which the template splits; all its strings if one is in a variable."""
    calls = [
        (node.node.attr, node.args)
        for node in tree.find_all(nodes.Call)
        if isinstance(node.node, nodes.Getattr)
    ]
    calls += [(node.name, node.args) for node in tree.find_all(nodes.Filter)]
    for arg in (arg for name, args in calls if name in SPLITTING for arg in args):
        if not isinstance(arg, nodes.Const):
            yield from filter(None, strings)
        elif isinstance(arg.value, str) and arg.value:
            yield arg.value
