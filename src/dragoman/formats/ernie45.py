"""ERNIE 4.5: thoughts that the prompt opened, an answer between tags, calls as `hermes_json`."""

from dragoman.output.spec import Objects, Pair, Reasoning, Tools

TOOLS = Tools(
    name="ernie45",
    models="ERNIE 4.5 Thinking",
    example='<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n',
    section=Pair(open=("<tool_call>",), close=("</tool_call>",)),
    bodies=(Objects(),),
    drop=("<response>\n", "\n</response>\n", "\n</response>", "<response>", "</response>"),
    aliases=("ernie",),
)
REASONING = Reasoning(
    name="ernie45",
    models="ERNIE 4.5 Thinking",
    example="thoughts\n</think>\n\n<response>\nanswer\n</response>\n",
    open=("<think>",),
    close=("\n</think>", "</think>"),
    wrap=Pair(
        open=("<response>\n", "<response>"),
        close=("\n</response>\n", "\n</response>", "</response>"),
    ),
    trim="space",
    inside=True,
    answer="\n\n<response>\n",
)
