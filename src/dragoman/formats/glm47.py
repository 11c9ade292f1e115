"""A name, then keys and values in turn, each in a tag."""

from dragoman.output.spec import JsonObjects, MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="glm47",
    models="GLM 4.7 to 5.3, GLM 5.3 Flash, Ling 3, Spark 2.5",
    example="<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    section=MarkerPair(open=("<tool_call>",), close=("</tool_call>",)),
    bodies=(
        TaggedArguments(
            name_ends=("\n",),
            name_pattern=r"(?P<name>[^\s<>{}]+)",
            key=MarkerPair(open=("<arg_key>",), close=("</arg_key>",)),
            value=MarkerPair(open=("<arg_value>",), close=("</arg_value>",)),
            trim="none",
        ),
        JsonObjects(),
    ),
    aliases=("glm47_moe", "ling3", "ling"),
)
