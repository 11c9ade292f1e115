"""An element for every call, and in it one for every argument."""

from dragoman.output.spec import Pair, Tagged, Tools

TOOLS = Tools(
    name="minimax_m2",
    models="MiniMax M2, M2.1 and M2.5",
    example=(
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    section=Pair(open=("<minimax:tool_call>",), close=("</minimax:tool_call>",)),
    call=Pair(open=("<invoke name=",), close=("</invoke>",)),
    bodies=(
        Tagged(
            written=('"{name}"',),
            key=Pair(open=("<parameter name=",), close=(">",)),
            key_written='"{key}"',
            value=Pair(close=("</parameter>",)),
            trim="none",
            inner=True,
        ),
    ),
    aliases=("minimax-m2",),
)
