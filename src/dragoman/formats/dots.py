"""Like `minimax_m2`, with its own wrapper, which may also contain JSON."""

from dragoman.output.spec import JsonObjects, MarkerPair, TaggedArguments, ToolFormat

TOOLS = ToolFormat(
    name="dots",
    models="dots",
    example=(
        '<dots_function_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
        "</dots_function_call>"
    ),
    section=MarkerPair(open=("<dots_function_call>",), close=("</dots_function_call>",)),
    call=MarkerPair(open=("<invoke name=",), close=("</invoke>",)),
    bodies=(
        TaggedArguments(
            spellings=('"{name}"',),
            key=MarkerPair(open=("<parameter name=",), close=(">",)),
            key_spelling='"{key}"',
            value=MarkerPair(close=("</parameter>",)),
        ),
        JsonObjects(),
    ),
    aliases=("dots3",),
)
