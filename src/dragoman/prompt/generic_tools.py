"""Tools as text, for templates that cannot write them.

The system message lists the functions and explains how to call one. Calls and results of earlier
turns are written in the form that the model is asked to use. Most open models know this form
(`hermes_json` among the output formats), and answers are parsed as that. Tags that are tokens of
the model become those tokens; the same tags in a client's text never do.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

    <tool_response>
    Sunny, 21 °C
    </tool_response>
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dragoman.prompt.special_tokens import join_texts, make_trusted_text
from dragoman.prompt.template.capabilities import TemplateTool
from dragoman.prompt.turn import Turn
from dragoman.types import ToolCall

FORMAT = "hermes_json"  # the output format of the answers
SYSTEM_ROLES = ("system", "developer")
TOOL_PROMPT = """# Tools

You can call functions to help with what the user asks. Each line in <tools></tools> is one:
<tools>
%s
</tools>

To call a function, write a JSON object with its name and arguments in <tool_call></tool_call>:
<tool_call>
{"name": "<function-name>", "arguments": <arguments-as-a-JSON-object>}
</tool_call>
Write one such block for each call. The results come back in <tool_response></tool_response>.
If no function is of use, just answer."""
CALL = '<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"
RESULT = "<tool_response>\n", "\n</tool_response>"


def add_tool_prompt(turns: Sequence[Turn], tools: Iterable[TemplateTool]) -> list[Turn]:
    """Describe the tools in the first system message; add one if there is none."""
    before, _, after = TOOL_PROMPT.partition("%s")
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = join_texts([make_trusted_text(before), lines, make_trusted_text(after)])
    if turns and turns[0].role in SYSTEM_ROLES:
        system = turns[0].text
        joined = join_texts([system, text], "\n\n") if system else text
        return [replace(turns[0], text=joined), *turns[1:]]
    return [Turn(role="system", text=text), *turns]


def write_calls(turn: Turn) -> Turn:
    """Write the calls of an assistant's turn as text."""
    texts = [turn.text, *map(_write_call, turn.tool_calls)]
    return replace(turn, text=join_texts([text for text in texts if text], "\n"), tool_calls=())


def _write_call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    start, between, end = map(make_trusted_text, CALL)
    return join_texts([start, name, between, _write_arguments(call), end])


def _write_arguments(call: ToolCall) -> str:
    """Write arguments as the client sent them; anything but a JSON object becomes a string."""
    text = call.arguments.strip() or "{}"
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    return text if is_object else json.dumps(text, ensure_ascii=False)


def write_results(results: Iterable[Turn]) -> Turn:
    """Write consecutive results as one user turn."""
    start, end = map(make_trusted_text, RESULT)
    texts = [join_texts([start, result.text, end]) for result in results]
    return Turn(role="user", text=join_texts(texts, "\n"))
