"""From the messages of a request to the messages a template sees.

Pure functions: nothing that came with the request is changed. A conversation is altered only as
far as `Abilities` say that this template needs it, and never so that something is lost:

- a system message that the template has no place for moves into the first one, or in front of what
  the user says first;
- messages of one role that may not follow each other become one, with an empty line between them;
- several calls in one turn become turns of one call each, with their results after them;
- tools, calls and results that the template cannot write become text, in the form of `generic`;
  where the tools are written so, all that belongs to them is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.prompt import generic_tools
from dragoman.prompt.special_tokens import join_texts
from dragoman.prompt.template.capabilities import TemplateCapabilities
from dragoman.prompt.tool_results import match_results
from dragoman.prompt.turn import Turn
from dragoman.types import Content, Message, TextPart, Tool, ToolCall

BETWEEN = "\n\n"
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def prepare_messages(
    messages: Sequence[Message], abilities: TemplateCapabilities, tools: Sequence[Tool] = ()
) -> list[dict[str, Any]]:
    """The messages as this template takes them; `tools` it has no place for are among them."""
    return [
        to_template_message(turn, abilities)
        for turn in arrange_messages(messages, abilities, tools)
    ]


def arrange_messages(
    messages: Sequence[Message], abilities: TemplateCapabilities, tools: Sequence[Tool] = ()
) -> list[Turn]:
    """The same, before they are written as dicts."""
    offer = tools if not abilities.tools_rendered else ()
    if offer or not abilities.tool_calls_rendered or (abilities.calls_need_tools and not tools):
        abilities = replace(abilities, tool_calls_rendered=False, tool_results_rendered=False)
    turns = [_known_role(_flatten(message), abilities) for message in messages]
    turns = [_without_thoughts(turn, abilities) for turn in turns]
    turns = list(match_results(turns))
    turns = list(_written_out(turns, abilities))
    if offer:
        turns = generic_tools.add_tool_prompt(turns, [_tool(tool, abilities) for tool in offer])
    if not abilities.reasoning_with_both:
        turns = [_thought_aloud(turn) for turn in turns]
    if not abilities.content_with_calls:
        turns = list(_apart(turns))
    if not abilities.parallel_calls:
        turns = list(_one_by_one(turns))
    turns = _systems(turns, abilities, bool(tools))
    turns = list(_merged(turns, abilities))
    return list(_fillers(turns, abilities, bool(tools)))


def prepare_tools(tools: Iterable[Tool], abilities: TemplateCapabilities) -> list[dict[str, Any]]:
    """The tools as templates know them; none where they are written among the messages."""
    return [_tool(tool, abilities) for tool in tools] if abilities.tools_rendered else []


def _tool(tool: Tool, abilities: TemplateCapabilities) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None or not abilities.bare_tools:
        function["description"] = tool.description or ""
    function["parameters"] = NO_PARAMETERS if tool.parameters is None else tool.parameters
    return {"type": "function", "function": function}


# Content


def flatten_content(content: Content) -> str:
    """Return the text of a content.

    Validation rejects media that the model cannot read, except in tool results: an agent sends its
    whole history every time and could never continue. There a sentence stands in for it.
    """
    if len(content) == 1 and isinstance(part := content[0], TextPart):
        return part.text
    return "".join(
        part.text
        if isinstance(part, TextPart)
        else f"[{part.wire_type}: not shown, only text is supported]"
        for part in content
    )


def _flatten(message: Message) -> Turn:
    return Turn(
        role=message.role,
        text=flatten_content(message.content),
        name=message.name,
        reasoning=message.reasoning,
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        replay=message.replay,
    )


# Roles and reasoning


def _known_role(turn: Turn, abilities: TemplateCapabilities) -> Turn:
    if turn.role == "developer" and not abilities.developer:
        return replace(turn, role="system")
    return replace(turn, role="tool") if turn.role == "function" else turn


def _without_thoughts(turn: Turn, abilities: TemplateCapabilities) -> Turn:
    """Cut the reasoning off a content where the template would: it cannot see a broken tag."""
    end = abilities.reasoning_end
    if end is None or turn.role != "assistant" or end not in turn.text:
        return turn
    thoughts, _, rest = turn.text.rpartition(end)
    start = end.replace("/", "", 1)
    said = thoughts.split(end)[0].split(start)[-1].strip("\n")
    return replace(turn, text=rest.lstrip("\n"), reasoning=turn.reasoning or said or None)


# Calls and results


def _written_out(turns: list[Turn], abilities: TemplateCapabilities) -> Iterator[Turn]:
    """Calls and results as text, where the template has no place for them."""
    called = False
    for results, group in groupby(turns, lambda turn: turn.role == "tool"):
        run = list(group)
        if results:
            placed = abilities.tool_results_rendered and (called or abilities.lone_results)
            yield from run if placed else [generic_tools.write_results(run)]
            continue
        for turn in run:
            called = bool(turn.tool_calls)
            written = called and not abilities.tool_calls_rendered
            yield generic_tools.write_calls(turn) if written else turn


def _thought_aloud(turn: Turn) -> Turn:
    """Reasoning in front of the text of a turn that has calls as well."""
    if not (turn.tool_calls and turn.text and turn.reasoning):
        return turn
    return replace(turn, text=_joined([turn.reasoning, turn.text]), reasoning=None)


def _apart(turns: list[Turn]) -> Iterator[Turn]:
    """A turn of text and calls as two turns."""
    for turn in turns:
        if turn.tool_calls and turn.text:
            yield replace(turn, tool_calls=())
            yield replace(turn, text="", reasoning=None)
        else:
            yield turn


def _one_by_one(turns: list[Turn]) -> Iterator[Turn]:
    """A turn of several calls as several turns, each with the result of its call."""
    at = 0
    while at < len(turns):
        turn = turns[at]
        at += 1
        if len(turn.tool_calls) < 2:
            yield turn
            continue
        results: list[Turn] = []
        by_id: dict[str | None, deque[Turn]] = {}
        while at < len(turns) and turns[at].role == "tool":
            results.append(turns[at])
            by_id.setdefault(turns[at].tool_call_id, deque()).append(turns[at])
            at += 1
        last = {call.id: number for number, call in enumerate(turn.tool_calls)}
        for number, call in enumerate(turn.tool_calls):
            first = number == 0
            yield replace(
                turn,
                tool_calls=(call,),
                text=turn.text if first else "",
                reasoning=turn.reasoning if first else None,
            )
            own = by_id.get(call.id, deque())
            for _ in range(len(own) if number == last[call.id] else min(1, len(own))):
                yield own.popleft()
        yield from (result for result in results if result.tool_call_id not in last)


# Systems, runs and fillers


def _systems(turns: list[Turn], abilities: TemplateCapabilities, tools: bool) -> list[Turn]:
    """System messages where the template has a place for them."""
    first = next((at for at, turn in enumerate(turns) if turn.role != "system"), len(turns))
    heads, rest = turns[:first], turns[first:]
    if not (abilities.system and abilities.system_later):
        heads += [turn for turn in rest if turn.role == "system"]
        rest = [turn for turn in rest if turn.role != "system"]
    if not abilities.system:
        return _into_user(_joined(turn.text for turn in heads), rest)
    if len(heads) > 1 and not (abilities.system_twice and first == len(heads)):
        heads = [replace(heads[0], text=_joined(turn.text for turn in heads))]
    if tools and abilities.tools_need_system and not heads:
        heads = [Turn(role="system", text="")]
    return heads + rest


def _into_user(text: str, turns: list[Turn]) -> list[Turn]:
    """Put what a system said in front of what the user says first."""
    if not text:
        return turns
    for at, turn in enumerate(turns):
        if turn.role == "user":
            both = replace(turn, text=_joined([text, turn.text]))
            return [*turns[:at], both, *turns[at + 1 :]]
    return [Turn(role="user", text=text), *turns]


def _merged(turns: list[Turn], abilities: TemplateCapabilities) -> Iterator[Turn]:
    """One message for each run of a role that may not follow itself."""
    alone = {
        "user": not abilities.user_twice,
        "assistant": not abilities.assistant_twice,
        "system": not abilities.system_twice,
    }
    run: list[Turn] = []
    called = False  # within the run
    for turn in turns:
        calls = called or bool(turn.tool_calls)
        fit = abilities.content_with_calls or not calls
        if run and run[0].role == turn.role and alone.get(turn.role) and fit:
            run.append(turn)
            called = calls
            continue
        if run:
            yield _together(run)
        run, called = [turn], bool(turn.tool_calls)
    if run:
        yield _together(run)


def _together(run: list[Turn]) -> Turn:
    first = run[0]
    if len(run) == 1:
        return first
    return replace(
        first,
        text=_joined(turn.text for turn in run),
        name=first.name if all(turn.name == first.name for turn in run) else None,
        reasoning=_joined(turn.reasoning for turn in run) or None,
        tool_calls=tuple(call for turn in run for call in turn.tool_calls),
        replay=None,  # none was said like this
    )


def _fillers(turns: list[Turn], abilities: TemplateCapabilities, tools: bool) -> Iterator[Turn]:
    """Empty messages where the template insists on one."""
    nobody = all(turn.role != "user" for turn in turns)
    nobody = nobody and (not abilities.without_user or (tools and abilities.tools_need_user))
    before = speaker = "system"
    for turn in turns:
        opening = before == "system" and turn.role not in ("system", "user")
        if opening and (nobody or (turn.role == "assistant" and not abilities.assistant_first)):
            yield Turn(role="user", text="")
            nobody = False
        asked = before == "tool" and turn.role == speaker == "user"
        if asked and not abilities.user_after_result:
            yield Turn(role="assistant", text=abilities.filler)
        yield turn
        before = turn.role
        speaker = speaker if before == "tool" or turn.tool_calls else before
    if nobody:
        yield Turn(role="user", text="")


def _joined(texts: Iterable[str | None]) -> str:
    return join_texts((text for text in texts if text), BETWEEN)


# As dicts


def to_template_message(turn: Turn, abilities: TemplateCapabilities) -> dict[str, Any]:
    made: dict[str, Any] = {"role": turn.role}
    content = _content(turn, abilities)
    if content is not msgspec.UNSET:
        made["content"] = content
    if turn.name is not None:
        made["name"] = turn.name
    if turn.reasoning is not None:
        made |= dict.fromkeys(abilities.reasoning_fields, turn.reasoning)
    if turn.tool_calls:
        made["tool_calls"] = [_call(call, abilities) for call in turn.tool_calls]
    if turn.tool_call_id is not None:
        made["tool_call_id"] = _call_id(turn.tool_call_id, abilities)
    return made


def _content(turn: Turn, abilities: TemplateCapabilities) -> Any:
    """Text, or a list with one part of text; UNSET for none at all."""
    thinks = bool(turn.reasoning) and abilities.reasoning_parts
    if turn.tool_calls and not turn.text and abilities.call_content != "empty" and not thinks:
        return None if abilities.call_content == "null" else msgspec.UNSET
    if thinks:
        thought = {"type": "thinking", "thinking": turn.reasoning}
        return [thought, {"type": "text", "text": turn.text}]
    if turn.role in abilities.part_roles:
        return [{"type": "text", "text": turn.text}]
    return turn.text


def _call(call: ToolCall, abilities: TemplateCapabilities) -> dict[str, Any]:
    arguments: Any = call.arguments
    if abilities.arguments == "dict":
        arguments = parse_arguments(call.arguments)
    if isinstance(arguments, str) and not abilities.raw_arguments:
        arguments = {"arguments": arguments}
    return {
        "id": _call_id(call.id, abilities),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def parse_arguments(arguments: str) -> Any:
    """Arguments as a dict; no arguments as an empty one; text that is no JSON object as it is."""
    if not arguments.strip():
        return {}
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _call_id(name: str, abilities: TemplateCapabilities) -> str:
    """Some templates want nine letters and digits: the same id always becomes the same."""
    long = abilities.tiny_ids or len(name) >= 9
    if (long and not abilities.short_ids) or _SHORT_ID.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode()[:9].lower()
