"""A name, then keys and values in turn, each in a tag."""

from dragoman.output.spec import Objects, Pair, Tagged, Tools

TOOLS = Tools(
    name="glm47",
    models="GLM 4.7, Ling 3",
    example="<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
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
    aliases=("glm47_moe", "ling3"),
)
