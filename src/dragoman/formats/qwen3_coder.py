"""The name and every argument in a tag of its own; values are plain text."""

from dragoman.output.spec import Objects, Pair, Tagged, Tools

TOOLS = Tools(
    name="qwen3_coder",
    models="Qwen3-Coder, Qwen 3.5, Nemotron 3, MiMo, Step 3.5",
    example=(
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    ),
    section=Pair(open=("<tool_call>",), close=("</tool_call>",)),
    call=Pair(open=("<function=",), close=("</function>",)),
    bodies=(
        Tagged(
            key=Pair(open=("<parameter=",), close=(">",)),
            value=Pair(close=("</parameter>",)),
            inner=True,
        ),
        Objects(),
    ),
    bare=True,
    aliases=("qwen3_xml", "qwen_xml", "qwen_coder", "step3p5", "mimo", "nemotron3"),
)
