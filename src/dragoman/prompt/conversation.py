"""Converts the messages of a request to the messages that a template gets.

Pure functions: nothing that came with the request is changed. A conversation is altered only as far
as `TemplateCapabilities` require for this template, and nothing is lost:

- a system message that the template does not accept moves into the first one, or in front of the
  first user message;
- messages of one role that may not follow each other become one, with an empty line between them;
- several calls in one turn become turns of one call each, with their results after them;
- tools, calls and results that the template cannot write become text (`generic_tools`). If the
  tools are written as text, so are the calls and results.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace

from dragoman.prompt import generic_tools
from dragoman.prompt.special_tokens import join_texts
from dragoman.prompt.template.capabilities import (
    TemplateCapabilities,
    TemplateMessage,
    TemplateTool,
)
from dragoman.prompt.template.media_markers import make_marker
from dragoman.prompt.tool_results import match_results
from dragoman.prompt.turn import Turn, is_alternating
from dragoman.types import Content, ContentPart, Json, Message, TextPart, Tool, ToolCall

MAX_PARSED = 1 << 20  # characters of arguments; longer ones are passed on as text
EMPTY_LINE = "\n\n"
NO_PARAMETERS: Json = {"type": "object", "properties": {}}
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def prepare_messages(
    messages: Sequence[Message], capabilities: TemplateCapabilities, tools: Sequence[Tool] = ()
) -> list[TemplateMessage]:
    """Return the messages as this template accepts them, including tools that it cannot write."""
    turns = arrange_messages(messages, capabilities, tools)
    return [to_template_message(turn, capabilities) for turn in turns]


def arrange_messages(
    messages: Sequence[Message], capabilities: TemplateCapabilities, tools: Sequence[Tool] = ()
) -> list[Turn]:
    """Like `prepare_messages`, but return turns."""
    text_tools = tools if not capabilities.tools_rendered else ()
    turns = [_replace_role(_flatten(message), capabilities) for message in messages]
    if capabilities.reasoning_end is not None:
        turns = [_split_off_reasoning(turn, capabilities) for turn in turns]
    has_calls = False
    for turn in turns:  # not `any`: a generator costs more than the few turns of most chats
        if turn.tool_calls or turn.role == "tool":
            has_calls = True
            break
    if has_calls:
        cannot_call = capabilities.calls_need_tools and not tools
        as_text = text_tools or not capabilities.tool_calls_rendered or cannot_call
        turns = _arrange_calls(turns, capabilities, as_text=bool(as_text))
    if text_tools:
        described = [_describe_tool(tool, capabilities) for tool in text_tools]
        turns = generic_tools.add_tool_prompt(turns, described)
    if has_calls:
        turns = _separate_turns(turns, capabilities)
    if not (has_calls or tools) and is_alternating(turns, with_system=capabilities.system):
        return turns  # every template accepts that
    turns = _place_system_messages(turns, capabilities, bool(tools))
    turns = list(_merge_runs(turns, capabilities))
    return list(_insert_fillers(turns, capabilities, bool(tools)))


def prepare_tools(tools: Iterable[Tool], capabilities: TemplateCapabilities) -> list[TemplateTool]:
    """Return the tools as templates see them; none if they are written among the messages."""
    if not capabilities.tools_rendered:
        return []
    return [_describe_tool(tool, capabilities) for tool in tools]


def _describe_tool(tool: Tool, capabilities: TemplateCapabilities) -> TemplateTool:
    function: dict[str, Json] = {"name": tool.name}
    if tool.description is not None or not capabilities.bare_tools:
        function["description"] = tool.description or ""
    function["parameters"] = NO_PARAMETERS if tool.parameters is None else tool.parameters
    return {"type": "function", "function": function}


# Content


def flatten_content(content: Content) -> str:
    """Return the text of a content.

    A marker stands for media that the engine will see (`media_markers`). Validation rejects media
    that the model cannot read, except in tool results: an agent sends its whole history every time
    and could never continue. There a sentence replaces it.
    """
    if len(content) == 1 and isinstance(part := content[0], TextPart):
        return part.text
    return join_texts(map(_flatten_part, content))


def _flatten_part(part: ContentPart) -> str:
    if isinstance(part, TextPart):
        return part.text
    if part.item is not None:
        return make_marker(part.item)
    return f"[{part.wire_type}: not shown, only text is supported]"


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


def _replace_role(turn: Turn, capabilities: TemplateCapabilities) -> Turn:
    if turn.role == "developer" and not capabilities.developer:
        return replace(turn, role="system")
    return replace(turn, role="tool") if turn.role == "function" else turn


def _split_off_reasoning(turn: Turn, capabilities: TemplateCapabilities) -> Turn:
    """Split the reasoning off a text: the template does not recognise a tag that has a break."""
    end = capabilities.reasoning_end
    if end is None or turn.role != "assistant" or end not in turn.text:
        return turn
    head, _, rest = turn.text.rpartition(end)
    start = end.replace("/", "", 1)
    reasoning = head.split(end)[0].split(start)[-1].strip("\n")
    return replace(turn, text=rest.lstrip("\n"), reasoning=turn.reasoning or reasoning or None)


# Calls and results


def _arrange_calls(
    turns: list[Turn], capabilities: TemplateCapabilities, *, as_text: bool
) -> list[Turn]:
    """Put results after their calls; write both as text if the template cannot write them."""
    if as_text:
        capabilities = replace(capabilities, tool_calls_rendered=False, tool_results_rendered=False)
    return list(_write_calls_as_text(list(match_results(turns)), capabilities))


def _separate_turns(turns: list[Turn], capabilities: TemplateCapabilities) -> list[Turn]:
    """Split each turn that has more than the template writes in one turn."""
    if not capabilities.reasoning_with_both:
        turns = [_move_reasoning_to_text(turn) for turn in turns]
    if not capabilities.content_with_calls:
        turns = list(_separate_text_from_calls(turns))
    if not capabilities.parallel_calls:
        turns = list(_separate_calls(turns))
    return turns


def _write_calls_as_text(turns: list[Turn], capabilities: TemplateCapabilities) -> Iterator[Turn]:
    """Write calls and results as text if the template cannot write them."""
    has_calls = False
    for are_results, group in groupby(turns, lambda turn: turn.role == "tool"):
        run = list(group)
        if are_results:
            accepted = capabilities.lone_results or has_calls
            rendered = capabilities.tool_results_rendered and accepted
            yield from run if rendered else [generic_tools.write_results(run)]
            continue
        for turn in run:
            has_calls = bool(turn.tool_calls)
            as_text = has_calls and not capabilities.tool_calls_rendered
            yield generic_tools.write_calls(turn) if as_text else turn


def _move_reasoning_to_text(turn: Turn) -> Turn:
    """Put the reasoning in front of the text of a turn that has text and calls."""
    if not (turn.tool_calls and turn.text and turn.reasoning):
        return turn
    return replace(turn, text=_join([turn.reasoning, turn.text]), reasoning=None)


def _separate_text_from_calls(turns: list[Turn]) -> Iterator[Turn]:
    """Split a turn that has text and calls into two turns."""
    for turn in turns:
        if turn.tool_calls and turn.text:
            yield replace(turn, tool_calls=())
            yield replace(turn, text="", reasoning=None)
        else:
            yield turn


def _separate_calls(turns: list[Turn]) -> Iterator[Turn]:
    """Split a turn of several calls into one turn for each call, followed by its result."""
    index = 0
    while index < len(turns):
        turn = turns[index]
        index += 1
        if len(turn.tool_calls) < 2:
            yield turn
            continue
        results: list[Turn] = []
        by_id: dict[str | None, deque[Turn]] = {}
        while index < len(turns) and turns[index].role == "tool":
            results.append(turns[index])
            by_id.setdefault(turns[index].tool_call_id, deque()).append(turns[index])
            index += 1
        last = {call.id: number for number, call in enumerate(turn.tool_calls)}
        for number, call in enumerate(turn.tool_calls):
            is_first = number == 0
            yield replace(
                turn,
                tool_calls=(call,),
                text=turn.text if is_first else "",
                reasoning=turn.reasoning if is_first else None,
            )
            own = by_id.get(call.id, deque())
            for _ in range(len(own) if number == last[call.id] else min(1, len(own))):
                yield own.popleft()
        yield from (result for result in results if result.tool_call_id not in last)


# System messages, runs of one role, and fillers


def _place_system_messages(
    turns: list[Turn], capabilities: TemplateCapabilities, has_tools: bool
) -> list[Turn]:
    """Put system messages where the template accepts them."""
    first = next((index for index, turn in enumerate(turns) if turn.role != "system"), len(turns))
    system, rest = turns[:first], turns[first:]
    if not (capabilities.system and capabilities.system_later):
        system += [turn for turn in rest if turn.role == "system"]
        rest = [turn for turn in rest if turn.role != "system"]
    if not capabilities.system:
        return _prepend_to_user(_join(turn.text for turn in system), rest)
    if len(system) > 1 and not (capabilities.system_twice and first == len(system)):
        system = [replace(system[0], text=_join(turn.text for turn in system))]
    if has_tools and capabilities.tools_need_system and not system:
        system = [Turn(role="system", text="")]
    return system + rest


def _prepend_to_user(text: str, turns: list[Turn]) -> list[Turn]:
    """Put a text in front of the first user message."""
    if not text:
        return turns
    for index, turn in enumerate(turns):
        if turn.role == "user":
            joined = replace(turn, text=_join([text, turn.text]))
            return [*turns[:index], joined, *turns[index + 1 :]]
    return [Turn(role="user", text=text), *turns]


def _merge_runs(turns: list[Turn], capabilities: TemplateCapabilities) -> Iterator[Turn]:
    """Merge each run of a role that may not follow itself into one turn."""
    may_not_repeat = {
        "user": not capabilities.user_twice,
        "assistant": not capabilities.assistant_twice,
        "system": not capabilities.system_twice,
    }
    run: list[Turn] = []
    run_has_calls = False
    for turn in turns:
        has_calls = run_has_calls or bool(turn.tool_calls)
        mergeable = capabilities.content_with_calls or not has_calls
        if run and run[0].role == turn.role and may_not_repeat.get(turn.role) and mergeable:
            run.append(turn)
            run_has_calls = has_calls
            continue
        if run:
            yield _merge(run)
        run, run_has_calls = [turn], bool(turn.tool_calls)
    if run:
        yield _merge(run)


def _merge(run: list[Turn]) -> Turn:
    first = run[0]
    if len(run) == 1:
        return first
    return replace(
        first,
        text=_join(turn.text for turn in run),
        name=first.name if all(turn.name == first.name for turn in run) else None,
        reasoning=_join(turn.reasoning for turn in run) or None,
        tool_calls=tuple(call for turn in run for call in turn.tool_calls),
        replay=None,  # the model did not write the merged turn
    )


def _insert_fillers(
    turns: list[Turn], capabilities: TemplateCapabilities, has_tools: bool
) -> Iterator[Turn]:
    """Insert empty messages where the template requires one."""
    needs_user = not capabilities.without_user or (has_tools and capabilities.tools_need_user)
    if needs_user:
        needs_user = all(turn.role != "user" for turn in turns)
    previous = speaker = "system"  # `speaker` skips tool results and calls
    for turn in turns:
        starts = previous == "system" and turn.role not in ("system", "user")
        assistant_starts = turn.role == "assistant" and not capabilities.assistant_first
        if starts and (needs_user or assistant_starts):
            yield Turn(role="user", text="")
            needs_user = False
        follows_result = previous == "tool" and turn.role == speaker == "user"
        if follows_result and not capabilities.user_after_result:
            yield Turn(role="assistant", text=capabilities.filler)
        yield turn
        previous = turn.role
        speaker = speaker if previous == "tool" or turn.tool_calls else previous
    if needs_user:
        yield Turn(role="user", text="")


def _join(texts: Iterable[str | None]) -> str:
    return join_texts((text for text in texts if text), EMPTY_LINE)


# Messages as dicts


def to_template_message(turn: Turn, capabilities: TemplateCapabilities) -> TemplateMessage:
    message: TemplateMessage = {"role": turn.role}
    content = _make_content(turn, capabilities)
    if content is not msgspec.UNSET:
        message["content"] = content
    if turn.name is not None:
        message["name"] = turn.name
    if turn.reasoning is not None:
        message |= dict.fromkeys(capabilities.reasoning_fields, turn.reasoning)
    if turn.tool_calls:
        message["tool_calls"] = [_make_call(call, capabilities) for call in turn.tool_calls]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = _make_call_id(turn.tool_call_id, capabilities)
    return message


def _make_content(turn: Turn, capabilities: TemplateCapabilities) -> Json:
    """Return text, or a list of parts, or UNSET for no content at all."""
    with_reasoning = bool(turn.reasoning) and capabilities.reasoning_parts
    text = {"type": "text", "text": turn.text}
    if with_reasoning:
        return [{"type": "thinking", "thinking": turn.reasoning}, text]
    if turn.tool_calls and not turn.text and capabilities.call_content != "empty":
        return None if capabilities.call_content == "null" else msgspec.UNSET
    return [text] if turn.role in capabilities.part_roles else turn.text


def _make_call(call: ToolCall, capabilities: TemplateCapabilities) -> Json:
    arguments: Json = call.arguments
    if capabilities.arguments == "dict":
        arguments = parse_arguments(call.arguments)
    if isinstance(arguments, str) and not capabilities.raw_arguments:
        arguments = {"arguments": arguments}
    return {
        "id": _make_call_id(call.id, capabilities),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def parse_arguments(arguments: str) -> dict[str, Json] | str:
    """Return the arguments as a dict, or as they are if they are not a JSON object."""
    if not arguments.strip():
        return {}
    if len(arguments) > MAX_PARSED:
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _make_call_id(call_id: str, capabilities: TemplateCapabilities) -> str:
    """Turn an id into nine letters and digits if the template requires that."""
    long_enough = capabilities.tiny_ids or len(call_id) >= 9
    if (long_enough and not capabilities.short_ids) or _SHORT_ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode()[:9].lower()
