"""A JSON list between markers, on lines of its own."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="openpangu_v2",
    models="openPangu 2.0",
    example='<|tool_call_start|>\n[{"name": "f", "arguments": {"a": 1}}]\n<|tool_call_end|>',
    section=MarkerPair(open=("<|tool_call_start|>",), close=("<|tool_call_end|>",)),
    bodies=(JsonObjects(),),
    ignored_after_call=("<|message_end|>",),
    default_reasoning="think",
    evidence="parsers",
    sources="vMLX and the vLLM plugin of omni-npu, which quote the instructions of the template",
)
