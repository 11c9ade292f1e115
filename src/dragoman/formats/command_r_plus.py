"""A list of actions in a code fence after the word `Action`."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="command_r_plus",
    models="Command R+",
    example='Action:\n```json\n[{"tool_name": "f", "parameters": {"a": 1}}]\n```',
    section=MarkerPair(open=("Action:\n```json\n", "Action: ```json\n"), close=("```",)),
    bodies=(JsonObjects(),),
    template_hints=("directly-answer",),
)
