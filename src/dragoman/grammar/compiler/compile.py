"""One order in, one grammar out: the plain function that a worker runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from dragoman.errors import BadRequest
from dragoman.formats import find_tools
from dragoman.grammar.client.constraint import written
from dragoman.grammar.compiler.verify import Verdict, verdict
from dragoman.grammar.schema import parse
from dragoman.grammar.schema.nodes import Object
from dragoman.grammar.spec import Made, Order
from dragoman.grammar.writer.answer import Answer
from dragoman.grammar.writer.calls import Calls
from dragoman.grammar.writer.free_text import arguments
from dragoman.grammar.writer.json_values import Writer
from dragoman.grammar.writer.lark import Lark
from dragoman.grammar.writer.messages import Heads, Messages
from dragoman.grammar.writer.readable_tools import fitted
from dragoman.grammar.writer.tool_names import Offer
from dragoman.output.library import rules
from dragoman.output.rules import FormatRules
from dragoman.types import Constraint, Tool

LARGEST = 1 << 19  # characters of a grammar: engines take as long to read it, and all wait
MOST_PARTS = 64  # that are tried one by one


def compiled(order: Order) -> Made:
    """The grammar of an order; what is wrong with the order is a `BadRequest`."""
    warnings: list[str] = []
    offers = [_offer(tool, order.format, warnings) for tool in order.tools]
    if order.shape is None and not offers:
        return Made(None)
    both = rules(order.format if offers else None, order.reasoning)
    lark = Lark(order.control)
    content = None if order.shape is None else _content(lark, order.shape, both, warnings)
    grammar = lark.source(_start(lark, order, both, offers, content))
    if len(grammar) > LARGEST:
        raise _too_complex(order)
    said = verdict(grammar)
    if said != "fine":
        _blame(order, said)
    ends = order.choice == "required" or (order.shape is not None and order.shape.kind == "json")
    return Made(grammar, tuple(dict.fromkeys(warnings)), ends, order.shape is not None)


def _offer(tool: Tool, written: str | None, warnings: list[str]) -> Offer:
    if tool.takes_free_text:
        at = tool.param if tool.input is None else tool.input.param
        return Offer(tool.name, arguments(tool.input), {}, at, tool.input is not None)
    strict = bool(tool.strict)
    checked = parse.read(tool.parameters, at=tool.param, strict=strict, tool=True)
    warnings += checked.loose
    offer = Offer(tool.name, checked.root, dict(checked.definitions), tool.param, strict)
    if written is None:
        return offer
    offer, loose = fitted(find_tools(written), offer, tool.parameters)
    for where in loose:
        place = f"`{tool.param}`: `{where}`" if where else f"`{tool.param}`"
        why = f"{place} cannot be enforced as a whole in this model's format"
        if strict:
            raise BadRequest(f"{why}.", param=tool.param, code="unsupported_keyword")
        warnings.append(f"{why}: parts of it are not.")
    return offer


def _content(lark: Lark, shape: Constraint, both: FormatRules, warnings: list[str]) -> str:
    if shape.kind != "json":
        return written(lark, shape, warnings)
    # a mark in a text of the content would mean to the parser what it means elsewhere
    banned = [
        mark for mark, what in both.in_text.meanings.items() if what != "first" and len(mark) > 3
    ]
    if shape.value is None:
        return Writer(lark, {}, banned=banned, at=shape.param).value(Object())
    checked = parse.read(shape.value, at=shape.param, strict=bool(shape.strict))
    warnings += checked.loose
    definitions = dict(checked.definitions)
    writer = Writer(lark, definitions, ordered=True, banned=banned, at=shape.param)
    return writer.value(checked.root)


def _start(
    lark: Lark, order: Order, both: FormatRules, offers: Sequence[Offer], content: str | None
) -> str:
    inside = both.reasoning.starts_inside if order.inside is None else order.inside
    inside, silent = inside and not order.silent, order.silent
    calls = None
    if offers and order.format is not None:
        calls = Calls(lark, find_tools(order.format), offers, parallel=order.parallel)
    demanded = content is not None or order.choice == "required"
    endless = not any(offer.strict for offer in offers)
    if both.header is not None and both.header.spellings:
        heads = Heads(lark, both.header, order.opening or "", silent=silent)
        messages = Messages(heads, calls, offers, both.reasoning.open if silent else ())
        if demanded:
            return messages.demanded(content, inside=inside, parallel=order.parallel)
        return messages.free(inside=inside, parallel=order.parallel, endless=endless)
    answer = Answer(lark, both, calls, inside=inside, silent=silent)
    if demanded:
        return answer.demanded(content)
    return answer.free(parallel=order.parallel, endless=endless)


def _blame(order: Order, said: Verdict) -> NoReturn:
    """Say which part of an order cannot be compiled: each is tried by itself."""
    parts = [Order(tools=(tool,), choice="required", format=order.format) for tool in order.tools]
    if order.shape is not None:
        parts = [Order(shape=order.shape), *parts]
    for part in parts if 1 < len(parts) <= MOST_PARTS else ():
        compiled(part)
    shape = order.shape
    if said == "costly" or shape is None or shape.kind not in ("grammar", "regex"):
        raise _too_complex(order)
    nothing = f"`{shape.param}` leads nowhere: nothing fits it."
    raise BadRequest(
        nothing if said == "nowhere" else f"`{shape.param}` cannot be read as a {shape.kind}.",
        param=shape.param,
        code="invalid_grammar",
    )


def _too_complex(order: Order) -> BadRequest:
    at = "tools"
    if len(order.tools) == 1:
        [tool] = order.tools
        at = tool.param if tool.input is None else tool.input.param
    return BadRequest(
        "This cannot be compiled into a grammar: it is too large or too complex.",
        param=at if order.shape is None else order.shape.param,
        code="constraint_too_complex",
    )
