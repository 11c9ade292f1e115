"""The name and every argument in a tag of its own; values are plain text."""

from dragoman.output.spec import JsonObjects, MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="qwen3_coder",
    models="Qwen3-Coder, Qwen 3.5 to 3.8, Nemotron 3, MiMo, Step 3.5, IQuest Coder (V2: assumed)",
    example=(
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    ),
    section=MarkerPair(open=("<tool_call>",), close=("</tool_call>",)),
    call=MarkerPair(open=("<function=",), close=("</function>",)),
    bodies=(
        TaggedArguments(
            key=MarkerPair(open=("<parameter=",), close=(">",)),
            value=MarkerPair(close=("</parameter>",)),
        ),
        JsonObjects(),
    ),
    section_optional=True,
    aliases=(
        *("qwen3_xml", "qwen_xml", "qwen_coder", "qwen3_tagged", "qwen3_tagged_direct"),
        *("step3p5", "mimo", "nemotron3", "nemotron", "nanbeige", "iquest_coder"),
    ),
)
