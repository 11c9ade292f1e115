"""Blocks, in any order, each with a marker for its kind."""

from dragoman.output.spec import JsonObjects, MarkerPair, MessageHeader, ReasoningFormat, ToolFormat

BLOCKS = ("<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>")
PLAIN = ("<|content_text|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>")
HEADER = MessageHeader(
    open=("<|message_model|>",),
    end=(*BLOCKS, *PLAIN),
    close=("<|end_message|>",),
    answer_starts=("",),
    spellings=(
        ("reasoning", "<|message_model|><|content_thinking|>"),
        ("text", "<|message_model|><|content_text|>"),
        ("call", "<|message_model|>{name}<|content_invoke_tool_json|>"),
        ("call", "<|message_model|><|content_invoke_tool_json|>"),
    ),
)
ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")

TOOLS = ToolFormat(
    name="inkling",
    models="Inkling",
    example=(
        "<|message_model|>f<|content_invoke_tool_json|>"
        '{"name": "f", "args": {"a": 1}}<|end_message|>'
    ),
    section=MarkerPair(open=("<|content_invoke_tool_json|>",), close=("<|end_message|>",)),
    bodies=(JsonObjects(),),
    header=HEADER,
    dropped=(*PLAIN, *ENDS),
)
REASONING = ReasoningFormat(
    name="inkling",
    models="Inkling",
    example="<|content_thinking|>reasoning<|end_message|><|content_text|>answer<|end_message|>",
    open=("<|content_thinking|>",),
    special_token_markers=True,
    close=("<|end_message|>", "<|content_text|>"),
    header=HEADER,
    dropped=(*PLAIN, *ENDS),
    answer_separator="<|message_model|><|content_text|>",
)
