"""A JSON object in a message of its own, without a closing marker."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="gigachat3",
    models="GigaChat 3 and 3.1",
    example='<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"a": 1}}',
    section=MarkerPair(
        open=(
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "function call<|role_sep|>\n",
            "<|function_call|>",
        ),
        close=("<|message_sep|>",),
    ),
    bodies=(JsonObjects(),),
    ignored_after_call=("</s>",),
)
