"""A name, then keys and values in turn, each in a tag."""

from dragoman.output.spec import Objects, Pair, Tagged, Tools

TOOLS = Tools(
    name="glm45",
    models="GLM 4.5 and 4.6",
    example="<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    section=Pair(open=("<tool_call>",), close=("</tool_call>",)),
    bodies=(
        Tagged(
            ends=("\n",),
            name=r"(?P<name>[^\s<>{}]+)",
            key=Pair(open=("<arg_key>",), close=("</arg_key>",)),
            value=Pair(open=("<arg_value>",), close=("</arg_value>",)),
            trim="none",
            inner=True,
            json=True,
        ),
        Objects(),
    ),
    aliases=("glm", "glm4_moe", "glm45_moe"),
)
