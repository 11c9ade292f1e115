"""A name, then keys and values in turn, each in a tag."""

from dragoman.output.spec import JsonObjects, MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="glm45",
    models="GLM 4.5 and 4.6, HyperCLOVA X SEED Think 32B",
    example="<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
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
    aliases=("glm", "glm4", "glm4_moe", "glm45_moe", "spark25", "hyperclovax_seed_think"),
)
