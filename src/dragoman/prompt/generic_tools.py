"""The generic form of tools, for templates that have no place for them.

The system message lists the functions and says how to call one; calls and results of earlier turns
are written the way the model is asked to write them. It is the form that most open models know
(`hermes_json` among the output formats), so what comes back is read as that. Where its tags are
tokens of the model they become those, but none in a text of the client's does.

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
from typing import Any

from msgspec.structs import replace

from dragoman.prompt.special_tokens import join_texts, trust_text
from dragoman.prompt.turn import Turn
from dragoman.types import ToolCall

FORMAT = "hermes_json"  # what answers are read as
HEADS = ("system", "developer")
OFFER = """# Tools

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


def add_tool_prompt(turns: Sequence[Turn], tools: Iterable[dict[str, Any]]) -> list[Turn]:
    """The conversation with the tools in its first system message; one is made if need be."""
    before, _, after = OFFER.partition("%s")
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = join_texts([trust_text(before), lines, trust_text(after)])
    if turns and turns[0].role in HEADS:
        said = turns[0].text
        both = join_texts([said, text], "\n\n") if said else text
        return [replace(turns[0], text=both), *turns[1:]]
    return [Turn(role="system", text=text), *turns]


def write_calls(turn: Turn) -> Turn:
    """A turn of the assistant's with its calls as text."""
    texts = [turn.text, *map(_call, turn.tool_calls)]
    return replace(turn, text=join_texts([text for text in texts if text], "\n"), tool_calls=())


def _call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    begin, between, end = map(trust_text, CALL)
    return join_texts([begin, name, between, _arguments(call), end])


def _arguments(call: ToolCall) -> str:
    """As the client sent them; what is no JSON object is put as a string."""
    text = call.arguments.strip() or "{}"
    try:
        whole = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        whole = False
    return text if whole else json.dumps(text, ensure_ascii=False)


def write_results(results: Iterable[Turn]) -> Turn:
    """Results in a row as one turn of the user's."""
    begin, end = map(trust_text, RESULT)
    texts = [join_texts([begin, result.text, end]) for result in results]
    return Turn(role="user", text=join_texts(texts, "\n"))
