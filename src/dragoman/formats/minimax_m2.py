"""An element for each call, containing one for each argument."""

from dragoman.output.spec import MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="minimax_m2",
    models="MiniMax M2, M2.1 and M2.5",
    example=(
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    section=MarkerPair(open=("<minimax:tool_call>",), close=("</minimax:tool_call>",)),
    call=MarkerPair(open=("<invoke name=",), close=("</invoke>",)),
    ignored_after_call=("[e~[",),
    bodies=(
        TaggedArguments(
            spellings=('"{name}"',),
            key=MarkerPair(open=("<parameter name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</parameter>",)),
            trim="none",
        ),
    ),
    aliases=("minimax-m2",),
)
