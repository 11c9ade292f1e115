"""Like `qwen3_coder`, with its own wrapper."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="seed_oss",
    models="Seed-OSS",
    example=(
        "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>"
    ),
    section=MarkerPair(open=("<seed:tool_call>",), close=("</seed:tool_call>",)),
    call=MarkerPair(open=("<function=",), close=("</function>",)),
    bodies=(
        TaggedArguments(
            key=MarkerPair(open=("<parameter=",), close=(">",)),
            value=MarkerPair(close=("</parameter>",)),
            trim="none",
        ),
    ),
    section_optional=True,
)
