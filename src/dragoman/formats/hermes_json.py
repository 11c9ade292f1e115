"""A JSON object between tags: Qwen and Hermes, and the default for models without a format."""

from dragoman.output.spec import JsonObjects, MarkerPair, ToolFormat

TOOLS = ToolFormat(
    name="hermes_json",
    models="Qwen 2.5 and 3, QwQ, Hermes 2 and 3, Granite 4, SmolLM3, Reka, Bielik, Trinity",
    example='<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    section=MarkerPair(open=("<tool_call>",), close=("</tool_call>",)),
    bodies=(JsonObjects(),),
    aliases=("hermes", "granite4", "qwen", "qwen25", "qwen2.5", "trinity", "qwen3", "qwen3_json"),
)
