"""ERNIE 4.5: reasoning that the prompt opens, the answer between tags, calls like `hermes_json`."""

from dragoman.output.spec import JsonObjects, MarkerPair, ReasoningFormat, ToolFormat

TOOLS = ToolFormat(
    name="ernie45",
    models="ERNIE 4.5 Thinking",
    example='<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n',
    section=MarkerPair(open=("<tool_call>",), close=("</tool_call>",)),
    bodies=(JsonObjects(),),
    dropped=("<response>\n", "\n</response>\n", "\n</response>", "<response>", "</response>"),
    aliases=("ernie",),
)
REASONING = ReasoningFormat(
    name="ernie45",
    models="ERNIE 4.5 Thinking",
    example="reasoning\n</think>\n\n<response>\nanswer\n</response>\n",
    open=("<think>",),
    close=("\n</think>", "</think>"),
    answer_wrapper=MarkerPair(
        open=("<response>\n", "<response>"),
        close=("\n</response>\n", "\n</response>", "</response>"),
    ),
    trim="space",
    starts_inside=True,
    answer_separator="\n\n<response>\n",
)
